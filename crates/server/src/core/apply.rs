//! Applying committed entries, and what follows from them.

use std::sync::Arc;
use std::time::Instant;

use api::error;
use consensus::{Entry, EntryKind};
use machine::{Change, Command, Outcome};
use mvcc::Location;
use planted::Bug;

use super::proposals::{REVOKE_PAUSE, Waiter};
use super::run::{Answerable, Core};
use crate::logging::Value;
use crate::long_reads::Reader;

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

    pub(super) fn apply(&mut self, entry: &Entry, now: Instant) -> Result<(), String> {
        let location = self.location(entry.index)?;
        let newer = self.terms.last().is_some_and(|(_, term)| *term < entry.term);
        crate::terms::push(&mut self.terms, entry.index, entry.term);
        if newer {
            self.propose_again(entry.term);
        }
        let command = Command { index: entry.index, term: entry.term, data: &entry.data, location };
        self.applied_since = true;
        self.checkpoint.entries_since += 1;
        match entry.kind {
            EntryKind::Normal => {
                let began = self.shared.clock.now();
                let waiting = &self.waiting;
                let applied =
                    match self.machine.apply_for(command, &self.values, |id| waiting.contains_key(&id)) {
                        Ok(applied) => applied,
                        Err(fatal) if fatal.is_unreadable && !planted::is(Bug::UnreadableValueIsFatal) => {
                            self.park(&fatal, now);
                            return Ok(());
                        }
                        Err(fatal) => return Err(fatal.to_string()),
                    };
                let took = self.shared.clock.now().saturating_duration_since(began);
                if applied.op == machine::UNDECODABLE
                    && let Err(status) = &applied.outcome
                {
                    self.logger.error(
                        "an entry of the log is no request that this version can decode: it changes nothing on members of this version; if there are members of another one, compare their states (`mainstay doctor`)",
                        &[("index", Value::Uint(entry.index)), ("why", Value::Str(&status.message))],
                    );
                }
                self.meters.applied(applied.op, &applied.outcome, entry.data.len(), took);
                if took > self.config.warning_apply_duration {
                    self.shared.metrics.server.slow_apply.inc();
                    self.logger.warn(
                        "apply request took too long",
                        &[
                            ("took", Value::Duration(took)),
                            ("index", Value::Uint(entry.index)),
                            ("size", Value::Uint(entry.data.len() as u64)),
                        ],
                    );
                }
                if let Some(change) = applied.change {
                    self.changed(change, now);
                }
                let waiter = self.taken_from_waiting(applied.request_id).unwrap_or(Waiter::Nobody);
                match waiter {
                    Waiter::Expiry(id) => {
                        self.revokes_open = self.revokes_open.saturating_sub(1);
                        if !(applied.outcome.is_ok() || applied.outcome == Err(error::LEASE_NOT_FOUND)) {
                            self.expiry.retry(id, now, REVOKE_PAUSE);
                        }
                    }
                    Waiter::Attributes => self.attributes_known = true,
                    Waiter::Nobody => {}
                    waiter => {
                        let revision = self.machine.store.current_revision();
                        let later = applied.outcome.as_ref().is_ok_and(Outcome::reads_later).then(|| {
                            // As of now: what comes later in this turn may compact it away.
                            Box::new(self.shared.read_long_at(Reader::Range, self.machine.store.moment()))
                        });
                        let (outcome, raft_term) = (applied.outcome, entry.term);
                        self.outcomes.push(Answerable { waiter, outcome, later, revision, raft_term });
                    }
                }
                let standing = self.node.standing();
                if self.leads && !self.settled && entry.term == standing.term {
                    self.settled = true;
                    // Times left that were noted in earlier terms are all known only now.
                    self.start_leases(now);
                }
            }
            EntryKind::ConfChange => {
                self.apply_conf_change(entry, command)?;
            }
        }
        Ok(())
    }

    fn changed(&mut self, change: Change, now: Instant) {
        match change {
            Change::LeaseGranted { id, ttl } => self.lease_granted(id, ttl, now),
            Change::LeaseRevoked(id) => self.lease_revoked(id),
            Change::Compacted(revision) => {
                let previous = std::mem::replace(&mut self.compacted, revision);
                // etcd has no hashes of compactions from before it was started.
                if self.machine.applied_index > self.replayed_through {
                    self.compactions.push((previous, revision));
                }
                self.removing = true;
                self.next_removal = now;
                self.removal_after = self.machine.store.current_revision();
                self.removal_asked = now;
            }
            Change::Alarms => {
                self.alarms = Arc::new(self.machine.alarms.clone());
                self.room.alarm_settled();
            }
            Change::Members => self.tell_members(),
        }
    }
}
