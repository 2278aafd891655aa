//! Orders the passwords that wait to be hashed with bcrypt, so that no client can block others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;

use super::{Hashing, Proof, TooLong, counting};
use crate::keyed::{Entropy, Secret, Tag};

/// Work for a pool of hashing threads, in an order in which no client can block others.
///
/// The queue starts no thread and never waits: the caller keeps it behind a lock, and a few threads [`take`]
/// work, run it without the lock, and [`finish`] it. `A` is the address of a client, `W` is what the caller
/// needs to answer one request (the "asker").
///
/// * Askers with the same proof share one piece of work while it waits or runs.
/// * The queue serves the waiting addresses and the waiting users in two round-robin orders, and takes one
///   turn from each order alternately. A client that sends wrong passwords from one address, for one or many
///   users, gets at most half of the turns and a share of the others. The same holds for many addresses that
///   try one user. A user that no attacker tries waits for at most twice as many turns as there are users
///   with waiting work, or as there are addresses, whichever is smaller. (A queue in order of arrival would
///   let any client block all others; turns by address alone would let many addresses together do so.)
/// * The number of askers per address is bounded. If the queue is full, a new asker displaces the last
///   waiting asker of the address with the most askers, provided that its own address has at least two askers
///   fewer.
///
/// [`take`]: WorkQueue::take
/// [`finish`]: WorkQueue::finish
pub struct WorkQueue<A, W, T = Task> {
    askers_max: usize,
    askers_per_address_max: usize,
    /// Jobs by number, in order of arrival.
    jobs: BTreeMap<u64, Job<A, W, T>>,
    /// Number of the job that other askers with the same proof can share, by proof.
    shared: HashMap<Tag, u64>,
    addresses: HashMap<A, Address>,
    /// Number of askers of each address, to find the address with the most.
    crowds: BTreeSet<(usize, A)>,
    users: HashMap<Tag, User>,
    address_turns: BTreeMap<u64, A>,
    user_turns: BTreeMap<u64, Tag>,
    askers: usize,
    running: usize,
    /// True if the next turn goes to a user, false if it goes to an address.
    by_user: bool,
    next: u64,
}

/// A password to check or to hash.
#[derive(Clone, Debug)]
pub enum Task {
    /// Check a password.
    Check {
        /// Stored hash of the user; `None` if the user does not exist.
        stored: Option<Secret>,
        /// The password to check, cut to the 72 bytes that bcrypt uses.
        password: Secret,
    },
    /// Hash a new password.
    Hash {
        /// The new password, of at most 72 bytes.
        password: Secret,
    },
}

impl Task {
    /// Creates a task that checks a password.
    pub fn check(stored: Option<&[u8]>, password: &[u8]) -> Task {
        Task::Check { stored: stored.map(Secret::new), password: Secret::new(counting(password)) }
    }

    /// Creates a task that hashes a new password.
    ///
    /// # Errors
    /// Returns an error if the password has more than 72 bytes, without hashing anything.
    pub fn hash(password: &[u8]) -> Result<Task, TooLong> {
        if password.len() > super::PASSWORD_BYTES_MAX {
            return Err(TooLong);
        }
        Ok(Task::Hash { password: Secret::new(password) })
    }

    /// Runs the task. Takes about 50 ms of processor time with the default cost.
    pub fn run(&self, hashing: &Hashing, entropy: &mut Entropy) -> Outcome {
        match self {
            Task::Check { stored, password } => {
                match hashing.check(stored.as_ref().map(Secret::bytes), password.bytes()) {
                    true => Outcome::Right,
                    false => Outcome::Wrong,
                }
            }
            Task::Hash { password } => match hashing.hash(password.bytes(), entropy) {
                Ok(hash) => Outcome::Hashed(hash),
                Err(TooLong) => Outcome::Wrong,
            },
        }
    }
}

/// Result of a [`Task`].
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The password is correct; the caller should call [`super::Verified::remember`].
    Right,
    /// The password is wrong, or the user does not exist.
    Wrong,
    /// The hash to store.
    Hashed(String),
}

impl fmt::Debug for Outcome {
    /// Leaves out the hash, because anyone who reads it could test passwords against it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Right => "Right",
            Outcome::Wrong => "Wrong",
            Outcome::Hashed(_) => "Hashed(..)",
        })
    }
}

/// Work that a [`WorkQueue`] can hold.
pub trait Shareable {
    /// Returns true if all askers with the same proof get the same result, so that the work is done once for
    /// all of them.
    fn is_shareable(&self) -> bool;
}

impl Shareable for Task {
    fn is_shareable(&self) -> bool {
        matches!(self, Task::Check { .. })
    }
}

/// A request to do a task.
pub struct Ask<A, W, T = Task> {
    /// Identifies the check, so that askers with the same proof can share it. For a task that hashes a new
    /// password, only the user in the proof matters.
    pub proof: Proof,
    /// The work to do.
    pub task: T,
    /// Address of the client.
    pub address: A,
    /// Data that the caller needs to answer the request.
    pub asker: W,
}

