//! Installs what the tests need, on Debian and Ubuntu.
//!
//! Only missing programs are installed. Tools of this workspace alone (virtme-ng, the kernel of the VM) are installed below the
//! target folder, so `cargo clean` removes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use kernlink_kernel_tests::programs::Program;

use crate::{
    retry::retry,
    workspace::{output, succeed},
};

/// The programs that building the workspace needs, in addition to Rust and a C compiler with its linker.
pub(crate) const BUILD_PROGRAMS: &[Program] = &[Program::new("make", "make")];

/// The programs that booting the VM needs, in addition to [`PROGRAMS`](kernlink_kernel_tests::programs::PROGRAMS).
pub(crate) const VM_PROGRAMS: &[Program] = &[
    Program::new("qemu-system-x86_64", "qemu-system-x86"),
    Program::new("modprobe", "kmod"),
    // Without it the ports of the guest have no names, and its exit status is lost.
    Program::new("udevadm", "udev"),
    Program::new(BUSYBOX, "busybox-static"),
    // virtme-ng uses it to check that busybox is linked statically.
    Program::new("file", "file"),
    Program::new("dpkg-deb", "dpkg"),
    Program::new("python3", "python3"),
];

/// Must be linked statically, because it is copied to an initial file system without shared libraries.
const BUSYBOX: &str = "busybox";

fn is_present(program: Program) -> bool {
    find(program.name).is_some_and(|path| program.name != BUSYBOX || is_static(&path))
}

/// `PATH` and the folders of the system, which the `PATH` of a user often lacks.
pub(crate) fn search_path() -> String {
    let path = env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")
}

/// The path of a program.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    env::split_paths(&search_path())
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// Whether a program is linked statically.
pub(crate) fn is_static(path: &Path) -> bool {
    // A dynamic program contains the path of its loader near the start of the file.
    fs::read(path).is_ok_and(|bytes| {
        let head = bytes.get(..4096).unwrap_or(&bytes);
        !head.windows(4).any(|window| window == b"/ld-")
    })
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The programs of these lists that are not installed.
pub(crate) fn missing(programs: &[&[Program]]) -> Vec<Program> {
    let mut missing = Vec::new();
    for &program in programs.iter().copied().flatten() {
        if !missing.contains(&program) && !is_present(program) {
            missing.push(program);
        }
    }
    missing
}

/// Installs the programs of these lists that are missing.
pub(crate) fn install(programs: &[&[Program]]) -> Result<()> {
    let absent = missing(programs);
    if absent.is_empty() {
        return Ok(());
    }
    let packages: BTreeSet<_> = absent.iter().map(|program| program.package).collect();
    let packages: Vec<_> = packages.into_iter().collect();
    apt_install(&packages)?;
    let still = missing(programs);
    ensure!(
        still.is_empty(),
        "installed {}, but these programs are still missing: {}",
        packages.join(" "),
        list(&still)
    );
    Ok(())
}

/// The packages of these programs, each with its programs in parentheses.
pub(crate) fn list(programs: &[Program]) -> String {
    let mut packages: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for program in programs {
        packages.entry(program.package).or_default().push(program.name);
    }
    packages
        .into_iter()
        .map(|(package, names)| format!("package {package} ({})", names.join(" ")))
        .collect::<Vec<_>>()
        .join(", ")
}

fn apt_install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    ensure!(
        is_root(),
        "missing packages, which only root can install: apt-get install {names}"
    );
    ensure!(
        find("apt-get").is_some(),
        "missing programs of the Debian packages {names}, and apt-get is not available: install them manually"
    );
    eprintln!("xtask: installing {names}");
    retry(&format!("installing {names}"), || {
        apt_update();
        succeed(
            apt_get()
                .args(["install", "-y", "-qq", "--no-install-recommends"])
                .args(packages),
        )
    })
}

/// Updates the package lists. Failure is not an error: if one of several package sources fails, another one may have the package.
fn apt_update() {
    if let Err(error) = succeed(apt_get().args(["update", "-qq"])) {
        eprintln!("xtask: updating the package lists failed, using the existing ones: {error:#}");
    }
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        // A new machine may be installing updates at the same time.
        .args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=5"]);
    command
}

/// Installs virtme-ng in a Python environment below `folder`, if it is missing. Returns the folder of its programs.
pub(crate) fn virtme_ng(folder: &Path) -> Result<PathBuf> {
    let environment = folder.join("virtme-ng");
    let programs = environment.join("bin");
    let vng = programs.join("vng");
    if vng.is_file() && output(Command::new(&vng).arg("--version")).is_ok() {
        return Ok(programs);
    }
    eprintln!("xtask: installing virtme-ng in {}", folder.display());
    let python = python_with_venv()?;
    succeed(
        Command::new(python)
            .args(["-m", "venv", "--clear"])
            .arg(&environment),
    )?;
    retry("installing virtme-ng", || {
        succeed(
            Command::new(programs.join("pip"))
                .args(["install", "--quiet", "--disable-pip-version-check"])
                .arg(format!("virtme-ng=={VIRTME_NG}")),
        )
    })?;
    Ok(programs)
}

