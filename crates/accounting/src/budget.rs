use std::cell::{Cell, RefCell};
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use slab::Slab;

/// Memory in bytes that is counted for an idle connection: its task, its HTTP/2 state and the service's state
/// for the connection (measured in a member: 1.8 KB of resident memory once the connection is idle, a little
/// more before).
pub const CONNECTION_BYTES: usize = 4 * 1024;
/// Unit in bytes in which an account reserves memory from the budget, so that most changes of the counted
/// bytes affect only the account and not the shared counter.
const STEP_BYTES: usize = 32 * 1024;
/// Maximum number of bytes that an account keeps reserved without using them. Above it, unused bytes are
/// returned to the budget.
const SLACK_BYTES: usize = 4 * STEP_BYTES;
/// Number of bytes up to which a connection may begin further calls even while memory is short.
const SMALL_BYTES: usize = 1024 * 1024;

/// Memory limit in bytes for all data that the server holds for all clients together.
///
/// Every connection has an [`Account`], which counts the bytes that are buffered for the connection:
/// unfinished messages, unanswered requests, unsent answers, header blocks, open calls, read and write
/// buffers. When the total exceeds the limit, the budget asks connections to close, until an eighth of the
/// budget is free again. Each time it selects the largest connection of the address whose connections hold
/// most at that time.
///
/// Accounts reserve memory in multiples of 32 KiB, so that the one atomic counter of the whole server is
/// changed seldom. A separate budget for each shard was rejected: clients of one shard would be refused while
/// another shard has memory left.
///
/// # Example: one connection, and a budget of 64 MiB
///
/// ```text
///                                    held        reserved
/// connection opens                  4,096 B      32,768 B   32,768 B are reserved from the budget
/// request of 10,000 B              14,096 B      32,768 B   the shared counter is not touched
/// answer of 249,040 B             263,136 B     294,912 B   262,144 B more are reserved
/// both are sent                     4,096 B      32,768 B   over 128 KiB are unused: 262,144 B are returned
/// ```
///
/// If all accounts together have reserved more than 64 MiB, connections are asked to close until the others
/// have at most 56 MiB. For example, address A has connections with 30 and 10 MiB, and address B has many
/// small ones with 24.5 MiB in total. A holds most, so its connection with 30 MiB is closed. The others have
/// 34.5 MiB, so no further connection is closed.
#[derive(Clone)]
pub struct Budget(Arc<Sums>);

struct Sums {
    bytes_max: usize,
    /// Number of bytes that all accounts have reserved, plus shared bytes and those of each [`Charge`].
    held: AtomicUsize,
    /// Number of bytes of `held` that belong to connections that were asked to close, and so will be free
    /// soon.
    leaving: AtomicUsize,
    /// Number of connections that were asked to close because the budget was exceeded.
    shed: AtomicU64,
    /// Number of connections that were closed immediately after they were accepted.
    refused: AtomicU64,
    /// Locked when a connection begins or ends, when memory is short, and when a connection that was asked to
    /// close takes or frees memory.
    holders: Mutex<Holders>,
}

#[derive(Default)]
struct Holders {
    open: Slab<Arc<Holder>>,
    addresses: HashMap<IpAddr, Arc<Address>>,
}

/// All connections of one client address together.
struct Address {
    peer: IpAddr,
    /// Number of bytes that all connections of the address have reserved together.
    reserved: AtomicUsize,
}

/// Returns the address under which the connections of a client are counted: for IPv6 that of the 64-bit
/// network.
pub use stdx::client_network as party;

/// Steps of two threads that run concurrently: the thread of a connection, which changes its reservation, and
/// a thread that has exceeded the budget and asks this connection to close. Each thread writes first and then
/// reads what the other one writes, all with sequentially consistent memory order. So if the connection does
/// not see that it was asked to close (`See`), the other thread sees the new reservation (`Weigh`), and the
/// bytes that count as leaving are correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The connection's thread publishes the connection's new reservation.
    Publish,
    /// After `Publish`, the connection's thread reads the flag that tells the connection to close.
    See,
    /// The thread that has exceeded the budget sets the flag that tells the connection to close.
    Doom,
    /// After `Doom`, the thread that has exceeded the budget reads the connection's reservation.
    Weigh,
}

