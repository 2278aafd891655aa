use std::collections::BTreeMap;

use api::etcdserverpb::{RangeResponse, WatchResponse};
use api::mvccpb::{self, event::EventType};
use bytes::Bytes;

/// Kind of a writer's operation; each writer uses keys of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Puts the numbered value to one key.
    Put,
    /// Puts the numbered value to two keys in one transaction.
    Pair,
    /// Deletes the key of `Put`.
    Delete,
}

/// Outcome of an operation, as far as its writer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Acknowledged, at this revision.
    Done(i64),
    /// Acknowledged, but nothing was changed.
    Idle,
    /// The connection broke before a response arrived.
    Unknown,
}

/// One operation of a writer.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub number: u32,
    pub deed: Deed,
    pub fate: Fate,
}

/// One revision, as the server reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub revision: i64,
    pub writer: u32,
    pub deed: Deed,
    /// Number of the value; 0 for a delete, which carries no value.
    pub number: u32,
    pub create_revision: i64,
    pub version: i64,
}

#[derive(Debug)]
struct Held {
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    number: u32,
}

/// Operations of writers, and the revisions that the server reports, over all crashes.
#[derive(Default)]
pub struct History {
    /// Operations of each writer, in order.
    ops: Vec<Vec<Op>>,
    /// Number of each writer's operations that are matched to a revision.
    placed: Vec<usize>,
    /// Revisions from 2 on, without a gap.
    steps: Vec<Step>,
    state: BTreeMap<Bytes, Held>,
    pub compacted: i64,
}

/// Returns the key of [`Deed::Put`].
pub fn single_key(writer: u32) -> String {
    format!("single/{writer:04}")
}

/// Returns one of the keys of [`Deed::Pair`].
pub fn pair_key(writer: u32, half: char) -> String {
    format!("pair/{writer:04}/{half}")
}

/// Returns a value that encodes its writer and number; all its bytes are determined by both.
pub fn value(writer: u32, number: u32) -> Bytes {
    let mut mixed = (u64::from(writer) << 32 | u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let len = if mixed >> 60 == 0 { 64 << 10 } else { (mixed >> 20) % 1000 };
    let mut bytes = format!("{writer}:{number}:").into_bytes();
    for _ in 0..len {
        mixed ^= mixed << 13;
        mixed ^= mixed >> 7;
        mixed ^= mixed << 17;
        bytes.push(mixed as u8);
    }
    bytes.into()
}

fn writer_of(key: &[u8]) -> u32 {
    let key = std::str::from_utf8(key).expect("keys are text");
    key.split('/').nth(1).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("foreign key {key}"))
}

/// Returns the number of a value; checks all bytes of the value against what was written.
pub fn number_of(kv: &mvccpb::KeyValue) -> u32 {
    let writer = writer_of(&kv.key);
    let head = String::from_utf8_lossy(&kv.value[..kv.value.len().min(24)]).into_owned();
    let mut words = head.split(':');
    assert_eq!(words.next(), Some(writer.to_string().as_str()), "{head} in {kv:?}");
    let number = words.next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{head} in {kv:?}"));
    assert!(kv.value == value(writer, number), "the value of {:?} is not what was written", kv.key);
    number
}

/// Returns the revisions of a watch response; asserts that each revision is one whole operation.
pub fn steps_of(response: &WatchResponse) -> Vec<Step> {
    let revision = |event: &mvccpb::Event| event.kv.as_ref().expect("events have keys").mod_revision;
    let groups = response.events.chunk_by(|a, b| revision(a) == revision(b));
    groups
        .map(|events| {
            let kvs: Vec<&mvccpb::KeyValue> = events.iter().filter_map(|e| e.kv.as_ref()).collect();
            let first = kvs[0];
            let writer = writer_of(&first.key);
            let deleted = events[0].r#type == EventType::Delete as i32;
            let number = if deleted { 0 } else { number_of(first) };
            let deed = if deleted {
                assert!(events.len() == 1 && first.key == single_key(writer), "{events:?}");
                Deed::Delete
            } else if first.key == single_key(writer) {
                assert_eq!(events.len(), 1, "{events:?}");
                Deed::Put
            } else {
                let keys: Vec<&[u8]> = kvs.iter().map(|kv| &kv.key[..]).collect();
                let (a, b) = (pair_key(writer, 'a'), pair_key(writer, 'b'));
                assert_eq!(keys, [a.as_bytes(), b.as_bytes()], "half a transaction");
                assert_eq!(kvs[0].value, kvs[1].value, "half a transaction");
                assert_eq!(kvs[0].version, kvs[1].version);
                assert_eq!(kvs[0].create_revision, kvs[1].create_revision);
                Deed::Pair
            };
            Step {
                revision: first.mod_revision,
                writer,
                deed,
                number,
                create_revision: first.create_revision,
                version: first.version,
            }
        })
        .collect()
}

