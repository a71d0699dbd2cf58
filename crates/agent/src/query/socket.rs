//! The Unix socket of the agent: where it is, and who may connect to it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use kernlink_base::ErrorChain;
use nix::unistd::{Gid, Group, chown};
use socket2::{Domain, SockAddr, Socket, Type};

/// The folder of the sockets of all agents of a host.
pub(crate) const FOLDER: &str = "/run/kernlink";

/// The connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// The inode of the network namespace of this process. `None` without `/proc`.
#[must_use]
pub(crate) fn network_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/net")
        .ok()
        .map(|metadata| metadata.ino())
}

/// The socket of the agent that serves the network namespace of this process: agents of different namespaces have different sockets, and in
/// one namespace there is one agent.
///
/// # Errors
/// Without `/proc` the namespace is not known.
pub(crate) fn default_path() -> Result<PathBuf, String> {
    let namespace = network_namespace()
        .ok_or("the network namespace is not known, because /proc/self/ns/net cannot be read")?;
    Ok(Path::new(FOLDER).join(format!("agent-{namespace}.sock")))
}

/// A socket that listens. Its file is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) listener: UnixListener,
    file: File,
}

/// The file of a socket.
#[derive(Debug)]
struct File {
    path: PathBuf,
    /// Its device and inode.
    identity: Option<(u64, u64)>,
}

impl Drop for File {
    fn drop(&mut self) {
        // Another agent may have replaced it.
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

impl Listening {
    /// Listens on a path. The folder is made if it does not exist. A socket that an agent left is replaced; one on which a process listens is
    /// not. Only root may connect, and the members of the group.
    ///
    /// # Errors
    /// What cannot be done.
    pub(crate) fn open(path: &Path, group: Option<&str>) -> Result<Self, String> {
        let shown = path.display();
        let failed = |what: &str, error: io::Error| format!("{what} {shown}: {}", ErrorChain(&error));
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(|error| failed("cannot make the folder of", error))?;
        }
        let gid = group.map(find_group).transpose()?;
        remove_stale(path)?;
        let address =
            SockAddr::unix(path).map_err(|error| failed("the path is not valid for a socket:", error))?;
        let socket =
            Socket::new(Domain::UNIX, Type::STREAM, None).map_err(|error| failed("cannot open", error))?;
        socket
            .bind(&address)
            .map_err(|error| failed("cannot bind", error))?;
        let file = File {
            path: path.to_owned(),
            identity: identity(path),
        };
        // No process can connect before it listens.
        if let Some(gid) = gid {
            chown(path, None, Some(gid)).map_err(|error| {
                format!(
                    "cannot give {shown} to the group {}: {error}; the agent must be a member of the group (SupplementaryGroups= of a \
                     systemd unit, supplementalGroups of a pod) or have CAP_CHOWN",
                    group.unwrap_or_default()
                )
            })?;
        }
        let mode = if gid.is_some() { 0o660 } else { 0o600 };
        fs::set_permissions(path, Permissions::from_mode(mode))
            .map_err(|error| failed("cannot set the mode of", error))?;
        socket
            .listen(BACKLOG)
            .map_err(|error| failed("cannot listen on", error))?;
        socket
            .set_nonblocking(true)
            .map_err(|error| failed("cannot listen on", error))?;
        Ok(Self {
            listener: UnixListener::from(std::os::fd::OwnedFd::from(socket)),
            file,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.file.path
    }
}

fn find_group(name: &str) -> Result<Gid, String> {
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid),
        Ok(None) => Err(format!("the group {name:?} does not exist")),
        Err(error) => Err(format!("the group {name:?} cannot be looked up: {error}")),
    }
}

/// Removes a socket on which no process listens.
fn remove_stale(path: &Path) -> Result<(), String> {
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("cannot read {shown}: {error}")),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(format!("{shown} is no socket; it is not replaced"));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        // It was removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(format!(
                "cannot connect to {shown}, so it is not replaced: {error}"
            ));
        }
        Ok(_) => return Err(format!("another process listens on {shown}")),
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("cannot remove {shown}, which an agent left: {error}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_socket_that_was_left_is_replaced_and_one_that_is_used_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/agent.sock");
        let first = Listening::open(&path, None).unwrap();
        assert_eq!(
            Listening::open(&path, None).unwrap_err(),
            format!("another process listens on {}", path.display())
        );
        assert!(UnixStream::connect(&path).is_ok(), "the first one still listens");
        // As after SIGKILL: the file stays.
        let Listening { listener, file } = first;
        drop(listener);
        let stale = file.identity;
        std::mem::forget(file);
        // A program that another test starts has the listener too, until it is executed.
        let second = (0..60_000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            Listening::open(&path, None).ok()
        });
        let second = second.unwrap();
        assert_ne!((second.file.identity, None), (stale, stale));
        assert!(UnixStream::connect(&path).is_ok());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn only_root_and_the_group_may_connect() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let root_only = Listening::open(&path, None).unwrap();
        assert_eq!(mode(&path), 0o600);
        drop(root_only);
        let gid = nix::unistd::getgid();
        let _of_group = Listening::open(&path, Some(&gid.to_string())).unwrap();
        assert_eq!(mode(&path), 0o660);
        assert_eq!(fs::metadata(&path).unwrap().gid(), gid.as_raw());
        let unknown = Listening::open(&folder.path().join("b"), Some("no-such-group")).unwrap_err();
        assert_eq!(unknown, "the group \"no-such-group\" does not exist");
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        fs::write(&path, "x").unwrap();
        let error = Listening::open(&path, None).unwrap_err();
        assert!(error.ends_with(" is no socket; it is not replaced"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "x");
        let long = folder.path().join("x".repeat(120));
        let error = Listening::open(&long, None).unwrap_err();
        assert!(
            error.starts_with("the path is not valid for a socket: "),
            "{error}"
        );
    }

    #[test]
    fn a_socket_that_another_agent_made_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let first = Listening::open(&path, None).unwrap();
        // It stays open, so that its inode is not used again.
        let kept = folder.path().join("kept");
        fs::rename(&path, &kept).unwrap();
        let second = Listening::open(&path, None).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
    }
}