/// Executes a step. In tests, waits until it is the turn of this step in the order that the test prescribes.
fn step<T>(step: Step, take: impl FnOnce() -> T) -> T {
    #[cfg(test)]
    return tests::in_order(step, take);
    #[cfg(not(test))]
    {
        let _ = step;
        take()
    }
}

/// The fields of an account that all threads read. Only the thread of the connection writes `reserved` and
/// adds to `shared`.
struct Holder {
    address: Arc<Address>,
    reserved: AtomicUsize,
    /// Number of shared bytes that are queued for this client. They count only once in the budget, even if
    /// they are queued for many connections.
    shared: AtomicUsize,
    doomed: AtomicBool,
    /// Number of bytes of [`Sums::leaving`] that belong to this connection. Written only while
    /// `Sums::holders` is locked.
    leaving: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

impl Holder {
    fn weight(&self) -> usize {
        self.reserved.load(SeqCst) + self.shared.load(Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock can be used, because no code under these locks panics while the data is inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget({} of {})", self.held_bytes(), self.bytes_max())
    }
}

impl Budget {
    /// Creates a budget of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Budget {
        Budget(Arc::new(Sums {
            bytes_max,
            held: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            shed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            holders: Mutex::default(),
        }))
    }

    /// Returns the limit in bytes.
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Returns the number of bytes that are counted now, including those that connections have reserved and
    /// do not use.
    pub fn held_bytes(&self) -> usize {
        self.0.held.load(Relaxed)
    }

    /// Returns the number of connections that were asked to close because the budget was exceeded.
    pub fn connections_shed(&self) -> u64 {
        self.0.shed.load(Relaxed)
    }

    /// Returns the number of connections that were closed immediately after they were accepted, for any
    /// reason ([`Budget::note_refused`]).
    pub fn connections_refused(&self) -> u64 {
        self.0.refused.load(Relaxed)
    }

    /// Counts a connection that was closed immediately after it was accepted.
    pub fn note_refused(&self) {
        self.0.refused.fetch_add(1, Relaxed);
    }

    /// Returns true if a new connection from `peer` may be accepted. If there is not enough memory, but
    /// another address holds more than a quarter of the budget, connections are asked to close and true is
    /// returned. Without this rule, clients that hold nearly the whole budget could lock out all others.
    pub fn has_room_for(&self, peer: IpAddr) -> bool {
        let needed = CONNECTION_BYTES + STEP_BYTES;
        if self.staying() + needed <= self.0.bytes_max {
            return true;
        }
        let peer = party(peer);
        let is_other = |address: &Address| {
            address.peer != peer && self.is_much_for_one_address(address.reserved.load(Relaxed))
        };
        if !lock(&self.0.holders).addresses.values().any(|address| is_other(address)) {
            return false;
        }
        self.shed(self.0.bytes_max.saturating_sub(needed));
        true
    }

    /// Returns true if this number of bytes is so large that an address that holds it must free memory while
    /// memory is short: more than a quarter of the budget.
    fn is_much_for_one_address(&self, bytes: usize) -> bool {
        bytes > self.0.bytes_max / 4
    }

    /// Counts `bytes` in the budget until the last clone of the result is dropped. They count once, even if
    /// many connections hold a clone.
    fn share(&self, bytes: Bytes) -> Bytes {
        let len = bytes.len();
        self.reserve(len);
        Bytes::from_owner(Shared { bytes, len, budget: self.clone() })
    }

    /// Counts `bytes` that the server holds for clients, but not for a certain connection, until the returned
    /// [`Charge`] is dropped.
    pub fn charge(&self, bytes: usize) -> Charge {
        self.reserve(bytes);
        Charge { budget: self.clone(), bytes }
    }

    /// Opens the account of a connection. Called by a front, and by tests that drive a service without a
    /// front.
    pub fn open(&self, peer: IpAddr) -> Rc<Account> {
        let peer = party(peer);
        let mut holders = lock(&self.0.holders);
        let fresh = || Arc::new(Address { peer, reserved: AtomicUsize::new(0) });
        let address = holders.addresses.entry(peer).or_insert_with(fresh).clone();
        let holder = Arc::new(Holder {
            address,
            reserved: AtomicUsize::new(0),
            shared: AtomicUsize::new(0),
            doomed: AtomicBool::new(false),
            leaving: AtomicUsize::new(0),
            waker: Mutex::new(None),
        });
        let key = holders.open.insert(holder.clone());
        drop(holders);
        let account = Account {
            budget: self.clone(),
            holder,
            key,
            held: Cell::new(0),
            reserved: Cell::new(0),
            buffers: Cell::new(0),
            requests: Cell::new(0),
            looked_at: Cell::new(0),
            work_left: Cell::new(usize::MAX),
        };
        account.charge(CONNECTION_BYTES);
        Rc::new(account)
    }

