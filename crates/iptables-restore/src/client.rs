//! The trait, and the client that runs the iptables tools.

mod ensure_jump;
mod list_chain;
mod refusal;
mod refusal_search;
mod restore;
mod save;
#[cfg(test)]
mod tests;
mod tool_message;
mod tools;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use kernlink_base::Family;

pub use self::refusal_search::RefusalSearch;
use self::restore::Mode;
use crate::apply::apply;
use crate::chain::ChainName;
use crate::chain_reader::{ChainReader, pass_chains};
use crate::desired::Jump;
use crate::error::Error;
use crate::joined::Joined;
use crate::operation::Operation;
use crate::restore::Restore;
use crate::ruleset::{Chain, Ruleset};
use crate::runner::{LocalRunner, Runner};
use crate::save::Save;
use crate::style::Style;
use crate::table::Table;
use crate::variant::{Variant, Version};

/// The tables of one network namespace: the kernel's ([`Client`]), or an in-memory `Fake` (feature `fake`).
///
/// An implementation needs two methods: [`execute`](Self::execute) and [`save`](Self::save). A wrapper of a [`Client`] should
/// forward [`test`](Self::test), [`save_all`](Self::save_all), [`save_chains`](Self::save_chains) and
/// [`restore_joined`](Self::restore_joined) too: the provided methods do not start `iptables-restore`, start one `iptables-save` after the
/// other, have whole tables in memory, and copy all edits. [`Error::custom`] is for errors that
/// come neither from the tools nor from the kernel.
///
/// ```
/// use kernlink_iptables_restore::{Error, Iptables, Operation, RestoreMode, Ruleset, Save};
///
/// /// Refuses inputs that would delete the rules of other programs.
/// struct NoReplace<I>(I);
///
/// impl<I: Iptables> Iptables for NoReplace<I> {
///     fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
///         let execute = |operation: &Operation| match operation {
///             Operation::Restore(restore) if restore.mode == RestoreMode::Replace => {
///                 Err(Error::custom("replace all rules", "other programs have rules on this host"))
///             }
///             operation => self.0.execute_one(operation.clone()),
///         };
///         operations.iter().map(execute).collect()
///     }
///
///     fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
///         self.0.save(request)
///     }
/// }
/// ```
pub trait Iptables: Send {
    /// Executes operations and returns one outcome for each, both in order. After a failed operation the following ones are still
    /// executed.
    ///
    /// [`Client`] starts one process for each [`Operation::Restore`], for any number of chains and rules in it, and none for an
    /// input without edits.
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>>;

    /// Reads tables. `iptables-save`.
    ///
    /// # Errors
    ///
    /// [`Error::is_permission_denied`]; [`Error::is_unsupported`] if the tool or the table does not exist;
    /// [`Error::is_unreadable`] if the tables contain what the tool cannot print or what cannot be parsed, unless the request is
    /// [lenient](Save::lenient), or is for all tables and the tool succeeds without printing one of them
    /// ([`Ruleset::is_unreadable`]). If no table exists the result is an empty [`Ruleset`].
    fn save(&mut self, request: &Save) -> Result<Ruleset, Error>;

    /// Answers several requests and returns one result for each, in order. The provided method answers one after the other; [`Client`]
    /// runs the tools at the same time.
    fn save_all(&mut self, requests: &[Save]) -> Vec<Result<Ruleset, Error>> {
        requests.iter().map(|request| self.save(request)).collect()
    }

    /// As [`save_all`](Self::save_all), but each chain is passed to a reader as soon as all of it was read, and the results contain only what
    /// the reader returns. The provided method passes the chains of whole tables; [`Client`] has one chain in memory at a time if all
    /// requests are [lenient](Save::lenient).
    fn save_chains(
        &mut self,
        requests: &[Save],
        reader: &mut dyn ChainReader,
    ) -> Vec<Result<Ruleset, Error>> {
        pass_chains(self.save_all(requests), requests, reader)
    }

