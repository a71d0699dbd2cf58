//! The calls of a fake kernel, and the faults of single ones.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::random::Random;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It changes the kernel: one operation that is executed as a whole or not, such as a message of netlink or a run of
    /// `iptables-restore`.
    Change,
    /// It reads the kernel.
    Reading,
    /// It reads many objects in parts, and reports if they changed meanwhile.
    Listing,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The kernel refuses it, and changes nothing.
    Refuse,
    /// It does not reach the kernel, and its outcome is unknown.
    LoseRequest,
    /// It is executed, and its outcome is unknown.
    LoseReply,
    /// It is executed, and the process ends: it makes no other call.
    End,
    /// A [listing](Kind::Listing) lacks objects, because they changed while it was read.
    Tear,
}

/// The calls of all APIs of a fake kernel. Clones are the same.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<Active>>);

#[derive(Default)]
struct Active {
    /// The calls since the last [`Calls::take`].
    taken: Vec<(Kind, String)>,
    /// The kind, the number of calls of this kind before, and the fault.
    armed: Option<(Kind, usize, Fault)>,
    /// How many of a hundred calls fail at random, and the numbers.
    random: Option<(usize, Random)>,
    hits: usize,
    has_ended: bool,
    observer: Option<Observer>,
    /// What the observer found first, and after which call.
    problem: Option<String>,
}

type Observer = Arc<dyn Fn() -> Option<String> + Send + Sync>;

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Calls").field(&self.lock().taken).finish()
    }
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, Active> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call that changes the kernel. `refused` and `unknown` return the errors of a refused call and of one whose outcome is unknown.
    ///
    /// # Errors
    /// That of `execute`, or of a fault.
    pub fn change<T, E>(
        &self,
        command: &dyn fmt::Display,
        execute: impl FnOnce() -> Result<T, E>,
        refused: impl FnOnce() -> E,
        unknown: impl FnOnce() -> E,
    ) -> Result<T, E> {
        let Some(fault) = self.begin(Kind::Change, command) else {
            return Err(unknown());
        };
        match fault {
            Some(Fault::Refuse) => return Err(refused()),
            Some(Fault::LoseRequest) => return Err(unknown()),
            _ => {}
        }
        let outcome = execute();
        self.observe(command);
        match fault {
            Some(Fault::LoseReply | Fault::End) => Err(unknown()),
            _ => outcome,
        }
    }

    /// Makes a call that changes the kernel and whose outcome is always known, such as a system call: one that would be lost is refused.
    ///
    /// # Errors
    /// That of `execute`, or of a fault.
    pub fn change_at_once<T, E>(
        &self,
        command: &dyn fmt::Display,
        execute: impl FnOnce() -> Result<T, E>,
        refused: impl Fn() -> E,
    ) -> Result<T, E> {
        match self.begin(Kind::Change, command) {
            Some(None | Some(Fault::End)) => {
                let outcome = execute();
                self.observe(command);
                outcome
            }
            _ => Err(refused()),
        }
    }

    /// Makes a call that changes the kernel and never fails. A process that ended does not make it.
    pub fn change_surely(&self, command: &dyn fmt::Display, execute: impl FnOnce()) {
        if self.begin(Kind::Change, command).is_some() {
            execute();
            self.observe(command);
        }
    }

    /// Makes a call that reads the kernel. `failed` returns the error of a fault.
    ///
    /// # Errors
    /// That of `read`, or of a fault.
    pub fn read<T, E>(
        &self,
        what: &dyn fmt::Display,
        read: impl FnOnce() -> Result<T, E>,
        failed: impl FnOnce() -> E,
    ) -> Result<T, E> {
        match self.begin(Kind::Reading, what) {
            Some(None) => read(),
            _ => Err(failed()),
        }
    }

    /// Makes a call that reads many objects in parts. `tear` removes objects from a listing and marks it as torn.
    ///
    /// # Errors
    /// That of `read`, or of a fault.
    pub fn list<T, E>(
        &self,
        what: &dyn fmt::Display,
        read: impl FnOnce() -> Result<T, E>,
        failed: impl FnOnce() -> E,
        tear: impl FnOnce(T) -> T,
    ) -> Result<T, E> {
        match self.begin(Kind::Listing, what) {
            Some(None) => read(),
            Some(Some(Fault::Tear)) => read().map(tear),
            _ => Err(failed()),
        }
    }

    /// The fault of a call; `None` after the end of the process.
    fn begin(&self, kind: Kind, command: &dyn fmt::Display) -> Option<Option<Fault>> {
        let mut active = self.lock();
        if active.has_ended {
            return None;
        }
        active.taken.push((kind, command.to_string()));
        let armed = match &mut active.armed {
            Some((of, before, fault)) if *of == kind => match before.checked_sub(1) {
                Some(fewer) => {
                    *before = fewer;
                    None
                }
                None => Some(*fault),
            },
            _ => None,
        };
        let random = active.random.as_mut().and_then(|(percent, random)| {
            let is_hit = random.chance(*percent);
            // Torn listings are the subject of another check.
            let faults = match kind {
                Kind::Change => vec![Fault::Refuse, Fault::LoseRequest, Fault::LoseReply],
                Kind::Reading | Kind::Listing => vec![Fault::Refuse],
            };
            is_hit.then(|| random.choose(faults)).flatten()
        });
        if armed.is_some() {
            active.armed = None;
        }
        let fault = armed.or(random);
        active.hits += usize::from(fault.is_some());
        active.has_ended = fault == Some(Fault::End);
        Some(fault)
    }

    fn observe(&self, command: &dyn fmt::Display) {
        // Without the lock: the observer reads the fake kernel.
        let observer = self.lock().observer.clone();
        let found = observer.and_then(|observer| observer());
        if let Some(found) = found {
            let problem = format!("after `{command}`: {found}");
            self.lock().problem.get_or_insert(problem);
        }
    }

    /// The call of a kind after so many others of this kind has a fault.
    pub(super) fn arm(&self, kind: Kind, before: usize, fault: Fault) {
        let mut active = self.lock();
        active.armed = Some((kind, before, fault));
        active.hits = 0;
    }

    /// So many of a hundred calls have a fault.
    pub(super) fn fail_at_random(&self, percent: usize, random: Random) {
        self.lock().random = Some((percent, random));
    }

    /// Ends all faults, and the end of the process.
    pub(super) fn disarm(&self) {
        let mut active = self.lock();
        (active.armed, active.random, active.has_ended) = (None, None, false);
    }

    /// The number of calls that had a fault, since [`arm`](Self::arm).
    pub(super) fn hits(&self) -> usize {
        self.lock().hits
    }

    /// Whether the process ended.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    /// The calls since the last time.
    pub(super) fn take(&self) -> Vec<(Kind, String)> {
        std::mem::take(&mut self.lock().taken)
    }

    /// Calls `observer` after each change that is executed. It returns what must not be the case.
    pub(super) fn set_observer(&self, observer: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.lock().observer = Some(Arc::new(observer));
    }

    /// Ends the observation.
    pub(super) fn remove_observer(&self) {
        self.lock().observer = None;
    }

    /// What the observer found first.
    pub(super) fn problem(&self) -> Option<String> {
        self.lock().problem.clone()
    }
}

/// The number of calls of a kind.
pub(super) fn count(calls: &[(Kind, String)], kind: Kind) -> usize {
    calls.iter().filter(|(of, _)| *of == kind).count()
}
