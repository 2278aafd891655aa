use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::evidence::{concerns, first_revision};
use crate::findings::{shorten, show};
use crate::rules::compaction::Compactions;
use crate::store::{Change, Store};
use crate::{End, Event, History, KeyValue, Kind, Verdict, Violation, Watch, WatchAnswer, WatchResponse};

/// Checks watches. A watch must report every change of its keys, from its start revision on, exactly once, in
/// order of revisions, and with the correct previous value if that was requested. All events of a revision
/// must be in one response, unless the client allowed splitting. A progress notification must come only after
/// all events up to its revision. A watch may be cancelled because of a compaction only if it needs compacted
/// revisions, and the response must then contain the compact revision. (etcd: "Watch API guarantees: Ordered,
/// Unique, Reliable, Atomic, Resumable, Bookmarkable".)
pub(crate) fn check(history: &History, store: &Store, compactions: &Compactions<'_>, verdict: &mut Verdict) {
    for watch in &history.watches {
        let judge = Judge {
            watch,
            store,
            compactions,
            verdict,
            next: 0,
            told: 0,
            last_group: Vec::new(),
            missing: BTreeMap::new(),
            late: BTreeSet::new(),
            created: false,
        };
        judge.run();
    }
}

struct Judge<'a> {
    watch: &'a Watch,
    store: &'a Store,
    compactions: &'a Compactions<'a>,
    verdict: &'a mut Verdict,
    /// First revision whose events have not been reported.
    next: i64,
    /// Last revision whose events were reported.
    told: i64,
    /// Events of the last reported revision.
    last_group: Vec<Event>,
    /// Revisions whose events were skipped, each with the revision that the watch reported next.
    missing: BTreeMap<i64, i64>,
    /// Revisions for which a missing or late event was already reported as a violation.
    late: BTreeSet<i64>,
    created: bool,
}