    /// Returns the number of counted bytes without those of connections that were asked to close.
    fn staying(&self) -> usize {
        self.0.held.load(Relaxed).saturating_sub(self.0.leaving.load(Relaxed))
    }

    fn reserve(&self, n: usize) {
        self.0.held.fetch_add(n, Relaxed);
        if self.staying() > self.0.bytes_max {
            self.shed(self.0.bytes_max);
        }
    }

    fn give_back(&self, n: usize) {
        let held = self.0.held.fetch_sub(n, Relaxed);
        assert!(n <= held, "gave back {n} of {held} bytes of the budget");
    }

    /// If more than `limit` bytes are held, asks connections to close, until the other connections hold at
    /// most seven eighths of the budget.
    #[cold]
    fn shed(&self, limit: usize) {
        let mut wakers = Vec::new();
        {
            let holders = lock(&self.0.holders);
            // Check again, because another thread may have freed memory while this one waited for the lock.
            if self.staying() <= limit {
                return;
            }
            let goal = self.0.bytes_max - self.0.bytes_max / 8;
            let mut by_peer: HashMap<IpAddr, (usize, Vec<(usize, usize)>)> = HashMap::new();
            for (key, holder) in holders.open.iter().filter(|(_, holder)| !holder.doomed.load(Relaxed)) {
                let weight = holder.weight();
                let (sum, theirs) = by_peer.entry(holder.address.peer).or_default();
                *sum += weight;
                theirs.push((weight, key));
            }
            let mut peers: BinaryHeap<(usize, IpAddr)> =
                by_peer.iter().map(|(peer, (sum, _))| (*sum, *peer)).collect();
            by_peer.values_mut().for_each(|(_, theirs)| theirs.sort_unstable());
            while self.staying() > goal
                && let Some((sum, peer)) = peers.pop()
                && let Some((weight, key)) = by_peer.get_mut(&peer).and_then(|(_, theirs)| theirs.pop())
            {
                let holder = &holders.open[key];
                // The flag must be set before the reservation is read (see `Step`). If the connection changes
                // its reservation concurrently, then either the new reservation is read here, or the
                // connection's thread sees the flag, waits for the lock and corrects the count.
                step(Step::Doom, || holder.doomed.store(true, SeqCst));
                let leaving = step(Step::Weigh, || holder.weight());
                holder.leaving.store(leaving, Relaxed);
                self.0.leaving.fetch_add(leaving, Relaxed);
                self.0.shed.fetch_add(1, Relaxed);
                wakers.extend(lock(&holder.waker).take());
                peers.push((sum.saturating_sub(weight), peer));
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

struct Shared {
    bytes: Bytes,
    len: usize,
    budget: Budget,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.budget.give_back(self.len);
    }
}

/// Updates the bytes that count as leaving for a connection that was asked to close, after its reservation
/// has changed. `more` bytes that it has reserved since are added, unless they were included already. Bytes
/// that it has returned no longer count as leaving: they are free now, and would otherwise count as free
/// twice while the connection is still open. The lock on `Sums::holders` must be held.
fn leave_with(holder: &Holder, budget: &Budget, more: usize) {
    let before = holder.leaving.load(Relaxed);
    let leaving = (before + more).min(holder.weight());
    holder.leaving.store(leaving, Relaxed);
    let all = &budget.0.leaving;
    if leaving > before {
        all.fetch_add(leaving - before, Relaxed);
    } else {
        all.fetch_sub(before - leaving, Relaxed);
    }
}

/// Shared bytes that are queued for one client.
struct Awaited {
    bytes: Bytes,
    holder: Arc<Holder>,
    budget: Budget,
}

impl AsRef<[u8]> for Awaited {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.holder.shared.fetch_sub(self.bytes.len(), Relaxed);
        // If another thread asks the connection to close at this moment, the bytes that count as leaving may
        // still include these bytes, until the next change of the reservation corrects that. This small error
        // is accepted, because synchronizing the threads for each message would cost more.
        if self.holder.doomed.load(Relaxed) {
            let _locked = lock(&self.budget.0.holders);
            leave_with(&self.holder, &self.budget, 0);
        }
    }
}

thread_local! {
    /// Account of the connection that this thread serves at the moment.
    static TURN: RefCell<Option<Rc<Account>>> = const { RefCell::new(None) };
}

/// Guard of the time in which this thread serves a connection ([`Account::begin_turn`]). Dropping it ends
/// this time.
pub struct AccountTurn(Option<Rc<Account>>);

impl Drop for AccountTurn {
    fn drop(&mut self) {
        TURN.replace(self.0.take());
    }
}

/// Bytes that count in a [`Budget`], but for no connection, until this value is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    bytes: usize,
}

impl Charge {
    /// Returns the number of bytes that count in the budget.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// Number of bytes that the server holds for one connection. They count in the [`Budget`].
pub struct Account {
    budget: Budget,
    holder: Arc<Holder>,
    key: usize,
    held: Cell<usize>,
    /// Number of bytes reserved from the budget, at least `held`.
    reserved: Cell<usize>,
    buffers: Cell<usize>,
    /// Number of bytes of `held` that belong to requests, and to answers that are not queued for sending yet.
    requests: Cell<usize>,
    /// Number of bytes that the service has examined for the connection since [`Account::take_looked_at`].
    looked_at: Cell<usize>,
    /// Number of bytes that the service may still examine before the thread serves other connections.
    work_left: Cell<usize>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({} of {})", self.held.get(), self.reserved.get())
    }
}

/// Number of bytes that examining one key counts as work. Copying this many bytes takes about the same time.
pub const KEY_BYTES: usize = 128;

/// Counts keys and bytes of values that a service has examined as work for the connection that this thread
/// serves. Code that examines more than a few keys must call this, even if it does not return them to the
/// client.
pub fn note_work(keys: u64, bytes: u64) {
    if let Some(account) = Account::of_turn() {
        let work = keys.saturating_mul(KEY_BYTES as u64).saturating_add(bytes);
        account.looked_at(usize::try_from(work).unwrap_or(usize::MAX));
    }
}

/// Returns how much work, in bytes as counted by [`note_work`], may still be done for the connection that
/// this thread serves, before the thread serves others. Code that divides long work into slices must not
/// exceed this by much, because a connection may have to wait for the slices of many others. Returns
/// `usize::MAX` if the thread serves no connection.
pub fn work_left() -> usize {
    TURN.with_borrow(|account| account.as_ref().map_or(usize::MAX, |account| account.work_left.get()))
}

impl Account {
    /// Counts `n` more bytes as held.
    pub fn charge(&self, n: usize) {
        let held = self.held.get() + n;
        self.held.set(held);
        if held > self.reserved.get() {
            self.grow(held);
        }
    }

