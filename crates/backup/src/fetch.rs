//! Fetches objects for a restore. Those of a distant store are kept in a directory, so that a restore that was
//! interrupted need not fetch them again, and are fetched ahead.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};

use bytes::Bytes;

use crate::object::Object;
use crate::plan::Plan;
use crate::store::Store;
use crate::trouble::{Fault, Trouble};

/// Number of threads that fetch.
const THREADS: usize = 4;
/// Number of attempts to fetch an object, and the pause between two of them in milliseconds.
const ATTEMPTS: u32 = 8;
const PAUSE_MS: u64 = 500;

type Got = Result<Bytes, Trouble>;

/// Objects of a plan, in order.
pub struct Fetch<'s> {
    store: &'s dyn Store,
    cluster: &'s str,
    cache: Option<&'s Cache>,
    /// Objects that threads fetch, in the order in which they are wanted.
    ahead: VecDeque<(Object, Receiver<Got>)>,
}

/// A directory in which a restore keeps what it fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The directory.
    pub path: PathBuf,
    /// True if objects are kept there. Otherwise only those that an earlier restore has kept are used, so that the disk
    /// need not hold more of them beside the state.
    pub keeps: bool,
}

impl Cache {
    /// Returns the number of bytes that are kept.
    pub fn bytes(&self) -> u64 {
        let Ok(entries) = fs::read_dir(&self.path) else { return 0 };
        entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).sum()
    }
}

/// Returns the directory in which a restore into `data_dir` keeps what it fetches.
pub fn cache_of(data_dir: &Path) -> Cache {
    let mut name = data_dir.as_os_str().to_owned();
    name.push(".backup-cache");
    Cache { path: name.into(), keeps: true }
}

/// Removes the directory in which a restore has kept what it fetched.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn remove_cache(cache: &Cache) -> Result<(), Trouble> {
    match fs::remove_dir_all(&cache.path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Trouble::new(Fault::Refused, format!("cannot remove {}: {error}", cache.path.display())))
        }
        _ => Ok(()),
    }
}

/// Runs `work` with the objects of a plan. If the store is not local, they are kept in `cache`.
///
/// # Errors
///
/// Returns the error of `work`, or that the directory cannot be created.
pub fn with_objects<T>(
    store: &dyn Store,
    cluster: &str,
    plan: &Plan,
    cache: &Cache,
    work: impl FnOnce(&mut Fetch<'_>) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    if store.is_local() {
        return work(&mut Fetch { store, cluster, cache: None, ahead: VecDeque::new() });
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&cache.path);
    made.map_err(|error| {
        Trouble::new(Fault::Refused, format!("cannot create {}: {error}", cache.path.display()))
    })?;
    let chunks = plan.base.chunks.iter().map(|chunk| &chunk.object);
    let objects = chunks.chain(plan.parts.iter().map(|part| &part.object));
    std::thread::scope(|scope| {
        let mut queues = Vec::new();
        for _ in 0..THREADS {
            // A thread holds one object in its hands and one in the queue of its next task.
            let (tasks, queue) = std::sync::mpsc::channel::<(Object, std::sync::mpsc::SyncSender<Got>)>();
            scope.spawn(move || {
                for (object, answer) in queue {
                    // A send fails once nobody wants the rest.
                    if answer.send(fetch(store, cluster, Some(cache), &object)).is_err() {
                        return;
                    }
                }
            });
            queues.push(tasks);
        }
        let mut ahead = VecDeque::new();
        for (number, object) in objects.enumerate() {
            // Without capacity: a thread waits with an object until it is wanted, so at most one waits per thread.
            let (answer, got) = sync_channel(0);
            // The thread runs until its queue is dropped below.
            let _ = queues[number % THREADS].send((object.clone(), answer));
            ahead.push_back((object.clone(), got));
        }
        drop(queues);
        let mut fetching = Fetch { store, cluster, cache: Some(cache), ahead };
        let outcome = work(&mut fetching);
        // The threads end when nobody takes what they have fetched.
        fetching.ahead.clear();
        outcome
    })
}

impl Fetch<'_> {
    /// Returns the bytes of an object, which are verified.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or that the object is missing or damaged.
    pub fn get(&mut self, object: &Object) -> Result<Bytes, Trouble> {
        while let Some((next, got)) = self.ahead.pop_front() {
            if next == *object
                && let Ok(got) = got.recv()
            {
                return got;
            }
        }
        fetch(self.store, self.cluster, self.cache, object)
    }
}

fn fetch(store: &dyn Store, cluster: &str, cache: Option<&Cache>, object: &Object) -> Got {
    let path = cache.map(|cache| cache.path.join(&object.sha256));
    if let Some(path) = &path
        && let Ok(data) = fs::read(path)
        && object.check(&data).is_ok()
    {
        return Ok(data.into());
    }
    let data = patiently(|| object.get(store, cluster))?;
    if let Some(path) = path.filter(|_| cache.is_some_and(|cache| cache.keeps)) {
        let making = path.with_extension("new");
        let write = || -> io::Result<()> {
            let mut file =
                fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&making)?;
            file.write_all(&data)?;
            fs::rename(&making, &path)
        };
        write().map_err(|error| {
            let fault = if disk::is_full(&error) { Fault::Full } else { Fault::Refused };
            Trouble::new(
                fault,
                format!(
                    "cannot keep fetched data in {}: {error}; free space and run the same command again, which goes on \
                     from here",
                    path.display()
                ),
            )
        })?;
    }
    Ok(data)
}

/// Tries again while a store does not answer.
fn patiently(mut get: impl FnMut() -> Got) -> Got {
    let mut attempt = 1;
    loop {
        match get() {
            Err(trouble) if trouble.fault == Fault::Passing && attempt < ATTEMPTS => {
                std::thread::sleep(std::time::Duration::from_millis(PAUSE_MS << attempt.min(4)));
                attempt += 1;
            }
            done => return done,
        }
    }
}