/// Pinned, because its options and its init program in the guest affect how tests run.
const VIRTME_NG: &str = "1.42";

fn python_with_venv() -> Result<&'static str> {
    let works = |python: &str| output(Command::new(python).args(["-c", "import ensurepip, venv"])).is_ok();
    if works("python3") {
        return Ok("python3");
    }
    apt_install(&["python3-venv"])?;
    ensure!(
        works("/usr/bin/python3"),
        "installed python3-venv, but the module venv of /usr/bin/python3 is missing"
    );
    Ok("/usr/bin/python3")
}

/// The kernel image of the distribution, unpacked below `folder` with its modules. It is not installed.
pub(crate) fn kernel(folder: &Path) -> Result<PathBuf> {
    let unpacked = folder.join("kernel");
    // Written last, so that after an interruption the packages are unpacked again.
    let complete = unpacked.join("complete");
    if !complete.is_file() {
        if unpacked.exists() {
            fs::remove_dir_all(&unpacked).with_context(|| format!("removing {}", unpacked.display()))?;
        }
        fs::create_dir_all(&unpacked).with_context(|| format!("creating {}", unpacked.display()))?;
        download_kernel(&unpacked)?;
        fs::write(&complete, "")?;
    }
    image(&unpacked.join("boot"))
}

fn download_kernel(folder: &Path) -> Result<()> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the kernel of the VM can be downloaded for x86_64 only: use --kernel FILE, with the modules in ../lib/modules"
    );
    ensure!(
        find("apt-get").is_some(),
        "the kernel of the VM cannot be downloaded without apt-get: use --kernel FILE, with the modules in ../lib/modules"
    );
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let meta = meta_package(&release);
    download(folder, || kernel_packages(meta))?;
    // With a merged /usr the modules are in usr/lib. virtme-ng searches for lib next to boot.
    if !folder.join("lib/modules").exists() && folder.join("usr/lib/modules").exists() {
        std::os::unix::fs::symlink("usr/lib", folder.join("lib"))?;
    }
    Ok(())
}

/// Downloads Debian packages and unpacks them in a folder. They are not installed.
pub(crate) fn unpack(packages: &[&str], folder: &Path) -> Result<()> {
    let names = packages.join(" ");
    ensure!(
        find("apt-get").is_some(),
        "{names} cannot be downloaded without apt-get"
    );
    download(folder, || {
        Ok(packages.iter().map(|&package| package.to_owned()).collect())
    })
}

/// Downloads these packages, and those that they need and the system lacks, to a folder for `apt-get install --no-download`. Nothing is installed.
pub(crate) fn download_missing(packages: &[&str], archives: &Path) -> Result<()> {
    let names = packages.join(" ");
    ensure!(
        find("apt-get").is_some(),
        "{names} cannot be downloaded without apt-get"
    );
    retry(&format!("downloading {names}"), || {
        apt_update();
        succeed(
            apt_get()
                .args([
                    "install",
                    "-y",
                    "-qq",
                    "--no-install-recommends",
                    "--download-only",
                ])
                // The unprivileged user of apt cannot write below the target folder.
                .args(["-o", "APT::Sandbox::User=root", "-o"])
                .arg(format!("Dir::Cache::archives={}", archives.display()))
                .args(packages),
        )
    })
}

fn download(folder: &Path, packages: impl Fn() -> Result<Vec<String>>) -> Result<()> {
    let fetch = || {
        let packages = packages()?;
        eprintln!("xtask: downloading {}", packages.join(" "));
        // The unprivileged user of apt cannot write below the target folder.
        let download = ["download", "-qq", "-o", "APT::Sandbox::User=root"];
        succeed(apt_get().args(download).args(&packages).current_dir(folder))
    };
    if let Err(error) = fetch() {
        // The package lists may be missing, or out of date.
        if !is_root() {
            return Err(error);
        }
        retry("downloading packages", || {
            apt_update();
            fetch()
        })?;
    }
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            succeed(Command::new("dpkg-deb").arg("-x").arg(&file).arg(folder))?;
            fs::remove_file(&file)?;
        }
    }
    Ok(())
}

