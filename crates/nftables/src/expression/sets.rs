//! Expressions that use sets, maps and objects.

use kernlink_netlink::{AttributeReader, AttributeWriter, Error};

use crate::expression::{Expression, read_of_element, write_one_or_list};
use crate::object::ObjectKind;
use crate::register::Register;
use crate::uapi::{
    NFT_DYNSET_F_EXPR, NFT_DYNSET_F_INV, NFTA_DYNSET_EXPR, NFTA_DYNSET_EXPRESSIONS, NFTA_DYNSET_FLAGS,
    NFTA_DYNSET_OP, NFTA_DYNSET_SET_ID, NFTA_DYNSET_SET_NAME, NFTA_DYNSET_SREG_DATA, NFTA_DYNSET_SREG_KEY,
    NFTA_DYNSET_TIMEOUT,
};
use crate::wire::{
    Attributes, Field, MISSING, Milliseconds, UNKNOWN, attributes, flags_field, open_enum, text,
};

bitflags::bitflags! {
    /// Flags of a lookup.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LookupFlags: u32 {
        /// The rule ends if the element exists.
        const INVERT = crate::uapi::NFT_LOOKUP_F_INV;
        const _ = !0;
    }
}

flags_field!(LookupFlags);

attributes! {
    /// `lookup`: the rule ends if the set does not have the key.
    Lookup {
        /// The set or map, of the same table.
        set: Box<str> = NFTA_LOOKUP_SET,
        /// The first register of the key.
        source: Register = NFTA_LOOKUP_SREG,
        ;
        /// The first register for the data of a map; [`Register::VERDICT`] for a verdict map. `None`: the data are not
        /// loaded.
        with_destination destination: Option<Register> = NFTA_LOOKUP_DREG,
        /// Flags.
        with_flags flags: LookupFlags = NFTA_LOOKUP_FLAGS,
        /// The number of a set that is made in the same transaction and has no name yet. The client sets it for
        /// [anonymous](crate::SetFlags::ANONYMOUS) sets.
        with_set_id set_id: Option<u32> = NFTA_LOOKUP_SET_ID,
    }
}

open_enum! {
    /// What is done with an element.
    DynsetOperation: u32 {
        /// It is added unless it exists.
        Add = NFT_DYNSET_OP_ADD "add",
        /// It is added, or its timeout begins again.
        Update = NFT_DYNSET_OP_UPDATE "update",
        /// It is deleted (Linux 5.4).
        Delete = NFT_DYNSET_OP_DELETE "delete",
    }
}

/// `dynset`: adds, renews or deletes an element of a set of the flag [`EVAL`](crate::SetFlags::EVAL). The rule ends if that fails,
/// for example because the set is full.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dynset {
    /// The set or map, of the same table.
    pub set: Box<str>,
    /// What is done.
    pub operation: DynsetOperation,
    /// The first register of the key.
    pub key: Register,
    /// The first register of the data of a map. The kernel requires it for every operation on a map, also to delete.
    pub data: Option<Register>,
    /// The timeout of the element; `None`: that of the set.
    pub timeout: Option<std::time::Duration>,
    /// Whether the rule ends if the element could be changed.
    pub is_inverted: bool,
    /// Expressions that are created with the element and evaluated.
    pub expressions: Vec<Expression>,
    /// See [`Lookup::set_id`].
    pub set_id: Option<u32>,
}

impl Dynset {
    /// An operation on the element with the key in this register.
    #[must_use]
    pub fn new(set: impl Into<Box<str>>, operation: DynsetOperation, key: Register) -> Self {
        Dynset {
            set: set.into(),
            operation,
            key,
            data: None,
            timeout: None,
            is_inverted: false,
            expressions: Vec::new(),
            set_id: None,
        }
    }

    /// Sets `data`.
    #[must_use]
    pub fn with_data(mut self, data: Register) -> Self {
        self.data = Some(data);
        self
    }

