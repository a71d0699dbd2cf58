//! States of protocols.

use kernlink_netlink::{Attribute, AttributeWriter, Error};

use crate::protocol_state::{DccpState, ProtocolState, SctpState, TcpState};
use crate::uapi::*;

pub(super) fn write_tcp_state(w: &mut AttributeWriter<'_>, state: TcpState) {
    w.nested(CTA_PROTOINFO, |w| {
        w.nested(CTA_PROTOINFO_TCP, |w| {
            w.u8(CTA_PROTOINFO_TCP_STATE, state.0);
        });
    });
}

/// `NewFlow::check` and `Operation::check` have refused a state of DCCP.
pub(super) fn write_protocol_state(w: &mut AttributeWriter<'_>, state: ProtocolState) {
    w.nested(CTA_PROTOINFO, |w| match state {
        ProtocolState::Tcp {
            state,
            window_scale,
            flags,
        } => {
            w.nested(CTA_PROTOINFO_TCP, |w| {
                w.u8(CTA_PROTOINFO_TCP_STATE, state.0)
                    .u8(CTA_PROTOINFO_TCP_WSCALE_ORIGINAL, window_scale[0])
                    .u8(CTA_PROTOINFO_TCP_WSCALE_REPLY, window_scale[1])
                    // `struct nf_ct_tcp_flags`: flags and mask.
                    .bytes(CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, &[flags[0], u8::MAX])
                    .bytes(CTA_PROTOINFO_TCP_FLAGS_REPLY, &[flags[1], u8::MAX]);
            });
        }
        ProtocolState::Sctp {
            state,
            verification_tags,
        } => {
            w.nested(CTA_PROTOINFO_SCTP, |w| {
                w.u8(CTA_PROTOINFO_SCTP_STATE, state.0)
                    .be_u32(CTA_PROTOINFO_SCTP_VTAG_ORIGINAL, verification_tags[0])
                    .be_u32(CTA_PROTOINFO_SCTP_VTAG_REPLY, verification_tags[1]);
            });
        }
        ProtocolState::Dccp { .. } => {}
    });
}

pub(super) fn read_protocol_state(attribute: &Attribute<'_>) -> Result<Option<ProtocolState>, Error> {
    let mut state = None;
    for attribute in attribute.nested() {
        let attribute = attribute?;
        state = match attribute.kind() {
            CTA_PROTOINFO_TCP => Some(read_tcp(&attribute)?),
            CTA_PROTOINFO_SCTP => Some(read_sctp(&attribute)?),
            CTA_PROTOINFO_DCCP => Some(read_dccp(&attribute)?),
            _ => state,
        };
    }
    Ok(state)
}

fn read_tcp(attribute: &Attribute<'_>) -> Result<ProtocolState, Error> {
    let mut state = TcpState::NONE;
    let mut window_scale = [0; 2];
    let mut flags = [0; 2];
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_PROTOINFO_TCP_STATE => state = TcpState(attribute.u8()?),
            CTA_PROTOINFO_TCP_WSCALE_ORIGINAL => window_scale[0] = attribute.u8()?,
            CTA_PROTOINFO_TCP_WSCALE_REPLY => window_scale[1] = attribute.u8()?,
            // `struct nf_ct_tcp_flags`: flags and mask.
            CTA_PROTOINFO_TCP_FLAGS_ORIGINAL => flags[0] = attribute.array::<2>()?[0],
            CTA_PROTOINFO_TCP_FLAGS_REPLY => flags[1] = attribute.array::<2>()?[0],
            _ => {}
        }
    }
    Ok(ProtocolState::Tcp {
        state,
        window_scale,
        flags,
    })
}

fn read_sctp(attribute: &Attribute<'_>) -> Result<ProtocolState, Error> {
    let mut state = SctpState::NONE;
    let mut verification_tags = [0; 2];
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_PROTOINFO_SCTP_STATE => state = SctpState(attribute.u8()?),
            CTA_PROTOINFO_SCTP_VTAG_ORIGINAL => verification_tags[0] = attribute.be_u32()?,
            CTA_PROTOINFO_SCTP_VTAG_REPLY => verification_tags[1] = attribute.be_u32()?,
            _ => {}
        }
    }
    Ok(ProtocolState::Sctp {
        state,
        verification_tags,
    })
}

fn read_dccp(attribute: &Attribute<'_>) -> Result<ProtocolState, Error> {
    let mut state = DccpState::NONE;
    let mut role = 0;
    let mut handshake_sequence = 0;
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_PROTOINFO_DCCP_STATE => state = DccpState(attribute.u8()?),
            CTA_PROTOINFO_DCCP_ROLE => role = attribute.u8()?,
            CTA_PROTOINFO_DCCP_HANDSHAKE_SEQ => handshake_sequence = attribute.be_u64()?,
            _ => {}
        }
    }
    Ok(ProtocolState::Dccp {
        state,
        role,
        handshake_sequence,
    })
}
