//! The cluster's witness, a voter without keys: tells raft which member it is, sends it the little state that it
//! keeps, and says in the log when it counts.

use std::time::{Duration, Instant};

use consensus::Event;
use numbers::{Index, MemberId};
use telemetry::logging::Value;

use super::Core;
use crate::core::Fatal;
use crate::transfer::Source;

/// Minimum time between two log lines of a member that cannot lead because it is behind the witness.
const BEHIND_INTERVAL: Duration = Duration::from_secs(30);

/// What was said about the witness.
#[derive(Debug, Default)]
pub(super) struct WitnessReport {
    /// True if the last line said that the witness counts.
    counts: bool,
    /// Time of the last line that said that this member is behind the witness.
    behind: Option<Instant>,
}

impl Core {
    /// Tells raft which member is the witness. Called whenever the members have changed, before raft hears of the
    /// change itself.
    pub(super) fn set_witness(&mut self) -> Result<(), Fatal> {
        let witness = MemberId(self.machine.members.witness().unwrap_or(0));
        if self.node.witness() != witness {
            self.step(Event::WitnessSet(witness))?;
        }
        Ok(())
    }

    /// Returns the state to send to a witness that lacks entries: the position in the log and the members.
    pub(super) fn source_for_witness(&self, to: MemberId) -> Source {
        let mut bare = self.machine.of_witness();
        let trail = bare.state_trail(Index(0));
        let view = bare.store.publish();
        Source::new(to, bare.head(), trail, view.into(), &self.shared)
    }

    /// Publishes whether this leader counts the witness, and logs what an operator has to know. Called at every
    /// tick.
    pub(super) fn look_at_witness(&mut self, now: Instant) {
        let counts = self.node.counts_witness() && self.leadership.leads();
        self.shared.cluster.witness_counts(counts);
        let witness = Value::Id(self.node.witness().0);
        if std::mem::replace(&mut self.witness.counts, counts) != counts && self.leadership.leads() {
            if counts {
                self.logger.warn(
                    "too few members with data are in step, so the witness counts: no other machine must be lost until \
                     they have caught up",
                    &[("witness", witness)],
                );
            } else {
                self.logger.info(
                    "the members with data are in step again: the witness does not count, and any one machine may be lost",
                    &[("witness", witness)],
                );
            }
        }
        if !self.node.is_behind_witness() {
            self.witness.behind = None;
        } else if self.witness.behind.is_none_or(|at| now >= at + BEHIND_INTERVAL) {
            self.witness.behind = Some(now);
            self.logger.error(
                "this member cannot lead: the witness has newer entries, whose values only a member has that does not \
                 answer; start that member again, or, if its data is lost for good, give up these writes with `mainstay \
                 recover` or `--force-new-cluster` on this member",
                &[("witness", witness), ("last-index", Value::Uint(self.node.status().last.0))],
            );
        }
    }
}
