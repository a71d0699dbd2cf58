//! Tables that refuse edits, as the kernel refuses a rule whose match it lacks.
#![allow(dead_code, reason = "each test target uses a part")]

use std::sync::{Arc, Mutex};

use kernlink_iptables_restore::{
    Edit, Error as RulesError, Fake, Iptables, Operation as RulesOperation, Refused, RefusedKind, Restore,
    Ruleset, Save,
};
use kernlink_proxier::iptables_mode::Kernel;
use kernlink_services::Family;

use crate::iptables_node::kernel;

/// What the rules do besides what the fake does.
#[derive(Default)]
pub(crate) struct Behaviour {
    /// Every edit with one of these texts in its rule or chain is refused.
    pub(crate) refused: Vec<String>,
    /// The inputs that were executed or refused.
    pub(crate) restores: Vec<Restore>,
    pub(crate) saves: usize,
    /// Whether every reading fails.
    pub(crate) is_unreadable: bool,
}

pub(crate) struct Rules {
    pub(crate) fake: Fake,
    pub(crate) behaviour: Arc<Mutex<Behaviour>>,
}

impl Iptables for Rules {
    fn execute(&mut self, operations: &[RulesOperation]) -> Vec<Result<(), RulesError>> {
        let mut behaviour = self.behaviour.lock().unwrap();
        let execute = |operation: &RulesOperation| {
            let RulesOperation::Restore(restore) = operation else {
                return self.fake.execute(std::slice::from_ref(operation)).remove(0);
            };
            behaviour.restores.push(restore.clone());
            let is_refused = |edit: &&Edit| {
                let text = edit.rule().map(ToString::to_string).unwrap_or_default();
                let texts = [text, edit.chain().to_string()];
                behaviour
                    .refused
                    .iter()
                    .any(|refused| texts.iter().any(|text| text.contains(refused)))
            };
            let found = restore.tables().find_map(|(table, edits)| {
                let edit = edits.iter().find(is_refused)?;
                Some((table, edit.clone()))
            });
            let Some((table, edit)) = found else {
                return self.fake.restore(restore);
            };
            Err(RulesError::Refused {
                tool: "iptables-restore".into(),
                refused: Box::new(Refused::Edit { table, edit }),
                kind: RefusedKind::Other,
                text: "refused by the test".into(),
                status: Some(1),
                applied: Vec::new(),
            })
        };
        operations.iter().map(execute).collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, RulesError> {
        let mut behaviour = self.behaviour.lock().unwrap();
        behaviour.saves += 1;
        if behaviour.is_unreadable {
            return Err(RulesError::custom("read tables", "unreadable in the test"));
        }
        self.fake.save(request)
    }
}

/// A kernel with foreign rules whose behaviour can be changed.
pub(crate) fn faulty_kernel(ipv4: &str) -> (Kernel, Arc<Mutex<Behaviour>>) {
    let mut fake = Fake::new();
    fake.set_ruleset(Family::Ipv4, ipv4.parse().unwrap());
    kernel_with(fake)
}

/// A kernel with these tables whose behaviour can be changed.
pub(crate) fn kernel_with(fake: Fake) -> (Kernel, Arc<Mutex<Behaviour>>) {
    let mut kernel = kernel();
    let behaviour: Arc<Mutex<Behaviour>> = Arc::default();
    kernel.rules = Box::new(Rules {
        fake,
        behaviour: Arc::clone(&behaviour),
    });
    (kernel, behaviour)
}
