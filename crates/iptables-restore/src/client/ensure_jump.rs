//! `iptables -C`, `-I` and `-A`.

use kernlink_base::Family;

use super::{Client, tool_message};
use crate::chain::ChainName;
use crate::desired::Jump;
use crate::error::{Error, Refused, RefusedKind};
use crate::restore::Edit;
use crate::runner::Completion;
use crate::table::Table;

impl Client {
    pub(super) fn run_ensure_jump(&mut self, family: Family, table: Table, jump: &Jump) -> Result<(), Error> {
        let mut edit = jump.edit();
        edit.check(table)?;
        let rule = jump.rule.arguments(self.style);
        let checked = self.run_iptables(family, table, "-C", &jump.from, &rule)?;
        let message = tool_message::read(&checked);
        match checked.status {
            Some(0) => return Ok(()),
            // Not found, or the chain does not exist, which the insertion reports.
            Some(1) if message.kind != RefusedKind::PermissionDenied => {}
            // Not found above a rule that the tool cannot parse.
            _ if message.kind == RefusedKind::Unreadable => {
                edit = Edit::insert(jump.from, jump.rule.clone());
            }
            _ => return Err(self.iptables_refusal(family, table, edit, &checked)),
        }
        let written = self.run_iptables(family, table, edit.option(), &jump.from, &rule)?;
        match written.status {
            Some(0) => Ok(()),
            _ => Err(self.iptables_refusal(family, table, edit, &written)),
        }
    }

    pub(super) fn run_iptables(
        &mut self,
        family: Family,
        table: Table,
        option: &str,
        chain: &ChainName,
        rule: &[String],
    ) -> Result<Completion, Error> {
        let version = self.version(family)?;
        let mut arguments: Vec<String> = Vec::new();
        let mut lock = None;
        if version.supports_wait() {
            arguments.push("--wait".into());
            arguments.extend(version.supports_wait_seconds().then(|| self.wait_seconds()));
        } else {
            let path = self.lock_path().to_owned();
            lock = Some(self.runner.lock(&path, self.wait)?);
        }
        arguments.extend(["-t", table.as_str(), option, chain.as_str()].map(String::from));
        arguments.extend_from_slice(rule);
        let program = self.iptables_program(family);
        let completion = self.start(&program, arguments, Vec::new(), self.wait);
        drop(lock);
        completion
    }

    fn iptables_refusal(
        &mut self,
        family: Family,
        table: Table,
        edit: Edit,
        completion: &Completion,
    ) -> Error {
        if let Some(locked) = self.locked(completion) {
            return locked;
        }
        let message = tool_message::read(completion);
        Error::Refused {
            tool: self.iptables_program(family),
            refused: Box::new(Refused::Edit { table, edit }),
            kind: message.kind,
            text: message.text,
            status: completion.status,
            applied: Vec::new(),
        }
    }
}