    /// Checks an input without changing anything. `iptables-restore --test`.
    ///
    /// [`restore`](Self::restore) may still refuse an input that passes, because the kernel has not checked it. The provided method
    /// reads the tables by [`save`](Self::save) and applies the input to a copy in memory. It finds missing and existing chains,
    /// chains in use, missing rules, loops, and targets and matches in the wrong table or chain. It assumes that all ipsets exist
    /// and does not check matches and targets that are kept verbatim.
    ///
    /// # Errors
    ///
    /// Those of [`restore`](Self::restore); from the provided method also those of [`save`](Self::save).
    fn test(&mut self, restore: &Restore) -> Result<(), Error> {
        restore.render_checked(Style::RESTORE)?;
        let mut ruleset = self.save(&Save::all(restore.family))?;
        let unreadable = &ruleset.unreadable_tables;
        if let Some(line) = restore.tables().find_map(|(table, _)| unreadable.get(&table)) {
            return Err(line.to_error());
        }
        apply(&mut ruleset, restore, None).map_err(|refusal| refusal.to_error(restore).without_applied())
    }

    /// Reads one chain, without counters. `None` if it does not exist. `iptables -S CHAIN`.
    ///
    /// The provided method reads the whole table by [`save`](Self::save); [`Client`] starts one process, which prints this chain only. Lines
    /// that cannot be parsed are recorded in the chain.
    ///
    /// # Errors
    ///
    /// Those of [`save`](Self::save) with a [lenient](Save::lenient) request; [`Error::Locked`].
    fn list_chain(
        &mut self,
        family: Family,
        table: Table,
        chain: &ChainName,
    ) -> Result<Option<Chain>, Error> {
        list_chain::from_saved_table(self, family, table, chain)
    }

    /// Executes one restore. `iptables-restore --noflush --counters`, without `--noflush` in mode
    /// [`Replace`](crate::RestoreMode::Replace).
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the refused edit and the tables that were changed before it; [`Error::Locked`].
    fn restore(&mut self, restore: &Restore) -> Result<(), Error> {
        self.execute_one(Operation::Restore(restore.clone()))
    }

    /// Executes several inputs of one family as one. The provided method copies the edits; [`Client`] does so only if they are refused.
    ///
    /// # Errors
    ///
    /// Those of [`restore`](Self::restore) with [`Joined::to_restore`].
    fn restore_joined(&mut self, joined: &Joined<'_>) -> Result<(), Error> {
        self.execute_one(Operation::Restore(joined.to_restore()))
    }

    /// Adds a rule to a chain unless the chain contains it; see [`Operation::EnsureJump`].
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the insertion; [`Error::is_not_found`] if one of the chains does not exist; [`Error::Locked`].
    fn ensure_jump(&mut self, family: Family, table: Table, jump: &Jump) -> Result<(), Error> {
        self.execute_one(Operation::ensure_jump(family, table, jump.clone()))
    }

    /// The variant of the tools of a family, if it is known. The time of a restore depends on it: legacy tools write the whole table
    /// each time, nft tools only what changes. The provided method returns `None`.
    fn variant(&mut self, family: Family) -> Option<Variant> {
        let _ = family;
        None
    }

    /// Executes one operation.
    ///
    /// # Errors
    ///
    /// Those of the operation.
    fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
        self.execute(&[operation])
            .pop()
            .unwrap_or(Err(Error::OutcomeMissing))
    }
}

/// Runs `iptables-restore`, `iptables-save` and `iptables`, and their `ip6tables` counterparts, in the network namespace of the
/// calling thread.
///
/// Needs the capability `CAP_NET_ADMIN`, and for legacy tables `CAP_NET_RAW` and a writable lock file.
pub struct Client {
    runner: Box<dyn Runner>,
    variant: Option<Variant>,
    versions: BTreeMap<Family, Version>,
    /// The families whose `iptables-restore` succeeded with `--wait`.
    waiting: BTreeSet<Family>,
    /// Tools of a variant that exist only under their names without `-legacy` or `-nft`.
    unqualified: BTreeSet<(Variant, Family)>,
    style: Style,
    wait: Duration,
    timeout: Duration,
    output_limit: usize,
    lock_file: Option<PathBuf>,
    environment: BTreeMap<String, String>,
    refusal_search: RefusalSearch,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("variant", &self.variant)
            .field("versions", &self.versions)
            .field("style", &self.style)
            .field("wait", &self.wait)
            .field("timeout", &self.timeout)
            .field("output_limit", &self.output_limit)
            .field("lock_file", &self.lock_file)
            .finish_non_exhaustive()
    }
}

impl Default for Client {
    fn default() -> Self {
        Client::new()
    }
}