    /// No longer counts `n` bytes as held.
    pub fn release(&self, n: usize) {
        let held = self.held.get();
        assert!(n <= held, "released {n} of {held} bytes of a connection");
        self.held.set(held - n);
        if self.reserved.get() - (held - n) > SLACK_BYTES {
            self.shrink(held - n);
        }
    }

    /// Counts `n` more bytes as held, for a request or for an answer that is not queued for sending yet.
    pub fn charge_request(&self, n: usize) {
        self.requests.set(self.requests.get() + n);
        self.charge(n);
    }

    /// No longer counts `n` bytes that were counted with [`Account::charge_request`].
    pub fn release_request(&self, n: usize) {
        let requests = self.requests.get();
        assert!(n <= requests, "released {n} of {requests} bytes of requests");
        self.requests.set(requests - n);
        self.release(n);
    }

    /// Returns the number of bytes that are counted with [`Account::charge_request`].
    pub fn requests_bytes(&self) -> usize {
        self.requests.get()
    }

    #[cold]
    fn grow(&self, held: usize) {
        let wanted = held.next_multiple_of(STEP_BYTES);
        let more = wanted - self.reserved.get();
        self.reserved.set(wanted);
        step(Step::Publish, || self.holder.reserved.store(wanted, SeqCst));
        self.holder.address.reserved.fetch_add(more, Relaxed);
        if step(Step::See, || self.holder.doomed.load(SeqCst)) {
            // Count the bytes as held and as leaving: the connection is closing and will return them soon, so
            // no other connection is asked to close for them.
            let _locked = lock(&self.budget.0.holders);
            self.budget.0.held.fetch_add(more, Relaxed);
            leave_with(&self.holder, &self.budget, more);
            return;
        }
        self.budget.reserve(more);
    }

