//! Keeps the order of revisions at a destination: computes conditions that allow each transaction only
//! directly after the one before.

use api::etcdserverpb as pb;
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::mvccpb::Event;
use api::mvccpb::event::EventType;
use bytes::Bytes;

/// State of a key after a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) key: Bytes,
    pub(super) revision: i64,
    is_deleted: bool,
}

impl Mark {
    pub(super) fn of(event: &Event) -> Mark {
        let kv = event.kv.as_ref();
        Mark {
            key: kv.map(|kv| kv.key.clone()).unwrap_or_default(),
            revision: kv.map_or(0, |kv| kv.mod_revision),
            is_deleted: event.r#type == EventType::Delete as i32,
        }
    }

    /// Returns a condition that holds if the key is as this revision left it.
    fn is_there(&self) -> pb::Compare {
        if self.is_deleted {
            return compare(&self.key, CompareResult::Equal, TargetUnion::Version(0));
        }
        compare(&self.key, CompareResult::Equal, TargetUnion::ModRevision(self.revision))
    }

    /// Returns a condition that holds if the key is not yet as this revision leaves it.
    pub(super) fn is_missing(&self) -> pb::Compare {
        if self.is_deleted {
            return compare(&self.key, CompareResult::Greater, TargetUnion::Version(0));
        }
        compare(&self.key, CompareResult::Less, TargetUnion::ModRevision(self.revision))
    }
}

/// Computes for each revision the conditions with which its transaction is applied only after all earlier
/// ones.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// The newest put; `None` if its key was deleted since.
    put: Option<Mark>,
    /// A deletion in the newest revision; `None` if that revision contains a put.
    deletion: Option<Mark>,
}

impl Chain {
    /// Adds the next revision. Returns conditions that hold once the revision before it is applied, and never
    /// before that; `None` if there are no such conditions. The absence of a deleted key alone is not enough,
    /// because the key was also absent before it was created. It is enough together with a put that is older
    /// than the deletion.
    pub(super) fn next(&mut self, events: &[Event]) -> Option<Vec<pb::Compare>> {
        let before: Vec<pb::Compare> = self.put.iter().chain(&self.deletion).map(Mark::is_there).collect();
        let is_told = self.put.is_some();
        let marks = || events.iter().map(Mark::of);
        // Of several keys, take the shortest one, because it is sent with later transactions.
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
        // The absence of f was true before revision 6, too.
        assert_eq!(chain.next(&[delete("f", 7)]), there(&[put("f", 6)]));
        assert_eq!(chain.next(&[put("g", 8)]), None);
        assert_eq!(chain.next(&[put("h", 9)]), there(&[put("g", 8)]));
    }
}
