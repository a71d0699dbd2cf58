//! What the threads of an agent tell its main thread.

/// What happens to an agent.
#[derive(Debug)]
pub(crate) enum Message {
    /// The inbox has something of the folder or of the API server.
    Delivered,
    /// The thread that reads the folder ended because of a defect.
    FolderEnded,
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
