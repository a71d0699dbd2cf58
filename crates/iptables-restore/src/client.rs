//! The tables of this host, changed and read by the iptables tools.

mod refusal;
pub(crate) mod refusal_search;
pub(crate) mod tool_message;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::chain::ChainName;
use crate::client::refusal_search::Trial;
use crate::desired::Jump;
use crate::error::{Error, Refused, RefusedKind};
use crate::family::Family;
use crate::lock::LOCK_FILE;
use crate::operation::{Iptables, Operation, Save};
use crate::restore::{Edit, Restore, RestoreMode};
use crate::ruleset::Ruleset;
use crate::runner::{Completion, Invocation, Local, Runner};
use crate::table::Table;
use crate::unreadable::UnreadableLine;
use crate::variant::{Backend, Detection, Holding, Version};
use crate::wire::render::Style;

/// `iptables-restore`, `iptables-save` and their IPv6 twins, in the network namespace of the calling thread.
///
/// Needs the capability `CAP_NET_ADMIN`, and for legacy tables a lock file that can be written.
pub struct Command {
    runner: Box<dyn Runner>,
    backend: Option<Backend>,
    versions: BTreeMap<Family, Version>,
    /// Tools of a back end that are there only by the names that name none.
    unnamed: BTreeSet<(Backend, Family)>,
    pub(crate) style: Style,
    wait: Duration,
    pub(crate) time_limit: Duration,
    output_limit: usize,
    lock_file: Option<PathBuf>,
    environment: BTreeMap<String, String>,
    pub(crate) trials: Trial,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("backend", &self.backend)
            .field("versions", &self.versions)
            .field("style", &self.style)
            .field("wait", &self.wait)
            .field("time_limit", &self.time_limit)
            .field("output_limit", &self.output_limit)
            .field("lock_file", &self.lock_file)
            .finish_non_exhaustive()
    }
}

impl Default for Command {
    fn default() -> Self {
        Command::new()
    }
}

impl Command {
    /// The tools that the host uses if nothing more is said: `iptables-restore` and so on.
    ///
    /// Nothing is started before the first use. Waits 5 seconds for the lock, gives a tool two minutes beside
    /// that, and takes 256 MiB of its output.
    pub fn new() -> Self {
        Command::with_runner(Box::new(Local::new())).with_trials(Trial::InPrivateNamespace)
    }

    /// The same, started by `runner`, without [trials](Self::with_trials).
    pub fn with_runner(runner: Box<dyn Runner>) -> Self {
        Command {
            runner,
            backend: None,
            versions: BTreeMap::new(),
            unnamed: BTreeSet::new(),
            style: Style::RESTORE,
            wait: Duration::from_secs(5),
            // nft takes more than one to save 100 000 rules.
            time_limit: Duration::from_secs(120),
            output_limit: 256 << 20,
            lock_file: None,
            environment: BTreeMap::new(),
            trials: Trial::None,
        }
    }