    /// Sets `timeout`.
    #[must_use]
    pub fn with_timeout(mut self, timeout: std::time::Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets `expressions`.
    #[must_use]
    pub fn with_expressions(mut self, expressions: Vec<Expression>) -> Self {
        self.expressions = expressions;
        self
    }
}

impl Attributes for Dynset {
    fn encode(&self, writer: &mut AttributeWriter<'_>) {
        self.set.write(writer, NFTA_DYNSET_SET_NAME);
        self.set_id.write(writer, NFTA_DYNSET_SET_ID);
        self.operation.write(writer, NFTA_DYNSET_OP);
        self.key.write(writer, NFTA_DYNSET_SREG_KEY);
        self.data.write(writer, NFTA_DYNSET_SREG_DATA);
        self.timeout.map(Milliseconds).write(writer, NFTA_DYNSET_TIMEOUT);
        let mut flags = 0;
        if self.is_inverted {
            flags |= NFT_DYNSET_F_INV;
        }
        // The kernel does not return it.
        if !self.expressions.is_empty() {
            flags |= NFT_DYNSET_F_EXPR;
        }
        if flags != 0 {
            flags.write(writer, NFTA_DYNSET_FLAGS);
        }
        write_one_or_list(
            &self.expressions,
            writer,
            NFTA_DYNSET_EXPR,
            NFTA_DYNSET_EXPRESSIONS,
        );
    }

    fn decode(attributes: AttributeReader<'_>) -> Result<Self, Error> {
        let (mut set, mut operation, mut key) = (None, DynsetOperation::default(), None);
        let mut dynset = Dynset::new("", DynsetOperation::Add, Register::VERDICT);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind() {
                NFTA_DYNSET_SET_NAME => set = Some(text(&attribute)),
                NFTA_DYNSET_SET_ID => dynset.set_id = Some(attribute.be_u32()?),
                NFTA_DYNSET_OP => operation = Field::read(&attribute)?,
                NFTA_DYNSET_SREG_KEY => key = Some(Field::read(&attribute)?),
                NFTA_DYNSET_SREG_DATA => dynset.data = Field::read(&attribute)?,
                NFTA_DYNSET_TIMEOUT => dynset.timeout = Milliseconds::read(&attribute)?.nonzero(),
                NFTA_DYNSET_FLAGS => {
                    let flags = attribute.be_u32()?;
                    if flags & !(NFT_DYNSET_F_INV | NFT_DYNSET_F_EXPR) != 0 {
                        return Err(UNKNOWN);
                    }
                    dynset.is_inverted = flags & NFT_DYNSET_F_INV != 0;
                }
                NFTA_DYNSET_EXPR => dynset.expressions = vec![read_of_element(&attribute)?],
                NFTA_DYNSET_EXPRESSIONS => {
                    let nested = attribute.nested();
                    dynset.expressions = nested
                        .map(|attribute| read_of_element(&attribute?))
                        .collect::<Result<_, _>>()?;
                }
                _ if attribute.bytes().is_empty() => {}
                _ => return Err(UNKNOWN),
            }
        }
        dynset.set = set.ok_or(MISSING)?;
        dynset.operation = operation;
        dynset.key = key.ok_or(MISSING)?;
        Ok(dynset)
    }
}

attributes! {
    /// `objref` to an object.
    ObjectReference {
        /// The kind of object.
        kind: ObjectKind = NFTA_OBJREF_IMM_TYPE,
        /// The object, of the same table.
        name: Box<str> = NFTA_OBJREF_IMM_NAME,
    }
}

attributes! {
    /// `objref` to the object that a map has for a key. The rule ends if the map does not have the key.
    ObjectMap {
        /// The first register of the key.
        source: Register = NFTA_OBJREF_SET_SREG,
        /// The map, of the same table.
        set: Box<str> = NFTA_OBJREF_SET_NAME,
        ;
        /// See [`Lookup::set_id`].
        with_set_id set_id: Option<u32> = NFTA_OBJREF_SET_ID,
    }
}
