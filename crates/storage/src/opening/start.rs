//! Prepares the state with which the raft node starts: the entries of the log after the checkpoint, and
//! entries that are appended during the start.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use api::raftpb;
use consensus::{Entry, EntryKind, HardState, Node, RestoredState};
use log::checkpoint::Manifest;
use log::{Batch, EntryPlace, Log, LogEvent, Recovered, Reset};
use machine::{Machine, Members};
use numbers::{Index, MemberId, Term};
use prost::Message as _;
use telemetry::logging::Value;

use super::replay::ReplayedLog;
use super::{LogEvents, Opening};
use crate::beginning::{self, Beginning};
use crate::error::{DataDirError, FirstEntriesError, Inconsistency};
use crate::identity::Identity;
use crate::terms::Terms;

/// Maximum time for which a start waits until the entries that it appends are durable.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);

/// State from which the raft node starts.
pub(super) struct Start {
    pub(super) log: Log,
    pub(super) recovered: Recovered,
    pub(super) entries: Vec<Entry>,
    pub(super) locations: VecDeque<EntryPlace>,
    pub(super) hard_state: HardState,
}

impl Start {
    /// Returns the raft state that continues the machine's state. If the machine's state is that of an
    /// installed snapshot and the log is older, restarts the log after that snapshot.
    pub(super) fn of(
        opening: &Opening<'_>,
        log_dir: &Path,
        machine: &Machine,
        applied: Index,
        manifest: Option<&Manifest>,
        replayed: ReplayedLog,
    ) -> Result<Start, DataDirError> {
        let ReplayedLog { log, recovered, entries, locations } = replayed;
        let hard_state = HardState {
            term: recovered.hard_state.term.max(machine.applied_term),
            vote: if recovered.hard_state.term < machine.applied_term {
                MemberId::NONE
            } else {
                recovered.hard_state.vote
            },
            commit: recovered.hard_state.commit,
        };
        let mut start = Start { log, recovered, entries, locations, hard_state };
        let last_index = start.recovered.last_index;
        // True if a snapshot was installed and the member stopped before it restarted its log after the
        // snapshot; also true if the log has lost its end, which is checked next.
        let behind = last_index < applied
            || start.entries.first().is_some_and(|entry| entry.term < machine.applied_term);
        if behind && applied > Index(0) {
            // The terms of an installed snapshot start after the entries of this log. If they start within
            // this log, no snapshot was installed: the checkpoint was made from this log, and the log has
            // lost its end. In that case the start is refused.
            let terms = Terms::read(manifest.map_or(&[][..], |manifest| &manifest.metadata), machine);
            if last_index < applied && terms.first_index().is_some_and(|first| first <= last_index) {
                let log_dir = log_dir.to_path_buf();
                return Err(Inconsistency::LogEndsEarly { log_dir, last: last_index, applied }.into());
            }
            let reset = Reset { index: applied, term: machine.applied_term };
            let batch = Batch { reset: Some(reset), hard_state: Some(saved(hard_state)), ..Batch::default() };
            append_and_wait(&mut start.log, &**opening.events, batch, opening.threads)?;
            start.entries.clear();
            start.locations.clear();
        } else if let Some(last) = start.entries.last()
            && last.index != last_index
        {
            return Err(Inconsistency::LastEntry { stated: last_index, held: last.index }.into());
        }
        Ok(start)
    }

    /// Appends the first entries if the log is empty, and returns the id and peer URLs of each member that
    /// the cluster already has. Returns an empty list if the log already has entries. The log can also be
    /// empty without being new: after a first start that was interrupted, or if a joining member has not
    /// received entries from the others yet.
    pub(super) fn begin(
        &mut self,
        opening: &Opening<'_>,
        member_dir: &Path,
        identity: &Identity,
        beginning: Option<Beginning>,
        machine: &Machine,
    ) -> Result<Vec<(u64, Vec<String>)>, DataDirError> {
        let is_new = beginning.is_some();
        let empty =
            self.hard_state.term == Term(0) && machine.applied_index == Index(0) && self.entries.is_empty();
        let beginning = match beginning {
            None if empty => Some((opening.begin)().map_err(DataDirError::Begin)?),
            beginning => beginning,
        };
        let Some(Beginning { identity: found, entries: first, remotes }) = beginning else {
            return Ok(Vec::new());
        };
        if found != *identity {
            return Err(DataDirError::OtherMember {
                member_dir: member_dir.to_path_buf(),
                made_for: identity.clone(),
                configured: found,
            });
        }
        if !first.is_empty() {
            self.hard_state =
                HardState { term: Term(1), vote: MemberId::NONE, commit: Index(first.len() as u64) };
            self.locations = self.append(opening, &first)?;
            self.entries = first;
        } else if is_new {
            // A joining member gets its entries from the other members. Its log gets a record now, so that
            // the loss of the log is detected even before the first clean shutdown.
            let batch = Batch { hard_state: Some(log::HardState::default()), ..Batch::default() };
            append_and_wait(&mut self.log, &**opening.events, batch, opening.threads)?;
        }
        Ok(remotes)
    }

