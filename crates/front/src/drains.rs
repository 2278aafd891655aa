//! Ends a share of the open HTTP/2 connections gracefully, spread over some time, so that their clients
//! connect again, and possibly to another server: [`Drains`] takes the orders, and one task per shard
//! ([`keep`]) carries them out.
//!
//! A connection that is drained goes through the same steps as at a shutdown: it announces the end with
//! GOAWAY, accepts the calls that are on their way, announces the last of them with a second GOAWAY, and
//! closes when its calls have ended. Calls that never end by themselves ([`crate::Service::is_endless`]) are
//! ended with [`DRAINED`] after the second GOAWAY, so that a client which begins such a call again does so on
//! its new connection. What is open after [`Drain::grace`] is cut off with the connection.
//!
//! Only connections that are open when the order arrives are drained. Otherwise a client that can only come
//! back to this server would be sent away again and again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Waker;
use std::time::{Duration, Instant};

use accounting::ShardCounters;
use api::{Code, Status};
use tokio::sync::watch;

use crate::shard_state::ShardState;

/// Status of an endless call that ends because its connection is drained. Clients begin the call again when
/// they get this code.
pub(crate) const DRAINED: Status =
    Status::new(Code::Unavailable, "mainstay: the connection is drained, connect again");

/// Interval between two waves of one order.
const WAVE_INTERVAL: Duration = Duration::from_millis(100);

/// Number of connections that are told to end before other tasks of the shard run.
const TOLD_AT_ONCE: usize = 64;

/// Order to drain connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Share of the open HTTP/2 connections to end, in percent. 0 ends none, and only stops an earlier order.
    pub percent: u8,
    /// Time over which the connections are told to end, in waves. If it is zero, all are told at once.
    pub over: Duration,
    /// Time that the open calls of a connection have to end after the connection was told to.
    pub grace: Duration,
}

/// Result of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draining {
    /// Number of HTTP/2 connections that were open when the order was given.
    pub open: u64,
    /// Number of connections that will be told to end.
    pub ending: u64,
}

/// Takes orders to drain connections. Clones belong to the same front.
#[derive(Clone, Debug)]
pub struct Drains {
    orders: Arc<watch::Sender<Option<Order>>>,
    counters: Arc<[Arc<ShardCounters>]>,
}

/// An order as the shards get it.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// Number of connections that each shard ends; the index is the shard's number.
    quotas: Arc<[u64]>,
    over: Duration,
    grace: Duration,
    /// Decides which connections are chosen, so that repeated orders choose different ones.
    seed: u64,
}

impl Drains {
    /// Creates the end that takes orders, for shards with these counters.
    pub(crate) fn new(counters: &[Arc<ShardCounters>]) -> Drains {
        Drains { orders: Arc::new(watch::Sender::new(None)), counters: counters.into() }
    }

    /// Creates an end for a service without a front. It drains nothing.
    pub fn by_hand() -> Drains {
        Drains::new(&[])
    }

    /// Returns the counters of each shard of the front, indexed by shard id.
    pub fn shards(&self) -> &[Arc<ShardCounters>] {
        &self.counters
    }

    /// Begins to drain, and returns how many connections that concerns. An order replaces what an earlier one
    /// has not done yet.
    ///
    /// # Panics
    /// Panics if [`Drain::percent`] is above 100.
    pub fn begin(&self, drain: Drain) -> Draining {
        assert!(drain.percent <= 100, "{} percent", drain.percent);
        let open: Vec<u64> =
            self.counters.iter().map(|shard| shard.http2_connections.load(Relaxed)).collect();
        let quotas = quotas(&open, drain.percent);
        let draining = Draining { open: open.iter().sum(), ending: quotas.iter().sum() };
        let seed = RandomState::new().hash_one(0);
        let order = Order { quotas: quotas.into(), over: drain.over, grace: drain.grace, seed };
        self.orders.send_replace(Some(order));
        draining
    }

    pub(crate) fn orders(&self) -> watch::Receiver<Option<Order>> {
        self.orders.subscribe()
    }
}

/// Returns the number of connections that each shard has to end, so that all shards together end `percent` of
/// all open connections, rounded up, and each ends its share as exactly as possible.
fn quotas(open: &[u64], percent: u8) -> Vec<u64> {
    let share = |connections: u64| (connections * u64::from(percent)).div_ceil(100);
    let mut before = 0;
    let quota = |open: &u64| {
        let after = before + open;
        let quota = share(after) - share(before);
        before = after;
        quota
    };
    open.iter().map(quota).collect()
}

/// Connections of one shard that were told to end, with the time at which each is cut off. Connections are
/// known by their index in [`ShardState::connections`]. Kept in one table, because it would make every idle
/// connection larger to keep the time in the connection.
#[derive(Default)]
pub(crate) struct Departures(RefCell<HashMap<u32, Instant>>);

impl Departures {
    /// Returns the time at which a connection is cut off; `None` if it was not told to end.
    pub(crate) fn deadline(&self, connection: u32) -> Option<Instant> {
        let departures = self.0.borrow();
        // In most shards at most times, the table is empty, and the key need not be hashed.
        if departures.is_empty() { None } else { departures.get(&connection).copied() }
    }

