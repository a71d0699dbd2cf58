//! What this machine must have.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use kernlink_kernel_tests::programs::Program;

use super::{cgroups, layout::Layout};
use crate::provision;

/// The programs of Debian, without those of the images.
const PROGRAMS: &[Program] = &[
    Program::new("containerd", "containerd"),
    Program::new("containerd-shim-runc-v2", "containerd"),
    Program::new("ctr", "containerd"),
    Program::new("runc", "runc"),
    // The plug-ins are not in `PATH`.
    Program::new("/usr/lib/cni/bridge", "containernetworking-plugins"),
    Program::new("etcd", "etcd-server"),
    Program::new("openssl", "openssl"),
    Program::new("ip", "iproute2"),
    Program::new("unshare", "util-linux"),
    Program::new("nsenter", "util-linux"),
    Program::new("setpriv", "util-linux"),
    Program::new("mount", "mount"),
    Program::new("hostname", "hostname"),
    Program::new("iptables", "iptables"),
    // kube-proxy starts it in nftables mode.
    Program::new("nft", "nftables"),
    Program::new("conntrack", "conntrack"),
    Program::new("gcc", "gcc"),
    Program::new("ldd", "libc-bin"),
    Program::new("tar", "tar"),
    Program::new("dpkg-deb", "dpkg"),
];

/// Those that the image with the tools of the tests has.
pub(super) const IMAGE_PROGRAMS: &[Program] = &[
    Program::new("bash", "bash"),
    Program::new("conntrack", "conntrack"),
    Program::new("curl", "curl"),
    Program::new("dash", "dash"),
    Program::new("dig", "bind9-dnsutils"),
    Program::new("getent", "libc-bin"),
    Program::new("ip", "iproute2"),
    Program::new("iperf", "iperf"),
    Program::new("ipcs", "util-linux"),
    Program::new("nc.openbsd", "netcat-openbsd"),
    Program::new("ss", "iproute2"),
    Program::new("wget", "wget"),
];

/// Installs what is missing, and checks what cannot be installed.
pub(super) fn provide() -> Result<()> {
    ensure!(
        provision::is_root(),
        "upstream-e2e needs root, because it creates network namespaces and containers"
    );
    cgroups::check()?;
    provision::install(&[PROGRAMS, IMAGE_PROGRAMS])
}

/// The program busybox with its libraries. It is not installed, because busybox-static, which the VM needs, excludes it; the static one
/// resolves names only with libraries of its own version.
pub(super) fn busybox(layout: &Layout) -> Result<PathBuf> {
    let folder = layout.packages().join("busybox");
    let file = folder.join("bin/busybox");
    // A merged /usr has another path.
    let merged = folder.join("usr/bin/busybox");
    for file in [&file, &merged] {
        if file.is_file() {
            return Ok(file.clone());
        }
    }
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    provision::unpack(&["busybox"], &folder)?;
    let found = [file, merged].into_iter().find(|file| file.is_file());
    found.context("the package busybox has no program busybox")
}