fn kernel_packages(meta: &str) -> Result<Vec<String>> {
    let depends = output(Command::new("apt-cache").args(["depends", meta]))?;
    let image = image_package(&depends).with_context(|| {
        format!("no kernel image in the dependencies of {meta}; `apt-get update` may be required")
    })?;
    let modules = modules_packages(&image)
        .into_iter()
        .filter(|package| output(Command::new("apt-cache").args(["show", package])).is_ok());
    Ok([image.clone()].into_iter().chain(modules).collect())
}

/// The package that depends on the newest kernel, by the text of `/etc/os-release`.
fn meta_package(os_release: &str) -> &'static str {
    let ubuntu = os_release.lines().any(|line| {
        let ids = line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE="));
        ids.is_some_and(|ids| ids.trim_matches('"').split(' ').any(|id| id == "ubuntu"))
    });
    if ubuntu {
        "linux-image-generic"
    } else {
        "linux-image-amd64"
    }
}

/// The image package in the output of `apt-cache depends` for [`meta_package`].
fn image_package(depends: &str) -> Option<String> {
    depends
        .lines()
        .filter_map(|line| line.trim().trim_start_matches('|').strip_prefix("Depends: "))
        .find(|name| {
            let version = name.strip_prefix("linux-image-");
            version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
        })
        .map(str::to_owned)
}

/// The packages of modules. Ubuntu has them; on Debian the modules are in the image package.
fn modules_packages(image: &str) -> Vec<String> {
    match image.strip_prefix("linux-image-") {
        Some(version) if version.ends_with("-generic") => {
            vec![
                format!("linux-modules-{version}"),
                format!("linux-modules-extra-{version}"),
            ]
        }
        _ => Vec::new(),
    }
}

fn image(boot: &Path) -> Result<PathBuf> {
    for entry in fs::read_dir(boot).with_context(|| format!("reading {}", boot.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("vmlinuz-") {
            return Ok(entry.path());
        }
    }
    bail!("no vmlinuz-* in {}", boot.display())
}

/// The part of the environment of this process that programs in the VM get.
pub(crate) fn inherited() -> BTreeMap<String, String> {
    let mut environment: BTreeMap<_, _> = std::env::vars()
        .filter(|(name, _)| {
            name.starts_with("KERNLINK_")
                || name.starts_with("PROPTEST_")
                || [
                    "HOME",
                    "LANG",
                    "LC_ALL",
                    "TERM",
                    "RUST_BACKTRACE",
                    "RUST_LOG",
                    "CI",
                ]
                .contains(&name.as_str())
        })
        .collect();
    environment.insert("PATH".to_owned(), search_path());
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_of_debian_is_a_dependency_of_its_meta_package() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n";
        let image = image_package(text).unwrap();
        assert_eq!(image, "linux-image-6.1.0-56-amd64");
        assert_eq!(modules_packages(&image), [""; 0]);
    }

    #[test]
    fn the_kernel_of_ubuntu_has_packages_of_modules() {
        let text = "linux-image-generic\n  Depends: linux-firmware\n |Depends: linux-image-6.8.0-51-generic\n  Depends: intel-microcode\n";
        let image = image_package(text).unwrap();
        assert_eq!(image, "linux-image-6.8.0-51-generic");
        assert_eq!(
            modules_packages(&image),
            [
                "linux-modules-6.8.0-51-generic",
                "linux-modules-extra-6.8.0-51-generic"
            ]
        );
    }

    #[test]
    fn a_meta_package_is_not_an_image() {
        assert_eq!(
            image_package("linux-image-amd64\n  Depends: linux-image-amd64-signed\n"),
            None
        );
        assert_eq!(image_package(""), None);
    }

    #[test]
    fn the_distribution_determines_the_meta_package() {
        assert_eq!(
            meta_package("PRETTY_NAME=\"Debian\"\nID=debian\n"),
            "linux-image-amd64"
        );
        assert_eq!(meta_package("ID=ubuntu\nID_LIKE=debian\n"), "linux-image-generic");
        assert_eq!(
            meta_package("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"),
            "linux-image-generic"
        );
        assert_eq!(meta_package(""), "linux-image-amd64");
    }

    #[test]
    fn a_missing_program_is_listed_once() {
        let absent = Program::new("kernlink-no-such-program", "none");
        let present = Program::new("sh", "dash");
        assert_eq!(missing(&[&[absent], &[absent, present]]), [absent]);
    }

    #[test]
    fn missing_programs_are_listed_by_package() {
        let programs = [("ip", "iproute2"), ("nft", "nftables"), ("tc", "iproute2")];
        let programs = programs.map(|(name, package)| Program::new(name, package));
        assert_eq!(
            list(&programs),
            "package iproute2 (ip tc), package nftables (nft)"
        );
    }

    #[test]
    fn a_dynamic_program_is_not_static() {
        assert!(!is_static(Path::new("/bin/sh")));
    }
}
