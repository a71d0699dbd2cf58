//! What a machine must have for the tests, and how it gets there on Debian and Ubuntu.
//!
//! Everything is looked for first; only what is missing is installed. What belongs to this workspace alone (virtme-ng,
//! the kernel of the VM) goes below the target folder, so that `cargo clean` removes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use kernlink_kernel_tests::programs::Program;

use crate::{
    retry::persist,
    workspace::{output, succeed},
};

/// What booting the VM takes, besides [`PROGRAMS`](kernlink_kernel_tests::programs::PROGRAMS).
pub(crate) const VM_PROGRAMS: &[Program] = &[
    Program::new("qemu-system-x86_64", "qemu-system-x86"),
    Program::new("modprobe", "kmod"),
    // Without it the guest's ports get no names and its exit status is lost.
    Program::new("udevadm", "udev"),
    Program::new(BUSYBOX, "busybox-static"),
    // virtme-ng asks it whether busybox is linked statically.
    Program::new("file", "file"),
    Program::new("dpkg-deb", "dpkg"),
    Program::new("python3", "python3"),
];

/// Goes into an initial file system, which holds no shared libraries, so it must be linked statically.
const BUSYBOX: &str = "busybox";

fn is_present(program: Program) -> bool {
    find(program.name).is_some_and(|path| program.name != BUSYBOX || is_static(&path))
}

/// The folders in which programs are looked for: a user's path often lacks the system's.
pub(crate) fn search_path() -> String {
    let path = env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")
}

/// Where a program is, by its name.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    env::split_paths(&search_path())
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

fn is_static(path: &Path) -> bool {
    // A dynamic program names its loader near the start of the file.
    fs::read(path).is_ok_and(|bytes| {
        let head = bytes.get(..4096).unwrap_or(&bytes);
        !head.windows(4).any(|window| window == b"/ld-")
    })
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Programs of the list that are not here.
pub(crate) fn missing(programs: &[&[Program]]) -> Vec<Program> {
    let mut missing = Vec::new();
    for &program in programs.iter().copied().flatten() {
        if !missing.contains(&program) && !is_present(program) {
            missing.push(program);
        }
    }
    missing
}

/// Installs the programs that are not here.
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
        "installed {}, but still missing: {}",
        packages.join(" "),
        list(&still)
    );
    Ok(())
}

/// The packages of these programs, each with its programs.
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
    let wanted = packages.join(" ");
    ensure!(
        is_root(),
        "missing, and only root can install it: apt-get install {wanted}"
    );
    ensure!(
        find("apt-get").is_some(),
        "missing, and this is neither Debian nor Ubuntu: what Debian has in {wanted}"
    );
    eprintln!("xtask: installing {wanted}");
    persist(&format!("installing {wanted}"), || {
        apt_update();
        succeed(
            apt_get()
                .args(["install", "-y", "-qq", "--no-install-recommends"])
                .args(packages),
        )
    })
}

/// Of several sources one may be out of order, and the package come from another: what cannot be had later is the error.
fn apt_update() {
    if let Err(error) = succeed(apt_get().args(["update", "-qq"])) {
        eprintln!("xtask: going on with the package lists that are here: {error:#}");
    }
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        // A new machine may be about to install updates of its own.
        .args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=5"]);
    command
}

/// virtme-ng in a Python environment of its own. Returns the folder with its programs.
pub(crate) fn virtme_ng(folder: &Path) -> Result<PathBuf> {
    let environment = folder.join("virtme-ng");
    let programs = environment.join("bin");
    let wanted = programs.join("vng");
    if wanted.is_file() && output(Command::new(&wanted).arg("--version")).is_ok() {
        return Ok(programs);
    }
    eprintln!("xtask: installing virtme-ng below {}", folder.display());
    let python = python_with_venv()?;
    succeed(
        Command::new(python)
            .args(["-m", "venv", "--clear"])
            .arg(&environment),
    )?;
    persist("installing virtme-ng", || {
        succeed(
            Command::new(programs.join("pip"))
                .args(["install", "--quiet", "--disable-pip-version-check"])
                .arg(format!("virtme-ng=={VIRTME_NG}")),
        )
    })?;
    Ok(programs)
}

/// Pinned, because its options and the guest's init are part of how tests run.
const VIRTME_NG: &str = "1.42";