impl Client {
    /// Uses the host's default variant (`iptables-restore` and so on), with [`RefusalSearch::PrivateNamespace`].
    ///
    /// No process is started before the first use. Defaults: 5 seconds wait for the lock ([`with_wait`](Self::with_wait)), 120 seconds timeout
    /// ([`with_timeout`](Self::with_timeout)), 256 MiB of output ([`with_output_limit`](Self::with_output_limit)).
    #[must_use]
    pub fn new() -> Self {
        Client::with_runner(Box::new(LocalRunner::new())).with_refusal_search(RefusalSearch::PrivateNamespace)
    }

    /// As [`new`](Self::new), but tools are started by `runner` and [`RefusalSearch`] is disabled.
    #[must_use]
    pub fn with_runner(runner: Box<dyn Runner>) -> Self {
        Client {
            runner,
            variant: None,
            versions: BTreeMap::new(),
            waiting: BTreeSet::new(),
            unqualified: BTreeSet::new(),
            style: Style::RESTORE,
            wait: Duration::from_secs(5),
            // iptables-nft-save needs more than a minute for 100 000 rules.
            timeout: Duration::from_secs(120),
            output_limit: 256 << 20,
            lock_file: None,
            environment: BTreeMap::new(),
            refusal_search: RefusalSearch::Disabled,
        }
    }

    /// Uses the tools of one variant: `iptables-nft-restore`, or `iptables-restore` if only that exists and is of this variant.
    #[must_use]
    pub fn with_variant(mut self, variant: Variant) -> Self {
        self.variant = Some(variant);
        self.versions.clear();
        self.waiting.clear();
        self
    }

    /// Renders restore input in this style. Default: [`Style::RESTORE`].
    #[must_use]
    pub fn with_style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// Waits up to `wait` for the lock. Rounded up to whole seconds, at least one. Default: 5 seconds.
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Kills a tool that runs longer than this, not counting the wait for the lock. Default: 120 seconds.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Kills a tool that writes more bytes than this. Default: 256 MiB.
    #[must_use]
    pub fn with_output_limit(mut self, limit: usize) -> Self {
        self.output_limit = limit;
        self
    }

    /// Uses another lock file than `/run/xtables.lock` (`XTABLES_LOCKFILE`, supported by the tools since 1.8.5). All programs that
    /// change legacy tables must use the same file.
    #[must_use]
    pub fn with_lock_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.lock_file = Some(path.into());
        self
    }

    /// Sets an environment variable of the tools. They get `PATH` and the variables set here, nothing of this process's environment.
    #[must_use]
    pub fn with_environment(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    /// Whether the refused edit is searched for if the tool names only its table.
    #[must_use]
    pub fn with_refusal_search(mut self, search: RefusalSearch) -> Self {
        self.refusal_search = search;
        self
    }
}

impl Iptables for Client {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        operations
            .iter()
            .map(|operation| match operation {
                Operation::Restore(restore) => self.run_restore(restore, Mode::Commit),
                Operation::EnsureJump { family, table, jump } => self.run_ensure_jump(*family, *table, jump),
            })
            .collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        let output = self.run_save(request);
        self.read_save(request, output)
    }

    fn save_all(&mut self, requests: &[Save]) -> Vec<Result<Ruleset, Error>> {
        let outputs = self.run_saves(requests);
        let answers = requests.iter().zip(outputs);
        answers
            .map(|(request, output)| self.read_save(request, output))
            .collect()
    }

    fn save_chains(
        &mut self,
        requests: &[Save],
        reader: &mut dyn ChainReader,
    ) -> Vec<Result<Ruleset, Error>> {
        if requests.iter().all(|request| request.lenient) {
            return self.run_save_chains(requests, reader);
        }
        pass_chains(self.save_all(requests), requests, reader)
    }

    fn test(&mut self, restore: &Restore) -> Result<(), Error> {
        self.run_restore(restore, Mode::Test)
    }

    fn list_chain(
        &mut self,
        family: Family,
        table: Table,
        chain: &ChainName,
    ) -> Result<Option<Chain>, Error> {
        self.run_list_chain(family, table, chain)
    }

    fn restore_joined(&mut self, joined: &Joined<'_>) -> Result<(), Error> {
        self.run_joined(joined)
    }

    fn variant(&mut self, family: Family) -> Option<Variant> {
        if self.variant.is_some() {
            return self.variant;
        }
        let version = self.version(family).ok()?;
        Some(version.variant)
    }
}
