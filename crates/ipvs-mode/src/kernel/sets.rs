//! The kernel's sets, also on a kernel without ipset.

use kernlink_ipset::{Action, Client, Entry, Error, IpSets, Operation, SetContents, SetHeader, SetName};
use kernlink_netlink::Namespace;

/// The sets of one network namespace.
///
/// If the kernel lacks netlink of netfilter (module `nfnetlink`), each use is refused until the module is loaded.
#[derive(Debug)]
pub struct KernelSets {
    namespace: Namespace,
    client: Option<Client>,
}

impl KernelSets {
    /// The sets of the calling thread's network namespace. They can be used from any thread. If they cannot be opened, each use tries again.
    ///
    /// # Errors
    /// If the namespace cannot be opened.
    pub fn open() -> Result<Self, Error> {
        let namespace = Namespace::current().map_err(|error| Error::Netlink {
            action: Box::new(Action::Open),
            error: Box::new(error),
        })?;
        let client = Client::open().ok().map(Client::with_remembered_types);
        Ok(Self { namespace, client })
    }

    fn client(&mut self) -> Result<&mut Client, Error> {
        if self.client.is_none() {
            // No other program can replace the sets, because rules refer to them.
            self.client = Some(Client::open_in(&self.namespace)?.with_remembered_types());
        }
        self.client.as_mut().ok_or(Error::OutcomeMissing)
    }
}

impl IpSets for KernelSets {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        match self.client() {
            Ok(client) => client.execute(operations),
            Err(error) => vec![Err(error); operations.len()],
        }
    }

    fn execute_until_failure(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        match self.client() {
            Ok(client) => client.execute_until_failure(operations),
            Err(error) => vec![Err(error); operations.len()],
        }
    }

    fn list(&mut self) -> Result<Vec<SetContents>, Error> {
        self.client()?.list()
    }

    fn list_set(&mut self, name: &SetName) -> Result<SetContents, Error> {
        self.client()?.list_set(name)
    }

    fn headers(&mut self) -> Result<Vec<SetHeader>, Error> {
        self.client()?.headers()
    }

    fn header(&mut self, name: &SetName) -> Result<SetHeader, Error> {
        self.client()?.header(name)
    }

    fn names(&mut self) -> Result<Vec<SetName>, Error> {
        self.client()?.names()
    }

    fn test_all(&mut self, set: &SetName, entries: &[Entry]) -> Vec<Result<bool, Error>> {
        match self.client() {
            Ok(client) => client.test_all(set, entries),
            Err(error) => vec![Err(error); entries.len()],
        }
    }
}
