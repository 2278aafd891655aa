use std::collections::BTreeMap;
use std::rc::Rc;

use crate::findings::{brief, show};
use crate::sequence::Sequence;
use crate::{Final, History, KeyValue, Kind, Operation, Outcome, Request, Verdict, Violation};

/// Checks the final state of all members: no answered write is lost, each member's compact revision was
/// requested by a client, and `HashKV` is equal on all members with the same revision and compact revision.
/// The keys are checked by [`held`], which `sequence` calls.
pub(crate) fn check(history: &History, verdict: &mut Verdict) {
    let changed = history.operations.iter().filter(|op| op.changed());
    let last = changed.max_by_key(|op| op.done().map(|(header, _)| header.revision));
    for member in &history.finals {
        lost(member, last, verdict);
        compacted(history, member, verdict);
    }
    hashes(&history.finals, verdict);
}

/// Checks that a member has applied every answered write.
fn lost(member: &Final, last: Option<&Operation>, verdict: &mut Verdict) {
    let Some((op, (header, _))) = last.and_then(|op| op.done().map(|done| (op, done))) else { return };
    if member.revision < header.revision {
        let text = format!(
            "member {} ends at revision {}, but there is {}",
            member.member,
            member.revision,
            brief(op)
        );
        verdict.add(Violation::of(Kind::LostWrite, &[op], text));
    }
}

/// Checks that a member's keys are those of the store at the member's revision. If they are not, returns the
/// violation, and true if the keys differ for every possible order of writes. `sequence` calls this while it
/// builds the sequence, because a difference may decide between several orders.
pub(crate) fn held(member: &Final, sequence: &Sequence<'_>) -> Option<(Violation, bool)> {
    let dump = member.dump.as_ref()?;
    let expected = sequence.store.list(&[0], &[0], member.revision);
    // Compare the lists as a whole first, which is cheap: the search calls this many times, and mostly the
    // keys are equal.
    if dump.len() == expected.len() && dump.iter().zip(&expected).all(|(got, kv)| *got == **kv) {
        return None;
    }
    let expected: BTreeMap<&[u8], &Rc<KeyValue>> =
        expected.iter().map(|kv| (kv.key.as_slice(), kv)).collect();
    let got: BTreeMap<&[u8], &KeyValue> = dump.iter().map(|kv| (kv.key.as_slice(), kv)).collect();
    let mut differing: Vec<&[u8]> = expected.keys().chain(got.keys()).copied().collect();
    differing.sort_unstable();
    differing.dedup();
    differing.retain(|key| expected.get(key).map(|kv| &***kv) != got.get(key).copied());
    let first = differing.first()?;
    let maker = expected.get(first).and_then(|kv| sequence.claimed(kv.mod_revision));
    let operations: Vec<&Operation> = maker.into_iter().collect();
    let text = format!(
        "member {} at revision {} differs in {} keys; the first is {}: it has {}, expected {}",
        member.member,
        member.revision,
        differing.len(),
        show(first),
        state_of(got.get(first).copied()),
        state_of(expected.get(first).map(|kv| &***kv))
    );
    let is_certain = differing.iter().any(|key| !sequence.movable().has(key));
    Some((Violation::of(Kind::FinalState, &operations, text), is_certain))
}

/// Describes a key's state in a few words, with only the beginning of its value. This saves time, because
/// values may be large, and the search formats many messages that are never shown.
fn state_of(kv: Option<&KeyValue>) -> String {
    kv.map_or_else(
        || "nothing".to_owned(),
        |kv| {
            format!(
                "{} bytes ({}...) of revision {}, created at {}, version {}, lease {}",
                kv.value.len(),
                show(&kv.value[..kv.value.len().min(20)]),
                kv.mod_revision,
                kv.create_revision,
                kv.version,
                kv.lease
            )
        },
    )
}

/// Checks the member's compact revision: a client must have requested this compaction, and the compact
/// revision must not be below the highest compaction that was answered.
fn compacted(history: &History, member: &Final, verdict: &mut Verdict) {
    let Some((_, hash_revision, compact_revision)) = member.hash else { return };
    let (mut asked, mut least) = (vec![-1, 0], 0);
    for op in &history.operations {
        let Request::Compact { revision, .. } = op.request else { continue };
        match op.outcome {
            Outcome::Done(..) => least = least.max(revision),
            Outcome::Unknown(_) => {}
            Outcome::Refused(_) => continue,
        }
        asked.push(revision);
    }
    // Allow an older compact revision if the hash was requested at the revision of a compaction: etcd
    // computes this hash before the compaction, and reports the previous compact revision.
    let is_old = compact_revision < least && !asked.contains(&hash_revision);
    if is_old || !asked.contains(&compact_revision) {
        let text = format!(
            "member {} says it is compacted to {compact_revision}; {least} was answered, {asked:?} asked for",
            member.member
        );
        verdict.add(Violation::of(Kind::FinalState, &[], text));
    }
}

/// Checks that members with the same compact revision have the same hash at the same revision.
fn hashes(finals: &[Final], verdict: &mut Verdict) {
    let mut known: BTreeMap<(i64, i64), (u64, u32)> = BTreeMap::new();
    for member in finals {
        let Some((hash, revision, compact_revision)) = member.hash else { continue };
        let (first, expected) = *known.entry((revision, compact_revision)).or_insert((member.member, hash));
        if hash != expected {
            let text = format!(
                "HashKV at revision {revision}, compacted to {compact_revision}, is {hash} at member {} and {expected} \
                 at member {first}",
                member.member
            );
            verdict.add(Violation::of(Kind::Divergence, &[], text));
        }
    }
}
