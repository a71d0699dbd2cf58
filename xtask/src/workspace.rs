//! The metadata of the workspace, and how its binaries are built.

use std::{
    ffi::OsString,
    fs,
    io::BufReader,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Artifact, Message, Metadata, MetadataCommand, Package, TargetKind};

/// The package whose test binaries need a kernel and root.
pub(crate) const KERNEL_TESTS: &str = "kernlink-kernel-tests";
/// The package of the benchmarks.
pub(crate) const BENCHES: &str = "kernlink-benches";

/// The metadata of the workspace, and the path of this program.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) metadata: Metadata,
    /// The path of this program, which the VM runs too.
    pub(crate) xtask: PathBuf,
}

/// An executable that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Executable {
    pub(crate) package: String,
    pub(crate) target: String,
    pub(crate) kind: String,
    /// Whether it runs tests, and is not the program itself.
    pub(crate) is_test: bool,
    pub(crate) path: PathBuf,
    /// The folder of its package, in which `cargo test` runs it.
    pub(crate) folder: PathBuf,
}

impl Executable {
    /// A unique name: `kernlink-ipvs` for unit tests, `kernlink-ipvs/golden` for a test file.
    pub(crate) fn name(&self) -> String {
        match self.kind.as_str() {
            "lib" => self.package.clone(),
            _ if self.target == self.package => format!("{} ({})", self.package, self.kind),
            _ => format!("{}/{}", self.package, self.target),
        }
    }
}

impl Workspace {
    pub(crate) fn load() -> Result<Self> {
        // Read at the start, because the path changes if cargo replaces the file while this program runs.
        let xtask = std::env::current_exe().context("finding this program")?;
        let metadata = MetadataCommand::new()
            .no_deps()
            .exec()
            .context("reading the workspace")?;
        Ok(Self { metadata, xtask })
    }

    pub(crate) fn root(&self) -> &Path {
        self.metadata.workspace_root.as_std_path()
    }

    pub(crate) fn target(&self) -> &Path {
        self.metadata.target_directory.as_std_path()
    }

    /// A cargo command in the root of the workspace.
    pub(crate) fn cargo(&self) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(cargo);
        command.current_dir(self.root());
        command
    }

    pub(crate) fn package(&self, name: &str) -> Result<&Package> {
        self.metadata
            .workspace_packages()
            .into_iter()
            .find(|package| package.name == name)
            .with_context(|| format!("the workspace has no package {name}"))
    }

    /// The members that are published to a registry, sorted by name.
    pub(crate) fn published(&self) -> Vec<&Package> {
        let mut packages: Vec<_> = self
            .metadata
            .workspace_packages()
            .into_iter()
            .filter(|package| {
                package
                    .publish
                    .as_ref()
                    .is_none_or(|registries| !registries.is_empty())
            })
            .collect();
        packages.sort_by_key(|package| package.name.clone());
        packages
    }

    /// Runs a cargo command that builds, and returns the executables that it built, sorted by name.
    pub(crate) fn build(&self, arguments: &[impl AsRef<str>]) -> Result<Vec<Executable>> {
        let mut command = self.cargo();
        command
            .args(arguments.iter().map(AsRef::as_ref))
            .arg("--message-format=json-render-diagnostics")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("starting cargo")?;
        let stdout = child.stdout.take().context("cargo's output")?;
        let mut executables = Vec::new();
        for message in Message::parse_stream(BufReader::new(stdout)) {
            if let Message::CompilerArtifact(artifact) = message.context("reading cargo's messages")?
                && let Some(path) = &artifact.executable
            {
                executables.push(self.executable(&artifact, path.as_std_path())?);
            }
        }
        let status = child.wait()?;
        let words: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
        ensure!(status.success(), "cargo {}: {status}", words.join(" "));
        executables.sort_by_key(Executable::name);
        Ok(executables)
    }

    fn executable(&self, artifact: &Artifact, path: &Path) -> Result<Executable> {
        let id = &artifact.package_id;
        let package = self.metadata.packages.iter().find(|package| package.id == *id);
        let package =
            package.with_context(|| format!("cargo built {id}, which is not a member of the workspace"))?;
        let folder = package
            .manifest_path
            .parent()
            .context("a manifest without a folder")?;
        Ok(Executable {
            package: package.name.to_string(),
            target: artifact.target.name.clone(),
            kind: artifact.target.kind.first().map_or("?", kind_name).to_owned(),
            is_test: artifact.profile.test,
            path: path.into(),
            folder: folder.into(),
        })
    }
}

fn kind_name(kind: &TargetKind) -> &'static str {
    match kind {
        TargetKind::Lib => "lib",
        TargetKind::Bin => "bin",
        TargetKind::Test => "test",
        TargetKind::Example => "example",
        TargetKind::Bench => "bench",
        _ => "?",
    }
}

/// The files below a folder with one of these extensions, relative to it and sorted. Hidden and target folders are left out.
pub(crate) fn files(root: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if entry.file_type()?.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if extensions
                .iter()
                .any(|&extension| path.extension().is_some_and(|has| has == extension))
            {
                files.push(path.strip_prefix(root)?.to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Runs a command and shows its output.
///
/// # Errors
///
/// If the command cannot be started, or its exit status is not 0.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("starting {}", display(command)))?;
    ensure!(status.success(), "{}: {status}", display(command));
    Ok(())
}

/// Runs a command and returns its standard output.
///
/// # Errors
///
/// If the command cannot be started, or its exit status is not 0. The error has its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", display(command)))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}: {}: {}",
        display(command),
        output.status,
        errors.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn display(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
