//! Log of the faults that were injected into members, and of how the members reacted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::session::ClientContext;

/// State of a member's process, as far as faults of this program changed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No process runs.
    Down,
    /// The process runs.
    Up,
    /// The process is stopped by SIGSTOP.
    Paused,
}

/// Status that a member reports about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// True if the member answers.
    pub answers: bool,
    /// True if the member believes it is the leader.
    pub leads: bool,
    /// Raft term of the member.
    pub term: u64,
    /// True if the member knows a leader.
    pub sees_leader: bool,
}

/// One injected fault, drawn as a bar in the timeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// Name of the fault kind.
    pub name: String,
    /// Description of the injected fault.
    pub detail: String,
    /// Affected members.
    pub members: Vec<usize>,
    /// Start of the fault, in nanoseconds since the run began.
    pub from: u64,
    /// End of the fault; `None` if the run ended first.
    pub to: Option<u64>,
    /// Time at which all members were healthy again, in nanoseconds since the run began; `None` if they never
    /// were.
    pub recovered: Option<u64>,
}

/// A violation that this program found itself, not the oracle.
#[derive(Clone, Debug, PartialEq)]
pub struct Trouble {
    /// Time, in nanoseconds since the run began.
    pub at: u64,
    /// Kind of the violation, in a few words.
    pub kind: String,
    /// Description, in a sentence.
    pub text: String,
}

/// Log of the injected faults and of the members' reactions, for the timeline and the report.
pub struct Chronicle {
    context: Arc<ClientContext>,
    inner: Mutex<Chapters>,
}

/// Values over time: each value with the time in nanoseconds from which it holds.
pub type Trail<T> = Vec<(u64, T)>;

/// Contents of the chronicle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chapters {
    /// Process states of each member.
    pub states: Vec<Trail<State>>,
    /// Reported status of each member.
    pub readings: Vec<Trail<Reading>>,
    /// Injected faults, ordered by their start.
    pub bars: Vec<Bar>,
    /// Violations, in the order in which they were found.
    pub troubles: Vec<Trouble>,
    /// Remarks with their times.
    pub notes: Trail<String>,
}

impl Chronicle {
    /// Creates an empty chronicle.
    pub fn new(context: &Arc<ClientContext>) -> Chronicle {
        let members = context.addresses.len();
        let inner = Chapters {
            states: vec![Trail::new(); members],
            readings: vec![Trail::new(); members],
            ..Chapters::default()
        };
        Chronicle { context: Arc::clone(context), inner: Mutex::new(inner) }
    }

    /// Locks and returns the contents.
    pub fn lock(&self) -> MutexGuard<'_, Chapters> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the nanoseconds since the run began.
    pub fn now(&self) -> u64 {
        self.context.record.now()
    }

    /// Records the state of a member's process.
    pub fn is(&self, member: usize, state: State) {
        let now = self.now();
        if let Some(trail) = self.lock().states.get_mut(member) {
            append(trail, now, state);
        }
    }

    /// Records the status that a member reports.
    pub fn read(&self, member: usize, reading: Reading) {
        let now = self.now();
        if let Some(trail) = self.lock().readings.get_mut(member) {
            append(trail, now, reading);
        }
    }

    /// Records that a fault begins, and returns the fault's number.
    pub fn begin(&self, name: &str) -> usize {
        let from = self.now();
        let mut inner = self.lock();
        inner.bars.push(Bar { name: name.to_owned(), from, ..Bar::default() });
        inner.bars.len() - 1
    }

    /// Adds affected members and a description to a fault.
    pub fn detail(&self, bar: usize, members: &[usize], detail: &str) {
        if let Some(bar) = self.lock().bars.get_mut(bar) {
            bar.members = members.to_vec();
            if !bar.detail.is_empty() {
                bar.detail.push_str("; ");
            }
            bar.detail.push_str(detail);
        }
    }

    /// Records that a fault is over.
    pub fn over(&self, bar: usize) {
        let now = self.now();
        if let Some(bar) = self.lock().bars.get_mut(bar) {
            bar.to = Some(now);
        }
    }

    /// Records that all members are healthy again after a fault.
    pub fn recovered(&self, bar: usize) {
        let now = self.now();
        if let Some(bar) = self.lock().bars.get_mut(bar) {
            bar.recovered = Some(now);
        }
    }

    /// Records a violation.
    pub fn trouble(&self, kind: &str, text: impl Into<String>) {
        let at = self.now();
        let (kind, text) = (kind.to_owned(), text.into());
        self.lock().troubles.push(Trouble { at, kind, text });
    }

    /// Records a remark.
    pub fn note(&self, text: impl Into<String>) {
        let at = self.now();
        self.lock().notes.push((at, text.into()));
    }
}

fn append<T: PartialEq>(trail: &mut Trail<T>, now: u64, value: T) {
    if trail.last().is_none_or(|(_, last)| *last != value) {
        trail.push((now, value));
    }
}
