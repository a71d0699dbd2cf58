//! The images that the tests and the cluster use, under the names that they have in Kubernetes. They are made here, of programs that were
//! built or installed, so that no registry is needed.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    layout::Layout,
    needs::{self, IMAGE_PROGRAMS},
};
use crate::{
    kubernetes::Module,
    provision,
    workspace::{output, succeed},
};

/// The image that a pod's namespaces belong to.
pub(super) const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
/// The image of the DNS server.
pub(super) const COREDNS: &str = "registry.k8s.io/coredns/coredns:v1.14.6";

/// An archive: one file system, and the images that have it.
#[derive(Clone, Copy, Debug)]
struct Archive {
    name: &'static str,
    fill: fn(&Source<'_>, &Path) -> Result<()>,
    images: &'static [Image],
}

#[derive(Clone, Copy, Debug)]
struct Image {
    name: &'static str,
    entry: &'static [&'static str],
    arguments: &'static [&'static str],
}

const ARCHIVES: [Archive; 5] = [
    Archive {
        name: "pause",
        fill: fill_pause,
        images: &[image(PAUSE, &["/pause"], &[])],
    },
    Archive {
        name: "busybox",
        fill: fill_busybox,
        images: &[image(
            "registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
            &[],
            &["sh"],
        )],
    },
    // Of the other images, tests use no program that this one lacks.
    Archive {
        name: "agnhost",
        fill: fill_agnhost,
        images: &[
            image(
                "registry.k8s.io/e2e-test-images/agnhost:2.63.0",
                &["/agnhost"],
                &["pause"],
            ),
            image(
                "registry.k8s.io/e2e-test-images/nginx:1.15-4",
                &["/agnhost"],
                &["test-webserver"],
            ),
            image(
                "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0",
                &[],
                &["bash"],
            ),
            image(
                "registry.k8s.io/build-image/distroless-iptables:v0.9.6",
                &[],
                &["bash"],
            ),
        ],
    },
    Archive {
        name: "regression-issue-74839",
        fill: fill_regression,
        images: &[image(
            "registry.k8s.io/e2e-test-images/regression-issue-74839:1.4",
            &["/regression-issue-74839"],
            &[],
        )],
    },
    Archive {
        name: "coredns",
        fill: fill_coredns,
        images: &[image(COREDNS, &["/coredns"], &[])],
    },
];

const fn image(
    name: &'static str,
    entry: &'static [&'static str],
    arguments: &'static [&'static str],
) -> Image {
    Image {
        name,
        entry,
        arguments,
    }
}

/// What file systems are made of.
#[derive(Debug)]
struct Source<'a> {
    layout: &'a Layout,
    /// The sources of Kubernetes.
    kubernetes: PathBuf,
    busybox: PathBuf,
}

/// The paths of all archives.
pub(super) fn archives(layout: &Layout) -> Vec<PathBuf> {
    ARCHIVES
        .iter()
        .map(|archive| path(layout, archive.name))
        .collect()
}

fn path(layout: &Layout, name: &str) -> PathBuf {
    layout.images().join(format!("{name}.tar"))
}

/// Makes the archives that are missing.
pub(super) fn make(layout: &Layout) -> Result<()> {
    let missing: Vec<_> = ARCHIVES
        .iter()
        .filter(|archive| !path(layout, archive.name).is_file())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let source = Source {
        layout,
        kubernetes: Module::new(&layout.module("sources"), &[])?.sources,
        busybox: needs::busybox(layout)?,
    };
    for archive in missing {
        eprintln!("xtask: making the image {}", archive.name);
        let root = layout.images().join(archive.name);
        let _may_not_exist = fs::remove_dir_all(&root);
        create(&root)?;
        (archive.fill)(&source, &root).with_context(|| format!("the image {}", archive.name))?;
        write(&root, archive.images, &path(layout, archive.name))?;
        fs::remove_dir_all(&root).with_context(|| format!("removing {}", root.display()))?;
    }
    Ok(())
}

fn fill_pause(source: &Source<'_>, root: &Path) -> Result<()> {
    succeed(
        Command::new("gcc")
            .args(["-Os", "-static", "-DVERSION=3.10.2", "-o"])
            .arg(root.join("pause"))
            .arg(source.kubernetes.join("build/pause/linux/pause.c")),
    )
}

fn fill_busybox(source: &Source<'_>, root: &Path) -> Result<()> {
    fill_base(source, root)?;
    add_shell(root)
}