    #[cold]
    fn shrink(&self, held: usize) {
        let wanted = held.next_multiple_of(STEP_BYTES);
        let less = self.reserved.get() - wanted;
        self.reserved.set(wanted);
        step(Step::Publish, || self.holder.reserved.store(wanted, SeqCst));
        self.holder.address.reserved.fetch_sub(less, Relaxed);
        let holders =
            step(Step::See, || self.holder.doomed.load(SeqCst)).then(|| lock(&self.budget.0.holders));
        self.budget.give_back(less);
        if let Some(_locked) = holders {
            leave_with(&self.holder, &self.budget, 0);
        }
    }

    /// Records that shared bytes are queued for this client until the result is dropped. They already count
    /// in the budget. The record is used only when the budget is exceeded, to find the connections that hold
    /// most.
    pub fn wait_for(&self, bytes: Bytes) -> Bytes {
        self.holder.shared.fetch_add(bytes.len(), Relaxed);
        Bytes::from_owner(Awaited { bytes, holder: self.holder.clone(), budget: self.budget.clone() })
    }

    /// Sets the number of bytes that are counted for the connection's read and write buffers.
    pub fn set_buffers(&self, bytes: usize) {
        let before = self.buffers.replace(bytes);
        if bytes > before {
            self.charge(bytes - before);
        } else if bytes < before {
            self.release(before - bytes);
        }
    }

    /// Returns true if this connection must not begin further calls at the moment. That is so if more than
    /// three quarters of the budget are in use, the connection holds more than 1/32 of the budget and more
    /// than 1 MiB, and its address holds more than a quarter of the budget.
    pub fn is_pressed(&self) -> bool {
        let held = self.held.get();
        held > SMALL_BYTES && {
            let bytes_max = self.budget.bytes_max();
            held > bytes_max / 32
                && self.budget.staying() > bytes_max - bytes_max / 4
                && self.budget.is_much_for_one_address(self.holder.address.reserved.load(Relaxed))
        }
    }

    /// Returns true if the connection must close: the budget was exceeded, and this connection was selected
    /// to free memory.
    pub fn is_doomed(&self) -> bool {
        self.holder.doomed.load(Relaxed)
    }

