//! Describes the messages of the API field by field, for code that converts messages of any type, for example
//! to JSON. A [`Message`] describes one message, and [`of`] returns the request and response of an RPC. The
//! tables are generated from the `.proto` files.

use crate::Rpc;

/// Description of a message.
#[derive(Debug)]
pub struct Message {
    /// Package and name, such as `etcdserverpb.PutRequest`.
    pub name: &'static str,
    /// Fields of the message, in the order of the `.proto` file.
    pub fields: &'static [Field],
}

/// Description of a field of a message.
#[derive(Debug)]
pub struct Field {
    /// Name in the `.proto` file, such as `range_end`.
    pub name: &'static str,
    /// Name in JSON, such as `rangeEnd`.
    pub json_name: &'static str,
    /// Field number on the wire.
    pub number: u32,
    /// Type of the field's values.
    pub kind: Kind,
    /// True if the field is repeated.
    pub repeated: bool,
    /// Full name of the oneof to which the field belongs, such as `etcdserverpb.RequestOp.request`; `None` if
    /// the field is not in a oneof.
    pub oneof: Option<&'static str>,
}

/// Type of a field's values.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are protobuf's own")]
pub enum Kind {
    Bool,
    Int32,
    Int64,
    Uint32,
    Uint64,
    String,
    Bytes,
    Enum(&'static Enum),
    Message(&'static Message),
}

/// Description of an enum.
#[derive(Debug)]
pub struct Enum {
    /// Package and name.
    pub name: &'static str,
    /// Names and numbers, in the order of the `.proto` file.
    pub values: &'static [(&'static str, i32)],
}

/// Returns the descriptions of an RPC's request and response; `None` for the RPCs of gRPC's own services.
pub fn of(rpc: Rpc) -> Option<(&'static Message, &'static Message)> {
    SHAPES[rpc as usize]
}

include!("proto/descriptors.rs");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rpc_of_etcd_is_described() {
        for rpc in Rpc::ALL {
            let method = rpc.method();
            match of(rpc) {
                None => assert!(method.service.starts_with("grpc."), "{rpc:?}"),
                Some((request, response)) => {
                    assert!(request.name.ends_with("Request"), "{rpc:?}");
                    assert!(response.name.ends_with("Response"), "{rpc:?}");
                }
            }
        }
        let (put, _) = of(Rpc::KvPut).unwrap();
        let names: Vec<_> = put.fields.iter().map(|f| (f.name, f.json_name, f.number)).collect();
        assert_eq!(names[3..5], [("prev_kv", "prevKv", 4), ("ignore_value", "ignoreValue", 5)]);
    }

    #[test]
    fn a_set_of_seen_fields_fits_64_bits() {
        for (request, response) in SHAPES.iter().flatten() {
            assert!(request.fields.len() <= 64 && response.fields.len() <= 64);
        }
    }
}
