use std::collections::BTreeMap;

use crate::findings::brief;
use crate::{History, Kind, Operation, Verdict, Violation, WatchAnswer};

/// Checks that a member's state never goes back while its process runs. A member applies the log in order, so
/// the revision and the term in its headers never decrease, even in responses to serializable reads. For
/// local reads at different members, or before and after a restart, etcd does not guarantee this.
pub(crate) fn check(history: &History, verdict: &mut Verdict) {
    let mut lives: BTreeMap<(u64, u64), Life<'_>> = BTreeMap::new();
    for op in &history.operations {
        if let (Some((header, _)), true) = (op.done(), op.life > 0) {
            let life = lives.entry((op.member, op.life)).or_default();
            life.told.push(Told {
                at: op.returned,
                revision: header.revision,
                term: header.term,
                by: Some(op),
            });
            life.answers.push(op);
        }
    }
    for watch in history.watches.iter().filter(|watch| watch.life > 0) {
        let life = lives.entry((watch.member, watch.life)).or_default();
        for response in &watch.responses {
            let newest = match &response.answer {
                WatchAnswer::Events { events, .. } => events.iter().map(|event| event.kv.mod_revision).max(),
                _ => None,
            };
            let revision = response.revision.max(newest.unwrap_or(0));
            life.told.push(Told { at: response.at, revision, term: 0, by: None });
        }
    }
    lives.values_mut().for_each(|life| life.check(verdict));
}

#[derive(Default)]
struct Life<'a> {
    /// Time, revision and term of each response of this process.
    told: Vec<Told<'a>>,
    answers: Vec<&'a Operation>,
}

#[derive(Clone, Copy)]
struct Told<'a> {
    at: u64,
    revision: i64,
    term: u64,
    by: Option<&'a Operation>,
}

impl Life<'_> {
    fn check(&mut self, verdict: &mut Verdict) {
        self.told.sort_by_key(|told| told.at);
        self.answers.sort_by_key(|op| op.call);
        let mut told = self.told.iter().peekable();
        let mut revision: Option<Told<'_>> = None;
        let mut term: Option<Told<'_>> = None;
        for op in &self.answers {
            while let Some(next) = told.next_if(|told| told.at < op.call) {
                if revision.is_none_or(|known| known.revision < next.revision) {
                    revision = Some(*next);
                }
                if term.is_none_or(|known| known.term < next.term) {
                    term = Some(*next);
                }
            }
            let Some((header, _)) = op.done() else { continue };
            let back = revision.filter(|known| header.revision > 0 && header.revision < known.revision);
            if let Some(known) = back {
                add(verdict, op, known, &format!("the member had told revision {}", known.revision));
            }
            if let Some(known) = term.filter(|known| header.term > 0 && header.term < known.term) {
                add(verdict, op, known, &format!("it gives term {} after term {}", header.term, known.term));
            }
        }
    }
}

fn add(verdict: &mut Verdict, op: &Operation, known: Told<'_>, what: &str) {
    let witness = known.by.map_or_else(|| format!("a watch told it at {}", known.at), brief);
    let operations: Vec<&Operation> = std::iter::once(op).chain(known.by).collect();
    let text = format!("{}: {what} before its call: {witness}", brief(op));
    verdict.add(Violation::of(Kind::HeaderBack, &operations, text));
}