    /// Registers a waker, which is woken when the connection must close. Replaces the one registered before.
    pub fn wake_when_doomed(&self, waker: &Waker) {
        let mut slot = lock(&self.holder.waker);
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    /// Becomes ready when the connection must close.
    pub fn poll_doomed(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_doomed() {
            return Poll::Ready(());
        }
        self.wake_when_doomed(cx.waker());
        // Check again, because the flag may have been set before the waker was registered.
        if self.holder.doomed.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns the account of the connection that this thread serves at the moment; `None` if it serves none.
    /// With it, a service can count memory for a unary call, which is answered while the thread serves the
    /// call's connection.
    pub fn of_turn() -> Option<Rc<Account>> {
        TURN.with_borrow(Clone::clone)
    }

    /// Records that this thread serves this connection from now on, until the result is dropped. Meanwhile
    /// [`Account::of_turn`] returns this account.
    pub fn begin_turn(self: &Rc<Self>) -> AccountTurn {
        AccountTurn(TURN.replace(Some(self.clone())))
    }

    /// Counts bytes as work that a service has examined for the connection in addition to the bytes of the
    /// answer.
    pub fn looked_at(&self, bytes: usize) {
        self.looked_at.set(self.looked_at.get().saturating_add(bytes));
        self.spend_work(bytes);
    }

    /// Subtracts bytes from the work that may still be done before the thread serves other connections.
    pub fn spend_work(&self, bytes: usize) {
        // Leave `usize::MAX` unchanged, because it means that there is no limit.
        if self.work_left.get() < usize::MAX {
            self.work_left.set(self.work_left.get().saturating_sub(bytes));
        }
    }

    /// Sets the number of bytes that the service may examine before the thread serves other connections
    /// ([`work_left`]). A front calls this whenever it begins to serve the connection. Tests that call a
    /// service without a front may call it, too.
    pub fn allow_work(&self, bytes: usize) {
        self.work_left.set(bytes);
    }

    /// Returns the number of bytes counted by [`Account::looked_at`] since the last call.
    pub fn take_looked_at(&self) -> usize {
        self.looked_at.take()
    }

    /// Returns the number of bytes that are counted as held for the connection.
    pub fn held_bytes(&self) -> usize {
        self.held.get()
    }

    /// Returns the budget of this account.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Counts `bytes` in the budget until the last clone of the result is dropped. They count once, even if
    /// many connections hold a clone. For `front::Outbound::try_send_shared`.
    pub fn share(&self, bytes: Bytes) -> Bytes {
        self.budget.share(bytes)
    }

    /// Counts bytes that a service holds for this connection, until the result is dropped.
    pub fn hold(self: &Rc<Self>, bytes: usize) -> Held {
        self.charge(bytes);
        Held { account: self.clone(), bytes: Cell::new(bytes) }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut holders = lock(&self.budget.0.holders);
        drop(holders.open.remove(self.key));
        self.holder.address.reserved.fetch_sub(self.reserved.get(), Relaxed);
        // Remove the address with its last connection: only two references are left then, one in the map, and
        // one in the holder of this account.
        if Arc::strong_count(&self.holder.address) == 2 {
            holders.addresses.remove(&self.holder.address.peer);
        }
        self.budget.0.leaving.fetch_sub(self.holder.leaving.load(Relaxed), Relaxed);
        self.budget.give_back(self.reserved.get());
    }
}

/// Bytes that count in an [`Account`] until this value is dropped.
#[derive(Debug)]
pub struct Held {
    account: Rc<Account>,
    bytes: Cell<usize>,
}

impl Held {
    /// Changes the number of counted bytes to `bytes`.
    pub fn set(&self, bytes: usize) {
        let before = self.bytes.replace(bytes);
        if bytes > before {
            self.account.charge(bytes - before);
        } else {
            self.account.release(before - bytes);
        }
    }

    /// Returns the number of bytes that count in the account.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Returns the account in which the bytes count.
    pub fn account(&self) -> &Rc<Account> {
        &self.account
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.account.release(self.bytes.get());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Barrier, Condvar};
    use std::thread;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Prescribed order of the next steps of several threads.
    struct Order {
        left: Mutex<VecDeque<Step>>,
        taken: Condvar,
    }

    thread_local! {
        /// Order that this thread follows, and the two steps that belong to this thread.
        static ORDER: RefCell<Option<(Arc<Order>, [Step; 2])>> = const { RefCell::new(None) };
    }

    pub(super) fn in_order<T>(step: Step, take: impl FnOnce() -> T) -> T {
        let order = ORDER.with_borrow(Clone::clone);
        let Some((order, _)) = order.filter(|(_, own)| own.contains(&step)) else { return take() };
        let left = lock(&order.left);
        let is_early = |left: &mut VecDeque<Step>| left.contains(&step) && left.front() != Some(&step);
        let mut left = order.taken.wait_while(left, is_early).expect("no other step panics");
        let taken = take();
        left.pop_front_if(|next| *next == step);
        order.taken.notify_all();
        taken
    }

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn who_holds_most_is_told_to_close() {
        let budget = Budget::new(64 * MIB);
        let accounts: Vec<_> = (0..8).map(|_| budget.open(peer(1))).collect();
        let held: Vec<_> = accounts.iter().zip(1..).map(|(account, n)| account.hold(n * MIB)).collect();
        assert!(accounts.iter().all(|account| !account.is_doomed()), "36 MiB are within the budget");
        let more = accounts[2].hold(30 * MIB);
        assert_eq!(budget.connections_shed(), 1);
        assert!(accounts[2].is_doomed());
        drop((held, more));
        drop(accounts);
        assert_eq!((budget.held_bytes(), budget.staying()), (0, 0), "everything is given back");
    }

    #[test]
    fn the_address_that_holds_most_is_looked_for_first() {
        let budget = Budget::new(64 * MIB);
        let one = budget.open(peer(1));
        let _one = one.hold(20 * MIB);
        let many: Vec<_> = (0..100).map(|_| budget.open(peer(2))).collect();
        let _many: Vec<_> = many.iter().map(|account| account.hold(MIB)).collect();
        assert!(!one.is_doomed(), "one large connection pays for nobody's many");
        assert!(budget.connections_shed() > 30);
        assert!(budget.staying() <= 64 * MIB);
    }

    #[test]
    fn many_small_connections_of_one_address_do_not_keep_another_from_its_calls() {
        let budget = Budget::new(64 * MIB);
        let honest = budget.open(peer(1));
        let _honest = honest.hold(5 * MIB);
        let many: Vec<_> = (0..55).map(|_| budget.open(peer(2))).collect();
        let _many: Vec<_> = many.iter().map(|account| account.hold(900 * 1024)).collect();
        assert!(budget.staying() > 48 * MIB, "memory is short: {budget:?}");
        assert!(!honest.is_pressed(), "it holds little beside the other address");
        let more = honest.hold(10 * MIB);
        assert!(!honest.is_doomed() && many.iter().any(|account| account.is_doomed()));
        drop(more);
    }

    #[test]
    fn who_holds_all_but_nothing_does_not_lock_others_out() {
        let budget = Budget::new(16 * MIB);
        let mut many = Vec::new();
        while budget.has_room_for(peer(1)) {
            many.push(budget.open(peer(1)));
            assert!(many.len() < 1000);
        }
        assert_eq!(budget.connections_shed(), 0, "an address makes no room for itself");
        assert!(budget.has_room_for(peer(2)));
        assert!(budget.connections_shed() > 0 && budget.staying() <= 14 * MIB);
        // Addresses that hold little each are not closed to make room.
        drop(many);
        let mut all = Vec::new();
        for n in (0..200).cycle().take(600) {
            all.extend(budget.has_room_for(peer(n)).then(|| budget.open(peer(n))));
        }
        let shed = budget.connections_shed();
        for n in 0..200 {
            all.extend(budget.has_room_for(peer(n)).then(|| budget.open(peer(n))));
        }
        assert!(!budget.has_room_for(peer(250)));
        assert_eq!(budget.connections_shed(), shed);
        drop(all);
        assert!(lock(&budget.0.holders).addresses.is_empty());
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let budget = Budget::new(64 * MIB);
        let v6 = |network: u16, n: u16| IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, n]);
        let one = budget.open(v6(1, 1));
        let _one = one.hold(20 * MIB);
        let many: Vec<_> = (0..100).map(|n| budget.open(v6(2, n))).collect();
        let _many: Vec<_> = many.iter().map(|account| account.hold(MIB)).collect();
        assert!(!one.is_doomed() && budget.connections_shed() > 30);
        assert_eq!(party("::ffff:10.0.0.1".parse().expect("an address")), peer(1));
    }

