//! Programs of Kubernetes, built from its Go module.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{provision, retry::retry, step, workspace::output};

/// The version that is built.
pub(crate) const VERSION: &str = "1.36.3";
/// The module.
const MODULE: &str = "k8s.io/kubernetes";

/// A program to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The name of the file.
    pub(crate) name: &'static str,
    /// The package, relative to the module.
    pub(crate) package: &'static str,
    pub(crate) kind: Kind,
}

/// How a program is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Linked to the libraries of this system.
    Dynamic,
    /// For images, which have no libraries.
    Static,
    /// The tests of the package.
    Test,
}

/// A module that depends on Kubernetes, in a folder of its own, in which its programs are built.
#[derive(Debug)]
pub(crate) struct Module {
    go: PathBuf,
    folder: PathBuf,
    /// Where the sources of Kubernetes are.
    pub(crate) sources: PathBuf,
}

/// The program `go`, in `PATH` or where Go's own archive is installed.
pub(crate) fn go() -> Option<PathBuf> {
    let installed = Path::new("/usr/local/go/bin/go");
    provision::find("go").or_else(|| installed.is_file().then(|| installed.to_owned()))
}

impl Module {
    /// Downloads Kubernetes, and writes a module that can build these programs.
    pub(crate) fn new(folder: &Path, programs: &[Program]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Download {
            #[serde(rename = "GoMod")]
            go_mod: PathBuf,
            #[serde(rename = "Dir")]
            sources: PathBuf,
        }

        let go = go().with_context(|| {
            format!("Kubernetes {VERSION} is built with Go 1.26 or later, which is missing: install it")
        })?;
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let module = format!("{MODULE}@v{VERSION}");
        let download = |arguments: &[&str]| {
            let mut command = Command::new(&go);
            command.current_dir(folder).env("GO111MODULE", "on");
            output(command.args(["mod", "download"]).args(arguments).arg(&module))
        };
        // With `-json`, errors are not on standard error.
        retry("downloading Kubernetes", || download(&[]))?;
        let json = download(&["-json"])?;
        let download: Download = serde_json::from_str(&json).with_context(|| format!("reading {json:?}"))?;
        let text = fs::read_to_string(&download.go_mod)
            .with_context(|| format!("reading {}", download.go_mod.display()))?;
        fs::write(folder.join("go.mod"), go_mod(&text)).context("writing go.mod")?;
        // Go records in go.mod only what a file of the module imports.
        fs::write(folder.join("tools.go"), imports(programs)).context("writing tools.go")?;
        let sums = folder.join("go.sum");
        let present = fs::read_to_string(&sums).unwrap_or_default();
        let of_kubernetes = fs::read_to_string(download.sources.join("go.sum")).context("reading go.sum")?;
        fs::write(&sums, joined(&present, &of_kubernetes)).context("writing go.sum")?;
        let module = Self {
            go,
            folder: folder.to_owned(),
            sources: download.sources,
        };
        if !programs.is_empty() {
            retry("downloading Go modules", || module.load(programs))?;
        }
        Ok(module)
    }

    /// Reads the imports of all programs, for which Go downloads the modules.
    fn load(&self, programs: &[Program]) -> Result<()> {
        let mut command = self.command();
        command.args(["list", "-deps", "-test"]);
        command.args(programs.iter().map(path));
        output(&mut command).map(|_| ())
    }

    /// A command of Go in the folder of the module.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.go);
        command.current_dir(&self.folder).env("GOFLAGS", "-mod=mod");
        command
    }

    /// Builds a program. The file has its name only when it is complete. Go keeps what it compiled, so that an interrupted build goes on
    /// where it was.
    pub(crate) fn build(&self, program: Program, file: &Path) -> Result<()> {
        let temporary = file.with_extension("new");
        let version = "k8s.io/component-base/version";
        let flags = format!(
            "-s -w -X {version}.gitVersion=v{VERSION} -X {version}.gitMajor=1 -X {version}.gitMinor={}",
            VERSION.split('.').nth(1).unwrap_or_default()
        );
        let mut command = self.command();
        match program.kind {
            Kind::Dynamic => command.arg("build"),
            Kind::Static => command.env("CGO_ENABLED", "0").arg("build"),
            Kind::Test => command.args(["test", "-c"]),
        };
        step::succeed_in_group(
            command
                .args(["-ldflags", &flags, "-o"])
                .arg(&temporary)
                .arg(path(&program)),
        )?;
        complete(&temporary, file)
    }

    /// Builds another package of which this module knows the version, or one of its own, such as `./name`, linked statically.
    pub(crate) fn build_package(&self, package: &str, file: &Path) -> Result<()> {
        let temporary = file.with_extension("new");
        step::succeed_in_group(
            self.command()
                .env("CGO_ENABLED", "0")
                .args(["build", "-ldflags", "-s -w", "-o"])
                .arg(&temporary)
                .arg(package),
        )?;
        complete(&temporary, file)
    }
}

/// Gives a file its name.
fn complete(temporary: &Path, file: &Path) -> Result<()> {
    fs::rename(temporary, file).with_context(|| format!("renaming {}", temporary.display()))
}

/// The checksums of two files. Kubernetes has those of what it depends on; Go adds the others.
fn joined(one: &str, other: &str) -> String {
    let lines: BTreeSet<&str> = one.lines().chain(other.lines()).collect();
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}

/// The path of the package of a program.
fn path(program: &Program) -> String {
    format!("{MODULE}/{}", program.package)
}

/// A file that imports the packages of these programs.
fn imports(programs: &[Program]) -> String {
    let imports: String = programs
        .iter()
        .map(|program| format!("import _ \"{}\"\n", path(program)))
        .collect();
    format!("//go:build tools\n\npackage build\n\n{imports}")
}

/// A module that depends on Kubernetes. Its parts in `staging/`, which are modules too, have the same version with another first number.
fn go_mod(module: &str) -> String {
    let staging: BTreeMap<&str, ()> = module
        .lines()
        .filter_map(|line| line.trim().split_once(" => ./staging/"))
        .map(|(name, _)| (name.trim_start_matches("replace "), ()))
        .collect();
    let go = module
        .lines()
        .find(|line| line.starts_with("go "))
        .unwrap_or("go 1.26.0");
    let part = VERSION.replacen('1', "0", 1);
    let replaced: String = staging
        .keys()
        .map(|name| format!("\t{name} => {name} v{part}\n"))
        .collect();
    format!("module build\n\n{go}\n\nrequire {MODULE} v{VERSION}\n\nreplace (\n{replaced})\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_kubernetes_have_the_same_version() {
        let module = "module k8s.io/kubernetes\n\ngo 1.26.0\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/kms => ./staging/src/k8s.io/kms\n)\n";
        assert_eq!(
            go_mod(module),
            "module build\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v1.36.3\n\nreplace (\n\tk8s.io/api => k8s.io/api v0.36.3\n\tk8s.io/kms => k8s.io/kms v0.36.3\n)\n"
        );
    }

    #[test]
    fn checksums_are_joined() {
        assert_eq!(joined("b 1\n", "a 1\nb 1\n"), "a 1\nb 1\n");
    }

    #[test]
    fn the_packages_of_all_programs_are_imported() {
        let program = |package| Program {
            name: "x",
            package,
            kind: Kind::Dynamic,
        };
        assert!(
            imports(&[program("cmd/a"), program("test/b")])
                .ends_with("import _ \"k8s.io/kubernetes/cmd/a\"\nimport _ \"k8s.io/kubernetes/test/b\"\n")
        );
    }
}
