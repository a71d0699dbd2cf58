//! Tables of a host that lacks matches or targets of iptables.

use kernlink_iptables_restore::{
    Error, Fake, Iptables, Operation, Refused, RefusedKind, Ruleset, Save, Table,
};

/// Tables of a host that lacks extensions: name, and how a rule uses it.
pub(crate) struct Lacking {
    pub(crate) tables: Fake,
    pub(crate) missing: Vec<(&'static str, &'static str)>,
}

impl Iptables for Lacking {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let each = operations.iter().map(|operation| {
            let text = operation.to_string();
            let mut missing = self.missing.iter();
            // The tools of the kernel stop at the first one, or name all of them.
            let Some((name, _)) = missing.find(|(_, option)| text.contains(option)) else {
                return self.tables.execute(std::slice::from_ref(operation)).remove(0);
            };
            Err(Error::Refused {
                tool: "iptables-restore".to_owned(),
                refused: Box::new(Refused::Table(Table::Filter)),
                kind: RefusedKind::Unsupported,
                text: format!("Warning: Extension {name} revision 0 not supported, missing kernel module?"),
                status: Some(1),
                applied: Vec::new(),
            })
        });
        each.collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        self.tables.save(request)
    }
}
