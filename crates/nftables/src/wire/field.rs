//! The payloads of attributes, and a macro that declares a type together with its attributes.

use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error};

/// What the payload of one attribute contains.
pub(crate) trait Field: Sized {
    /// Appends the attribute, or nothing for an absent optional value.
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16);

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error>;
}

/// A type whose fields are attributes.
pub(crate) trait Attributes: Sized {
    fn encode(&self, writer: &mut AttributeWriter<'_>);

    /// Fails for attributes that the type does not have, so that nothing is lost in silence.
    fn decode(attributes: AttributeReader<'_>) -> Result<Self, Error>;
}

/// The error for an attribute that a type does not have. Padding has no payload and is skipped by the callers.
pub(crate) const UNKNOWN: Error = Error::Malformed {
    what: "message: an attribute is not known",
};

/// The error for an attribute that is required.
pub(crate) const MISSING: Error = Error::Malformed {
    what: "message: an attribute is missing",
};

macro_rules! integers {
    ($($type:ty: $write:ident $read:ident,)*) => {$(
        impl Field for $type {
            fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
                writer.$write(kind, *self);
            }

            fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
                attribute.$read()
            }
        }
    )*};
}

integers! {
    u8: u8 u8,
    u16: be_u16 be_u16,
    u32: be_u32 be_u32,
    u64: be_u64 be_u64,
}

impl<T: Field> Field for Option<T> {
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        if let Some(value) = self {
            value.write(writer, kind);
        }
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        T::read(attribute).map(Some)
    }
}

impl Field for Box<str> {
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        writer.string(kind, self);
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        Ok(text(attribute))
    }
}

/// Text up to the first NUL. The kernel accepts names of any bytes; those that are not UTF-8 are replaced.
pub(crate) fn text(attribute: &Attribute<'_>) -> Box<str> {
    let bytes = attribute.bytes();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or(bytes)).into()
}

/// Declares a structure whose fields are attributes: the required ones, which are the parameters of `new`, and the
/// optional ones, each with the method that sets it.
macro_rules! attributes {
    (
        $(#[$doc:meta])*
        $name:ident {
            $($(#[$required_doc:meta])* $required:ident: $required_type:ty = $required_kind:ident,)*
            $(; $($(#[$optional_doc:meta])* $with:ident $optional:ident: $optional_type:ty = $optional_kind:ident,)*)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$required_doc])* pub $required: $required_type,)*
            $($($(#[$optional_doc])* pub $optional: $optional_type,)*)?
        }

        #[allow(clippy::new_without_default, reason = "some of the structures have no required field")]
        impl $name {
            /// With the required fields; the others have their defaults.
            #[must_use]
            pub fn new($($required: impl Into<$required_type>),*) -> Self {
                $name {
                    $($required: $required.into(),)*
                    $($($optional: Default::default(),)*)?
                }
            }

            $($(
                #[doc = concat!("Sets `", stringify!($optional), "`.")]
                #[must_use]
                pub fn $with(mut self, $optional: impl Into<$optional_type>) -> Self {
                    self.$optional = $optional.into();
                    self
                }
            )*)?
        }

        impl crate::wire::Attributes for $name {
            #[allow(unused_variables, reason = "some of the structures have no field")]
            fn encode(&self, writer: &mut kernlink_netlink::AttributeWriter<'_>) {
                $(crate::wire::Field::write(&self.$required, writer, crate::uapi::$required_kind);)*
                $($(crate::wire::Field::write(&self.$optional, writer, crate::uapi::$optional_kind);)*)?
            }

            fn decode(attributes: kernlink_netlink::AttributeReader<'_>) -> Result<Self, kernlink_netlink::Error> {
                $(let mut $required: Option<$required_type> = None;)*
                $($(let mut $optional: Option<$optional_type> = None;)*)?
                for attribute in attributes {
                    let attribute = attribute?;
                    match attribute.kind() {
                        $(crate::uapi::$required_kind => $required = Some(crate::wire::Field::read(&attribute)?),)*
                        $($(crate::uapi::$optional_kind => $optional = Some(crate::wire::Field::read(&attribute)?),)*)?
                        _ if attribute.bytes().is_empty() => {}
                        _ => return Err(crate::wire::UNKNOWN),
                    }
                }
                Ok($name {
                    $($required: $required.ok_or(crate::wire::MISSING)?,)*
                    $($($optional: $optional.unwrap_or_default(),)*)?
                })
            }
        }
    };
}

/// Declares an enumeration of the kernel with a variant for values that it does not name. Each variant has its constant and the
/// word of `nft` for it.
macro_rules! open_enum {
    (
        $(#[$doc:meta])*
        $name:ident: $number:ty {
            $($(#[$variant_doc:meta])* $variant:ident = $constant:ident $text:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
            /// A value of a newer kernel.
            Unknown($number),
        }

        impl $name {
            /// The value in the kernel.
            #[must_use]
            pub fn number(self) -> $number {
                match self {
                    $($name::$variant => crate::uapi::$constant,)*
                    $name::Unknown(number) => number,
                }
            }

            /// The variant of a value in the kernel.
            #[must_use]
            pub fn from_number(number: $number) -> Self {
                match number {
                    $(crate::uapi::$constant => $name::$variant,)*
                    number => $name::Unknown(number),
                }
            }
        }

        /// The variant of 0.
        impl Default for $name {
            fn default() -> Self {
                $name::from_number(0)
            }
        }

        /// As `nft` prints it.
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $($name::$variant => f.pad($text),)*
                    $name::Unknown(number) => write!(f, "{number}"),
                }
            }
        }

        impl crate::wire::Field for $name {
            fn write(&self, writer: &mut kernlink_netlink::AttributeWriter<'_>, kind: u16) {
                crate::wire::Field::write(&self.number(), writer, kind);
            }

            fn read(attribute: &kernlink_netlink::Attribute<'_>) -> Result<Self, kernlink_netlink::Error> {
                crate::wire::Field::read(attribute).map($name::from_number)
            }
        }
    };
}

/// Implements [`Field`] for flags. Without a bit no attribute is written.
macro_rules! flags_field {
    ($($name:ty),* $(,)?) => {$(
        impl crate::wire::Field for $name {
            fn write(&self, writer: &mut kernlink_netlink::AttributeWriter<'_>, kind: u16) {
                if !self.is_empty() {
                    crate::wire::Field::write(&self.bits(), writer, kind);
                }
            }

            fn read(attribute: &kernlink_netlink::Attribute<'_>) -> Result<Self, kernlink_netlink::Error> {
                crate::wire::Field::read(attribute).map(<$name>::from_bits_retain)
            }
        }
    )*};
}

pub(crate) use {attributes, flags_field, open_enum};
