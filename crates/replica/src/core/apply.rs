//! Applying committed entries, and what follows from them.
//!
//! A turn applies so much and no more (`Thresholds::applied_per_turn`): the rest waits, and the core goes on with
//! everything that is not about the state. An entry that takes more than that is applied by itself, slice by slice. It
//! begins once all before it is published, and nothing is published before it is whole, so that nobody sees a part of it:
//! not in the views, and where the machine itself is asked, [`machine::Machine::is_whole`] says what has to wait.
//!
//! An entry that depends on a value which is not in memory waits for the readers in the same way.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use api::error;
use consensus::{Entry, EntryKind, Event};
use machine::{Applied, AsOf, Change, Command, Fatal, Outcome, Progress};
use mvcc::{Location, Value};
use planted::Bug;

use super::Ask;
use super::proposals::Waiter;
use super::run::{Answerable, Core};
use crate::inbox::Inbox;
use crate::long_reads::Reader;
use storage::readers::{Arrived, Reading};
use storage::values::AtHand;
use telemetry::logging::Value as Field;

/// Bytes of entries that are committed and not applied; with more, further ones are not taken from a leader for now.
const BEHIND_BYTES_MAX: usize = 128 << 20;

/// What such an entry takes beside its bytes: its place here, where it lies in the log, and what an allocation takes.
const ENTRY_BYTES: usize = size_of::<Entry>() + size_of::<(u64, log::Location)>() + 32;

fn held_bytes(entry: &Entry) -> usize {
    ENTRY_BYTES + entry.data.len()
}

/// What is committed and not applied.
pub(super) struct Applying {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// What this turn may still apply.
    pub left: u64,
    /// The entry that the machine is to go on with.
    begun: Option<Begun>,
    /// Whether an entry was applied since the last view was published.
    pub unpublished: bool,
    /// Values on their way that this entry depends on.
    reading: Option<Reading>,
    /// Those that have come, by place.
    arrived: Vec<Arrived>,
    /// Charges those.
    charges: Vec<front::Charge>,
    /// Tells the core that they have.
    waker: Waker,
}

/// An entry that is being applied.
struct Begun {
    index: u64,
    term: u64,
    bytes: usize,
    since: Instant,
}

struct ValuesRead(Arc<Inbox<Ask>>);

impl Wake for ValuesRead {
    fn wake(self: Arc<Self>) {
        self.0.send(Ask::ValuesRead);
    }
}

impl Applying {
    pub fn new(core: &Arc<Inbox<Ask>>) -> Applying {
        Applying {
            entries: VecDeque::new(),
            bytes: 0,
            left: 0,
            begun: None,
            unpublished: false,
            reading: None,
            arrived: Vec::new(),
            charges: Vec::new(),
            waker: Waker::from(Arc::new(ValuesRead(Arc::clone(core)))),
        }
    }

    /// These are committed.
    pub fn committed(&mut self, entries: Vec<Entry>) {
        self.bytes += entries.iter().map(held_bytes).sum::<usize>();
        self.entries.extend(entries);
    }

    /// Bytes of what waits, with what its places take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether so much waits that no more should come.
    pub fn is_far_behind(&self) -> bool {
        self.bytes > BEHIND_BYTES_MAX
    }

    /// Forgets all that waits.
    pub fn clear(&mut self) {
        self.entries.clear();
        (self.bytes, self.begun, self.reading) = (0, None, None);
        self.arrived.clear();
        self.charges.clear();
    }

    /// Whether the values that the entry depends on have come, as far as they were asked for.
    fn has_values(&mut self) -> bool {
        let Some(reading) = &mut self.reading else { return true };
        let Poll::Ready(mut arrived) = Pin::new(&mut *reading).poll(&mut Context::from_waker(&self.waker))
        else {
            return false;
        };
        self.charges = reading.take_charges();
        self.reading = None;
        arrived.sort_unstable_by_key(|(place, _)| *place);
        self.arrived = arrived;
        true
    }

