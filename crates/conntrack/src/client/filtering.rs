//! Which parts of a filter the running kernel compares correctly, and requests with these parts.

use kernlink_base::{Family, Protocol};
use kernlink_netlink::Errno;

use super::{Client, KernelFiltering, request_failed};
use crate::error::Error;
use crate::filter::Filter;
use crate::kernel_filter::{self, Ipv6Addresses, KernelFilter};
use crate::operation::Operation;
use crate::tuple::Tuple;
use crate::{uapi, wire};

/// Whether this kernel compares IPv6 addresses the right way round. Linux does not, from 5.8 to at
/// least 6.18: flows with *another* address pass
/// ([`ctnetlink_filter_match_tuple`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_netlink.c#L1060)).
/// Only a filter that lets through the very flow it names proves the contrary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ipv6Comparison {
    /// No IPv6 flow was seen so far.
    Unknown,
    /// This one was there a moment ago and can be asked for.
    Sample(Tuple),
    Correct,
    Inverted,
}

impl Client {
    /// Whether the kernel takes filters when listing; tried once.
    fn filters_listing(&mut self) -> Result<bool, Error> {
        if self.filtering == KernelFiltering::Off {
            return Ok(false);
        }
        if let Some(known) = self.filters_listing {
            return Ok(known);
        }
        let dump = self.connection.dump(
            wire::flow_message(uapi::IPCTNL_MSG_CT_GET),
            0,
            kernel_filter::write_listing_probe,
            |_| Ok::<_, kernlink_netlink::Error>(Some(())),
        );
        let first = dump
            .map_err(request_failed("list flows"))?
            .next()
            .transpose()
            .or_else(|error| match error.errno() {
                Some(Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(Some(())),
                _ => Err(request_failed("list flows")(error)),
            })?;
        // A flow that came nevertheless says that the filter was not understood.
        let known = first.is_none();
        self.filters_listing = Some(known);
        Ok(known)
    }

    /// Whether a kernel that takes filters reads conditions on reply tuples and masked marks rightly; tried once.
    fn reads_conditions(&mut self) -> Result<bool, Error> {
        if let Some(known) = self.reads_conditions {
            return Ok(known);
        }
        let dump = self.connection.dump(
            wire::flow_message(uapi::IPCTNL_MSG_CT_GET),
            0,
            kernel_filter::write_reply_probe,
            |_| Ok::<_, kernlink_netlink::Error>(Some(())),
        );
        let known = match dump.map_err(request_failed("list flows"))?.next() {
            Some(Err(error)) if error.errno() == Some(Errno::EINVAL) => true,
            Some(Err(error)) if error.errno() != Some(Errno::EOPNOTSUPP) => {
                return Err(request_failed("list flows")(error));
            }
            _ => false,
        };
        self.reads_conditions = Some(known);
        Ok(known)
    }

    /// Whether the kernel takes filters when deleting; tried once, and not by deleting.
    fn filters_deletion(&mut self) -> Result<bool, Error> {
        if self.filtering != KernelFiltering::Full {
            return Ok(false);
        }
        if let Some(known) = self.filters_deletion {
            return Ok(known);
        }
        let probe = self.connection.acknowledged(
            wire::flow_message(uapi::IPCTNL_MSG_CT_DELETE),
            0,
            kernel_filter::write_deletion_probe,
        );
        let known = match probe {
            Err(error) if matches!(error.errno(), Some(Errno::EINVAL | Errno::EOPNOTSUPP)) => true,
            Err(error) if error.errno() == Some(Errno::ENOENT) => false,
            Ok(()) => false,
            Err(error) => return Err(request_failed("delete flows by a filter")(error)),
        };
        self.filters_deletion = Some(known);
        Ok(known)
    }

    /// Whether IPv6 addresses may be given to the kernel.
    fn ipv6_addresses(&mut self) -> Result<Ipv6Addresses, Error> {
        if let Ipv6Comparison::Sample(tuple) = self.ipv6 {
            self.ipv6 = self.try_ipv6(&tuple)?;
        }
        Ok(match self.ipv6 {
            Ipv6Comparison::Correct => Ipv6Addresses::Pushed,
            _ => Ipv6Addresses::HeldBack,
        })
    }

    /// Lists by an address that a flow was seen to have: if that flow comes, addresses are compared
    /// the right way round, and if others come, they are not. Nothing proves nothing: the flow may
    /// have ended.
    fn try_ipv6(&mut self, sample: &Tuple) -> Result<Ipv6Comparison, Error> {
        let mut filter = Filter::new()
            .with_protocol(sample.protocol)
            .with_source(ipnet::IpNet::from(sample.source));
        if matches!(sample.protocol, Protocol::TCP | Protocol::UDP) {
            filter = filter.with_source_port(sample.source_socket().port());
        }
        let request = KernelFilter::of(&filter, Some(Family::Ipv6), Ipv6Addresses::Pushed);
        let mut dump = self
            .connection
            .dump(
                wire::flow_message(uapi::IPCTNL_MSG_CT_GET),
                0,
                |w| request.write_listing(w),
                |message| wire::read_flow(message.payload).map(Some),
            )
            .map_err(request_failed("list flows"))?;
        match dump.next().transpose().map_err(request_failed("list flows"))? {
            Some(flow) if flow.original.source == sample.source => Ok(Ipv6Comparison::Correct),
            Some(_) => Ok(Ipv6Comparison::Inverted),
            None => Ok(Ipv6Comparison::Unknown),
        }
    }

    /// What of a filter the kernel shall do when listing.
    pub(super) fn listing_filter(&mut self, filter: &Filter) -> Result<KernelFilter, Error> {
        let family = filter.implied_family();
        // The family alone needs no trial.
        let is_trivial =
            KernelFilter::of(filter, family, Ipv6Addresses::Pushed) == KernelFilter::family_only(family);
        if is_trivial || !self.filters_listing()? {
            return Ok(KernelFilter::family_only(family));
        }
        let ipv6 = self.ipv6_addresses()?;
        let request = KernelFilter::of(filter, family, ipv6);
        if request.may_be_misread() && !self.reads_conditions()? {
            return Ok(request.without_misread());
        }
        Ok(request)
    }

    /// Deletes by a filter in the kernel, if it can do all of it. `false` if it cannot.
    pub(super) fn delete_in_kernel(&mut self, filter: &Filter) -> Result<bool, Error> {
        if !self.filters_deletion()? {
            return Ok(false);
        }
        let ipv6 = self.ipv6_addresses()?;
        // Tuples need a family, so a filter without one is sent for each.
        let any_family = KernelFilter::of(filter, None, ipv6);
        let requests = match filter.implied_family() {
            None if any_family.is_exact => vec![any_family],
            None => [Family::Ipv4, Family::Ipv6]
                .map(|family| KernelFilter::of(filter, Some(family), ipv6))
                .into(),
            family => vec![KernelFilter::of(filter, family, ipv6)],
        };
        if !requests.iter().all(|request| request.is_exact) {
            return Ok(false);
        }
        for request in requests {
            self.connection
                .acknowledged(wire::flow_message(uapi::IPCTNL_MSG_CT_DELETE), 0, |w| {
                    request.write_deletion(w);
                })
                .map_err(|source| Error::Failed {
                    operation: Box::new(Operation::DeleteMatching(filter.clone())),
                    source,
                })?;
        }
        Ok(true)
    }
}