fn fill_agnhost(source: &Source<'_>, root: &Path) -> Result<()> {
    fill_base(source, root)?;
    for program in IMAGE_PROGRAMS {
        // Without the variant that Debian's alternatives add.
        let name = program.name.trim_end_matches(".openbsd");
        add_program(root, program.name, name)?;
    }
    add_shell(root)?;
    replace_link("/usr/bin/bash", &root.join("bin/bash"))?;
    // Tests count requests, and try again themselves.
    fs::write(root.join("etc/wgetrc"), "tries = 1\n").context("writing wgetrc")?;
    add_built(source, root, "agnhost")?;
    // The tests of DNS start it in this image.
    add_built(source, root, "coredns")?;
    replace_link("agnhost", &root.join("agnhost-2"))?;
    create(&root.join("uploads"))?;
    for name in ["localhost.crt", "localhost.key"] {
        let file = source.kubernetes.join("test/images/agnhost/porter").join(name);
        copy(&file, &root.join(name))?;
    }
    Ok(())
}

fn fill_regression(source: &Source<'_>, root: &Path) -> Result<()> {
    add_built(source, root, "regression-issue-74839")
}

fn fill_coredns(source: &Source<'_>, root: &Path) -> Result<()> {
    add_built(source, root, "coredns")
}

/// The folders and users of an image, and the programs of busybox.
fn fill_base(source: &Source<'_>, root: &Path) -> Result<()> {
    for folder in [
        "bin", "dev", "etc", "lib", "proc", "root", "run", "sys", "tmp", "usr/bin", "usr/sbin", "var/run",
    ] {
        create(&root.join(folder))?;
    }
    let temporary = fs::Permissions::from_mode(0o1777);
    fs::set_permissions(root.join("tmp"), temporary).context("the permissions of /tmp")?;
    for (file, text) in [
        (
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nother:x:65534:65534:other:/:/bin/false\n",
        ),
        ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
        ("etc/nsswitch.conf", "hosts: files dns\n"),
    ] {
        fs::write(root.join(file), text).with_context(|| format!("writing {file}"))?;
    }
    let inside = root.join("bin/busybox");
    copy(&source.busybox, &inside)?;
    add_libraries(root, &source.busybox)?;
    for name in output(Command::new(&source.busybox).arg("--list"))?
        .lines()
        .filter(|&name| name != "busybox")
    {
        replace_link("/bin/busybox", &root.join("bin").join(name))?;
    }
    // glibc loads these to resolve names.
    let libc = libraries(&source.busybox)?
        .into_iter()
        .find(|library| library.ends_with("libc.so.6"))
        .context("busybox is linked statically")?;
    for name in ["libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2"] {
        let library = libc.with_file_name(name);
        if library.is_file() {
            copy(&library, &inside_of(root, &library))?;
        }
    }
    Ok(())
}

/// The shell of an image. Debian's busybox prefers its own programs to those in `PATH`, and its `nc` has fewer options.
fn add_shell(root: &Path) -> Result<()> {
    add_program(root, "dash", "dash")?;
    replace_link("/usr/bin/dash", &root.join("bin/sh"))
}

/// Adds an installed program with its libraries, instead of the one of busybox.
fn add_program(root: &Path, program: &str, name: &str) -> Result<()> {
    let path = installed(program)?;
    let path = fs::canonicalize(&path).with_context(|| format!("finding {}", path.display()))?;
    for folder in ["bin", "sbin", "usr/bin"] {
        let _may_not_exist = fs::remove_file(root.join(folder).join(name));
    }
    copy(&path, &root.join("usr/bin").join(name))?;
    add_libraries(root, &path)
}

fn installed(program: &str) -> Result<PathBuf> {
    provision::find(program).with_context(|| format!("{program} is missing"))
}

/// Adds a program that was built, which is linked statically.
fn add_built(source: &Source<'_>, root: &Path, name: &str) -> Result<()> {
    copy(&source.layout.program(name), &root.join(name))
}

fn add_libraries(root: &Path, program: &Path) -> Result<()> {
    for library in libraries(program)? {
        copy(&library, &inside_of(root, &library))?;
    }
    Ok(())
}

/// The shared libraries of a program, with the loader.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let text = output(Command::new("ldd").arg(program))?;
    let paths = text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(paths.map(PathBuf::from).collect())
}