    #[test]
    fn what_a_closing_connection_gave_back_is_not_given_twice() {
        let budget = Budget::new(64 * MIB);
        let lingering = budget.open(peer(1));
        let held = lingering.hold(60 * MIB);
        let awaited = lingering.wait_for(Bytes::from(vec![0; 3 * MIB]));
        let more = lingering.hold(5 * MIB);
        assert!(lingering.is_doomed());
        drop((held, more));
        drop(awaited);
        assert_eq!(budget.staying(), 0, "{budget:?}");
        assert!(budget.0.leaving.load(Relaxed) <= budget.held_bytes());
        let other = budget.open(peer(2));
        let _other = other.hold(65 * MIB);
        assert!(other.is_doomed(), "the budget is exceeded by this one alone");
    }

    #[test]
    fn nobody_makes_room_for_what_a_closing_connection_still_takes() {
        let budget = Budget::new(64 * MIB);
        let (closing, other) = (budget.open(peer(1)), budget.open(peer(1)));
        let held = closing.hold(65 * MIB);
        assert!(closing.is_doomed() && !other.is_doomed());
        let more = closing.hold(200 * MIB);
        let _other = other.hold(MIB);
        assert!(!other.is_doomed());
        drop((held, more, closing));
        assert!(budget.staying() < 2 * MIB, "{budget:?}");
        assert_eq!(budget.0.leaving.load(Relaxed), 0);
    }