    /// The next entry, if this turn may still begin one.
    fn next(&mut self) -> Option<Entry> {
        if self.left == 0 {
            return None;
        }
        let entry = self.entries.pop_front()?;
        self.bytes -= held_bytes(&entry);
        Some(entry)
    }
}

impl Core {
    fn location(&mut self, index: u64) -> Result<Location, String> {
        while let Some(&(at, location)) = self.locations.front() {
            if at == index {
                self.locations.pop_front();
                return Ok(Location { segment: location.segment, offset: location.offset });
            }
            if at > index {
                break;
            }
            self.locations.pop_front();
        }
        Err(format!("entry {index} was committed before the log said where it lies"))
    }

    /// Whether the next turn has something to apply.
    pub(super) fn has_to_apply(&self) -> bool {
        let applying = &self.applying;
        let waits = applying.begun.is_some() || !applying.entries.is_empty();
        waits && applying.reading.is_none() && self.parked.is_none()
    }

    /// Applies what is committed, as far as this turn goes.
    pub(super) fn apply_some(&mut self, now: Instant) -> Result<(), String> {
        let before = self.machine.applied_index;
        while self.parked.is_none() {
            if self.applying.begun.is_some() {
                // What was applied before it is published first.
                if self.applying.unpublished || self.applying.left == 0 || !self.applying.has_values() {
                    break;
                }
                self.go_on(now)?;
            } else {
                let Some(entry) = self.applying.next() else { break };
                self.begin_entry(&entry, now)?;
            }
        }
        if self.machine.applied_index > before && self.parked.is_none() {
            self.step(Event::Applied(self.machine.applied_index))?;
            self.forget()?;
        }
        Ok(())
    }

    fn begin_entry(&mut self, entry: &Entry, now: Instant) -> Result<(), String> {
        let location = self.location(entry.index)?;
        let command = Command { index: entry.index, term: entry.term, data: &entry.data, location };
        // Its bytes count beside what it does.
        let bytes = 1 + entry.data.len() as u64 / 1024;
        match entry.kind {
            EntryKind::Normal => {
                let since = self.shared.clock.now();
                let begun = Begun { index: entry.index, term: entry.term, bytes: entry.data.len(), since };
                let proposals = &self.proposals;
                let values = AtHand::new(&self.values, &[]);
                let mut left = self.applying.left;
                let outcome = self.machine.begin(command, &values, &mut left, |id| proposals.is_awaited(id));
                self.applying.left = left.saturating_sub(bytes);
                match outcome {
                    Ok(Some(applied)) => self.applied(&begun, applied, now),
                    Ok(None) => self.applying.begun = Some(begun),
                    Err(fatal) => self.cannot_apply(&fatal, now)?,
                }
            }
            EntryKind::ConfChange => {
                self.applying.left = self.applying.left.saturating_sub(bytes);
                self.passed(entry.index, entry.term);
                self.apply_conf_change(entry, command)?;
            }
        }
        Ok(())
    }

    /// Goes on with the entry that was begun.
    fn go_on(&mut self, now: Instant) -> Result<(), String> {
        let values = AtHand::new(&self.values, &self.applying.arrived);
        let mut left = self.applying.left;
        let progress = self.machine.go_on(&values, &mut left);
        let missing = values.into_missing();
        self.applying.left = 0;
        match progress {
            Ok(Progress::More) => {}
            Ok(Progress::Waits) => self.fetch_values(&missing),
            Ok(Progress::Whole(applied)) => {
                // What it left of the turn is for those behind it.
                self.applying.left = left;
                self.applying.arrived.clear();
                self.applying.charges.clear();
                if let Some(begun) = self.applying.begun.take() {
                    self.applied(&begun, *applied, now);
                }
            }
            Err(fatal) => self.cannot_apply(&fatal, now)?,
        }
        Ok(())
    }

    fn fetch_values(&mut self, missing: &[Value]) {
        self.applying.reading = self.values.fetch_first(missing);
        // It begins once it is looked at.
        self.applying.has_values();
    }

