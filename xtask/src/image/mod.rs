//! The root file system of the container image: the agent, which is linked statically, and the iptables tools of this system with their
//! libraries. There is no shell, and no other program.

mod check;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use kernlink_kernel_tests::programs::Program;

use crate::{
    provision,
    workspace::{Workspace, output, succeed},
};

/// What assembling it needs.
const PROGRAMS: &[Program] = &[
    Program::new(NFT, "iptables"),
    Program::new(LEGACY, "iptables"),
    Program::new("ldd", "libc-bin"),
    Program::new("dpkg-query", "dpkg"),
    Program::new("update-ca-certificates", "ca-certificates"),
];

/// The programs that the iptables tools are links to.
const NFT: &str = "xtables-nft-multi";
const LEGACY: &str = "xtables-legacy-multi";

/// Where the agent is in the image.
const AGENT: &str = "usr/local/bin/kernlink-agent";

/// The certificates with which servers are verified if the kubeconfig file names none.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Folders without content: what a container runtime mounts, and what it mounts files into.
const EMPTY: &[&str] = &["dev", "proc", "run", "sys", "tmp"];

/// What `cargo xtask image` is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The folder of the file system. It must be empty, or not exist.
    pub(crate) folder: PathBuf,
    /// Whether the tools without `-legacy` or `-nft` in their names are those for legacy tables.
    pub(crate) is_legacy: bool,
    /// The agent, linked statically. `None`: it is built.
    pub(crate) agent: Option<PathBuf>,
    /// Whether to run containers of the image.
    pub(crate) check: bool,
}

/// Writes the file system.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    provision::install(&[PROGRAMS])?;
    let root = &options.folder;
    fs::create_dir_all(root).with_context(|| format!("creating {}", root.display()))?;
    let is_empty = fs::read_dir(root)
        .with_context(|| format!("reading {}", root.display()))?
        .next()
        .is_none();
    ensure!(is_empty, "{} is not empty", root.display());
    let agent = match &options.agent {
        Some(agent) => agent.clone(),
        None => build(workspace)?,
    };
    ensure!(
        provision::is_static(&agent),
        "{} is not linked statically",
        agent.display()
    );
    for folder in EMPTY {
        create(&root.join(folder))?;
    }
    copy(&agent, &root.join(AGENT))?;
    let tools = [NFT, LEGACY].map(|name| provision::find(name).with_context(|| format!("{name} is missing")));
    let [nft, legacy] = tools;
    let sources = [nft?, legacy?];
    let mut files: BTreeSet<PathBuf> = extensions(&sources)?;
    for source in &sources {
        files.extend(libraries(source)?);
    }
    for extension in files.clone() {
        files.extend(libraries(&extension)?);
    }
    for file in &files {
        copy(file, &inside(root, file))?;
    }
    for source in &sources {
        let name = source.file_name().context("a program has no name")?;
        copy(source, &root.join("usr/sbin").join(name))?;
    }
    for (name, target) in links(options.is_legacy) {
        let path = root.join("usr/sbin").join(&name);
        symlink(target, &path).with_context(|| format!("creating {}", path.display()))?;
    }
    // Names of API servers, which the agent resolves without other libraries.
    let switch = root.join("etc/nsswitch.conf");
    create(&root.join("etc"))?;
    fs::write(&switch, "hosts: files dns\n").with_context(|| format!("writing {}", switch.display()))?;
    copy(Path::new(CERTIFICATES), &inside(root, Path::new(CERTIFICATES)))?;
    copy_licences(root, files.iter().chain(&sources))?;
    println!("{}", root.display());
    if options.check {
        check::run(root, options.is_legacy)?;
    }
    Ok(())
}

/// Builds the agent. With glibc, so that its allocator is that of other builds; for a target of its own, because macros cannot be static.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let variable = format!(
        "CARGO_TARGET_{}_RUSTFLAGS",
        target.to_uppercase().replace('-', "_")
    );
    succeed(
        workspace
            .cargo()
            .args([
                "build",
                "--locked",
                "--release",
                "--package",
                "kernlink-agent",
                "--bins",
                "--target",
            ])
            .arg(&target)
            .env(variable, "-C target-feature=+crt-static -C strip=symbols"),
    )?;
    Ok(workspace.target().join(target).join("release/kernlink-agent"))
}

/// The names of the tools, each a link to a program next to it.
fn links(is_legacy: bool) -> Vec<(String, &'static str)> {
    let default = if is_legacy { LEGACY } else { NFT };
    let mut links = Vec::new();
    for tool in ["iptables", "ip6tables"] {
        for (infix, program) in [("", default), ("-legacy", LEGACY), ("-nft", NFT)] {
            for action in ["", "-restore", "-save"] {
                links.push((format!("{tool}{infix}{action}"), program));
            }
        }
    }
    links
}