impl History {
    pub fn new(writers: u32) -> History {
        let writers = writers as usize;
        History { ops: vec![Vec::new(); writers], placed: vec![0; writers], ..History::default() }
    }

    /// Returns the newest revision that is known.
    pub fn revision(&self) -> i64 {
        1 + i64::try_from(self.steps.len()).expect("few")
    }

    /// Returns the number of operations that a writer has tried.
    pub fn tried(&self, writer: u32) -> u32 {
        u32::try_from(self.ops[writer as usize].len()).expect("few")
    }

    /// Returns the number of acknowledged operations, and the number of operations whose outcome the writer
    /// does not know.
    pub fn tally(&self) -> (usize, usize) {
        let all = self.ops.iter().flatten();
        let unknown = all.clone().filter(|op| op.fate == Fate::Unknown).count();
        (all.count() - unknown, unknown)
    }

    /// Adds the operations of a writer in a round.
    pub fn did(&mut self, writer: u32, ops: Vec<Op>) {
        self.ops[writer as usize].extend(ops);
    }

    /// Takes a revision that the server replays: a known revision must be the same, and a new revision must
    /// be the next operation of some writer.
    pub fn replayed(&mut self, step: Step) {
        let at = usize::try_from(step.revision - 2).expect("revisions begin at 2");
        if let Some(known) = self.steps.get(at) {
            assert_eq!(*known, step, "history changed");
            return;
        }
        assert_eq!(at, self.steps.len(), "a revision is missing before {step:?}");
        let (ops, placed) = (&self.ops[step.writer as usize], &mut self.placed[step.writer as usize]);
        loop {
            let Some(op) = ops.get(*placed) else { panic!("nobody wrote {step:?}") };
            *placed += 1;
            let same = op.deed == step.deed && (op.deed == Deed::Delete || op.number == step.number);
            match op.fate {
                Fate::Done(revision) => {
                    assert!(
                        same && revision == step.revision,
                        "{op:?} was acknowledged, but there is {step:?}"
                    );
                    break;
                }
                Fate::Unknown if same => break,
                Fate::Unknown | Fate::Idle => {}
            }
        }
        self.hold(step);
        self.steps.push(step);
    }

    fn hold(&mut self, step: Step) {
        let keys = match step.deed {
            Deed::Put | Deed::Delete => vec![single_key(step.writer)],
            Deed::Pair => vec![pair_key(step.writer, 'a'), pair_key(step.writer, 'b')],
        };
        for key in keys {
            let key = Bytes::from(key);
            if step.deed == Deed::Delete {
                assert!(self.state.remove(&key).is_some(), "{step:?} deleted nothing");
                continue;
            }
            let held = self.state.entry(key).or_insert(Held {
                create_revision: step.revision,
                mod_revision: 0,
                version: 0,
                number: 0,
            });
            held.mod_revision = step.revision;
            held.version += 1;
            held.number = step.number;
            assert_eq!(
                (step.create_revision, step.version),
                (held.create_revision, held.version),
                "{step:?}"
            );
        }
    }