impl Judge<'_> {
    fn run(mut self) {
        self.next = first_revision(self.watch).unwrap_or(i64::MAX);
        let mut parts: Vec<Event> = Vec::new();
        for response in &self.watch.responses {
            match &response.answer {
                WatchAnswer::Created => self.created = true,
                WatchAnswer::Events { events, fragment } => {
                    if !self.created {
                        self.find(Kind::WatchWrong, "told events before it was created".to_owned());
                        return;
                    }
                    if *fragment && !self.watch.fragment {
                        self.find(
                            Kind::WatchSplit,
                            "got a response in parts without having allowed it".to_owned(),
                        );
                    }
                    parts.extend(events.iter().cloned());
                    if !fragment {
                        self.events(response, &std::mem::take(&mut parts));
                    }
                }
                WatchAnswer::Progress => self.progress(response.revision),
                WatchAnswer::Canceled { compact_revision, .. } if *compact_revision != 0 => {
                    self.compacted(*compact_revision, response.at);
                }
                WatchAnswer::Canceled { .. } => {}
            }
        }
        if let End::Drained(revision) = self.watch.end {
            self.pass_over(revision + 1, revision + 1);
        }
        let missing = std::mem::take(&mut self.missing);
        for (revision, after) in missing.into_iter().filter(|(revision, _)| !self.late.contains(revision)) {
            let keys: Vec<String> = self.expected(revision).iter().map(|change| show(&change.key)).collect();
            let text = format!("left out revision {revision} ({keys:?}) before it came to {after}");
            self.verdict.add(Violation::of_watch(Kind::WatchMissing, self.watch, shorten(text)));
        }
    }

    fn find(&mut self, kind: Kind, text: String) {
        self.verdict.add(Violation::of_watch(kind, self.watch, shorten(text)));
    }

    /// Returns the changes of a revision that this watch must report.
    fn expected(&self, revision: i64) -> Vec<&Change> {
        let changes = self.store.changes(revision).iter();
        changes.filter(|change| self.is_asked_for(change)).collect()
    }

    fn is_asked_for(&self, change: &Change) -> bool {
        concerns(self.watch, &change.key, change.put.is_none())
    }

    /// Records the revisions before `to` whose events the watch had to report but has skipped. `after` is the
    /// revision that the watch reported instead.
    fn pass_over(&mut self, to: i64, after: i64) {
        let last = self.store.revision;
        let mut revision = self.next;
        while revision < to && revision <= last {
            if self.watch.range_end.is_empty() {
                match self.store.next_change(&self.watch.key, revision) {
                    Some(change) if change < to => revision = change,
                    _ => break,
                }
            }
            if self.store.changes(revision).iter().any(|change| self.is_asked_for(change)) {
                self.missing.insert(revision, after);
            }
            revision += 1;
        }
        self.next = self.next.max(to);
    }

    fn events(&mut self, response: &WatchResponse, events: &[Event]) {
        let mut before_in_response = 0;
        for group in events.chunk_by(|a, b| a.kv.mod_revision == b.kv.mod_revision) {
            let revision = group[0].kv.mod_revision;
            let first_of_response = before_in_response == 0;
            before_in_response = revision;
            if revision > response.revision {
                let text =
                    format!("told revision {revision} under the header of revision {}", response.revision);
                self.find(Kind::WatchWrong, text);
            }
            if revision <= self.told || revision < self.next {
                self.back(revision, group, first_of_response);
                continue;
            }
            self.pass_over(revision, revision);
            self.next = revision + 1;
            self.told = revision;
            self.last_group = group.to_vec();
            self.group(revision, group, response.at);
        }
    }

    /// Reports a violation for events of a revision that the watch has passed already: they come too late,
    /// for the second time, in a second response, or before the start of the watch, or the store has no such
    /// events.
    fn back(&mut self, revision: i64, group: &[Event], first_of_response: bool) {
        let start = first_revision(self.watch).unwrap_or(0);
        if revision < start {
            let text = format!("told revision {revision}, but begins at {start}");
            return self.find(Kind::WatchStart, text);
        }
        if self.missing.contains_key(&revision) {
            self.late.insert(revision);
            let text = format!("told revision {revision} after {}", self.told);
            return self.find(Kind::WatchOrder, text);
        }
        let known = |event: &Event| self.last_group.iter().any(|known| known.kv.key == event.kv.key);
        if revision == self.told && first_of_response && !group.iter().any(known) {
            self.late.insert(revision);
            let text = format!("told revision {revision} in two responses");
            return self.find(Kind::WatchSplit, text);
        }
        if self.late.contains(&revision) {
            return; // Already reported as a violation.
        }
        let text = if revision > self.told {
            // A progress notification has passed this revision, and no event of it was missing according to
            // the store. So this event is wrong.
            return self
                .find(Kind::WatchWrong, format!("received revision {revision}, which has no event for it"));
        } else {
            format!("told revision {revision} again after {}", self.told)
        };
        self.find(Kind::WatchTwice, text);
    }

    /// Checks the events of one revision in one response.
    fn group(&mut self, revision: i64, group: &[Event], at: u64) {
        let expected: Vec<Change> = self.expected(revision).into_iter().cloned().collect();
        if revision > self.store.revision || expected.is_empty() && self.store.changes(revision).is_empty() {
            // The events cannot be compared, because the store knows no changes of this revision. `sequence`
            // has reported a violation for the revision itself.
            return;
        }
        let mut told: BTreeSet<&[u8]> = BTreeSet::new();
        for event in group {
            let key = event.kv.key.as_slice();
            if !told.insert(key) {
                self.find(Kind::WatchTwice, format!("told key {} twice at revision {revision}", show(key)));
                continue;
            }
            if !concerns(self.watch, key, event.deleted) {
                let what = if event.deleted { "deletion" } else { "put" };
                let text = format!(
                    "received the {what} of {} at revision {revision}, which it had not requested",
                    show(key)
                );
                self.find(Kind::WatchWrong, text);
                continue;
            }
            match expected.iter().find(|change| *change.key == *key) {
                None => {
                    let text = format!(
                        "received an event of key {} at revision {revision}, which did not change it",
                        show(key)
                    );
                    self.find(Kind::WatchWrong, text);
                }
                Some(change) if !is_told_rightly(event, change) => {
                    let text = format!("told {:?} of revision {revision}; it was {:?}", event, change.put);
                    self.find(Kind::WatchWrong, text);
                }
                Some(_) => self.previous(revision, event, at),
            }
        }
        let untold: Vec<String> = expected
            .iter()
            .filter(|change| !told.contains(&*change.key))
            .map(|change| show(&change.key))
            .collect();
        if !untold.is_empty() {
            let rest_follows = self.rest_follows(revision, &told);
            if !rest_follows {
                self.find(Kind::WatchMissing, format!("left out {untold:?} of revision {revision}"));
            }
            return;
        }
        let in_order =
            expected.iter().map(|change| &*change.key).eq(group.iter().map(|event| event.kv.key.as_slice()));
        if !in_order && group.len() == expected.len() {
            let text = format!(
                "told the events of revision {revision} in another order than that of their requests"
            );
            self.find(Kind::WatchOrder, text);
        }
    }

    /// Returns true if other events of the revision are in another response. In that case, they are not
    /// missing. The revision is split, which is reported as a separate violation.
    fn rest_follows(&self, revision: i64, told: &BTreeSet<&[u8]>) -> bool {
        let events = self.watch.responses.iter().filter_map(|response| match &response.answer {
            WatchAnswer::Events { events, .. } => Some(events),
            _ => None,
        });
        let mut all = events.flatten().filter(|event| event.kv.mod_revision == revision);
        all.any(|event| !told.contains(event.kv.key.as_slice()))
    }

    /// Checks the previous value of an event. If previous values were requested, it must be the value at the
    /// revision before, and may be missing only if that revision may have been compacted.
    fn previous(&mut self, revision: i64, event: &Event, at: u64) {
        let before = self.store.at(&event.kv.key, revision - 1).map(Rc::as_ref);
        let told = event.prev_kv.as_ref();
        let fine = match (self.watch.prev_kv, told, before) {
            (false, None, _) | (true, None, None) => true,
            (false, Some(_), _) | (true, Some(_), None) => false,
            (true, Some(told), Some(before)) => told == before,
            (true, None, Some(_)) => self.compactions.perhaps_by(at) > revision - 1,
        };
        if !fine {
            let text = format!(
                "received {told:?} as the previous value of key {} at revision {revision}; it was {before:?}{}",
                show(&event.kv.key),
                if self.watch.prev_kv { "" } else { ", and was not asked for" }
            );
            self.find(Kind::WatchPrevious, text);
        }
    }

    fn progress(&mut self, revision: i64) {
        let before: BTreeSet<i64> = self.missing.keys().copied().collect();
        self.pass_over(revision + 1, revision + 1);
        let ahead: Vec<i64> =
            self.missing.keys().copied().filter(|missing| !before.contains(missing)).collect();
        if let Some(first) = ahead.first() {
            let text = format!("was told that all is told up to {revision}, but revision {first} was not");
            self.find(Kind::WatchProgress, text);
        }
        for revision in ahead {
            self.missing.remove(&revision);
            self.late.insert(revision);
        }
    }

    fn compacted(&mut self, revision: i64, at: u64) {
        if !self.compactions.perhaps_to(revision, at) {
            let text = format!("was canceled for a compaction to {revision}, which there was not");
            self.find(Kind::WatchCompacted, text);
        } else if self.next >= revision {
            let text = format!(
                "was canceled for a compaction to {revision}, but needed only {} and later",
                self.next
            );
            self.find(Kind::WatchCompacted, text);
        }
    }
}

/// Returns true if the event shows exactly this change. For a deletion, only key and revision are compared.
fn is_told_rightly(event: &Event, change: &Change) -> bool {
    match &change.put {
        Some(kv) => !event.deleted && event.kv == **kv,
        None => {
            let bare = KeyValue {
                key: event.kv.key.clone(),
                mod_revision: event.kv.mod_revision,
                ..KeyValue::default()
            };
            event.deleted && event.kv == bare
        }
    }
}