/// Work that was taken from a queue. It must be given back with [`WorkQueue::finish`].
#[derive(Debug)]
pub struct Work<T = Task> {
    number: u64,
    /// Identifies the check; if the password is correct, pass it to [`super::Verified::remember`].
    pub proof: Proof,
    /// The work to do.
    pub task: T,
}

/// Position of an asker in the queue, for [`WorkQueue::give_up`] when its client has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    job: u64,
    number: u64,
}

/// Result of adding an asker to the queue.
#[derive(Debug)]
pub struct Pushed<W> {
    /// Position of the asker.
    pub ticket: Ticket,
    /// True if there is new work to take; false if the asker shares work that is already queued or running.
    pub new_work: bool,
    /// The asker that was removed from the full queue to make space for this one. It came from another
    /// address, and the caller must answer it as if the queue were full.
    pub displaced: Option<W>,
}

/// Error returned when an asker is refused: its address has the maximum number of askers, or the queue is
/// full and the asker cannot displace another one. Contains the asker.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy<W>(pub W);

struct Job<A, W, T> {
    proof: Proof,
    /// The task; `None` while a thread runs it.
    task: Option<T>,
    /// Askers with their addresses, by ticket number.
    askers: BTreeMap<u64, (A, W)>,
    shareable: bool,
}

#[derive(Default)]
struct Address {
    askers: usize,
    /// Askers whose jobs have not been taken yet: the job number by ticket number.
    waiting: BTreeMap<u64, u64>,
    /// Position in the order of turns; `None` if nothing waits.
    turn: Option<u64>,
}

struct User {
    /// Numbers of the user's jobs that have not been taken yet.
    waiting: BTreeSet<u64>,
    turn: u64,
}

impl<A: Copy + Eq + Ord + Hash, W, T: Shareable> WorkQueue<A, W, T> {
    /// Default maximum number of askers.
    pub const ASKERS_MAX_DEFAULT: usize = 8192;
    /// Default maximum number of askers of one address.
    pub const ASKERS_PER_ADDRESS_MAX_DEFAULT: usize = 2048;

    /// Creates an empty queue with these bounds.
    pub fn new(askers_max: usize, askers_per_address_max: usize) -> WorkQueue<A, W, T> {
        WorkQueue {
            askers_max: askers_max.max(1),
            askers_per_address_max: askers_per_address_max.max(1),
            jobs: BTreeMap::new(),
            shared: HashMap::new(),
            addresses: HashMap::new(),
            crowds: BTreeSet::new(),
            users: HashMap::new(),
            address_turns: BTreeMap::new(),
            user_turns: BTreeMap::new(),
            askers: 0,
            running: 0,
            by_user: false,
            next: 0,
        }
    }

    /// Returns the number of askers that have not been answered yet.
    pub fn askers(&self) -> usize {
        self.askers
    }