    /// Uses the tools of one back end, by their full names (`iptables-nft-restore`), or by the short ones
    /// (`iptables-restore`) where only those are there and are of this back end.
    pub fn with_backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self.versions.clear();
        self
    }

    /// Writes restore input in this style.
    pub fn with_style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// Waits up to `wait` for the lock. The tools count whole seconds: a part counts as one, and so does zero.
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Kills a tool that takes longer than this, the wait for the lock not counted.
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Kills a tool that writes more bytes than this.
    pub fn with_output_limit(mut self, limit: usize) -> Self {
        self.output_limit = limit;
        self
    }

    /// Uses another lock file than `/run/xtables.lock` (`XTABLES_LOCKFILE`, known to the tools from 1.8.5 on).
    /// All programs that change legacy tables must use the same.
    pub fn with_lock_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.lock_file = Some(path.into());
        self
    }

    /// Gives the tools one more variable. They get nothing of our environment but a `PATH` of our choice and these.
    pub fn with_environment(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    /// Whether the culprit of a refusal that names only a table is looked for by trials.
    pub fn with_trials(mut self, trials: Trial) -> Self {
        self.trials = trials;
        self
    }

    /// Version of the tool of a family. Asked for once.
    ///
    /// # Errors
    ///
    /// [`Error::is_unsupported`] if the tool is not there; [`Error::Unexpected`] if it does not tell its version.
    pub fn version(&mut self, family: Family) -> Result<Version, Error> {
        if let Some(version) = self.versions.get(&family) {
            return Ok(*version);
        }
        let mut version = self.ask_version(family);
        if let (Err(error), Some(backend)) = (&version, self.backend)
            && error.is_unsupported()
            && self.unnamed.insert((backend, family))
        {
            let error = error.clone();
            version = match self.ask_version(family) {
                Ok(version) if version.backend == backend => Ok(version),
                _ => {
                    self.unnamed.remove(&(backend, family));
                    Err(error)
                }
            };
        }
        let version = version?;
        self.versions.insert(family, version);
        Ok(version)
    }

    fn ask_version(&mut self, family: Family) -> Result<Version, Error> {
        // Before 1.6.2 restore did not know --version; the other tool always did.
        let mut version = Err(Error::Unexpected {
            tool: family.tool().into(),
            text: String::new(),
        });
        for program in [self.program(family, "restore"), self.single_program(family)] {
            let completion = self.start(&program, vec!["--version".into()], Vec::new(), Duration::ZERO)?;
            let text = String::from_utf8_lossy(&completion.output).into_owned();
            version = text.parse().map_err(|_| Error::Unexpected {
                tool: program,
                text: format!("{} to --version", tool_message::words(&completion)),
            });
            if version.is_ok() {
                break;
            }
        }
        version
    }

    /// Looks into both back ends of a family.
    ///
    /// # Errors
    ///
    /// Only what keeps both from being read; a back end without tools or kernel part is simply not in the
    /// answer.
    pub fn detect(&mut self, family: Family) -> Result<Detection, Error> {
        let chosen = self.backend;
        let versions = std::mem::take(&mut self.versions);
        self.backend = None;
        let default = self.version(family).ok().map(|version| version.backend);
        let mut holding = |backend| {
            self.backend = Some(backend);
            self.versions.clear();
            let version = self.version(family)?;
            Ok(Holding::of(version, &self.save(&Save::all(family).tolerant())?))
        };
        let legacy: Result<Holding, Error> = holding(Backend::Legacy);
        let nft: Result<Holding, Error> = holding(Backend::Nft);
        self.backend = chosen;
        self.versions = versions;
        match (legacy, nft) {
            (Err(error), Err(_)) => Err(error),
            (legacy, nft) => Ok(Detection {
                legacy: legacy.ok(),
                nft: nft.ok(),
                default,
            }),
        }
    }

    pub(crate) fn program(&self, family: Family, verb: &str) -> String {
        format!("{}{}-{verb}", family.tool(), self.infix(family))
    }

    /// The tool that takes one command as its arguments.
    fn single_program(&self, family: Family) -> String {
        format!("{}{}", family.tool(), self.infix(family))
    }

    /// What stands in the names of the tools after `iptables`.
    fn infix(&self, family: Family) -> &'static str {
        match self.backend {
            Some(backend) if !self.unnamed.contains(&(backend, family)) => backend.infix(),
            _ => "",
        }
    }

    fn lock_path(&self) -> &Path {
        self.lock_file.as_deref().unwrap_or(Path::new(LOCK_FILE))
    }

    fn start(
        &mut self,
        program: &str,
        arguments: Vec<String>,
        input: Vec<u8>,
        wait: Duration,
    ) -> Result<Completion, Error> {
        let mut environment = self.environment.clone();
        if let Some(path) = &self.lock_file {
            environment.insert("XTABLES_LOCKFILE".into(), path.to_string_lossy().into_owned());
        }
        self.runner.run(Invocation {
            program: program.into(),
            arguments,
            environment,
            input,
            time_limit: self.time_limit.saturating_add(wait),
            output_limit: self.output_limit,
        })
    }

    fn run_restore(&mut self, restore: &Restore, check: Check) -> Result<(), Error> {
        let text = restore.render_checked(self.style)?;
        if restore.is_empty() {
            return Ok(());
        }
        let completion = self.give(restore, &text, check)?;
        if completion.status == Some(0) {
            return Ok(());
        }
        Err(match self.locked(&completion) {
            Some(locked) => locked,
            None => self.refusal(restore, &completion, check),
        })
    }

    /// The error if it was the lock that kept the tool from doing anything.
    fn locked(&mut self, completion: &Completion) -> Option<Error> {
        tool_message::is_locked(&tool_message::words(completion)).then(|| {
            let path = self.lock_path().to_owned();
            Error::Locked {
                waited: self.wait,
                holder: self.runner.lock_holder(&path),
            }
        })
    }

    /// What follows `--wait`. Without it, and with 0, version 1.8.9 waits for ever.
    fn seconds(&self) -> String {
        let seconds = self.wait.as_secs() + u64::from(self.wait.subsec_nanos() > 0);
        seconds.max(1).to_string()
    }

    fn run_ensure_jump(&mut self, family: Family, table: Table, jump: &Jump) -> Result<(), Error> {
        let mut edit = jump.edit();
        crate::restore::check(table, &edit)?;
        let words = jump.rule.words(self.style);
        let checked = self.start_single(family, table, "-C", &jump.from, &words)?;
        let told = tool_message::read(&checked);
        match checked.status {
            Some(0) => return Ok(()),
            // Not found, or the chain is not there, which the insertion tells.
            Some(1) if told.kind != RefusedKind::PermissionDenied => {}
            // Not found before a rule that the tool cannot read.
            _ if told.kind == RefusedKind::Unreadable => edit = Edit::insert(jump.from, jump.rule.clone()),
            _ => return Err(self.refused_single(family, table, edit, &checked)),
        }
        let written = self.start_single(family, table, edit.option(), &jump.from, &words)?;
        match written.status {
            Some(0) => Ok(()),
            _ => Err(self.refused_single(family, table, edit, &written)),
        }
    }

    /// One start of the tool for single commands.
    fn start_single(
        &mut self,
        family: Family,
        table: Table,
        option: &str,
        chain: &ChainName,
        rule: &[String],
    ) -> Result<Completion, Error> {
        let version = self.version(family)?;
        let mut arguments: Vec<String> = Vec::new();
        let mut held = None;
        if version.waits() {
            arguments.push("--wait".into());
            arguments.extend(version.waits_for_seconds().then(|| self.seconds()));
        } else {
            let path = self.lock_path().to_owned();
            held = Some(self.runner.lock(&path, self.wait)?);
        }
        arguments.extend(["-t", table.as_str(), option, chain.as_str()].map(String::from));
        arguments.extend_from_slice(rule);
        let program = self.single_program(family);
        let completion = self.start(&program, arguments, Vec::new(), self.wait);
        drop(held);
        completion
    }

    fn refused_single(&mut self, family: Family, table: Table, edit: Edit, completion: &Completion) -> Error {
        if let Some(locked) = self.locked(completion) {
            return locked;
        }
        let told = tool_message::read(completion);
        Error::Refused {
            tool: self.single_program(family),
            refused: Box::new(Refused::Edit { table, edit }),
            kind: told.kind,
            text: told.text,
            status: completion.status,
            applied: Vec::new(),
        }
    }

    /// The output of one save.
    fn run_save(&mut self, request: &Save) -> Result<Vec<u8>, Error> {
        if self.backend.is_some() {
            // Finds out by which names the tools go.
            self.version(request.family)?;
        }
        let program = self.program(request.family, "save");
        let mut arguments = Vec::new();
        if request.counters {
            arguments.push("--counters".into());
        }
        if let Some(table) = request.table {
            arguments.extend(["--table".into(), table.as_str().into()]);
        }
        let mut completion = self.start(&program, arguments, Vec::new(), Duration::ZERO)?;
        if completion.status == Some(0) {
            return Ok(completion.output);
        }
        if !completion.errors.is_empty() {
            // What was printed before the failure does not tell why.
            completion.output.clear();
        }
        let told = tool_message::read(&completion);
        Err(Error::Refused {
            tool: program,
            refused: Box::new(Refused::Whole(request.family)),
            kind: told.kind,
            text: told.text,
            status: completion.status,
            applied: Vec::new(),
        })
    }

    /// One table, or all that can be printed.
    fn save_tolerant(&mut self, request: &Save) -> Result<Ruleset, Error> {
        // A comment cut in the middle of a character is somebody else's, and is not written again by us.
        let error = match self.run_save(request) {
            Ok(output) => return Ok(Ruleset::read_tolerant(&String::from_utf8_lossy(&output))),
            Err(error) if error.is_unreadable() => error,
            Err(error) => return Err(error),
        };
        let mut saved = Ruleset::new();
        if let Some(table) = request.table {
            let line = UnreadableLine {
                line: 0,
                text: match error {
                    Error::Refused { text, .. } => text,
                    other => other.to_string(),
                },
                reason: format!(
                    "{} cannot print table {table}",
                    self.program(request.family, "save")
                ),
            };
            saved.unreadable_tables.insert(table, line);
            return Ok(saved);
        }
        for table in Table::ALL {
            let request = Save {
                table: Some(table),
                ..request.clone()
            };
            match self.save_tolerant(&request) {
                Ok(one) => saved.merge(one),
                // A table that this kernel does not have.
                Err(error) if error.is_unsupported() || error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(saved)
    }

    /// One start of restore.
    pub(crate) fn give(&mut self, restore: &Restore, text: &str, check: Check) -> Result<Completion, Error> {
        let version = self.version(restore.family)?;
        let mut arguments = Vec::new();
        let mut held = None;
        if version.restore_waits() {
            arguments.extend(["--wait".into(), self.seconds()]);
        } else {
            let path = self.lock_path().to_owned();
            held = Some(self.runner.lock(&path, self.wait)?);
        }
        if restore.mode == RestoreMode::Keep {
            arguments.push("--noflush".into());
        }
        arguments.push("--counters".into());
        if check == Check::Only {
            arguments.push("--test".into());
        }
        let program = self.program(restore.family, "restore");
        let completion = self.start(&program, arguments, text.into(), self.wait);
        drop(held);
        completion
    }
}

/// Whether an input is only checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    No,
    Only,
}