fn python_with_venv() -> Result<&'static str> {
    let works = |python: &str| output(Command::new(python).args(["-c", "import ensurepip, venv"])).is_ok();
    if works("python3") {
        return Ok("python3");
    }
    apt_install(&["python3-venv"])?;
    ensure!(
        works("/usr/bin/python3"),
        "installed python3-venv, but /usr/bin/python3 has no module venv"
    );
    Ok("/usr/bin/python3")
}

/// The kernel image of the distribution with its modules beside it, unpacked below `folder` and not installed.
pub(crate) fn kernel(folder: &Path) -> Result<PathBuf> {
    let unpacked = folder.join("kernel");
    // The mark comes last, so that an interrupted unpacking is done again.
    let mark = unpacked.join("complete");
    if !mark.is_file() {
        if unpacked.exists() {
            fs::remove_dir_all(&unpacked).with_context(|| format!("removing {}", unpacked.display()))?;
        }
        fs::create_dir_all(&unpacked).with_context(|| format!("creating {}", unpacked.display()))?;
        download_kernel(&unpacked)?;
        fs::write(&mark, "")?;
    }
    image(&unpacked.join("boot"))
}

fn download_kernel(folder: &Path) -> Result<()> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the kernel of the VM is fetched for x86_64 only; name one with --kernel FILE (its modules in ../lib/modules)"
    );
    ensure!(
        find("apt-get").is_some(),
        "no kernel for the VM: this is neither Debian nor Ubuntu; name one with --kernel FILE (its modules in ../lib/modules)"
    );
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let meta = meta_package(&release);
    let fetch = || {
        let packages = kernel_packages(meta)?;
        eprintln!("xtask: fetching {} for the VM", packages.join(" "));
        // The user that apt drops to may not write below the target folder.
        let download = ["download", "-qq", "-o", "APT::Sandbox::User=root"];
        succeed(apt_get().args(download).args(&packages).current_dir(folder))
    };
    if let Err(error) = fetch() {
        // The package lists may be missing, or older than the archive.
        if !is_root() {
            return Err(error);
        }
        persist("fetching a kernel for the VM", || {
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
    // A merged /usr holds the modules below usr/lib; virtme-ng looks beside boot.
    if !folder.join("lib/modules").exists() && folder.join("usr/lib/modules").exists() {
        std::os::unix::fs::symlink("usr/lib", folder.join("lib"))?;
    }
    Ok(())
}

fn kernel_packages(meta: &str) -> Result<Vec<String>> {
    let depends = output(Command::new("apt-cache").args(["depends", meta]))?;
    let image = image_package(&depends).with_context(|| {
        format!("apt-cache knows no kernel image behind {meta}; is `apt-get update` due?")
    })?;
    let modules = modules_packages(&image)
        .into_iter()
        .filter(|package| output(Command::new("apt-cache").args(["show", package])).is_ok());
    Ok([image.clone()].into_iter().chain(modules).collect())
}

/// The package that always depends on the newest kernel, by the text of `/etc/os-release`.
fn meta_package(os_release: &str) -> &'static str {
    let ubuntu = os_release.lines().any(|line| {
        let words = line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE="));
        words.is_some_and(|words| words.trim_matches('"').split(' ').any(|word| word == "ubuntu"))
    });
    if ubuntu {
        "linux-image-generic"
    } else {
        "linux-image-amd64"
    }
}

/// The image package in what `apt-cache depends` prints for the package of [`meta_package`].
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

/// Where Ubuntu keeps the modules; Debian has them in the image package.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_kernel_is_found_behind_its_meta_package() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n";
        let image = image_package(text).unwrap();
        assert_eq!(image, "linux-image-6.1.0-56-amd64");
        assert_eq!(modules_packages(&image), [""; 0]);
    }

    #[test]
    fn ubuntu_kernel_comes_with_its_modules() {
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
    fn a_meta_package_is_no_image() {
        assert_eq!(
            image_package("linux-image-amd64\n  Depends: linux-image-amd64-signed\n"),
            None
        );
        assert_eq!(image_package(""), None);
    }

    #[test]
    fn distributions_are_told_apart() {
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
    fn a_program_that_is_nowhere_is_missing_once() {
        let absent = Program::new("kernlink-no-such-program", "none");
        let present = Program::new("sh", "dash");
        assert_eq!(missing(&[&[absent], &[absent, present]]), [absent]);
    }

    #[test]
    fn missing_programs_are_listed_by_their_packages() {
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
