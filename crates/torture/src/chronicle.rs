//! Records the faults that were injected, and how the members reacted, for the timeline and the report.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::session::ClientContext;

/// State of a member's process, as far as it results from the injected faults or from the end of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no process.
    Down,
    /// The process is running.
    Up,
    /// The process is paused with SIGSTOP.
    Paused,
}

/// Status of a member, as the member itself reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// True if the member answered the request for its status.
    pub answers: bool,
    /// True if the member considers itself the leader.
    pub leads: bool,
    /// Raft term of the member.
    pub term: u64,
    /// True if the member knows who the leader is.
    pub sees_leader: bool,
}

/// An injected fault, which the timeline shows as a bar.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// Name of the fault kind.
    pub name: String,
    /// Description of this fault: what was done to which members.
    pub detail: String,
    /// Affected members.
    pub members: Vec<usize>,
    /// Start of the fault, in nanoseconds since the run began.
    pub from: u64,
    /// End of the fault; `None` if the run ended first.
    pub to: Option<u64>,
    /// Time at which all members were healthy again after the fault, in nanoseconds since the run began;
    /// `None` if they did not become healthy.
    pub recovered: Option<u64>,
}

/// A violation that the torture program has noticed itself, as opposed to those that the oracle finds in the
/// history.
#[derive(Clone, Debug, PartialEq)]
pub struct Trouble {
    /// Time of the violation, in nanoseconds since the run began.
    pub at: u64,
    /// Kind of the violation, in a few words.
    pub kind: String,
    /// Description of the violation, in a sentence.
    pub text: String,
}

/// Record of the injected faults and of the members' reactions.
pub struct Chronicle {
    context: Arc<ClientContext>,
    inner: Mutex<Chapters>,
}

/// A value that changes over time: each new value with the time, in nanoseconds since the run began, from
/// which it holds.
pub type Trail<T> = Vec<(u64, T)>;

/// Contents of a [`Chronicle`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chapters {
    /// State of each member's process over time.
    pub states: Vec<Trail<State>>,
    /// Status of each member over time.
    pub readings: Vec<Trail<Reading>>,
    /// Injected faults, in the order of their start.
    pub bars: Vec<Bar>,
    /// Violations, in the order in which they were found.
    pub troubles: Vec<Trouble>,
    /// Remarks about the run, each with its time.
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

    /// Records that a fault begins. Returns its index in [`Chapters::bars`].
    pub fn begin(&self, name: &str) -> usize {
        let from = self.now();
        let mut inner = self.lock();
        inner.bars.push(Bar { name: name.to_owned(), from, ..Bar::default() });
        inner.bars.len() - 1
    }

    /// Sets the members that a fault affects, and appends a text to its description.
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

    /// Records a violation that was noticed now.
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