    /// Removes a connection that has ended.
    pub(crate) fn forget(&self, connection: u32) {
        let mut departures = self.0.borrow_mut();
        if departures.remove(&connection).is_some() && departures.is_empty() {
            departures.shrink_to_fit();
        }
    }
}

/// Carries out the orders for the shard `number`. Returns when the front is dropped.
pub(crate) async fn keep(state: Rc<ShardState>, number: usize, mut orders: watch::Receiver<Option<Order>>) {
    let mut is_over = false;
    while !is_over {
        let order = orders.borrow_and_update().clone();
        let carried_out = async {
            match order {
                None => {}
                Some(order) => carry_out(&state, number, &order).await,
            }
            // The order is done. The next one resolves the other future.
            std::future::pending::<()>().await;
        };
        let changed = stdx::race(orders.changed(), carried_out).await;
        is_over = matches!(changed, stdx::First::Left(Err(_)));
    }
}

async fn carry_out(state: &ShardState, number: usize, order: &Order) {
    let counters = &state.counters;
    let quota = order.quotas.get(number).copied().unwrap_or_default();
    let chosen = choose(state, usize::try_from(quota).unwrap_or(usize::MAX), order.seed);
    let (begun, total) = (Instant::now(), chosen.len());
    let waves = usize::try_from(order.over.as_millis() / WAVE_INTERVAL.as_millis()).unwrap_or(usize::MAX);
    let waves = waves.clamp(1, total.max(1));
    let _left = LeftCount::new(&counters.connections_to_drain, total);
    let mut told = 0;
    for wave in 0..waves {
        // The product of two numbers of this size does not overflow `u128`.
        let at = order.over.as_nanos() * wave as u128 / waves as u128;
        let at = begun + Duration::from_nanos(u64::try_from(at).unwrap_or(u64::MAX));
        tokio::time::sleep_until(at.into()).await;
        let until = (total as u128 * (wave as u128 + 1) / waves as u128) as usize;
        for (connection, waker) in &chosen[told..until] {
            told += 1;
            tell(state, *connection, waker, order.grace);
            counters.connections_to_drain.store((total - told) as u64, Relaxed);
            if told.is_multiple_of(TOLD_AT_ONCE) {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Number of connections that an order has yet to end, as a metric. Zero once the order is done or replaced.
struct LeftCount<'a>(&'a AtomicU64);

impl LeftCount<'_> {
    fn new(counter: &AtomicU64, left: usize) -> LeftCount<'_> {
        counter.store(left as u64, Relaxed);
        LeftCount(counter)
    }
}

impl Drop for LeftCount<'_> {
    fn drop(&mut self) {
        self.0.store(0, Relaxed);
    }
}

/// Chooses `quota` of the shard's connections that were not told to end yet, spread evenly over all.
fn choose(state: &ShardState, quota: usize, seed: u64) -> Vec<(u32, Waker)> {
    let connections = state.connections.borrow();
    let departures = state.departures.0.borrow();
    let indices = connections.iter().map(|(index, waker)| (index as u32, waker));
    let open: Vec<(u32, &Waker)> = indices.filter(|(index, _)| !departures.contains_key(index)).collect();
    let quota = quota.min(open.len());
    let first = (seed % open.len().max(1) as u64) as usize;
    let turned = open.iter().cycle().skip(first).take(open.len());
    let is_chosen = |at: &usize| (at + 1) * quota / open.len() > at * quota / open.len();
    let chosen = turned.enumerate().filter(|(at, _)| is_chosen(at));
    chosen.map(|(_, (index, waker))| (*index, (*waker).clone())).collect()
}

/// Tells a connection to end, if it is still open.
fn tell(state: &ShardState, connection: u32, waker: &Waker, grace: Duration) {
    // Another connection may have taken the index since. It has another waker: the clone in `waker` keeps the
    // memory of the old one from being used again.
    let connections = state.connections.borrow();
    let Some(own) = connections.get(connection as usize).filter(|own| own.will_wake(waker)) else { return };
    state.departures.0.borrow_mut().insert(connection, Instant::now() + grace);
    accounting::add(&state.counters.connections_drained, 1);
    own.wake_by_ref();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_together_end_the_share_rounded_up() {
        assert_eq!(quotas(&[3, 3, 3], 50), [2, 1, 2]);
        assert_eq!(quotas(&[1; 8], 10), [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(quotas(&[100_000, 0, 50_000], 100), [100_000, 0, 50_000]);
        assert_eq!(quotas(&[5, 7], 0), [0, 0]);
        assert!(quotas(&[], 30).is_empty());
        for percent in 0..=100 {
            let open = [17, 0, 3, 41, 1];
            let quotas = quotas(&open, percent);
            assert_eq!(quotas.iter().sum::<u64>(), (62 * u64::from(percent)).div_ceil(100));
            assert!(quotas.iter().zip(open).all(|(quota, open)| *quota <= open), "{percent}: {quotas:?}");
        }
    }
}
