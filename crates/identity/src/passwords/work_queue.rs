//! The queue of passwords that wait for bcrypt.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;

use super::{Hashing, Proof, TooLong, counting};
use crate::keyed::{Entropy, Secret, Tag};

/// What a pool of threads hashes, in an order in which nobody keeps others out.
///
/// It starts no thread and waits for nothing: the caller keeps it behind a lock, with a few threads that [`take`], run the
/// work without the lock, and [`finish`]. `A` is an address of clients, `W` is what is needed to answer one of them.
///
/// * Those who ask for the same proof while it waits or is worked on share one piece of work.
/// * Turns go round by address, and every other turn goes round by user. Who sends wrong passwords from one address, for one
///   user or for many, takes at most half of the turns and a share of the others; so does a crowd of addresses that tries one
///   user. The user whom nobody else tries waits for as many pieces of work as twice the number of users that have some, or
///   twice the number of addresses, whatever is less. (One queue in order of arrival lets anybody keep everybody out; turns by
///   address only let a crowd of addresses do so.)
/// * An address has a bounded number of askers here. When all places are taken, the last asker of the address that has the most
///   gives its place to one of an address with less.
///
/// [`take`]: WorkQueue::take
/// [`finish`]: WorkQueue::finish
pub struct WorkQueue<A, W, T = Task> {
    askers_max: usize,
    askers_per_address_max: usize,
    /// Jobs by number, in order of arrival.
    jobs: BTreeMap<u64, Job<A, W, T>>,
    /// Jobs that others may share.
    shared: HashMap<Tag, u64>,
    addresses: HashMap<A, Address>,
    /// How many askers each address has, to find that with the most.
    crowds: BTreeSet<(usize, A)>,
    users: HashMap<Tag, User>,
    address_turns: BTreeMap<u64, A>,
    user_turns: BTreeMap<u64, Tag>,
    askers: usize,
    running: usize,
    /// Whether the next turn is one by user.
    by_user: bool,
    next: u64,
}

/// What is to be hashed.
#[derive(Clone, Debug)]
pub enum Task {
    /// Check a password.
    Check {
        /// The user's stored hash; `None` if there is no such user.
        stored: Option<Secret>,
        /// The password, or the part of it that counts.
        password: Secret,
    },
    /// Hash a new password.
    Hash {
        /// The password, of at most 72 bytes.
        password: Secret,
    },
}

impl Task {
    /// A password to check.
    pub fn check(stored: Option<&[u8]>, password: &[u8]) -> Task {
        Task::Check { stored: stored.map(Secret::new), password: Secret::new(counting(password)) }
    }

    /// A new password to hash.
    ///
    /// # Errors
    /// The password has more than 72 bytes. Nothing has to be hashed to tell so.
    pub fn hash(password: &[u8]) -> Result<Task, TooLong> {
        if password.len() > super::PASSWORD_BYTES_MAX {
            return Err(TooLong);
        }
        Ok(Task::Hash { password: Secret::new(password) })
    }

    /// Does the work: some 50 ms of processor time with the default cost.
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

/// What came of a [`Task`].
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The password is right. To be remembered with [`super::Verified::remember`].
    Right,
    /// The password is wrong, or there is no such user.
    Wrong,
    /// The hash to store.
    Hashed(String),
}

impl fmt::Debug for Outcome {
    /// The hash is not told: passwords can be tried on it.
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
    /// Returns true if those who ask for the same proof get the same answer, so that the work is done once for all of them.
    fn is_shareable(&self) -> bool;
}

impl Shareable for Task {
    fn is_shareable(&self) -> bool {
        matches!(self, Task::Check { .. })
    }
}

/// One who asks for a task.
pub struct Ask<A, W, T = Task> {
    /// What has to be proven; of a hash that is made, only the user counts.
    pub proof: Proof,
    /// What to do.
    pub task: T,
    /// The address that it came from.
    pub address: A,
    /// What is needed to answer.
    pub asker: W,
}

/// Work that was taken from a queue. It has to be given back with [`WorkQueue::finish`].
#[derive(Debug)]
pub struct Work<T = Task> {
    number: u64,
    /// What has to be proven.
    pub proof: Proof,
    /// What to do.
    pub task: T,
}

/// A place in the queue, to be given up when the client has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    job: u64,
    number: u64,
}

/// An asker that was put into the queue.
#[derive(Debug)]
pub struct Pushed<W> {
    /// Its place.
    pub ticket: Ticket,
    /// True if there is new work to take, false if it shares what another asked for.
    pub new_work: bool,
    /// The asker of another address that had to leave; it is to be answered as one for whom there was no place.
    pub displaced: Option<W>,
}

/// No place in the queue: the address has as many askers as it may, or none has more than this one while all places are taken.
/// The asker is given back.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy<W>(pub W);

struct Job<A, W, T> {
    proof: Proof,
    /// `None` while a thread works on it.
    task: Option<T>,
    /// By the numbers of their tickets.
    askers: BTreeMap<u64, (A, W)>,
    shareable: bool,
}

#[derive(Default)]
struct Address {
    askers: usize,
    /// Askers whose work was not taken yet, with their jobs.
    waiting: BTreeMap<u64, u64>,
    /// Its place in the order of turns, if anything waits.
    turn: Option<u64>,
}

struct User {
    /// Jobs that were not taken yet.
    waiting: BTreeSet<u64>,
    turn: u64,
}

impl<A: Copy + Eq + Ord + Hash, W, T: Shareable> WorkQueue<A, W, T> {
    /// How many askers there are at most.
    pub const ASKERS_MAX_DEFAULT: usize = 8192;
    /// How many askers of one address there are at most.
    pub const ASKERS_PER_ADDRESS_MAX_DEFAULT: usize = 2048;

    /// An empty queue with these bounds.
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

    /// How many have asked and were not answered.
    pub fn askers(&self) -> usize {
        self.askers
    }

    /// How many pieces of work wait to be taken.
    pub fn waiting(&self) -> usize {
        self.jobs.len() - self.running
    }

    /// How many pieces of work were taken and not finished.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Puts an asker into the queue.
    ///
    /// # Errors
    /// There is no place for it.
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

    /// Takes the next piece of work, if any waits.
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
        // Whose turn it was stands last now, if it has more.
        if self.by_user {
            self.end_turn_of_address(address);
        } else {
            self.end_turn_of_user(user);
        }
        Some(Work { number, proof, task })
    }

    /// Gives finished work back. Returns all who asked for it, in the order in which they did; none if all have gone.
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

    /// Takes an asker out whose client has gone, with the work if nobody else asked for it. Returns `None` if it was answered
    /// or displaced before.
    pub fn give_up(&mut self, ticket: Ticket) -> Option<W> {
        let job = self.jobs.get_mut(&ticket.job)?;
        let (address, asker) = job.askers.remove(&ticket.number)?;
        let waits = job.task.is_some();
        let abandoned = job.askers.is_empty();
        self.askers -= 1;
        if waits && abandoned {
            // The asker is no longer in the job, so it does not stop waiting with it.
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

    /// Takes out the last waiting asker of the address that has the most, if it has more than `than` and one that waits.
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

    /// A job, with all who asked for it, waits no longer.
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
