//! What was done to members and what became of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::session::ClientContext;

/// What a member's process is, as far as this program made it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no process.
    Down,
    /// It runs.
    Up,
    /// It is stopped by a signal.
    Paused,
}

/// What a member says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// It answers at all.
    pub answers: bool,
    /// It believes to lead.
    pub leads: bool,
    /// The term that it is in.
    pub term: u64,
    /// It knows a leader.
    pub sees_leader: bool,
}

/// A fault that was injected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// What exactly was done.
    pub detail: String,
    /// To whom.
    pub members: Vec<usize>,
    /// When it began, in nanoseconds.
    pub from: u64,
    /// When it was over; the run may end before.
    pub to: Option<u64>,
    /// When all members were healthy again.
    pub recovered: Option<u64>,
}

/// Something that must not happen, beside what the oracle finds.
#[derive(Clone, Debug, PartialEq)]
pub struct Trouble {
    /// When, in nanoseconds.
    pub at: u64,
    /// In a few words.
    pub kind: String,
    /// In a sentence.
    pub text: String,
}

/// What was done to the members and what became of them, for the timeline and the report.
pub struct Chronicle {
    context: Arc<ClientContext>,
    inner: Mutex<Chapters>,
}

/// A change of something over time: from when it is so.
pub type Trail<T> = Vec<(u64, T)>;

/// What the chronicle holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chapters {
    /// Of each member.
    pub states: Vec<Trail<State>>,
    /// Of each member.
    pub readings: Vec<Trail<Reading>>,
    /// In the order in which they began.
    pub bars: Vec<Bar>,
    /// In the order in which they were found.
    pub troubles: Vec<Trouble>,
    /// Remarks.
    pub notes: Trail<String>,
}

impl Chronicle {
    /// An empty one.
    pub fn new(context: &Arc<ClientContext>) -> Chronicle {
        let members = context.addresses.len();
        let inner = Chapters {
            states: vec![Trail::new(); members],
            readings: vec![Trail::new(); members],
            ..Chapters::default()
        };
        Chronicle { context: Arc::clone(context), inner: Mutex::new(inner) }
    }

    /// What has been written.
    pub fn lock(&self) -> MutexGuard<'_, Chapters> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since the run began.
    pub fn now(&self) -> u64 {
        self.context.record.now()
    }

    /// A member's process is now like that.
    pub fn is(&self, member: usize, state: State) {
        let now = self.now();
        if let Some(trail) = self.lock().states.get_mut(member) {
            append(trail, now, state);
        }
    }

    /// A member says this of itself.
    pub fn read(&self, member: usize, reading: Reading) {
        let now = self.now();
        if let Some(trail) = self.lock().readings.get_mut(member) {
            append(trail, now, reading);
        }
    }

    /// A fault begins. Gives its number.
    pub fn begin(&self, name: &str) -> usize {
        let from = self.now();
        let mut inner = self.lock();
        inner.bars.push(Bar { name: name.to_owned(), from, ..Bar::default() });
        inner.bars.len() - 1
    }

    /// What exactly is done, and to whom.
    pub fn detail(&self, bar: usize, members: &[usize], detail: &str) {
        if let Some(bar) = self.lock().bars.get_mut(bar) {
            bar.members = members.to_vec();
            if !bar.detail.is_empty() {
                bar.detail.push_str("; ");
            }
            bar.detail.push_str(detail);
        }
    }

    /// The fault is over.
    pub fn over(&self, bar: usize) {
        let now = self.now();
        if let Some(bar) = self.lock().bars.get_mut(bar) {
            bar.to = Some(now);
        }
    }

    /// All members are healthy after it.
    pub fn recovered(&self, bar: usize) {
        let now = self.now();
        if let Some(bar) = self.lock().bars.get_mut(bar) {
            bar.recovered = Some(now);
        }
    }

    /// Something happened that must not.
    pub fn trouble(&self, kind: &str, text: impl Into<String>) {
        let at = self.now();
        let (kind, text) = (kind.to_owned(), text.into());
        self.lock().troubles.push(Trouble { at, kind, text });
    }

    /// A remark.
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
