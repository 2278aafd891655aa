//! A store in memory that fails when a test says so.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use backup::store::{Creation, Listing, Store};
use backup::{Fault, Trouble};
use bytes::Bytes;

/// Ways in which an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// It does nothing.
    Before,
    /// It is done, and the answer is lost.
    After,
    /// Half of the object is created.
    Half,
    /// It is refused.
    Denied,
    /// It is answered as failed, and done this many operations later.
    Late(u64),
    /// It is done twice, and the second answer is returned.
    Twice,
}

/// Decides how the operation of this number, counted from 1, fails.
type Script = Box<dyn FnMut(u64) -> Option<Failing> + Send>;

#[derive(Default)]
pub struct MemoryStore {
    state: Mutex<State>,
    /// True if what is read has to be kept.
    pub is_distant: AtomicBool,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Bytes>,
    script: Option<Script>,
    operations: u64,
    /// Objects that are created once this many operations were begun.
    late: Vec<(u64, String, Bytes)>,
}

impl MemoryStore {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets operations fail from now on, the next one having number 1.
    pub fn fail(&self, script: impl FnMut(u64) -> Option<Failing> + Send + 'static) {
        let mut state = self.lock();
        state.script = Some(Box::new(script));
        state.operations = 0;
    }

    /// Lets no operation fail any more. Returns how many there were since [`MemoryStore::fail`].
    pub fn heal(&self) -> u64 {
        let mut state = self.lock();
        state.script = None;
        state.operations
    }

    /// Returns the names of all objects.
    pub fn names(&self) -> Vec<String> {
        self.lock().objects.keys().cloned().collect()
    }

    /// Replaces an object, which no store that is used does.
    pub fn replace(&self, name: &str, data: impl Into<Bytes>) {
        self.lock().objects.insert(name.to_owned(), data.into());
    }

    fn failing(&self) -> Option<Failing> {
        let mut state = self.lock();
        state.operations += 1;
        let number = state.operations;
        let (due, later) = std::mem::take(&mut state.late).into_iter().partition(|(at, ..)| *at <= number);
        state.late = later;
        let due: Vec<(u64, String, Bytes)> = due;
        for (_, name, data) in due {
            state.objects.entry(name).or_insert(data);
        }
        state.script.as_mut().and_then(|script| script(number))
    }
}

fn failed() -> Trouble {
    Trouble::new(Fault::Passing, "503 Slow Down")
}

impl Store for MemoryStore {
    fn create(&self, name: &str, data: Bytes) -> Result<Creation, Trouble> {
        let failing = self.failing();
        let mut state = self.lock();
        if failing == Some(Failing::Before) {
            return Err(failed());
        }
        if let Some(Failing::Late(operations)) = failing {
            let at = state.operations + operations;
            state.late.push((at, name.to_owned(), data));
            return Err(failed());
        }
        let is_there = state.objects.contains_key(name);
        if failing == Some(Failing::Twice) {
            state.objects.entry(name.to_owned()).or_insert(data);
            return Ok(Creation::Existed);
        }
        let creation = match is_there {
            true => Creation::Existed,
            false => {
                let whole = data.len();
                let len =
                    if failing == Some(Failing::Half) && name.contains("/data/") { whole / 2 } else { whole };
                state.objects.insert(name.to_owned(), data.slice(..len));
                Creation::Created
            }
        };
        if failing.is_some() { Err(failed()) } else { Ok(creation) }
    }

    fn read(&self, name: &str) -> Result<Option<Bytes>, Trouble> {
        match self.failing() {
            Some(Failing::Denied) => Err(Trouble::new(Fault::Denied, "403 Forbidden")),
            Some(Failing::Twice) | None => Ok(self.lock().objects.get(name).cloned()),
            Some(_) => Err(failed()),
        }
    }

    fn size(&self, name: &str) -> Result<Option<u64>, Trouble> {
        Ok(self.read(name)?.map(|data| data.len() as u64))
    }

    fn list(&self, directory: &str) -> Result<Listing, Trouble> {
        if self.failing().is_some_and(|failing| failing != Failing::Twice) {
            return Err(failed());
        }
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let mut listing = Listing::default();
        for name in self.lock().objects.keys().filter_map(|name| name.strip_prefix(&prefix)) {
            match name.split_once('/') {
                Some((directory, _)) if listing.directories.last().is_none_or(|last| last != directory) => {
                    listing.directories.push(directory.to_owned());
                }
                Some(_) => {}
                None => listing.objects.push(name.to_owned()),
            }
        }
        Ok(listing)
    }

    fn remove(&self, name: &str) -> Result<(), Trouble> {
        self.lock().objects.remove(name);
        Ok(())
    }

    fn url(&self) -> &str {
        "memory://store"
    }

    fn is_local(&self) -> bool {
        !self.is_distant.load(Ordering::Relaxed)
    }
}
