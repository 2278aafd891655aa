//! Computes the conditions of transactions that replay the revisions of a source at another store, so that each
//! transaction is applied only directly after the previous one, whatever the order in which they arrive.

use api::etcdserverpb as pb;
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::mvccpb::Event;
use api::mvccpb::event::EventType;
use bytes::Bytes;

/// A key that a revision has put or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The key.
    pub key: Bytes,
    /// The revision.
    pub revision: i64,
    is_deleted: bool,
}

impl Mark {
    /// Returns the key and the revision of an event.
    pub fn of(event: &Event) -> Mark {
        let kv = event.kv.as_ref();
        Mark {
            key: kv.map(|kv| kv.key.clone()).unwrap_or_default(),
            revision: kv.map_or(0, |kv| kv.mod_revision),
            is_deleted: event.r#type == EventType::Delete as i32,
        }
    }

    /// Returns a condition that holds while the key is in the state in which this revision has left it:
    /// deleted, or last modified by this revision.
    fn is_there(&self) -> pb::Compare {
        if self.is_deleted {
            return compare(&self.key, CompareResult::Equal, TargetUnion::Version(0));
        }
        compare(&self.key, CompareResult::Equal, TargetUnion::ModRevision(self.revision))
    }

    /// Returns a condition that holds until this revision is applied: a key that it deletes still exists, or
    /// a key that it puts has a lower modification revision.
    pub fn is_missing(&self) -> pb::Compare {
        if self.is_deleted {
            return compare(&self.key, CompareResult::Greater, TargetUnion::Version(0));
        }
        compare(&self.key, CompareResult::Less, TargetUnion::ModRevision(self.revision))
    }
}

/// Computes the conditions for one revision after the other. It remembers one or two keys of the newest
/// revisions, whose states show that a revision was applied.
#[derive(Debug, Default)]
pub struct Chain {
    /// A key of the newest revision with a put; `None` if the key was deleted since.
    put: Option<Mark>,
    /// A key that the newest revision has deleted; `None` if that revision contains a put.
    deletion: Option<Mark>,
}

impl Chain {
    /// Adds the next revision. Returns conditions that hold only after the previous revision was applied;
    /// `None` if there are no such conditions. The absence of a deleted key alone does not prove that the
    /// deletion was applied, because the key was also absent before it was created. Together with the
    /// condition about `put`, it does, because no key was created after that put.
    pub fn next(&mut self, events: &[Event]) -> Option<Vec<pb::Compare>> {
        let before: Vec<pb::Compare> = self.put.iter().chain(&self.deletion).map(Mark::is_there).collect();
        let is_told = self.put.is_some();
        let marks = || events.iter().map(Mark::of);
        // Remember only the shortest of several keys, because it becomes part of later transactions.
        match marks().filter(|mark| !mark.is_deleted).min_by_key(|mark| mark.key.len()) {
            Some(put) => *self = Chain { put: Some(put), deletion: None },
            None => {
                self.deletion = marks().min_by_key(|mark| mark.key.len());
                self.put.take_if(|put| marks().any(|deleted| deleted.key == put.key));
            }
        }
        is_told.then_some(before)
    }
}

/// Returns the operation that makes the change of an event at another store.
pub fn operation(event: &Event) -> Request {
    let kv = event.kv.clone().unwrap_or_default();
    if event.r#type == EventType::Delete as i32 {
        return Request::RequestDeleteRange(pb::DeleteRangeRequest { key: kv.key, ..Default::default() });
    }
    Request::RequestPut(pb::PutRequest {
        key: kv.key,
        value: kv.value,
        lease: kv.lease,
        ..Default::default()
    })
}

fn compare(key: &Bytes, result: CompareResult, union: TargetUnion) -> pb::Compare {
    let target =
        if matches!(union, TargetUnion::Version(_)) { CompareTarget::Version } else { CompareTarget::Mod };
    pb::Compare {
        result: result as i32,
        target: target as i32,
        key: key.clone(),
        target_union: Some(union),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use api::mvccpb::KeyValue;

    use super::*;

    fn event(key: &'static str, mod_revision: i64, is_deleted: bool) -> Event {
        let kv = KeyValue { key: key.into(), mod_revision, ..KeyValue::default() };
        let r#type = if is_deleted { EventType::Delete } else { EventType::Put };
        Event { r#type: r#type as i32, kv: Some(kv), prev_kv: None }
    }

    #[test]
    fn a_revision_waits_for_what_only_the_one_before_it_can_have_left() {
        let (put, delete) = (|key, at| event(key, at, false), |key, at| event(key, at, true));
        let there = |marks: &[Event]| Some(marks.iter().map(|event| Mark::of(event).is_there()).collect());
        let mut chain = Chain::default();
        assert_eq!(chain.next(&[put("a", 2)]), None, "nothing is known of what was before");
        assert_eq!(chain.next(&[put("b", 3)]), there(&[put("a", 2)]));
        assert_eq!(chain.next(&[delete("a", 4)]), there(&[put("b", 3)]));
        assert_eq!(chain.next(&[delete("c", 5), delete("d", 5)]), there(&[put("b", 3), delete("a", 4)]));
        assert_eq!(chain.next(&[delete("e", 6), put("f", 6)]), there(&[put("b", 3), delete("c", 5)]));
        // A condition that `e` is absent is not needed, because the put of `f` proves revision 6.
        assert_eq!(chain.next(&[delete("f", 7)]), there(&[put("f", 6)]));
        assert_eq!(chain.next(&[put("g", 8)]), None);
        assert_eq!(chain.next(&[put("h", 9)]), there(&[put("g", 8)]));
    }
}
