//! The sockets as the data path uses them: the [`Proxy`], or a fake.

use std::io;

use crate::proxy::{ListenerKey, Proxy, Serving};

/// Listening ports and claims.
pub trait Sockets: Send {
    /// Opens a listening port, or changes what an open one serves.
    ///
    /// # Errors
    /// The port could not be bound.
    fn listen(&mut self, key: ListenerKey, serving: &Serving) -> io::Result<()>;

    /// Closes a listening port. Its TCP connections live on.
    fn close(&mut self, key: &ListenerKey);

    /// Binds a port so that no other program gets it.
    ///
    /// # Errors
    /// The port could not be bound.
    fn claim(&mut self, key: ListenerKey) -> io::Result<()>;

    /// Releases a claim.
    fn release(&mut self, key: &ListenerKey);
}

impl Sockets for Proxy {
    fn listen(&mut self, key: ListenerKey, serving: &Serving) -> io::Result<()> {
        Proxy::listen(self, key, serving).map(|_| ())
    }

    fn close(&mut self, key: &ListenerKey) {
        Proxy::close(self, key);
    }

    fn claim(&mut self, key: ListenerKey) -> io::Result<()> {
        Proxy::claim(self, key)
    }

    fn release(&mut self, key: &ListenerKey) {
        Proxy::release(self, key);
    }
}

/// Sockets in memory.
#[cfg(feature = "fake")]
#[derive(Clone, Debug, Default)]
pub struct FakeSockets(std::sync::Arc<std::sync::Mutex<FakeState>>);

/// What [`FakeSockets`] contain.
#[cfg(feature = "fake")]
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FakeState {
    /// The listening ports.
    pub listeners: std::collections::BTreeMap<ListenerKey, Serving>,
    /// The claims.
    pub claims: std::collections::BTreeSet<ListenerKey>,
    /// What other programs use: binding it fails.
    pub foreign: std::collections::BTreeSet<ListenerKey>,
    /// Addresses that the node does not have: binding a port of them fails.
    pub missing: std::collections::BTreeSet<std::net::IpAddr>,
}

#[cfg(feature = "fake")]
impl FakeSockets {
    /// What they contain, to look at it or to change it.
    pub fn lock(&self) -> std::sync::MutexGuard<'_, FakeState> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(feature = "fake")]
impl FakeState {
    /// Whether a port can be bound.
    fn check(&self, key: &ListenerKey) -> io::Result<()> {
        if self.foreign.contains(key) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        if self.missing.contains(&key.address.ip()) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        Ok(())
    }
}

#[cfg(feature = "fake")]
impl Sockets for FakeSockets {
    fn listen(&mut self, key: ListenerKey, serving: &Serving) -> io::Result<()> {
        let mut state = self.lock();
        state.check(&key)?;
        state.listeners.insert(key, serving.clone());
        Ok(())
    }

    fn close(&mut self, key: &ListenerKey) {
        self.lock().listeners.remove(key);
    }

    fn claim(&mut self, key: ListenerKey) -> io::Result<()> {
        let mut state = self.lock();
        state.check(&key)?;
        state.claims.insert(key);
        Ok(())
    }

    fn release(&mut self, key: &ListenerKey) {
        self.lock().claims.remove(key);
    }
}