    fn cannot_apply(&mut self, fatal: &Fatal, now: Instant) -> Result<(), String> {
        if !fatal.is_unreadable || planted::is(Bug::UnreadableValueIsFatal) {
            return Err(fatal.to_string());
        }
        self.park(fatal, now);
        Ok(())
    }

    /// An entry is being applied whole, or was.
    fn passed(&mut self, index: u64, term: u64) {
        let newer = self.terms.last().is_some_and(|(_, last)| *last < term);
        storage::terms::push(&mut self.terms, index, term);
        if newer {
            self.propose_again(term);
        }
        self.applied_since = true;
        self.applying.unpublished = true;
        self.checkpoints.entry_applied();
    }

    /// An entry was applied.
    fn applied(&mut self, begun: &Begun, applied: Applied, now: Instant) {
        self.passed(begun.index, begun.term);
        let took = self.shared.clock.now().saturating_duration_since(begun.since);
        if applied.op == machine::UNDECODABLE
            && let Err(status) = &applied.outcome
        {
            self.logger.error(
                "an entry of the log is no request that this version can decode: it changes nothing on members of this version; if there are members of another one, compare their states (`mainstay doctor`)",
                &[("index", Field::Uint(begun.index)), ("why", Field::Str(&status.message))],
            );
        }
        self.meters.applied(applied.op, &applied.outcome, begun.bytes, took);
        if took > self.config.warning_apply_duration {
            self.shared.metrics.server.slow_apply.inc();
            self.logger.warn(
                "apply request took too long",
                &[
                    ("took", Field::Duration(took)),
                    ("index", Field::Uint(begun.index)),
                    ("size", Field::Uint(begun.bytes as u64)),
                ],
            );
        }
        if let Some(change) = applied.change {
            self.changed(change, now);
        }
        let waiter = self.proposals.take(applied.request_id).unwrap_or(Waiter::Nobody);
        match waiter {
            Waiter::Expiry(id) => {
                let gone = applied.outcome.is_ok() || applied.outcome == Err(error::LEASE_NOT_FOUND);
                self.leases.revocation_ended(id, !gone, now);
            }
            Waiter::Attributes => self.attributes.applied(),
            Waiter::Nobody => {}
            waiter => {
                let revision = self.machine.store.current_revision();
                let named = applied.outcome.as_ref().is_ok_and(Outcome::names_values);
                let state = named.then(|| Box::new(self.as_applied()));
                let (outcome, raft_term) = (applied.outcome, begun.term);
                self.outcomes.push(Answerable { waiter, outcome, state, revision, raft_term });
            }
        }
        if self.leadership.applied(begun.term, self.node.standing()) {
            // Times left that were noted in earlier terms are all known only now.
            self.leases.start(&self.machine.leases, now);
        }
    }

    /// The state as it is now, which stays readable: what comes later in this turn may compact it away.
    fn as_applied(&mut self) -> AsOf {
        let moment = self.machine.store.moment();
        if let Some(first) = &self.as_applied {
            return first.at(moment);
        }
        self.as_applied.insert(self.shared.read_long_at(Reader::Range, moment)).clone()
    }

    fn changed(&mut self, change: Change, now: Instant) {
        match change {
            Change::LeaseGranted { id, ttl } => {
                self.leases.granted(id, ttl, self.leadership.has_settled(), now);
            }
            Change::LeaseRevoked(id) => self.lease_revoked(id),
            Change::Compacted(revision) => {
                // etcd has no hashes of compactions from before it was started.
                let is_hashed = self.machine.applied_index > self.replayed_through;
                self.removal.compacted(revision, self.machine.store.current_revision(), is_hashed, now);
            }
            Change::Alarms(raised) => {
                self.alarms = Arc::new(self.machine.alarms.clone());
                self.alarms_changed(raised);
            }
            Change::Members => self.tell_members(),
        }
    }
}