    /// Appends the entries that make this member the only one of its cluster.
    pub(super) fn force_new_cluster(
        &mut self,
        opening: &Opening<'_>,
        identity: &Identity,
        machine: &Machine,
        applied: Index,
    ) -> Result<(), DataDirError> {
        let options = opening.options;
        let learners_max = options.rules.learners_max;
        let members = members_at_end(machine, &self.entries, learners_max)?;
        let last = self.entries.last().map_or(applied, |entry| entry.index);
        let urls = &options.peer_urls;
        let term = self.hard_state.term.max(Term(1));
        let changes = beginning::alone(identity.member_id, &members, urls, term, last, learners_max)?;
        opening.logger.warn(
            "forcing a new cluster with this member alone",
            &[("removed", Value::Uint(changes.len() as u64)), ("last-index", Value::Uint(last.0))],
        );
        // All entries of the log become committed: any of them may have been acknowledged to a client, and no
        // other member is left that knows which.
        self.hard_state.term = term;
        self.hard_state.commit = last + changes.len() as u64;
        if !changes.is_empty() {
            let locations = self.append(opening, &changes)?;
            self.locations.extend(locations);
            self.entries.extend(changes);
        }
        Ok(())
    }

    /// Appends entries with the hard state before the member runs. Returns their locations.
    fn append(
        &mut self,
        opening: &Opening<'_>,
        entries: &[Entry],
    ) -> Result<VecDeque<EntryPlace>, FirstEntriesError> {
        append_entries(&mut self.log, &**opening.events, entries, self.hard_state, opening.threads)
    }

    /// Creates the raft node, which takes the log entries after the machine's state out of `self`.
    pub(super) fn node(
        &mut self,
        opening: &Opening<'_>,
        identity: &Identity,
        machine: &Machine,
        terms: &Terms,
    ) -> Result<Node, consensus::Refusal> {
        let options = opening.options;
        let first_index =
            self.log.entries().first_index().max(terms.first_index().unwrap_or_default().next());
        let heartbeat = options.heartbeat_interval.max(Duration::from_millis(1));
        let election_ticks = options.election_timeout.as_millis() / heartbeat.as_millis().max(1);
        let standard = consensus::Config::default();
        let switches = opening.switches;
        Node::new(
            consensus::Config {
                election_ticks: usize::try_from(election_ticks).unwrap_or(10).max(2),
                pre_vote: options.pre_vote,
                observes: options.observes,
                is_witness: options.is_witness,
                id: MemberId(identity.member_id),
                seed: opening.seed.unwrap_or(identity.member_id),
                bytes_in_flight_max: switches.bytes_in_flight_max.unwrap_or(standard.bytes_in_flight_max),
                speaks_as_etcd: switches.speaks_as_etcd,
                ..standard
            },
            RestoredState {
                hard_state: self.hard_state,
                voters: machine.members.voters().into_iter().map(MemberId).collect(),
                learners: machine.members.learners().into_iter().map(MemberId).collect(),
                witness: MemberId(machine.members.witness().unwrap_or(0)),
                applied: machine.applied_index,
                applied_term: machine.applied_term,
                entries: std::mem::take(&mut self.entries),
                first_index: first_index.min(machine.applied_index.next()),
                terms: terms.runs().to_vec(),
            },
        )
    }
}

/// Returns the members as they will be after all entries are applied.
fn members_at_end(
    machine: &Machine,
    entries: &[Entry],
    learners_max: usize,
) -> Result<Members, Inconsistency> {
    let mut members = machine.members.clone();
    for entry in entries.iter().filter(|entry| entry.kind == EntryKind::ConfChange) {
        let change = raftpb::ConfChange::decode(entry.data.clone())
            .map_err(|error| Inconsistency::NotAChange { index: entry.index, error })?;
        // The error is ignored: a change that is refused here will also be refused when it is applied, and
        // then has no effect.
        let _ = machine::reconfigure(&mut members, &change, learners_max);
    }
    Ok(members)
}

fn saved(state: HardState) -> log::HardState {
    log::HardState { term: state.term, vote: state.vote, commit: state.commit }
}

/// Appends entries before the member runs. Returns their locations.
pub(super) fn append_entries(
    log: &mut Log,
    events: &dyn LogEvents,
    entries: &[Entry],
    hard_state: HardState,
    threads: bool,
) -> Result<VecDeque<EntryPlace>, FirstEntriesError> {
    let entries = entries
        .iter()
        .map(|entry| log::Entry {
            term: entry.term,
            index: entry.index,
            entry_type: u8::from(entry.kind == EntryKind::ConfChange),
            data: entry.data.clone(),
        })
        .collect();
    let batch = Batch { entries, hard_state: Some(saved(hard_state)), ..Batch::default() };
    append_and_wait(log, events, batch, threads)
}

fn append_and_wait(
    log: &mut Log,
    events: &dyn LogEvents,
    batch: Batch,
    threads: bool,
) -> Result<VecDeque<EntryPlace>, FirstEntriesError> {
    if threads {
        events.receive_here();
    }
    let ticket = log.append(batch).map_err(|error| FirstEntriesError::Refused(error.reason))?;
    let deadline = Instant::now() + BOOT_TIMEOUT;
    let (mut told, mut places) = (Vec::new(), VecDeque::new());
    // For a log without threads, this does all the work, and all events are queued when it returns.
    log.turn();
    let patience = if threads { Duration::from_secs(1) } else { Duration::ZERO };
    while Instant::now() < deadline {
        events.receive(&mut told, patience);
        if !threads && told.is_empty() {
            return Err(FirstEntriesError::NoSpace);
        }
        for event in told.drain(..) {
            match event {
                LogEvent::Synced(synced) => {
                    places.extend(synced.locations);
                    if synced.ticket >= ticket {
                        return Ok(places);
                    }
                }
                LogEvent::Failed(fatal) => return Err(FirstEntriesError::Failed(fatal)),
                _ => {}
            }
        }
    }
    Err(FirstEntriesError::TimedOut)
}