/// The place in an image of a file with this absolute path.
fn inside_of(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))
}

fn copy(source: &Path, target: &Path) -> Result<()> {
    if let Some(folder) = target.parent() {
        create(folder)?;
    }
    fs::copy(source, target)
        .with_context(|| format!("copying {} to {}", source.display(), target.display()))?;
    Ok(())
}

/// A link, instead of what has its name.
fn replace_link(target: &str, link: &Path) -> Result<()> {
    let _may_not_exist = fs::remove_file(link);
    symlink(target, link).with_context(|| format!("creating {}", link.display()))
}

/// Writes an archive in the format of `docker save`, which containerd imports.
fn write(root: &Path, images: &[Image], archive: &Path) -> Result<()> {
    let folder = archive.with_extension("folder");
    let _may_not_exist = fs::remove_dir_all(&folder);
    create(&folder)?;
    tar(root, &folder.join("layer.tar"))?;
    let layer = fs::read(folder.join("layer.tar")).context("reading layer.tar")?;
    let layer = digest(&layer);
    let mut manifest = Vec::new();
    for image in images {
        let config = config(image, &layer).to_string();
        let name = format!("{}.json", digest(config.as_bytes()));
        fs::write(folder.join(&name), config).with_context(|| format!("writing {name}"))?;
        manifest.push(json!({"Config": name, "RepoTags": [image.name], "Layers": ["layer.tar"]}));
    }
    let manifest = Value::from(manifest).to_string();
    fs::write(folder.join("manifest.json"), manifest).context("writing manifest.json")?;
    let temporary = archive.with_extension("new");
    tar(&folder, &temporary)?;
    fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    fs::rename(&temporary, archive).with_context(|| format!("renaming {}", temporary.display()))
}

/// An archive of what is in a folder, whose files belong to root.
fn tar(folder: &Path, file: &Path) -> Result<()> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        names.insert(entry?.file_name());
    }
    succeed(
        Command::new(installed("tar")?)
            .args(["--create", "--sort=name", "--mtime=@0", "--numeric-owner"])
            .args(["--owner=0", "--group=0", "--file"])
            .arg(file)
            .arg("--directory")
            .arg(folder)
            .arg("--")
            .args(names),
    )
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The configuration of an image.
fn config(image: &Image, layer: &str) -> Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "architecture": architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        // Images with the same content would be one image.
        "author": image.name,
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Entrypoint": image.entry,
            "Cmd": image.arguments,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
        "history": [{"created": "1970-01-01T00:00:00Z"}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream_e2e::scratch::Scratch;

    #[test]
    fn an_archive_names_its_images_and_their_layer() {
        let scratch = Scratch::new("image");
        let root = scratch.path().join("root");
        create(&root).unwrap();
        fs::write(root.join("file"), "text").unwrap();
        let archive = scratch.path().join("a.tar");
        let images = [
            image("one:1", &["/file"], &["x"]),
            image("two:2", &["/file"], &["x"]),
        ];
        write(&root, &images, &archive).unwrap();
        let unpacked = scratch.path().join("unpacked");
        create(&unpacked).unwrap();
        let tar = |file: &Path| {
            succeed(
                Command::new(installed("tar").unwrap())
                    .arg("-xf")
                    .arg(file)
                    .arg("-C")
                    .arg(&unpacked),
            )
            .unwrap();
        };
        tar(&archive);
        let read = |name: &str| fs::read_to_string(unpacked.join(name)).unwrap();
        let manifest: Value = serde_json::from_str(&read("manifest.json")).unwrap();
        assert_eq!(manifest[0]["RepoTags"], json!(["one:1"]));
        assert_eq!(manifest[1]["RepoTags"], json!(["two:2"]));
        assert_ne!(manifest[0]["Config"], manifest[1]["Config"]);
        let layer = fs::read(unpacked.join("layer.tar")).unwrap();
        let config: Value = serde_json::from_str(&read(manifest[0]["Config"].as_str().unwrap())).unwrap();
        assert_eq!(
            config["rootfs"]["diff_ids"],
            json!([format!("sha256:{}", digest(&layer))])
        );
        tar(&unpacked.join("layer.tar"));
        assert_eq!(read("file"), "text");
        assert!(!archive.with_extension("folder").exists());
    }

    #[test]
    fn a_digest_is_written_in_hexadecimal() {
        assert_eq!(
            digest(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
