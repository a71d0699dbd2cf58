//! Probes for the filters that the running kernel supports, and requests with these filters.

use kernlink_base::{Family, Protocol};
use kernlink_netlink::Errno;

use super::{Client, KernelFiltering, request_failed};
use crate::error::Error;
use crate::filter::Filter;
use crate::kernel_filter::{self, Ipv6Addresses, KernelFilter};
use crate::operation::Operation;
use crate::tuple::Tuple;
use crate::{uapi, wire};

/// Whether the kernel compares IPv6 addresses of filters correctly. Linux 5.8 to at least 6.18 inverts the comparison: flows with
/// *another* address match
/// ([`ctnetlink_filter_match_tuple`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_netlink.c#L1060)).
/// A probe with the address of an existing flow detects this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ipv6Comparison {
    /// No IPv6 flow was listed so far.
    Unknown,
    /// This flow was listed and can be used for a probe.
    Sample(Tuple),
    Correct,
    Inverted,
}

impl Client {
    /// Whether the kernel supports filters in listings; probed once.
    fn filters_listings(&mut self) -> Result<bool, Error> {
        if self.filtering == KernelFiltering::Off {
            return Ok(false);
        }
        if let Some(known) = self.filters_listings {
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
        // The filter matches no flow. A kernel that lists one ignored the filter.
        let known = first.is_none();
        self.filters_listings = Some(known);
        Ok(known)
    }

    /// Whether a kernel that supports filters compares reply tuples and masked marks correctly; probed once.
    fn compares_reply_tuples(&mut self) -> Result<bool, Error> {
        if let Some(known) = self.compares_reply_tuples {
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
        self.compares_reply_tuples = Some(known);
        Ok(known)
    }

    /// Whether the kernel supports filters in deletions; probed once, with a request that deletes nothing.
    fn filters_deletions(&mut self) -> Result<bool, Error> {
        if self.filtering != KernelFiltering::Full {
            return Ok(false);
        }
        if let Some(known) = self.filters_deletions {
            return Ok(known);
        }
        let probe = self.connection.execute_one(
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
        self.filters_deletions = Some(known);
        Ok(known)
    }

    /// Whether the kernel or this process compares IPv6 addresses.
    fn ipv6_addresses(&mut self) -> Result<Ipv6Addresses, Error> {
        if let Ipv6Comparison::Sample(tuple) = self.ipv6 {
            self.ipv6 = self.probe_ipv6(&tuple)?;
        }
        Ok(match self.ipv6 {
            Ipv6Comparison::Correct => Ipv6Addresses::InKernel,
            _ => Ipv6Addresses::InProcess,
        })
    }

    /// Lists the flows with the source address of a listed flow. If flows with this address are returned, the kernel compares
    /// addresses correctly; if others are returned, it does not. An empty list decides nothing: the flow may have ended.
    fn probe_ipv6(&mut self, sample: &Tuple) -> Result<Ipv6Comparison, Error> {
        let mut filter = Filter::new()
            .with_protocol(sample.protocol)
            .with_source(ipnet::IpNet::from(sample.source));
        if matches!(sample.protocol, Protocol::TCP | Protocol::UDP) {
            filter = filter.with_source_port(sample.source_socket().port());
        }
        let request = KernelFilter::of(&filter, Some(Family::Ipv6), Ipv6Addresses::InKernel);
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

    /// The part of a filter that the kernel compares when listing.
    pub(super) fn listing_filter(&mut self, filter: &Filter) -> Result<KernelFilter, Error> {
        let family = filter.implied_family();
        // A filter by family needs no probe.
        let has_family_only =
            KernelFilter::of(filter, family, Ipv6Addresses::InKernel) == KernelFilter::family_only(family);
        if has_family_only || !self.filters_listings()? {
            return Ok(KernelFilter::family_only(family));
        }
        let ipv6 = self.ipv6_addresses()?;
        let request = KernelFilter::of(filter, family, ipv6);
        if request.has_incorrect_conditions() && !self.compares_reply_tuples()? {
            return Ok(request.without_incorrect_conditions());
        }
        Ok(request)
    }

    /// Deletes by a filter in the kernel. Returns `false`, without a deletion, if the kernel cannot compare every condition.
    pub(super) fn delete_in_kernel(&mut self, filter: &Filter) -> Result<bool, Error> {
        if !self.filters_deletions()? {
            return Ok(false);
        }
        let ipv6 = self.ipv6_addresses()?;
        // The kernel requires a family with tuples, so a filter without a family is sent for each.
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
                .execute_one(wire::flow_message(uapi::IPCTNL_MSG_CT_DELETE), 0, |w| {
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
