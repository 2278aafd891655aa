//! Encodes the requests of an API server as its etcd client encodes them, and reads what it needs of the
//! responses.

use crate::loadgen::wire::{Fields, Message};

use super::objects;

/// Number in `Compare.target` that compares the version of a key.
const TARGET_VERSION: u64 = 0;
/// Number in `Compare.target` that compares the revision of the last change of a key.
const TARGET_MOD: u64 = 2;

/// Comparison that a transaction makes before it writes.
#[derive(Clone, Copy, Debug)]
pub enum Compared {
    /// The revision of the last change of the key; 0 if there must be no key.
    ModRevision(i64),
    /// The version of the key; 0 if there must be no key.
    Version(u64),
}

/// What a transaction does if its comparison succeeds.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Puts this value, attached to this lease unless it is 0.
    Put(&'a [u8], i64),
    /// Deletes the key.
    Delete,
}

/// Writes a transaction that changes a key if the comparison succeeds. Otherwise it reads the key, except if
/// the key was to be created.
pub fn txn(out: &mut Vec<u8>, key: &[u8], compared: Compared, change: Change) {
    let mut message = Message(out);
    message.message(1, |compare| match compared {
        Compared::ModRevision(revision) => {
            compare.uint(2, TARGET_MOD).bytes(3, key).uint_always(6, revision as u64);
        }
        Compared::Version(version) => {
            compare.uint(2, TARGET_VERSION).bytes(3, key).uint_always(4, version);
        }
    });
    message.message(2, |op| {
        match change {
            Change::Put(value, lease) => op.message(2, |put| {
                put.bytes(1, key).bytes(2, value).int(3, lease);
            }),
            Change::Delete => op.message(3, |delete| {
                delete.bytes(1, key);
            }),
        };
    });
    message.message(3, |op| {
        op.message(1, |range| {
            range.bytes(1, key);
        });
    });
}

/// Appends an unconditional put to a transaction.
pub fn txn_put(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    Message(out).message(2, |op| {
        op.message(2, |put| {
            put.bytes(1, key).bytes(2, value);
        });
    });
}

/// Writes a request that creates a watch of a prefix, as kube-apiserver does: with previous values and with
/// progress notifications.
pub fn watch(out: &mut Vec<u8>, prefix: &[u8], revision: i64) {
    Message(out).message(1, |create| {
        create
            .bytes(1, prefix)
            .bytes(2, &crate::loads::range::prefix_end(prefix))
            .int(3, revision)
            .flag(4, true)
            .flag(6, true);
    });
}

/// Writes a request for the progress of all watches of a stream.
pub fn progress(out: &mut Vec<u8>) {
    Message(out).message(3, |_| ());
}

/// What matters in the response to a transaction, a range, a grant or a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Revision in the header.
    pub revision: i64,
    /// True if the comparison of a transaction succeeded.
    pub succeeded: bool,
    /// Last change of the key that a transaction read after its comparison failed; 0 if there is none.
    pub found: i64,
    /// Version of that key.
    pub version: u64,
    /// Id of a granted lease.
    pub lease: i64,
}

/// Reads the response to a transaction.
pub fn txn_answer(body: &[u8]) -> Answer {
    let fields = Fields(body);
    let revision = header(body);
    let succeeded = fields.number(2) != 0;
    let mut answer = Answer { revision, succeeded, ..Answer::default() };
    if !succeeded {
        let found = Fields(Fields(Fields(fields.bytes(3)).bytes(1)).bytes(2));
        answer.found = found.number(3) as i64;
        answer.version = found.number(4);
    }
    answer
}

/// Reads the response to a grant.
pub fn grant_answer(body: &[u8]) -> Answer {
    Answer { lease: Fields(body).number(2) as i64, ..Answer::default() }
}

/// Returns the revision in the header of a response.
pub fn header(body: &[u8]) -> i64 {
    Fields(Fields(body).bytes(1)).number(3) as i64
}

/// An event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// True if the key was deleted.
    pub is_delete: bool,
    /// Revision of the change.
    pub revision: i64,
    /// Time at which the write was due, in microseconds, if its value says so.
    pub due_us: Option<u64>,
}

/// Reads one event of a watch response.
pub fn event(body: &[u8]) -> Event {
    let fields = Fields(body);
    let mut event = Event { is_delete: fields.number(1) != 0, revision: 0, due_us: None };
    for (number, field) in Fields(fields.bytes(2)) {
        match number {
            3 => event.revision = field.number() as i64,
            5 => event.due_us = objects::stamp(field.bytes()),
            _ => {}
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::{TxnRequest, WatchRequest, compare, request_op, watch_request};
    use prost::Message as _;

    #[test]
    fn requests_are_those_of_etcds_client() {
        let mut out = Vec::new();
        txn(&mut out, b"key", Compared::ModRevision(0), Change::Put(b"value", 7));
        let request = TxnRequest::decode(&out[..]).unwrap();
        assert_eq!(request.compare[0].target_union, Some(compare::TargetUnion::ModRevision(0)));
        assert_eq!(request.compare[0].target, compare::CompareTarget::Mod as i32);
        let Some(request_op::Request::RequestPut(put)) = &request.success[0].request else { panic!("a put") };
        assert_eq!((&put.key[..], &put.value[..], put.lease), (&b"key"[..], &b"value"[..], 7));
        assert!(matches!(request.failure[0].request, Some(request_op::Request::RequestRange(_))));
        out.clear();
        txn(&mut out, b"key", Compared::Version(3), Change::Delete);
        let request = TxnRequest::decode(&out[..]).unwrap();
        assert_eq!(request.compare[0].target_union, Some(compare::TargetUnion::Version(3)));
        assert!(matches!(request.success[0].request, Some(request_op::Request::RequestDeleteRange(_))));
        out.clear();
        watch(&mut out, b"/a/", 9);
        let Some(watch_request::RequestUnion::CreateRequest(create)) =
            WatchRequest::decode(&out[..]).unwrap().request_union
        else {
            panic!("a creation")
        };
        assert_eq!(
            (&create.key[..], &create.range_end[..], create.start_revision),
            (&b"/a/"[..], &b"/a0"[..], 9)
        );
        assert!(create.prev_kv && create.progress_notify);
        out.clear();
        progress(&mut out);
        let request = WatchRequest::decode(&out[..]).unwrap().request_union;
        assert!(matches!(request, Some(watch_request::RequestUnion::ProgressRequest(_))));
    }
}