/// The matches and targets, which the tools load.
fn extensions(programs: &[PathBuf]) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for library in libraries(programs.first().context("no program")?)? {
        // They are in a folder next to the library that loads them, or in that of the same name below /usr.
        for folder in [
            library.clone(),
            Path::new("/usr").join(library.strip_prefix("/")?),
        ] {
            let Some(folder) = folder.parent().map(|folder| folder.join("xtables")) else {
                continue;
            };
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path = entry?.path();
                let name = path
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                if ["libxt_", "libipt_", "libip6t_"]
                    .iter()
                    .any(|prefix| name.starts_with(prefix))
                {
                    found.insert(
                        Path::new("/usr").join(path.strip_prefix("/usr").or(path.strip_prefix("/"))?),
                    );
                }
            }
        }
    }
    ensure!(!found.is_empty(), "the extensions of iptables are missing");
    Ok(found)
}

/// The shared libraries of a program or library, with the loader.
fn libraries(path: &Path) -> Result<Vec<PathBuf>> {
    let text = output(Command::new("ldd").arg(path))?;
    parse_libraries(&text).with_context(|| format!("the libraries of {}", path.display()))
}

/// Parses the output of ldd.
fn parse_libraries(text: &str) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for line in text.lines() {
        ensure!(!line.contains("not found"), "{}", line.trim());
        paths.extend(
            line.split_whitespace()
                .find(|word| word.starts_with('/'))
                .map(PathBuf::from),
        );
    }
    Ok(paths)
}

/// The place in the image of a file with this absolute path.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))
}

/// Copies the file that a path leads to, with its permissions.
fn copy(source: &Path, target: &Path) -> Result<()> {
    if let Some(folder) = target.parent() {
        create(folder)?;
    }
    fs::copy(source, target)
        .with_context(|| format!("copying {} to {}", source.display(), target.display()))?;
    Ok(())
}

/// Copies the licences of the packages of these files, and of the part of libc that the agent contains.
fn copy_licences<'a>(root: &Path, files: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
    let mut packages = BTreeSet::from(["ca-certificates", "libc6-dev"].map(str::to_owned));
    let patterns = files.map(|file| format!("*/{}", file.file_name().unwrap_or_default().to_string_lossy()));
    let found = output(Command::new("dpkg-query").arg("--search").args(patterns))?;
    packages.extend(owners(&found).map(str::to_owned));
    for package in packages {
        let path = Path::new("/usr/share/doc").join(package).join("copyright");
        copy(&path, &inside(root, &path))?;
    }
    for name in ["GPL-2", "GPL-3", "LGPL-2.1", "MPL-2.0"] {
        let path = Path::new("/usr/share/common-licenses").join(name);
        copy(&path, &inside(root, &path))?;
    }
    Ok(())
}

/// The packages in the output of `dpkg-query --search`: lines `PACKAGE[:ARCHITECTURE], ...: PATH`, and lines about diverted files, which name
/// no owner.
fn owners(found: &str) -> impl Iterator<Item = &str> {
    let is_diversion =
        |line: &&str| line.starts_with("diversion by ") || line.starts_with("local diversion ");
    let lines = found.lines().filter(move |line| !is_diversion(line));
    let lists = lines.filter_map(|line| Some(line.split_once(": ")?.0));
    lists
        .flat_map(|packages| packages.split(", "))
        .filter_map(|package| package.split(':').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_of_the_variant_have_the_names_without_it() {
        let links = links(true);
        assert_eq!(links.len(), 18);
        let target = |name: &str| links.iter().find(|(link, _)| link == name).unwrap().1;
        assert_eq!(target("iptables-restore"), LEGACY);
        assert_eq!(target("ip6tables-nft-save"), NFT);
        assert!(super::links(false).contains(&("ip6tables-save".to_owned(), NFT)));
    }

    #[test]
    fn packages_are_parsed_from_the_output_of_dpkg() {
        let text = "diversion by libc6 from: /lib64/ld-linux-x86-64.so.2\n\
                    diversion by libc6 to: /lib64/ld-linux-x86-64.so.2.usr-is-merged\n\
                    local diversion from: /sbin/x\n\
                    libc6:amd64: /usr/lib64/ld-linux-x86-64.so.2\n\
                    iptables, iptables-legacy: /usr/sbin/xtables-legacy-multi\n";
        let found: Vec<&str> = owners(text).collect();
        assert_eq!(found, ["libc6", "iptables", "iptables-legacy"]);
    }

    #[test]
    fn libraries_are_parsed_from_the_output_of_ldd() {
        let text = "\tlinux-vdso.so.1 (0x00007f4e36cbe000)
\tlibmnl.so.0 => /lib/x86_64-linux-gnu/libmnl.so.0 (0x00007f4e36bef000)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f4e36cc0000)\n";
        let expected = ["/lib/x86_64-linux-gnu/libmnl.so.0", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(parse_libraries(text).unwrap(), expected.map(PathBuf::from));
        assert!(parse_libraries("\tstatically linked\n").unwrap().is_empty());
        let error = parse_libraries("\tlibmnl.so.0 => not found\n").unwrap_err();
        assert_eq!(error.to_string(), "libmnl.so.0 => not found");
    }
}