    #[test]
    fn what_is_about_to_be_given_back_is_right_whatever_comes_first() {
        const OWN: [Step; 2] = [Step::Publish, Step::See];
        const OTHERS: [Step; 2] = [Step::Doom, Step::Weigh];
        let [a, b, c, d] = [OWN[0], OWN[1], OTHERS[0], OTHERS[1]];
        let orders = [[a, b, c, d], [a, c, b, d], [a, c, d, b], [c, a, b, d], [c, a, d, b], [c, d, a, b]]
            .map(VecDeque::from);
        let mut wrong = Vec::new();
        for (steps, grows) in orders.into_iter().flat_map(|steps| [(steps.clone(), true), (steps, false)]) {
            let case = format!("{steps:?}, {}", if grows { "taking" } else { "giving back" });
            let budget = Budget::new(64 * MIB);
            let order = Arc::new(Order { left: Mutex::new(steps), taken: Condvar::new() });
            let (has_begun, is_over) = (Barrier::new(2), Barrier::new(2));
            let (leaving, held) = thread::scope(|scope| {
                let large = scope.spawn(|| {
                    let account = budget.open(peer(1));
                    let held = account.hold(50 * MIB);
                    has_begun.wait();
                    ORDER.set(Some((order.clone(), OWN)));
                    held.set(if grows { 55 * MIB } else { 45 * MIB });
                    is_over.wait();
                    assert!(account.is_doomed(), "{case}");
                    assert_eq!(
                        budget.0.leaving.load(Relaxed),
                        account.holder.leaving.load(Relaxed),
                        "{case}"
                    );
                    (account.holder.leaving.load(Relaxed), account.reserved.get())
                });
                let other = budget.open(peer(2));
                let _held = other.hold(MIB);
                has_begun.wait();
                ORDER.set(Some((order.clone(), OTHERS)));
                let _more = other.hold(20 * MIB);
                is_over.wait();
                ORDER.set(None);
                assert!(!other.is_doomed(), "{case}");
                large.join().expect("the other thread")
            });
            if leaving != held {
                wrong.push(format!("{case}: {leaving} of {held} bytes are about to be given back"));
            }
            assert_eq!((budget.held_bytes(), budget.0.leaving.load(Relaxed)), (0, 0), "{case}");
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn shared_bytes_are_charged_once() {
        let budget = Budget::new(64 * MIB);
        let shared = budget.share(Bytes::from(vec![0; 10 * MIB]));
        let copies = vec![shared.clone(); 100];
        assert_eq!(budget.held_bytes(), 10 * MIB);
        drop(shared);
        assert_eq!(budget.held_bytes(), 10 * MIB);
        drop(copies);
        assert_eq!(budget.held_bytes(), 0);
    }

    #[test]
    fn what_the_server_holds_for_clients_counts_as_theirs() {
        let budget = Budget::new(64 * MIB);
        let account = budget.open(peer(1));
        let _held = account.hold(40 * MIB);
        let charge = budget.charge(30 * MIB);
        assert!(account.is_doomed());
        drop(charge);
        assert!(budget.held_bytes() < 41 * MIB);
    }

    #[test]
    fn a_service_finds_whose_turn_it_is() {
        let budget = Budget::new(64 * MIB);
        let (one, other) = (budget.open(peer(1)), budget.open(peer(2)));
        let whose = || Account::of_turn().map(|account| Rc::ptr_eq(&account, &one));
        assert_eq!(whose(), None);
        let turn = one.begin_turn();
        assert_eq!(whose(), Some(true));
        let inner = other.begin_turn();
        assert_eq!(whose(), Some(false));
        drop(inner);
        assert_eq!(whose(), Some(true));
        drop(turn);
        assert_eq!(whose(), None);
    }

    #[test]
    fn small_calls_do_not_touch_what_all_share() {
        let budget = Budget::new(64 * MIB);
        let account = budget.open(peer(1));
        let before = budget.held_bytes();
        for _ in 0..1000 {
            let held = account.hold(8 * 1024);
            assert_eq!(budget.held_bytes(), before);
            drop(held);
        }
    }

    #[test]
    fn a_connection_with_much_is_pressed_while_memory_is_short() {
        let budget = Budget::new(64 * MIB);
        let (large, small) = (budget.open(peer(1)), budget.open(peer(2)));
        let _large = large.hold(40 * MIB);
        assert!(!large.is_pressed());
        let more = large.hold(10 * MIB);
        assert!(large.is_pressed() && !small.is_pressed());
        drop(more);
        assert!(!large.is_pressed());
    }
}
