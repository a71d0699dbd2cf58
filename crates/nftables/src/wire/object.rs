//! Stateful objects.

use kernlink_netlink::{AttributeWriter, Error, Message};

use super::{Field, MISSING, header, parts, text};
use crate::object::{Object, ObjectData, ObjectKey, ObjectKind};
use crate::table::TableKey;
use crate::uapi::{
    NFTA_OBJ_DATA, NFTA_OBJ_HANDLE, NFTA_OBJ_NAME, NFTA_OBJ_TABLE, NFTA_OBJ_TYPE, NFTA_OBJ_USE,
    NFTA_OBJ_USERDATA,
};

pub(crate) fn encode_object(writer: &mut AttributeWriter<'_>, object: &Object) {
    encode_object_key(writer, &object.key);
    writer.nested(NFTA_OBJ_DATA, |writer| object.data.encode(writer));
    object.user_data.write(writer, NFTA_OBJ_USERDATA);
}

pub(crate) fn encode_object_key(writer: &mut AttributeWriter<'_>, key: &ObjectKey) {
    header(writer, key.table.family);
    writer.string(NFTA_OBJ_TABLE, &key.table.name);
    writer.string(NFTA_OBJ_NAME, &key.name);
    key.kind.write(writer, NFTA_OBJ_TYPE);
}

pub(crate) fn decode_object(message: &Message<'_>) -> Result<Object, Error> {
    let (family, attributes) = parts(message)?;
    let (mut table, mut name, mut kind, mut data) = (None, None, None, None);
    let key = ObjectKey::new(TableKey::new(family, ""), ObjectKind::Unknown(0), "");
    let mut object = Object::new(key, ObjectData::Opaque(Box::default()));
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_OBJ_TABLE => table = Some(text(&attribute)),
            NFTA_OBJ_NAME => name = Some(text(&attribute)),
            NFTA_OBJ_TYPE => kind = Some(ObjectKind::read(&attribute)?),
            NFTA_OBJ_DATA => data = Some(attribute.bytes()),
            NFTA_OBJ_USE => object.use_count = attribute.be_u32()?,
            NFTA_OBJ_HANDLE => object.handle = Some(attribute.be_u64()?),
            NFTA_OBJ_USERDATA => object.user_data = Field::read(&attribute)?,
            _ => {}
        }
    }
    object.key.table.name = table.ok_or(MISSING)?;
    object.key.name = name.ok_or(MISSING)?;
    object.key.kind = kind.ok_or(MISSING)?;
    object.data = ObjectData::decode(object.key.kind, data.unwrap_or(&[]));
    Ok(object)
}
