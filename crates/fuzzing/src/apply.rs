//! Checks that state machines are deterministic and that no log entry makes one panic: applies entries with
//! arbitrary content to two of them, under different conditions, and compares the results.

use api::Status;
use api::etcdserverpb::InternalRaftRequest;
use api::raftpb::ConfChange;
use bytes::Bytes;
use machine::auth::Auth;
use machine::{Command, Machine};
use numbers::Term;
use prost::Message as _;

use crate::commands;
use crate::journal::Journal;
use crate::script::{Scribe, Script};
use crate::state::{RULES, assert_same, through_image, through_snapshot, through_transfer};

/// Maximum number of entries that one input applies; the rest of the input is ignored.
const ENTRIES_MAX: usize = 64;

/// Numbers that select the kind of a step in a script.
const ENTRY: u8 = 0;
const CONF_CHANGE: u8 = 1;
const COMPACT: u8 = 2;
const IMAGE: u8 = 3;
const SNAPSHOT: u8 = 4;
const TRANSFER: u8 = 5;
const STEPS: u8 = 6;

/// Two state machines that apply the same entries under different conditions, and must be equal afterwards.
/// The first machine produces responses. The second machine produces none, removes compacted data at other
/// times, and is saved and restored between entries.
pub struct Twins {
    journal: Journal,
    first: Machine,
    second: Machine,
}

impl Default for Twins {
    fn default() -> Twins {
        Twins { journal: Journal::default(), first: Machine::new(RULES), second: Machine::new(RULES) }
    }
}

impl Twins {
    /// Applies an entry to both machines, and checks that their results are equal. Returns false if both
    /// machines fail to apply the entry.
    pub fn entry(&mut self, data: &Bytes) -> bool {
        self.apply(data).is_some()
    }

    /// Applies an entry to both machines, and returns the outcome, on which they agree.
    ///
    /// # Panics
    ///
    /// Panics if the machines fail to apply the entry.
    pub fn outcome(&mut self, data: &Bytes) -> Result<(), Status> {
        self.apply(data).expect("it can be applied")
    }

    /// Checks that both machines have the same users and roles, and returns these.
    pub fn auth(&self) -> &Auth {
        assert_eq!(self.first.auth, self.second.auth);
        &self.first.auth
    }

    fn apply(&mut self, data: &Bytes) -> Option<Result<(), Status>> {
        let location = self.journal.append(data);
        let command =
            |machine: &Machine| Command { index: machine.applied_index + 1, term: Term(1), data, location };
        let ours = self.first.apply(command(&self.first), &self.journal, true);
        let theirs = self.second.apply(command(&self.second), &self.journal, false);
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => {
                assert_eq!(
                    (ours.request_id, ours.op, ours.change),
                    (theirs.request_id, theirs.op, theirs.change)
                );
                let outcome = ours.outcome.map(drop);
                assert_eq!(outcome, theirs.outcome.map(drop));
                assert_eq!(self.first.state_hash(), self.second.state_hash());
                Some(outcome)
            }
            (Err(ours), Err(theirs)) => {
                assert_eq!(ours, theirs);
                None
            }
            (ours, theirs) => panic!("one can and the other cannot: {ours:?}, {theirs:?}"),
        }
    }

    /// Applies a membership change to both machines, and checks that their results are equal. Returns false
    /// if both machines fail to apply the change.
    pub fn conf_change(&mut self, data: &Bytes) -> bool {
        if let Ok(change) = ConfChange::decode(data.clone()) {
            let before = self.first.members.clone();
            let allowed = machine::validate(&self.first.members, &change, RULES.learners_max);
            assert_eq!(before, self.first.members);
            // The validation must not change the members, and both machines must validate with the same
            // result.
            assert_eq!(allowed, machine::validate(&self.second.members, &change, RULES.learners_max));
        }
        let location = self.journal.append(data);
        let command =
            |machine: &Machine| Command { index: machine.applied_index + 1, term: Term(1), data, location };
        let ours = self.first.apply_conf_change(command(&self.first));
        let theirs = self.second.apply_conf_change(command(&self.second));
        assert_eq!(ours, theirs);
        assert_eq!(self.first.state_hash(), self.second.state_hash());
        ours.is_ok()
    }

    /// Lets the second machine continue to remove compacted data.
    pub fn compact_step(&mut self, budget: u8) {
        self.second.compact_step(u64::from(budget));
    }

    /// Saves and restores the second machine through a checkpoint.
    pub fn restart(&mut self) {
        self.second = through_image(&mut self.second);
    }

    /// Saves and restores the second machine through a snapshot.
    pub fn restore_snapshot(&mut self) {
        self.second = through_snapshot(&mut self.second, &self.journal);
    }

    /// Saves and restores the second machine through a transfer between members.
    pub fn transfer(&mut self) {
        self.second = through_transfer(&mut self.second, &self.journal);
    }

    /// Asserts that no difference between the two machines can be observed.
    pub fn finish(mut self) {
        assert_same(&mut self.first, &mut self.second);
    }
}

/// Fuzz target: applies the entries of a script to both machines.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut twins = Twins::default();
    for _ in 0..ENTRIES_MAX {
        if script.is_done() {
            break;
        }
        let goes_on = match script.below(STEPS) {
            ENTRY => twins.entry(&Bytes::copy_from_slice(script.run())),
            CONF_CHANGE => twins.conf_change(&Bytes::copy_from_slice(script.run())),
            COMPACT => {
                twins.compact_step(script.u8());
                true
            }
            IMAGE => {
                twins.restart();
                true
            }
            SNAPSHOT => {
                twins.restore_snapshot();
                true
            }
            _ => {
                twins.transfer();
                true
            }
        };
        if !goes_on {
            return;
        }
    }
    twins.finish();
}

/// Returns seeds with every kind of request and membership change: one seed for each, and one with all of
/// them.
pub fn seeds() -> Vec<Vec<u8>> {
    let requests: Vec<InternalRaftRequest> = commands::examples();
    let changes = commands::conf_changes();
    let mut all = Scribe::default();
    let mut seeds = Vec::new();
    for request in &requests {
        let bytes = request.encode_to_vec();
        all = all.u8(ENTRY).run(&bytes);
        seeds.push(Scribe::default().u8(ENTRY).run(&bytes).done());
    }
    for change in &changes {
        let bytes = change.encode_to_vec();
        all = all.u8(CONF_CHANGE).run(&bytes);
        seeds.push(Scribe::default().u8(CONF_CHANGE).run(&bytes).done());
    }
    seeds.push(all.u8(COMPACT).u8(3).u8(IMAGE).u8(SNAPSHOT).u8(TRANSFER).done());
    seeds
}