impl Iptables for Command {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        operations
            .iter()
            .map(|operation| match operation {
                Operation::Restore(restore) => self.run_restore(restore, Check::No),
                Operation::EnsureJump { family, table, jump } => self.run_ensure_jump(*family, *table, jump),
            })
            .collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        if request.tolerant {
            return self.save_tolerant(request);
        }
        // A comment cut in the middle of a character is somebody else's, and is not written again by us.
        let saved: Ruleset = String::from_utf8_lossy(&self.run_save(request)?).parse()?;
        match request
            .table
            .and_then(|table| saved.unreadable_tables.get(&table))
        {
            Some(line) => Err(line.to_error()),
            None => Ok(saved),
        }
    }

    fn test(&mut self, restore: &Restore) -> Result<(), Error> {
        self.run_restore(restore, Check::Only)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::desired::Place;
    use crate::rule::Rule;

    /// A runner that answers from a list and notes what it was asked.
    #[derive(Clone, Default)]
    struct Script(Arc<Mutex<Notes>>);

    #[derive(Default)]
    struct Notes {
        version: &'static str,
        only_short_names: bool,
        /// What a save that fails writes to standard error.
        save_errors: &'static str,
        answers: Vec<(i32, &'static str)>,
        asked: Vec<Invocation>,
        locked: Vec<(PathBuf, Duration)>,
        lock_is_free: bool,
    }

    impl Runner for Script {
        fn run(&mut self, invocation: Invocation) -> Result<Completion, Error> {
            let mut notes = self.0.lock().unwrap();
            let completion = |status, output: &str, errors: &str| {
                let (output, errors) = (output.into(), errors.into());
                Ok(Completion {
                    status: Some(status),
                    signal: None,
                    output,
                    errors,
                })
            };
            let name = &invocation.program;
            if notes.only_short_names && (name.contains("-nft") || name.contains("-legacy")) {
                return Err(Error::NotStarted {
                    tool: name.clone(),
                    kind: std::io::ErrorKind::NotFound,
                    text: String::new(),
                });
            }
            if invocation.arguments == ["--version"] {
                let old = notes.version.contains("v1.6.1");
                if old && invocation.program.ends_with("-restore") {
                    return completion(2, "", "iptables-restore: unrecognized option '--version'");
                }
                return completion(0, notes.version, "");
            }
            let save = invocation.program.ends_with("-save");
            notes.asked.push(invocation);
            match notes.answers.pop() {
                Some((0, text)) if save => completion(0, text, ""),
                Some((status, text)) if save => completion(status, text, notes.save_errors),
                Some((status, text)) => completion(status, "", text),
                None => completion(0, "", ""),
            }
        }

        fn lock(&mut self, path: &Path, wait: Duration) -> Result<Box<dyn Send>, Error> {
            let mut notes = self.0.lock().unwrap();
            notes.locked.push((path.into(), wait));
            if notes.lock_is_free {
                return Ok(Box::new(()));
            }
            Err(Error::Locked {
                waited: wait,
                holder: None,
            })
        }

        fn lock_holder(&mut self, _: &Path) -> Option<crate::LockHolder> {
            Some(crate::LockHolder {
                pid: 4711,
                command: "firewall-cmd --reload".into(),
            })
        }
    }

    fn script(version: &'static str, answers: &[(i32, &'static str)]) -> (Script, Command) {
        let script = Script::default();
        {
            let mut notes = script.0.lock().unwrap();
            notes.version = version;
            notes.answers = answers.iter().rev().copied().collect();
        }
        let command = Command::with_runner(Box::new(script.clone()));
        (script, command)
    }

    const NFT: &str = "iptables-restore v1.8.9 (nf_tables)\n";

    fn restore(table: Table) -> Restore {
        let chain = "A".parse().unwrap();
        Restore::new(Family::Ipv6)
            .with(table, Edit::declare(chain))
            .with(table, Edit::append(chain, "-j RETURN".parse().unwrap()))
    }

    fn lines(script: &Script) -> Vec<String> {
        let notes = script.0.lock().unwrap();
        notes
            .asked
            .iter()
            .map(|asked| format!("{} {}", asked.program, asked.arguments.join(" ")))
            .collect()
    }

    #[test]
    fn a_restore_is_one_process_with_the_options_of_its_version() {
        let (script, mut command) = script(NFT, &[]);
        command.restore(&restore(Table::Nat)).unwrap();
        let mut replace = restore(Table::Nat);
        replace.mode = RestoreMode::Replace;
        command.restore(&replace).unwrap();
        command.test(&restore(Table::Nat)).unwrap();
        command = command
            .with_wait(Duration::ZERO)
            .with_backend(Backend::Legacy)
            .with_lock_file("/x/lock");
        command.restore(&restore(Table::Nat)).unwrap();
        command.restore(&Restore::new(Family::Ipv6)).unwrap();
        assert_eq!(
            lines(&script),
            [
                "ip6tables-restore --wait 5 --noflush --counters",
                "ip6tables-restore --wait 5 --counters",
                "ip6tables-restore --wait 5 --noflush --counters --test",
                "ip6tables-legacy-restore --wait 1 --noflush --counters",
            ]
        );
        let notes = script.0.lock().unwrap();
        assert_eq!(
            notes.asked[0].input,
            b"*nat\n:A - [0:0]\n-A A -j RETURN\nCOMMIT\n"
        );
        assert!(notes.asked[0].environment.is_empty());
        assert_eq!(notes.asked[0].time_limit, Duration::from_secs(125));
        assert_eq!(notes.asked[3].environment["XTABLES_LOCKFILE"], "/x/lock");
        assert!(notes.locked.is_empty());
    }

    #[test]
    fn for_a_tool_that_does_not_lock_we_do() {
        let (script, mut command) = script("iptables v1.6.1\n", &[]);
        assert!(matches!(
            command.restore(&restore(Table::Nat)),
            Err(Error::Locked { .. })
        ));
        assert_eq!(lines(&script), Vec::<String>::new());
        script.0.lock().unwrap().lock_is_free = true;
        command.restore(&restore(Table::Nat)).unwrap();
        assert_eq!(lines(&script), ["ip6tables-restore --noflush --counters"]);
        let lock = (PathBuf::from("/run/xtables.lock"), Duration::from_secs(5));
        assert_eq!(script.0.lock().unwrap().locked, [lock.clone(), lock]);
    }

    #[test]
    fn a_held_lock_is_told_with_its_holder() {
        let text = "Another app is currently holding the xtables lock; still 0s 0us time ahead to have a chance to grab the lock...\nAnother app is currently holding the xtables lock. Perhaps you want to use the -w option?\n";
        let (_, mut command) = script("iptables-restore v1.8.9 (legacy)", &[(4, text)]);
        let error = command.restore(&restore(Table::Nat)).unwrap_err();
        assert!(error.is_temporary());
        assert_eq!(
            error.to_string(),
            "the xtables lock was held for 5s by process 4711 (firewall-cmd --reload)"
        );
    }

    #[test]
    fn the_refused_line_and_what_stands_are_told() {
        let text = "iptables-nft-restore v1.8.9 (nf_tables): \nline 7: RULE_APPEND failed (Invalid argument): rule in chain A";
        let (_, mut command) = script(NFT, &[(4, text)]);
        let chain = "A".parse().unwrap();
        let culprit = Edit::append(chain, "-j MASQUERADE".parse().unwrap());
        let mut two = restore(Table::Nat);
        two.push(Table::Filter, Edit::declare(chain));
        two.push(Table::Filter, culprit.clone());
        let error = command.restore(&two).unwrap_err();
        assert_eq!(error.applied(), [Table::Nat]);
        assert_eq!(error.chain(), Some(&chain));
        let Error::Refused { refused, status, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(
            *refused,
            Refused::Edit {
                table: Table::Filter,
                edit: culprit
            }
        );
        assert_eq!(status, Some(4));
    }

    #[test]
    fn a_line_without_a_reason_gets_one_from_the_tables() {
        let saved = "*nat\n:OUTPUT ACCEPT [0:0]\n:A - [0:0]\n-A OUTPUT -j A\nCOMMIT\n";
        let legacy = "iptables-restore v1.8.9 (legacy)";
        for (edit, in_use, not_found) in [
            (Edit::delete_chain("A".parse().unwrap()), true, false),
            (Edit::delete_chain("B".parse().unwrap()), false, true),
            (
                Edit::delete("A".parse().unwrap(), "-j DROP".parse().unwrap()),
                false,
                false,
            ),
        ] {
            let (_, mut command) = script(legacy, &[(1, "iptables-restore: line 2 failed"), (0, saved)]);
            let error = command
                .restore(&Restore::new(Family::Ipv4).with(Table::Nat, edit))
                .unwrap_err();
            assert_eq!(
                (error.is_in_use(), error.is_not_found()),
                (in_use, not_found),
                "{error}"
            );
        }
    }

    #[test]
    fn tables_are_read_by_save() {
        let (script, mut command) = script(
            NFT,
            &[(
                0,
                "# x\n*nat\n:OUTPUT ACCEPT [1:2]\n[3:4] -A OUTPUT -j RETURN\nCOMMIT\n",
            )],
        );
        let saved = command
            .save(&Save::table(Family::Ipv4, Table::Nat).with_counters())
            .unwrap();
        assert_eq!(saved.rule_count(), 1);
        assert!(
            command
                .save(&Save::all(Family::Ipv6))
                .unwrap()
                .tables()
                .next()
                .is_none()
        );
        assert_eq!(
            lines(&script),
            ["iptables-save --counters --table nat", "ip6tables-save "]
        );
    }

    #[test]
    fn both_back_ends_are_looked_into() {
        let full = "*filter\n:INPUT ACCEPT [0:0]\n:A - [0:0]\n-A INPUT -j A\nCOMMIT\n";
        let (script, mut command) = script(NFT, &[(0, full), (0, full)]);
        let detection = command.detect(Family::Ipv4).unwrap();
        assert_eq!(detection.default, Some(Backend::Nft));
        assert!(matches!(detection.verdict(), crate::Verdict::Both { .. }));
        assert_eq!(lines(&script), ["iptables-legacy-save ", "iptables-nft-save "]);
    }

    #[test]
    fn tools_that_go_by_short_names_only_are_found_if_they_are_of_the_back_end() {
        let full = "*filter\n:INPUT ACCEPT [0:0]\n:A - [0:0]\nCOMMIT\n";
        let (script, command) = script("iptables v1.6.1", &[(0, full), (0, "")]);
        script.0.lock().unwrap().only_short_names = true;
        script.0.lock().unwrap().lock_is_free = true;
        let mut legacy = command.with_backend(Backend::Legacy);
        legacy.save(&Save::all(Family::Ipv6)).unwrap();
        legacy.restore(&restore(Table::Nat)).unwrap();
        let error = legacy
            .with_backend(Backend::Nft)
            .save(&Save::all(Family::Ipv4))
            .unwrap_err();
        assert!(
            error.is_unsupported() && error.to_string().contains("-nft"),
            "{error}"
        );
        assert_eq!(
            lines(&script),
            ["ip6tables-save ", "ip6tables-restore --noflush --counters"]
        );
        script.0.lock().unwrap().answers = vec![(0, full)];
        let detection = Command::with_runner(Box::new(script))
            .detect(Family::Ipv4)
            .unwrap();
        assert_eq!(detection.verdict(), crate::Verdict::One(Backend::Legacy));
        assert_eq!(detection.nft, None);
    }

    fn jump(place: Place) -> Jump {
        Jump {
            from: "OUTPUT".parse().unwrap(),
            rule: "-m comment --comment \"it's ours\" -j A".parse().unwrap(),
            place,
        }
    }

    const ABSENT: (i32, &str) = (
        1,
        "iptables: Bad rule (does a matching rule exist in that chain?).\n",
    );

    #[test]
    fn a_jump_is_put_in_only_where_it_is_not_found() {
        let words = "-m comment --comment it's ours -j A";
        for (version, wait, place, option) in [
            (NFT, "--wait 5 ", Place::First, "-I"),
            ("iptables v1.6.1\n", "--wait 5 ", Place::Before(Rule::new()), "-I"),
            ("iptables v1.4.21\n", "--wait ", Place::Last, "-A"),
            ("iptables v1.4.19\n", "", Place::After(Rule::new()), "-A"),
        ] {
            let (script, mut command) = script(version, &[ABSENT]);
            script.0.lock().unwrap().lock_is_free = true;
            let jump = jump(place);
            command.ensure_jump(Family::Ipv6, Table::Nat, &jump).unwrap();
            let check = format!("ip6tables {wait}-t nat -C OUTPUT {words}");
            let write = format!("ip6tables {wait}-t nat {option} OUTPUT {words}");
            assert_eq!(lines(&script), [check.as_str(), &write]);
            // Nothing is left to answer: it is found.
            command.ensure_jump(Family::Ipv6, Table::Nat, &jump).unwrap();
            assert_eq!(lines(&script), [check.as_str(), &write, &check]);
            // The oldest tools do not lock.
            let locked = script.0.lock().unwrap().locked.len();
            assert_eq!(locked, if wait.is_empty() { 3 } else { 0 });
        }
    }

    #[test]
    fn a_jump_goes_first_where_the_tool_cannot_look_further() {
        let text = "Error: cmp sreg undef\niptables v1.8.9 (nf_tables): Parsing nftables rule failed\nPerhaps iptables or your kernel needs to be upgraded.\n";
        let (script, command) = script(NFT, &[(3, text)]);
        let mut command = command.with_backend(Backend::Nft);
        command
            .ensure_jump(Family::Ipv4, Table::Nat, &jump(Place::Last))
            .unwrap();
        let last = lines(&script).pop().unwrap();
        assert!(
            last.starts_with("iptables-nft --wait 5 -t nat -I OUTPUT "),
            "{last}"
        );
    }

    #[test]
    fn a_refused_jump_is_named() {
        let missing = (1, "iptables: No chain/target/match by that name.\n");
        for (answers, count) in [
            (vec![ABSENT, missing], 2),
            (
                vec![(2, "iptables v1.8.9 (nf_tables): Chain 'A' does not exist")],
                1,
            ),
        ] {
            let (script, mut command) = script(NFT, &answers);
            let error = command
                .ensure_jump(Family::Ipv4, Table::Nat, &jump(Place::First))
                .unwrap_err();
            assert!(error.is_not_found() && !error.is_unreadable(), "{error:?}");
            assert_eq!(error.chain(), Some(&"OUTPUT".parse().unwrap()));
            assert_eq!(lines(&script).len(), count);
        }
        let denied = "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Permission denied (you must be root)\n";
        let (_, mut command) = script(NFT, &[(3, denied)]);
        let error = command
            .ensure_jump(Family::Ipv4, Table::Nat, &jump(Place::First))
            .unwrap_err();
        assert!(error.is_permission_denied(), "{error:?}");
        let held = "Another app is currently holding the xtables lock. Stopped waiting after 1s.\n";
        let (_, mut command) = script(NFT, &[(4, held)]);
        let error = command
            .ensure_jump(Family::Ipv4, Table::Nat, &jump(Place::First))
            .unwrap_err();
        assert!(matches!(error, Error::Locked { .. }), "{error:?}");
    }

    #[test]
    fn a_tolerant_save_reads_the_tables_that_can_be_printed() {
        // What was printed before the failure, on standard output, is no reason.
        let failed = "-A INPUT -m comment --comment \"Permission denied\"\n";
        let nat = "*nat\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -m comment --comment \"a\nb\"\nCOMMIT\n";
        let answers = [(3, failed), (0, ""), (0, ""), (0, nat), (3, failed), (0, "")];
        let (script, mut command) = script(NFT, &answers);
        script.0.lock().unwrap().save_errors =
            "iptables-save v1.8.9 (nf_tables): Parsing nftables rule failed\n";
        let saved = command.save(&Save::all(Family::Ipv4).tolerant()).unwrap();
        assert_eq!(
            saved.tables().map(|(table, _)| table).collect::<Vec<_>>(),
            [Table::Nat]
        );
        assert!(saved.is_unreadable(Table::Filter));
        assert_eq!(saved.unreadable().len(), 2);
        assert_eq!(lines(&script).len(), 1 + Table::ALL.len());
        script.0.lock().unwrap().answers = vec![(3, failed)];
        let error = command.save(&Save::all(Family::Ipv4)).unwrap_err();
        assert!(
            error.is_unreadable() && !error.is_permission_denied() && !error.is_unsupported(),
            "{error:?}"
        );
        // Anything else fails, tolerant or not.
        let mut notes = script.0.lock().unwrap();
        notes.answers = vec![(4, "")];
        notes.save_errors = "Could not fetch rule set generation id: Permission denied (you must be root)\n";
        drop(notes);
        let error = command.save(&Save::all(Family::Ipv4).tolerant()).unwrap_err();
        assert!(
            error.is_permission_denied() && !error.is_unreadable(),
            "{error:?}"
        );
    }
}
