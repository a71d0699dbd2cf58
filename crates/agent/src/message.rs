//! What the threads of an agent tell its main thread.

use crate::cluster::Update;
use crate::folder::Reading;

/// What happens to an agent.
#[derive(Debug)]
pub(crate) enum Message {
    /// The folder was read.
    Folder(Reading),
    /// The thread that reads the folder ended because of a defect.
    FolderEnded,
    /// Something happened to the API server, or to its objects.
    Cluster(Update),
    /// A sync ended, successful or not.
    Synced,
    /// The proxier stopped because of a defect.
    RunnerEnded,
    /// Some seconds have passed.
    Tick,
    /// A signal with this name.
    Signal(&'static str),
    /// An address cannot be listened on, and `bindAddressHardFail` is set.
    ServerFailed(String),
}
