use crate::findings::brief;
use crate::timeline::{Timeline, Witness};
use crate::{History, Kind, Operation, Verdict, Violation};

/// Checks real-time order: if an operation returned before another one was called, it must come first in the
/// order of revisions. etcd guarantees linearizability for everything except serializable reads, watches and
/// lease renewals ("KV API guarantees"). Because the order is that of revisions, this check is exact; see
/// [`Timeline`].
pub(crate) fn check(history: &History, timeline: &Timeline, verdict: &mut Verdict) {
    let mut last_pair = None;
    for revision in 2..=timeline.last + 1 {
        let (from, by) = (timeline.not_before(revision), timeline.not_after(revision));
        let (Some(late), Some(early)) = (from.witness, by.witness) else { continue };
        if from.time <= by.time || last_pair == Some((late, early)) {
            continue;
        }
        last_pair = Some((late, early));
        // This is a violation: the operation `late` was called after `early` had been observed, but is before
        // `early` in the order of revisions.
        let Witness::Operation(late) = late else { continue };
        let late = &history.operations[late];
        let kind = if late.changed() { Kind::Order } else { Kind::StaleRead };
        let mut operations: Vec<&Operation> = vec![late];
        let (witness, watches) = match early {
            Witness::Operation(at) => {
                operations.push(&history.operations[at]);
                (brief(&history.operations[at]), Vec::new())
            }
            Witness::Watch(at) => {
                let watch = &history.watches[at];
                (format!("watch {} had told at {}", watch.id, by.time), vec![watch.id])
            }
        };
        let text = format!(
            "{} is before revision {revision} in the order of changes, but that was there before its call: {witness}",
            brief(late)
        );
        let mut violation = Violation::of(kind, &operations, text);
        violation.watches = watches;
        verdict.add(violation);
    }
}