    /// Checks after the whole replay that no acknowledged operation is missing, and that the keys match the history.
    pub fn settle(&mut self, everything: &RangeResponse) {
        // An operation with an unknown outcome may still take effect, because a leader that has its entry may
        // be waiting for followers.
        for (writer, (ops, placed)) in self.ops.iter().zip(&self.placed).enumerate() {
            for op in &ops[*placed..] {
                assert!(!matches!(op.fate, Fate::Done(_)), "writer {writer}: {op:?} is lost");
            }
        }
        assert_eq!(everything.header.as_ref().map(|h| h.revision), Some(self.revision()));
        assert_eq!(everything.count, everything.kvs.len() as i64);
        assert_eq!(everything.kvs.len(), self.state.len());
        for (kv, (key, held)) in everything.kvs.iter().zip(&self.state) {
            assert_eq!(kv.key, key);
            let found = (kv.create_revision, kv.mod_revision, kv.version, number_of(kv));
            assert_eq!(
                found,
                (held.create_revision, held.mod_revision, held.version, held.number),
                "{key:?}"
            );
        }
    }

    /// Checks that a revision shown to a client before a crash exists after it.
    pub fn was_shown(&self, step: &Step) {
        let at = usize::try_from(step.revision - 2).expect("revisions begin at 2");
        assert_eq!(self.steps.get(at), Some(step), "a client was shown it before the crash");
    }
}

/// Tests that the checker detects the faults it exists for.
mod tests {
    use super::*;

    fn op(number: u32, deed: Deed, fate: Fate) -> Op {
        Op { number, deed, fate }
    }

    fn step(revision: i64, deed: Deed, number: u32, create_revision: i64, version: i64) -> Step {
        Step { revision, writer: 0, deed, number, create_revision, version }
    }

    fn nothing(revision: i64) -> RangeResponse {
        let header = Some(api::etcdserverpb::ResponseHeader { revision, ..Default::default() });
        RangeResponse { header, ..RangeResponse::default() }
    }

    /// Returns a history with puts acknowledged at 2 and 4, one of unknown outcome between them, and a delete at 5.
    fn history() -> History {
        let mut history = History::new(1);
        let fates = [Fate::Done(2), Fate::Unknown, Fate::Done(4)];
        let mut ops: Vec<Op> = (0..).zip(fates).map(|(number, fate)| op(number, Deed::Put, fate)).collect();
        ops.push(op(3, Deed::Delete, Fate::Done(5)));
        history.did(0, ops);
        history
    }

    #[test]
    fn a_write_of_unknown_fate_may_have_happened() {
        let mut history = history();
        history.replayed(step(2, Deed::Put, 0, 2, 1));
        history.replayed(step(3, Deed::Put, 1, 2, 2));
        history.replayed(step(4, Deed::Put, 2, 2, 3));
        history.replayed(step(5, Deed::Delete, 0, 0, 0));
        history.settle(&nothing(5));
    }

    #[test]
    #[should_panic(expected = "is lost")]
    fn a_write_lost_at_the_end_is_noticed() {
        let mut history = history();
        history.replayed(step(2, Deed::Put, 0, 2, 1));
        history.settle(&nothing(2));
    }

    #[test]
    #[should_panic(expected = "was acknowledged, but")]
    fn a_write_lost_between_is_noticed() {
        let mut history = history();
        history.replayed(step(2, Deed::Put, 1, 2, 1));
    }

    #[test]
    #[should_panic(expected = "nobody wrote")]
    fn a_write_that_is_there_twice_is_noticed() {
        let mut history = History::new(1);
        history.did(0, vec![op(0, Deed::Put, Fate::Unknown)]);
        history.replayed(step(2, Deed::Put, 0, 2, 1));
        history.replayed(step(3, Deed::Put, 0, 2, 2));
    }

    #[test]
    #[should_panic(expected = "left")]
    fn a_wrong_version_is_noticed() {
        let mut history = history();
        history.replayed(step(2, Deed::Put, 0, 2, 2));
    }

    #[test]
    #[should_panic(expected = "history changed")]
    fn a_changed_past_is_noticed() {
        let mut history = history();
        history.replayed(step(2, Deed::Put, 0, 2, 1));
        history.replayed(step(2, Deed::Put, 1, 2, 1));
    }
}
