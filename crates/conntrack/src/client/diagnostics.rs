//! Statistics, and listings other than those of the trait.

use kernlink_base::Family;

use super::{Client, request_failed};
use crate::error::Error;
use crate::flow::Flow;
use crate::statistics::{CpuStatistics, ExpectationStatistics};
use crate::{uapi, wire};

impl Client {
    /// Statistics of each processor (`conntrack -S`), in the order of the processors.
    ///
    /// # Errors
    /// [`is_permission_denied`](Error::is_permission_denied).
    pub fn cpu_statistics(&mut self) -> Result<Vec<CpuStatistics>, Error> {
        self.connection
            .dump_all(
                wire::flow_message(uapi::IPCTNL_MSG_CT_GET_STATS_CPU),
                0,
                |w| wire::header(w, uapi::AF_UNSPEC),
                |message| wire::read_cpu_statistics(message.payload).map(Some),
            )
            .map_err(request_failed("read the statistics of each processor"))
    }

    /// Statistics of each processor about expectations (`conntrack -S exp`).
    ///
    /// # Errors
    /// [`is_permission_denied`](Error::is_permission_denied).
    pub fn expectation_statistics(&mut self) -> Result<Vec<ExpectationStatistics>, Error> {
        self.connection
            .dump_all(
                wire::expectation_message(uapi::IPCTNL_MSG_EXP_GET_STATS_CPU),
                0,
                |w| wire::header(w, uapi::AF_UNSPEC),
                |message| wire::read_expectation_statistics(message.payload).map(Some),
            )
            .map_err(request_failed("read the statistics of expectations"))
    }

    /// Flows that were removed from the table and that the kernel keeps until their event is delivered
    /// (`conntrack -L dying`).
    ///
    /// # Errors
    /// [`is_permission_denied`](Error::is_permission_denied).
    pub fn dying(&mut self) -> Result<Vec<Flow>, Error> {
        self.special_list(uapi::IPCTNL_MSG_CT_GET_DYING, "list dying flows")
    }

    /// Flows whose first packet has not left this host yet (`conntrack -L unconfirmed`). Always empty from Linux 6.0 on,
    /// which keeps no list of them.
    ///
    /// # Errors
    /// [`is_permission_denied`](Error::is_permission_denied).
    pub fn unconfirmed(&mut self) -> Result<Vec<Flow>, Error> {
        self.special_list(uapi::IPCTNL_MSG_CT_GET_UNCONFIRMED, "list unconfirmed flows")
    }

    /// Lists all flows of a family and sets their counters to zero (`conntrack -L -z`). It takes no filter, because the kernel
    /// zeroes the counters of every flow that it lists.
    ///
    /// # Errors
    /// [`is_permission_denied`](Error::is_permission_denied).
    pub fn list_and_zero_counters(&mut self, family: Option<Family>) -> Result<Vec<Flow>, Error> {
        let number = family.map_or(uapi::AF_UNSPEC, wire::family_number);
        self.connection
            .dump_all(
                wire::flow_message(uapi::IPCTNL_MSG_CT_GET_CTRZERO),
                0,
                |w| wire::header(w, number),
                |message| wire::read_flow(message.payload).map(Some),
            )
            .map_err(request_failed("list flows and zero their counters"))
    }

    fn special_list(&mut self, command: u8, attempt: &'static str) -> Result<Vec<Flow>, Error> {
        self.connection
            .dump_all(
                wire::flow_message(command),
                0,
                |w| wire::header(w, uapi::AF_UNSPEC),
                |message| wire::read_flow(message.payload).map(Some),
            )
            .map_err(request_failed(attempt))
    }
}
