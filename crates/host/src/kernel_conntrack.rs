//! The kernel's connection tracking, also on a kernel without the module.

use kernlink_conntrack::{
    Client, Conntrack, Deletion, Error, Filter, Flow, FlowKey, Flows, Operation, Totals,
};
use kernlink_netlink::Namespace;

/// The kernel's table of tracked flows in one network namespace.
///
/// If the kernel lacks the module `nf_conntrack_netlink`, each use is refused
/// ([`is_module_missing`](kernlink_conntrack::Error::is_module_missing)) until the module is loaded.
#[derive(Debug)]
pub struct KernelConntrack {
    namespace: Namespace,
    client: Option<Client>,
}

impl KernelConntrack {
    /// The table of the calling thread's network namespace. It can be used from any thread. If it cannot be opened, each use tries again.
    ///
    /// # Errors
    /// If the namespace cannot be opened.
    pub fn open() -> Result<Self, Error> {
        let namespace = Namespace::current().map_err(|source| Error::Request {
            attempt: "open the network namespace",
            source,
        })?;
        let client = Client::open().ok();
        Ok(Self { namespace, client })
    }

    fn client(&mut self) -> Result<&mut Client, Error> {
        if self.client.is_none() {
            self.client = Some(Client::open_in(&self.namespace)?);
        }
        self.client.as_mut().ok_or(Error::OutcomeMissing)
    }
}

impl Conntrack for KernelConntrack {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        match self.client() {
            Ok(client) => client.execute(operations),
            Err(error) => vec![Err(error); operations.len()],
        }
    }

    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error> {
        self.client()?.flows(filter)
    }

    fn flow(&mut self, key: &FlowKey) -> Result<Flow, Error> {
        self.client()?.flow(key)
    }

    fn delete_matching(&mut self, filter: &Filter) -> Result<Deletion, Error> {
        self.client()?.delete_matching(filter)
    }

    fn delete_many(&mut self, keys: &[FlowKey]) -> Deletion {
        match self.client() {
            Ok(client) => client.delete_many(keys),
            Err(error) => {
                let mut deletion = Deletion::default();
                deletion.failed = keys.iter().map(|key| (*key, error.clone())).collect();
                deletion
            }
        }
    }

    fn totals(&mut self) -> Result<Totals, Error> {
        self.client()?.totals()
    }
}