    /// Returns the number of jobs that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.jobs.len() - self.running
    }

    /// Returns the number of jobs that have been taken and are not finished yet.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Adds an asker to the queue.
    ///
    /// # Errors
    /// Returns an error if there is no space for the asker.
    pub fn push(&mut self, ask: Ask<A, W, T>) -> Result<Pushed<W>, Busy<W>> {
        let own = self.addresses.get(&ask.address).map_or(0, |address| address.askers);
        if own >= self.askers_per_address_max {
            return Err(Busy(ask.asker));
        }
        let mut displaced = None;
        if self.askers >= self.askers_max {
            displaced = self.displace(own);
            if displaced.is_none() {
                return Err(Busy(ask.asker));
            }
        }
        let number = self.number();
        let shareable = ask.task.is_shareable();
        let sharing = if shareable { self.shared.get(&ask.proof.tag).copied() } else { None };
        let job = sharing.unwrap_or(number);
        let waits = match self.jobs.get_mut(&job) {
            Some(known) => {
                known.askers.insert(number, (ask.address, ask.asker));
                known.task.is_some()
            }
            None => {
                self.insert_job(
                    job,
                    ask.proof,
                    ask.task,
                    shareable,
                    BTreeMap::from([(number, (ask.address, ask.asker))]),
                );
                true
            }
        };
        self.askers += 1;
        self.count_asker(ask.address, 1);
        if waits {
            self.let_address_wait(ask.address, number, job);
        }
        Ok(Pushed { ticket: Ticket { job, number }, new_work: sharing.is_none(), displaced })
    }

    /// Takes the next job, if one waits.
    pub fn take(&mut self) -> Option<Work<T>> {
        let (_, &address) = self.address_turns.first_key_value()?;
        let (_, &user) = self.user_turns.first_key_value()?;
        self.by_user = !self.by_user;
        let number = if self.by_user {
            self.addresses.get(&address).and_then(|address| address.waiting.values().next().copied())
        } else {
            self.users.get(&user).and_then(|user| user.waiting.first().copied())
        };
        let number = number.expect("who has a turn has work that waits");
        self.running += 1;
        let job = self.jobs.get_mut(&number).expect("what waits is a job");
        let task = job.task.take().expect("what waits was not taken");
        let proof = job.proof;
        self.stop_waiting(number);
        // The address or user whose turn this was goes to the end of the order, if it has more work.
        if self.by_user {
            self.end_turn_of_address(address);
        } else {
            self.end_turn_of_user(user);
        }
        Some(Work { number, proof, task })
    }

    /// Gives finished work back. Returns all its askers in order of arrival; the list is empty if all have
    /// given up.
    pub fn finish(&mut self, work: Work<T>) -> Vec<W> {
        let Some(job) = self.jobs.remove(&work.number) else {
            return Vec::new();
        };
        self.running -= 1;
        if job.shareable {
            self.shared.remove(&work.proof.tag);
        }
        let answered = job.askers.into_values().map(|(address, asker)| {
            self.askers -= 1;
            self.count_asker(address, -1);
            asker
        });
        answered.collect()
    }

    /// Removes an asker whose client has disconnected, and its work if no other asker shares it. Returns
    /// `None` if the asker was already answered or displaced.
    pub fn give_up(&mut self, ticket: Ticket) -> Option<W> {
        let job = self.jobs.get_mut(&ticket.job)?;
        let (address, asker) = job.askers.remove(&ticket.number)?;
        let waits = job.task.is_some();
        let abandoned = job.askers.is_empty();
        self.askers -= 1;
        if waits && abandoned {
            // `stop_waiting` updates the addresses of the askers that the job still has. This asker has just
            // been removed from the job, so its address must be updated here.
            self.let_address_go(address, ticket.number);
            self.stop_waiting(ticket.job);
            if let Some(job) = self.jobs.remove(&ticket.job)
                && job.shareable
            {
                self.shared.remove(&job.proof.tag);
            }
        } else if waits {
            self.let_address_go(address, ticket.number);
        }
        self.count_asker(address, -1);
        Some(asker)
    }

    /// Removes and returns the last waiting asker of the address with the most askers. Returns `None` if that
    /// address has at most `than + 1` askers, or if threads are running the work of all of them.
    fn displace(&mut self, than: usize) -> Option<W> {
        let &(askers, address) = self.crowds.last()?;
        if askers <= than + 1 {
            return None;
        }
        let (&number, &job) = self.addresses.get(&address)?.waiting.last_key_value()?;
        self.give_up(Ticket { job, number })
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn insert_job(
        &mut self,
        number: u64,
        proof: Proof,
        task: T,
        shareable: bool,
        askers: BTreeMap<u64, (A, W)>,
    ) {
        if shareable {
            self.shared.insert(proof.tag, number);
        }
        self.jobs.insert(number, Job { proof, task: Some(task), askers, shareable });
        let turn = self.number();
        let user = self.users.entry(proof.user).or_insert_with(|| {
            self.user_turns.insert(turn, proof.user);
            User { waiting: BTreeSet::new(), turn }
        });
        user.waiting.insert(number);
    }

    fn let_address_wait(&mut self, address: A, ticket: u64, job: u64) {
        let turn = self.number();
        let known = self.addresses.entry(address).or_default();
        known.waiting.insert(ticket, job);
        if known.turn.is_none() {
            known.turn = Some(turn);
            self.address_turns.insert(turn, address);
        }
    }

    fn let_address_go(&mut self, address: A, ticket: u64) {
        if let Some(known) = self.addresses.get_mut(&address) {
            known.waiting.remove(&ticket);
            if known.waiting.is_empty()
                && let Some(turn) = known.turn.take()
            {
                self.address_turns.remove(&turn);
            }
        }
    }

    /// Removes a job and its askers from the order of turns.
    fn stop_waiting(&mut self, number: u64) {
        let Some(job) = self.jobs.get(&number) else {
            return;
        };
        let proof = job.proof;
        let tickets: Vec<(u64, A)> =
            job.askers.iter().map(|(ticket, (address, _))| (*ticket, *address)).collect();
        for (ticket, address) in tickets {
            self.let_address_go(address, ticket);
        }
        if let Some(user) = self.users.get_mut(&proof.user) {
            user.waiting.remove(&number);
            if user.waiting.is_empty() {
                self.user_turns.remove(&user.turn);
                self.users.remove(&proof.user);
            }
        }
    }

    fn end_turn_of_address(&mut self, address: A) {
        let turn = self.number();
        if let Some(Address { turn: Some(own), .. }) = self.addresses.get_mut(&address) {
            self.address_turns.remove(own);
            *own = turn;
            self.address_turns.insert(turn, address);
        }
    }

    fn end_turn_of_user(&mut self, tag: Tag) {
        let turn = self.number();
        if let Some(user) = self.users.get_mut(&tag) {
            self.user_turns.remove(&user.turn);
            user.turn = turn;
            self.user_turns.insert(turn, tag);
        }
    }

    fn count_asker(&mut self, address: A, change: isize) {
        let known = self.addresses.entry(address).or_default();
        self.crowds.remove(&(known.askers, address));
        known.askers = known.askers.saturating_add_signed(change);
        if known.askers == 0 {
            self.addresses.remove(&address);
        } else {
            self.crowds.insert((known.askers, address));
        }
    }
}

impl<A, W, T> fmt::Debug for WorkQueue<A, W, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue")
            .field("askers", &self.askers)
            .field("jobs", &self.jobs.len())
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}
