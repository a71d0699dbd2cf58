//! A program with a process group of its own.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::time::sleep;

/// The first delay between two looks for processes of a group that have ended; it doubles.
const MIN_DELAY: Duration = Duration::from_millis(10);
const MAX_DELAY: Duration = Duration::from_secs(60);

/// A program that runs, with what it starts. Dropping it kills the group if the program was not awaited.
///
/// If this process is process 1 of its PID namespace, as in a container, it becomes the parent of processes whose parent has ended, and has to
/// await them. Those of the group are awaited by the group, so that no exit status of another child is lost.
#[derive(Debug)]
pub(super) struct Group {
    /// `None` after it was awaited.
    program: Option<Child>,
    /// That of the program is also that of the group.
    id: Option<Pid>,
}

impl Group {
    /// Starts a program.
    pub(super) fn spawn(command: &mut Command) -> io::Result<Self> {
        let program = command.process_group(0).spawn()?;
        let id = program.id().and_then(|id| i32::try_from(id).ok());
        Ok(Self {
            program: Some(program),
            id: id.map(Pid::from_raw),
        })
    }

    /// The pipes that standard output and standard error are connected to.
    pub(super) fn take_output(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        let program = self.program.as_mut();
        program.map_or((None, None), |program| {
            (program.stdout.take(), program.stderr.take())
        })
    }

    /// Waits until the program has ended; what it started may still run. To be called once.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let Some(program) = &mut self.program else {
            return Err(io::Error::other("the program was awaited already"));
        };
        let status = program.wait().await?;
        self.program = None;
        if let Some(id) = self.id.filter(|id| reap(*id)) {
            tokio::spawn(reap_all(id));
        }
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The ID of a group whose first process was awaited may be that of another one.
        if let (Some(program), Some(id)) = (self.program.take(), self.id) {
            // It fails only if the whole group has ended.
            let _ = killpg(id, Signal::SIGKILL);
            // Without a runtime this process ends.
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(end(program, id));
            }
        }
    }
}

/// Awaits a program that was killed, and then what it had started: that has another parent from then on.
async fn end(mut program: Child, group: Pid) {
    // It fails only if another thread has awaited it.
    let _ = program.wait().await;
    reap_all(group).await;
}

/// Reaps all children of this process in a group. There is no deadline: a child may outlive its parent.
async fn reap_all(group: Pid) {
    let mut delay = MIN_DELAY;
    while reap(group) {
        sleep(delay).await;
        delay = delay.saturating_mul(2).min(MAX_DELAY);
    }
}

/// Awaits the children of this process in a group that have ended. Returns whether others have not. The kernel gives the ID of the group to no
/// other process while a process has it.
fn reap(group: Pid) -> bool {
    let any_of_group = Pid::from_raw(-group.as_raw());
    loop {
        match waitpid(any_of_group, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return true,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::future::Future;
    use std::path::Path;
    use std::process::Stdio;

    use nix::sys::prctl::set_child_subreaper;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use tempfile::TempDir;

    use super::*;

    /// Runs a test with a folder that has `fifo`, which blocks a process that opens it. As process 1 of a container, this process becomes the
    /// parent of processes whose parent has ended.
    fn run<F: Future<Output = ()>>(test: impl FnOnce(TempDir) -> F) {
        set_child_subreaper(true).unwrap();
        let folder = tempfile::tempdir().unwrap();
        mkfifo(&folder.path().join("fifo"), Mode::S_IRWXU).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test(folder));
    }

    fn spawn(folder: &TempDir, script: &str) -> Group {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).current_dir(folder.path());
        Group::spawn(command.stdin(Stdio::null())).unwrap()
    }

    /// The process ID that a program writes to a file.
    async fn pid(folder: &TempDir, name: &str) -> String {
        loop {
            match fs::read_to_string(folder.path().join(name)) {
                Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                _ => sleep(Duration::from_millis(1)).await,
            }
        }
    }

    /// Fails if a process does not end, or has ended and is not awaited.
    async fn wait_until_gone(pid: &str) {
        let folder = format!("/proc/{pid}");
        for _ in 0..60_000 {
            if !Path::new(&folder).exists() {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
        panic!("{:?}", fs::read_to_string(format!("{folder}/stat")));
    }

    const INNER: &str = "/bin/sh -c 'echo $$ > inner; read line < fifo' & echo $$ > outer;";

    #[test]
    fn a_program_that_is_killed_is_awaited_with_what_it_started() {
        run(async |folder| {
            let group = spawn(&folder, &format!("{INNER} read line < fifo"));
            let (inner, outer) = (pid(&folder, "inner").await, pid(&folder, "outer").await);
            drop(group);
            wait_until_gone(&outer).await;
            wait_until_gone(&inner).await;
        });
    }

    #[test]
    fn what_a_program_has_left_runs_on_and_is_awaited() {
        run(async |folder| {
            let mut group = spawn(&folder, &format!("{INNER} exit 3"));
            let status = group.wait().await.unwrap();
            assert_eq!(status.code(), Some(3));
            drop(group);
            let inner = pid(&folder, "inner").await;
            wait_until_gone(&pid(&folder, "outer").await).await;
            assert!(Path::new(&format!("/proc/{inner}")).exists());
            // It opens when the other end is open for reading.
            let path = folder.path().join("fifo");
            let written = tokio::task::spawn_blocking(|| fs::write(path, "\n"));
            written.await.unwrap().unwrap();
            wait_until_gone(&inner).await;
        });
    }

    #[test]
    fn other_children_keep_their_exit_status() {
        run(async |folder| {
            // In the group of this process, as those of the standard library.
            let mut other = Command::new("/bin/sh");
            let mut other = other.args(["-c", "exit 4"]).spawn().unwrap();
            let group = spawn(&folder, "echo $$ > outer; read line < fifo");
            let outer = pid(&folder, "outer").await;
            drop(group);
            wait_until_gone(&outer).await;
            assert_eq!(other.wait().await.unwrap().code(), Some(4));
        });
    }
}
