//! Expectations of the kernel.

use kernlink_netlink::flags;

use super::{Client, request_failed};
use crate::error::Error;
use crate::expectation::{Expectation, NewExpectation};
use crate::{uapi, wire};

impl Client {
    /// Adds an expectation: a flow that matches it becomes a child of the master.
    ///
    /// The kernel gives a new expectation the timeout of the master's helper; another timeout is set by a second message.
    ///
    /// # Errors
    /// [`is_already_exists`](Error::is_already_exists), [`is_not_found`](Error::is_not_found) if the master does not
    /// exist, [`is_unsupported`](Error::is_unsupported) if the master has no helper or the kernel does not have the named helper.
    pub fn add_expectation(&mut self, expectation: &NewExpectation) -> Result<(), Error> {
        expectation.check().map_err(|problem| Error::InvalidExpectation {
            expectation: expectation.to_string().into(),
            problem,
        })?;
        let create = flags::NLM_F_CREATE | flags::NLM_F_EXCL;
        let change = expectation.timeout.map(|_| 0);
        for flags in [Some(create), change].into_iter().flatten() {
            self.connection
                .execute_one(wire::expectation_message(uapi::IPCTNL_MSG_EXP_NEW), flags, |w| {
                    wire::write_new_expectation(w, expectation)
                })
                .map_err(|source| Error::Expectation {
                    attempt: "add",
                    expectation: expectation.to_string().into(),
                    source,
                })?;
        }
        Ok(())
    }

    /// Deletes the expectation with this tuple, zone and id; id 0 is any. For a zone other than 0, set [`Expectation::zone`] first:
    /// the kernel does not list it.
    ///
    /// # Errors
    /// [`is_not_found`](Error::is_not_found), also if the expectation with this tuple has another id.
    pub fn delete_expectation(&mut self, expectation: &Expectation) -> Result<(), Error> {
        expectation
            .tuple
            .check("tuple")
            .map_err(|problem| Error::InvalidExpectation {
                expectation: expectation.to_string().into(),
                problem,
            })?;
        self.connection
            .execute_one(wire::expectation_message(uapi::IPCTNL_MSG_EXP_DELETE), 0, |w| {
                wire::write_expectation_key(w, expectation)
            })
            .map_err(|source| Error::Expectation {
                attempt: "delete",
                expectation: expectation.to_string().into(),
                source,
            })
    }

    /// Deletes all expectations of both families (`conntrack -F expect`).
    ///
    /// # Errors
    /// [`is_permission_denied`](Error::is_permission_denied).
    pub fn flush_expectations(&mut self) -> Result<(), Error> {
        self.connection
            .execute_one(wire::expectation_message(uapi::IPCTNL_MSG_EXP_DELETE), 0, |w| {
                wire::header(w, uapi::AF_UNSPEC)
            })
            .map_err(|source| Error::Expectation {
                attempt: "delete",
                expectation: "(all)".into(),
                source,
            })
    }

    /// Lists the expectations of both families (`conntrack -L expect`).
    ///
    /// # Errors
    /// [`is_permission_denied`](Error::is_permission_denied).
    pub fn expectations(&mut self) -> Result<Vec<Expectation>, Error> {
        self.connection
            .dump_all(
                wire::expectation_message(uapi::IPCTNL_MSG_EXP_GET),
                0,
                |w| wire::header(w, uapi::AF_UNSPEC),
                |message| wire::read_expectation(message.payload).map(Some),
            )
            .map_err(request_failed("list expectations"))
    }
}
