//! [`Ipvs`] for references and boxes.

use crate::client::Ipvs;
use crate::daemon::Daemon;
use crate::error::Error;
use crate::info::Info;
use crate::operation::Operation;
use crate::real_server::RealServer;
use crate::scheduler::Scheduler;
use crate::snapshot::Snapshot;
use crate::stats::{RealServerStatus, VirtualServerStatus};
use crate::timeouts::Timeouts;
use crate::virtual_server::{VirtualServer, VirtualServerKey};

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        /// The table that the pointer refers to.
        impl<T: Ipvs + ?Sized> Ipvs for $pointer {
            fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
                (**self).execute(operations)
            }

            fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error> {
                (**self).list_virtual_servers()
            }

            fn find_virtual_server(
                &mut self,
                key: &VirtualServerKey,
            ) -> Result<Option<VirtualServerStatus>, Error> {
                (**self).find_virtual_server(key)
            }

            fn list_real_servers(
                &mut self,
                virtual_server: &VirtualServerKey,
            ) -> Result<Vec<RealServerStatus>, Error> {
                (**self).list_real_servers(virtual_server)
            }

            fn snapshot(&mut self) -> Result<Snapshot, Error> {
                (**self).snapshot()
            }

            fn timeouts(&mut self) -> Result<Timeouts, Error> {
                (**self).timeouts()
            }

            fn is_scheduler_refused(&mut self, scheduler: Scheduler) -> bool {
                (**self).is_scheduler_refused(scheduler)
            }

            fn permit_loading(&mut self, schedulers: &[Scheduler]) {
                (**self).permit_loading(schedulers);
            }

            fn list_daemons(&mut self) -> Result<Vec<Daemon>, Error> {
                (**self).list_daemons()
            }

            fn info(&mut self) -> Result<Info, Error> {
                (**self).info()
            }

            fn list_all(&mut self) -> Result<Vec<(VirtualServer, Vec<RealServer>)>, Error> {
                (**self).list_all()
            }
        }
    )*};
}

forward!(Box<T>, &mut T);
