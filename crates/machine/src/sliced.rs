//! Applies expensive entries slice by slice, so that the caller can do other work between two slices.
//! [`Machine::begin`] begins an entry, and if its cost exceeds one step, [`Machine::go_on`] applies the next
//! slice.
//!
//! The entry stays atomic. Its changes are in the store above the current revision, where no reader looks,
//! and no view can be published before the entry is complete. [`Machine::applied_index`], the state hash, the
//! bytes in use and the table of leases keep the values that they had before the entry. Only the key sets of
//! leases change with each slice: see [`Machine::is_whole`] and [`Machine::keys_to_renew`].
//!
//! The changes and their order do not depend on the slices: they are the same on every member, and the same
//! as when [`Machine::apply`] applies the entry in one step.
//!
//! # Example: a deletion of 1,000,000 keys as entry 50
//!
//! ```text
//!               store                            applied_index  newest published view
//! entry 49      revision 70                      49             70
//! slice 1       tombstones 71.0 .. 71.9999       49             70   a range sees all keys
//! slice 2       tombstones up to 71.19999        49             70   a put that arrives waits as entry 51
//!  ...          ...                              49             70   heartbeats and requests are handled
//! last slice    tombstones up to 71.999999       50             71   a range sees none of them
//! ```
//!
//! Readers resolve revision 0 to the published revision 70, so they do not see tombstones above it. Watchers
//! get all changes of revision 71 after the last slice. A crash after slice 2 loses nothing: no slice is
//! durable by itself, no checkpoint is taken between two slices, and after a restart entry 50 is applied from
//! its beginning.

use api::Status;
use api::error;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    AlarmType, Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, TxnRequest,
};
use bytes::Bytes;
use mvcc::{KeyRange, Location, Snapshot, Writer};
use numbers::{Index, LeaseId, Revision, Term};

use crate::check;
use crate::key_value::Values;
use crate::lease::Leases;
use crate::machine::{
    Accounting, Applied, Change, Command, Deletion, Fatal, Machine, Outcome, op_name, version_bytes,
    write_put, write_range,
};
use crate::range::Failure;
use crate::shared_map::{IntoEntries, SharedMap};
use crate::state_hash::Effect;
use crate::txn::{self, LookedAt, OpOutcome, TxnOutcome};

/// Maximum number of keys whose values are read ahead when a compared value is not in memory, so that all
/// missing values are fetched together.
const LOOKED_AT_KEYS: usize = 512;
/// Maximum total size, in bytes, of the values that are read ahead; the last value may exceed it.
const LOOKED_AT_BYTES: usize = 256 << 10;

/// Progress of applying an entry.
#[derive(Debug, PartialEq)]
pub enum Progress {
    /// The entry is applied.
    Whole(Box<Applied>),
    /// The entry needs another slice.
    More,
    /// The entry needs values that are not in memory. The caller must call [`Machine::go_on`] again once they
    /// have been fetched.
    Waits,
}

/// Cost that a slice may still spend. One unit is about a microsecond.
#[derive(Debug)]
pub(crate) struct Budget(u64);

impl Budget {
    /// Returns a budget without a limit, for an entry that is applied in one step.
    pub fn endless() -> Budget {
        Budget(u64::MAX)
    }

    /// Spends `cost`, and 1 for each KiB of `bytes`.
    pub fn spend(&mut self, cost: u64, bytes: u64) {
        self.0 = self.0.saturating_sub(cost + bytes / 1024);
    }

    pub fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// An entry that is applied in slices and is not complete yet.
pub(crate) struct Unfinished {
    index: Index,
    term: Term,
    data: Bytes,
    location: Location,
    request: InternalRaftRequest,
    request_id: u64,
    answer: bool,
    work: Work,
    /// State before the entry; `None` until the entry has changed something.
    before: Option<Before>,
}

/// Bytes in use and state hash before an entry that is not complete.
struct Before {
    bytes: u64,
    hash: Option<u64>,
}

/// The remaining work of an entry that is applied in slices.
pub(crate) enum Work {
    Delete(Option<Deletion>),
    /// The keys of the lease that are still to be deleted; `None` before the first slice.
    Revoke(Option<IntoEntries<Bytes, ()>>),
    Txn(Box<Txn>),
}

impl Work {
    /// Returns the cost of a request and, if the cost exceeds `left`, its work, which is then done in slices.
    /// A cost above `left` is not computed exactly.
    pub fn of(machine: &Machine, request: &InternalRaftRequest, left: u64) -> (u64, Option<Work>) {
        if left == u64::MAX || machine.alarms.any(AlarmType::Corrupt as i32) {
            return (1, None);
        }
        let snapshot = machine.store.snapshot();
        // The kinds of requests are checked in the order of `Machine::dispatch`, so that this cost is the
        // cost of the request that will be applied.
        let (cost, work) = if let Some(delete) = &request.delete_range {
            (deletion_cost(&snapshot, delete, left), Work::Delete(None))
        } else if let Some(txn) = &request.txn {
            if machine.alarms.any(AlarmType::Nospace as i32) && check::txn_cost(txn) > 0 {
                return (1, None);
            }
            (txn_cost(&snapshot, txn, left), Work::txn())
        } else if let Some(revoke) = &request.lease_revoke
            && request.compaction.is_none()
            && request.lease_grant.is_none()
        {
            let keys = machine.leases.get(LeaseId(revoke.id)).map(|lease| lease.keys);
            let keys = keys.into_iter().flat_map(|keys| keys.keys());
            (1 + deleted_cost(keys.map(Bytes::len), left), Work::Revoke(None))
        } else {
            return (1, None);
        };
        (cost, (cost > left).then_some(work))
    }

    /// Returns the work of a transaction that has not started.
    pub fn txn() -> Work {
        Work::Txn(Box::default())
    }
}

/// Returns the cost of deleting keys of these lengths. Stops counting once the cost exceeds `left`.
fn deleted_cost(keys: impl Iterator<Item = usize>, left: u64) -> u64 {
    let mut cost = 0;
    for len in keys {
        cost += 1 + 2 * len as u64 / 1024;
        if cost > left {
            break;
        }
    }
    cost
}

fn deletion_cost(snapshot: &Snapshot<'_>, delete: &DeleteRangeRequest, left: u64) -> u64 {
    if delete.range_end.is_empty() {
        return 1;
    }
    let range = KeyRange::of_request(&delete.key, &delete.range_end);
    // The current revision can always be read, so counting cannot fail.
    let count = snapshot.count(range, Revision::CURRENT).unwrap_or(0);
    if count > left {
        return count;
    }
    let found = snapshot.range(range, Revision::CURRENT).into_iter().flatten();
    1 + deleted_cost(found.map(|version| version.key().len()), left)
}

fn comparison_cost(snapshot: &Snapshot<'_>, compare: &Compare, left: u64) -> u64 {
    let range = KeyRange::of_request(&compare.key, &compare.range_end);
    if !txn::compares_value(compare) {
        let is_single = compare.range_end.is_empty();
        return 1 + if is_single { 1 } else { snapshot.count(range, Revision::CURRENT).unwrap_or(0) };
    }
    if compare.range_end.is_empty() && !txn::compares_by_order(compare) {
        // An equality comparison reads the value only if its length equals that of the value in the request.
        // It reads no more bytes than the request contains, so a fixed cost suffices.
        return 2;
    }
    let mut cost = 1;
    for version in snapshot.range(range, Revision::CURRENT).into_iter().flatten() {
        cost += 2 + txn::compared_bytes(version, compare) / 1024;
        if cost > left {
            break;
        }
    }
    cost
}

/// Returns the cost of everything that a transaction may do. Stops counting once the cost exceeds `left`.
fn txn_cost(snapshot: &Snapshot<'_>, txn: &TxnRequest, left: u64) -> u64 {
    let (mut open, mut cost) = (vec![], 0);
    let mut next = Some(txn);
    while let Some(txn) = next {
        for compare in &txn.compare {
            cost += comparison_cost(snapshot, compare, left);
            if cost > left {
                return cost;
            }
        }
        for op in txn.success.iter().chain(&txn.failure) {
            cost += match &op.request {
                Some(Request::RequestDeleteRange(delete)) => deletion_cost(snapshot, delete, left),
                Some(Request::RequestTxn(inner)) => {
                    open.push(inner);
                    1
                }
                _ => 1,
            };
            if cost > left {
                return cost;
            }
        }
        next = open.pop();
    }
    cost
}

impl Machine {
    /// Returns true if no entry is partly applied. Reads, published views, the applied index and the state
    /// hash never show a partly applied entry. But while this method returns false, no view may be published,
    /// no head of an image may be taken, and the key sets of leases must not be read.
    pub fn is_whole(&self) -> bool {
        self.unfinished.as_ref().is_none_or(|unfinished| unfinished.before.is_none())
    }

    /// Returns the keys that a user must be allowed to write in order to renew a lease, and the number of
    /// puts that were visited to find them, which add to the cost of the call. The result is valid even while
    /// an entry is partly applied: it contains the keys that are attached now and those that the entry may
    /// attach, so no key that the lease has after the entry is missing.
    pub fn keys_to_renew(&self, id: LeaseId) -> (SharedMap<Bytes, ()>, u64) {
        let mut keys = self.leases.get(id).map(|lease| lease.keys.clone()).unwrap_or_default();
        let mut puts = 0;
        if let Some(unfinished) = self.unfinished.as_deref()
            && let (Some(_), Work::Txn(work), Some(txn)) =
                (&unfinished.before, &unfinished.work, &unfinished.request.txn)
        {
            work.each_put(txn, |put| {
                puts += 1;
                if LeaseId(put.lease) == id {
                    keys.insert(put.key.clone(), ());
                }
            });
        }
        (keys, puts)
    }

    /// Returns true if an entry was started that [`Machine::go_on`] must complete before the next entry.
    pub fn has_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Returns the state hash as it was before the partly applied entry; `None` if no entry is partly
    /// applied.
    pub(crate) fn hash_before(&self) -> Option<Option<u64>> {
        self.before().map(|before| before.hash)
    }

    pub(crate) fn bytes_before(&self) -> Option<u64> {
        self.before().map(|before| before.bytes)
    }

    fn before(&self) -> Option<&Before> {
        self.unfinished.as_ref()?.before.as_ref()
    }

    /// Stores an entry, to be applied by [`Machine::go_on`].
    pub(crate) fn keep(
        &mut self,
        command: Command<'_>,
        request: InternalRaftRequest,
        (request_id, answer): (u64, bool),
        work: Work,
    ) {
        let Command { index, term, data, location } = command;
        self.unfinished = Some(Box::new(Unfinished {
            index,
            term,
            data: data.clone(),
            location,
            request,
            request_id,
            answer,
            work,
            before: None,
        }));
    }

    /// Applies the next slice, of about `left` keys and operations, of the entry that [`Machine::begin`]
    /// could not complete. The cost of the slice is subtracted from `left`.
    ///
    /// # Errors
    ///
    /// Returns an error if a value on which the entry depends cannot be read. The state is then unchanged,
    /// and the entry is discarded.
    pub fn go_on(&mut self, values: &dyn Values, left: &mut u64) -> Result<Progress, Fatal> {
        let unfinished = self.unfinished.take();
        assert!(unfinished.is_some(), "there is an entry to go on with");
        let Some(mut unfinished) = unfinished else { return Ok(Progress::More) };
        let mut budget = Budget((*left).max(1));
        let mut change = None;
        let done = self.do_slice(&mut unfinished, values, &mut budget, &mut change);
        *left = budget.0;
        let outcome = match done {
            Ok(Some(outcome)) => Ok(outcome),
            Ok(None) => {
                self.unfinished = Some(unfinished);
                return Ok(Progress::More);
            }
            Err(Failure::NotAtHand) => {
                self.unfinished = Some(unfinished);
                return Ok(Progress::Waits);
            }
            Err(Failure::Refused(status)) => Err(status),
            Err(Failure::Unreadable(why) | Failure::Unknown(why)) => {
                return Err(Fatal { index: unfinished.index, why, is_unreadable: true });
            }
        };
        let Unfinished { index, term, request, request_id, .. } = *unfinished;
        (self.applied_index, self.applied_term) = (index, term);
        self.hash.entry_done(index, self.store.current_revision());
        Ok(Progress::Whole(Box::new(Applied { request_id, op: op_name(&request), outcome, change })))
    }

    fn do_slice(
        &mut self,
        unfinished: &mut Unfinished,
        values: &dyn Values,
        budget: &mut Budget,
        change: &mut Option<Change>,
    ) -> Result<Option<Outcome>, Failure> {
        let Unfinished { index, term, data, location, request, answer, work, before, .. } = unfinished;
        let command = Command { index: *index, term: *term, data, location: *location };
        let now = Before { bytes: self.in_use_bytes + self.leases.bytes(), hash: self.hash.value() };
        match work {
            Work::Delete(deletion) => {
                let Some(delete) = &request.delete_range else { return Err(error::KEY_NOT_FOUND.into()) };
                before.get_or_insert(now);
                let (mut writer, mut accounting) = self.writing();
                let deletion = deletion.get_or_insert_with(|| Deletion::begin(&writer));
                if !deletion.go_on(&mut writer, &mut accounting, delete, *answer, budget) {
                    writer.suspend();
                    return Ok(None);
                }
                let mut deleted = deletion.end(delete);
                deleted.revision = writer.finish();
                Ok(Some(Outcome::DeleteRange(deleted)))
            }
            Work::Revoke(keys) => {
                let Some(revoke) = &request.lease_revoke else { return Err(error::KEY_NOT_FOUND.into()) };
                before.get_or_insert(now);
                if keys.is_none() {
                    let taken = self.leases.take_keys(LeaseId(revoke.id)).ok_or(error::LEASE_NOT_FOUND)?;
                    self.hash.mix(Effect::LeaseRevoked, &[revoke.id as u64, taken.len() as u64]);
                    *keys = Some(taken.into_iter());
                }
                if !self.delete_keys(keys.iter_mut().flatten(), budget) {
                    return Ok(None);
                }
                self.leases.revoke(LeaseId(revoke.id)).ok_or(error::LEASE_NOT_FOUND)?;
                *change = Some(Change::LeaseRevoked(LeaseId(revoke.id)));
                Ok(Some(Outcome::LeaseRevoked))
            }
            Work::Txn(txn) => {
                let Some(request) = &request.txn else { return Err(error::KEY_NOT_FOUND.into()) };
                if txn.stage == Stage::Choose
                    && !txn.choose(request, &self.store.snapshot(), values, budget)?
                {
                    return Ok(None);
                }
                if txn.stage == Stage::Check
                    && !txn.check(request, &self.store.snapshot(), &self.leases, budget)?
                {
                    return Ok(None);
                }
                before.get_or_insert(now);
                let (mut writer, mut accounting) = self.writing();
                let Some(mut outcome) =
                    txn.run(request, (&mut writer, &mut accounting), command, *answer, budget)?
                else {
                    writer.suspend();
                    return Ok(None);
                };
                outcome.revision = writer.finish();
                Ok(Some(Outcome::Txn(outcome)))
            }
        }
    }

    /// Deletes keys of a lease that is being revoked. Returns true if no keys are left.
    pub(crate) fn delete_keys(
        &mut self,
        keys: impl Iterator<Item = (Bytes, ())>,
        budget: &mut Budget,
    ) -> bool {
        let (in_use_bytes, hash) = (&mut self.in_use_bytes, &mut self.hash);
        let mut writer = self.store.begin();
        for (key, ()) in keys {
            self.leases.detached(&key);
            writer.delete_range(KeyRange::single(&key), |deletion| {
                hash.key_changed(&deletion);
                *in_use_bytes += version_bytes(deletion.version);
            });
            budget.spend(1, 2 * key.len() as u64);
            if budget.is_spent() {
                writer.suspend();
                return false;
            }
        }
        writer.finish();
        true
    }
}

/// A transaction that is applied in slices: first all comparisons, then all checks that could fail, and only
/// then the changes.
#[derive(Default)]
pub(crate) struct Txn {
    stage: Stage,
    /// Results of the comparisons of each transaction that runs, in the order in which the transactions are
    /// visited.
    chosen: Vec<bool>,
    /// Number of transactions that the current stage has visited.
    met: usize,
    /// Position in each open transaction, from the outermost to the innermost.
    levels: Vec<Level>,
    /// Progress of the comparisons of the next transaction: the number of comparisons that were found to
    /// hold, and how far the following comparison got.
    compared: LookedAt,
    /// True if the current comparison has found a key in its range.
    found: bool,
    /// Outcomes of the open transactions, from the outermost to the innermost.
    outcomes: Vec<TxnOutcome>,
    /// The deletion that is running.
    deletion: Option<Deletion>,
    /// Number of single-key ranges that may still be evaluated now; see [`txn::KNOWN_MAX`].
    known: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Choose,
    Check,
    Run,
}

/// Position in an open transaction.
#[derive(Clone, Copy)]
struct Level {
    succeeded: bool,
    /// Number of operations before the current position. If a nested transaction is open, it is the last of
    /// these operations.
    at: usize,
}

/// Result of a comparison.
enum Holds {
    Known(bool),
    /// Unknown: the budget of the slice is spent.
    Later,
}

impl Txn {
    /// Returns the open transactions, one for each level.
    fn open<'t>(&self, request: &'t TxnRequest) -> Vec<&'t TxnRequest> {
        let mut open = Vec::with_capacity(self.levels.len());
        let mut next = Some(request);
        for level in &self.levels {
            let Some(txn) = next else { break };
            open.push(txn);
            next = inner(txn, *level);
        }
        open
    }

    /// Calls `visit` with the puts of all chosen branches.
    fn each_put<'t>(&self, request: &'t TxnRequest, mut visit: impl FnMut(&'t PutRequest)) {
        // `chosen` is in the order in which transactions are visited: each transaction before those nested in
        // it and those after it. This loop visits them in the same order.
        let mut chosen = self.chosen.iter();
        let mut open = Vec::new();
        let branch = |txn: &'t TxnRequest, succeeded: Option<&bool>| {
            succeeded.map(|succeeded| txn::branch(txn, *succeeded).iter()).unwrap_or_default()
        };
        open.push(branch(request, chosen.next()));
        while let Some(ops) = open.last_mut() {
            match ops.next().map(|op| &op.request) {
                Some(Some(Request::RequestPut(put))) => visit(put),
                Some(Some(Request::RequestTxn(nested))) => open.push(branch(nested, chosen.next())),
                Some(_) => {}
                None => drop(open.pop()),
            }
        }
    }

    fn next_stage(&mut self, stage: Stage) {
        self.stage = stage;
        self.met = 0;
        self.levels.clear();
        self.meet();
    }

    /// Opens the next transaction on the chosen path. Returns false if all of them have been opened.
    fn meet(&mut self) -> bool {
        let Some(succeeded) = self.chosen.get(self.met).copied() else { return false };
        self.met += 1;
        self.levels.push(Level { succeeded, at: 0 });
        if self.stage == Stage::Run {
            self.outcomes.push(TxnOutcome { revision: Revision(0), succeeded, responses: Vec::new() });
        }
        true
    }

    /// Evaluates comparisons. Returns true if all results are known.
    fn choose(
        &mut self,
        request: &TxnRequest,
        snapshot: &Snapshot<'_>,
        values: &dyn Values,
        budget: &mut Budget,
    ) -> Result<bool, Failure> {
        let mut open = self.open(request);
        loop {
            let txn = match (open.last(), self.levels.last()) {
                (Some(txn), Some(level)) => inner(txn, *level),
                _ => Some(request),
            };
            let Some(txn) = txn else { return Err(error::KEY_NOT_FOUND.into()) };
            let Holds::Known(succeeded) = self.compare(txn, snapshot, values, budget)? else {
                return Ok(false);
            };
            self.compared = LookedAt::default();
            self.chosen.push(succeeded);
            self.levels.push(Level { succeeded, at: 0 });
            open.push(txn);
            // Move to the next nested transaction of the chosen branches; leave a level that has none left.
            while let (Some(txn), Some(level)) = (open.last(), self.levels.last_mut()) {
                let rest = txn::branch(txn, level.succeeded).get(level.at..).unwrap_or_default();
                if let Some(nested) =
                    rest.iter().position(|op| matches!(op.request, Some(Request::RequestTxn(_))))
                {
                    level.at += nested + 1;
                    break;
                }
                self.levels.pop();
                open.pop();
            }
            if self.levels.is_empty() {
                self.next_stage(Stage::Check);
                return Ok(true);
            }
            budget.spend(1, 0);
            if budget.is_spent() {
                return Ok(false);
            }
        }
    }

    /// Continues the comparisons of one transaction. The result is true if all of them hold.
    fn compare(
        &mut self,
        txn: &TxnRequest,
        snapshot: &Snapshot<'_>,
        values: &dyn Values,
        budget: &mut Budget,
    ) -> Result<Holds, Failure> {
        while let Some(compare) = txn.compare.get(self.compared.compares) {
            match self.holds(compare, snapshot, values, budget) {
                Ok(Holds::Known(true)) => {}
                Err(Failure::NotAtHand) => {
                    // Reads the values of the following comparisons, too, so that the caller can fetch all
                    // missing values together.
                    let _ = txn::look(
                        &txn.compare,
                        &self.compared,
                        snapshot,
                        values,
                        LOOKED_AT_KEYS,
                        LOOKED_AT_BYTES,
                    );
                    return Err(Failure::NotAtHand);
                }
                other => return other,
            }
            self.compared = LookedAt { compares: self.compared.compares + 1, ..LookedAt::default() };
            self.found = false;
            if budget.is_spent() {
                return Ok(Holds::Later);
            }
        }
        Ok(Holds::Known(true))
    }

    fn holds(
        &mut self,
        compare: &Compare,
        snapshot: &Snapshot<'_>,
        values: &dyn Values,
        budget: &mut Budget,
    ) -> Result<Holds, Failure> {
        budget.spend(1, 0);
        let range = KeyRange::of_request(&compare.key, &compare.range_end);
        let behind = self.compared.key.take();
        let range = behind.as_deref().map_or(range, |key| range.after(key));
        let mut last = None;
        for version in snapshot.range(range, Revision::CURRENT)? {
            if budget.is_spent() && last.is_some() {
                self.compared.key = last.map(<[u8]>::to_vec);
                return Ok(Holds::Later);
            }
            match txn::holds_for(Some(version), compare, values) {
                Ok(true) => {}
                Ok(false) => {
                    self.found = false;
                    return Ok(Holds::Known(false));
                }
                Err(failure) => {
                    self.compared.key = last.map(<[u8]>::to_vec).or(behind);
                    return Err(failure);
                }
            }
            self.found = true;
            last = Some(version.key());
            let read = if txn::compares_value(compare) { txn::compared_bytes(version, compare) } else { 0 };
            budget.spend(1, read);
        }
        if self.found {
            Ok(Holds::Known(true))
        } else {
            txn::holds_for_none(compare, values).map(Holds::Known)
        }
    }

    /// Checks all operations that could fail later. Returns true if all are checked.
    fn check(
        &mut self,
        request: &TxnRequest,
        snapshot: &Snapshot<'_>,
        leases: &Leases,
        budget: &mut Budget,
    ) -> Result<bool, Status> {
        let mut open = self.open(request);
        while let (Some(txn), Some(level)) = (open.last(), self.levels.last_mut()) {
            let Some(op) = txn::branch(txn, level.succeeded).get(level.at) else {
                self.levels.pop();
                open.pop();
                continue;
            };
            if budget.is_spent() {
                return Ok(false);
            }
            budget.spend(1, 0);
            txn::check_op(snapshot, leases, op)?;
            level.at += 1;
            if let Some(Request::RequestTxn(inner)) = &op.request {
                if !self.meet() {
                    return Err(error::KEY_NOT_FOUND);
                }
                open.push(inner);
            }
        }
        self.known = txn::KNOWN_MAX;
        self.next_stage(Stage::Run);
        Ok(true)
    }

    /// Executes the operations. Returns `None` if some are left for the next slice.
    fn run(
        &mut self,
        request: &TxnRequest,
        (writer, accounting): (&mut Writer<'_>, &mut Accounting<'_>),
        command: Command<'_>,
        answer: bool,
        budget: &mut Budget,
    ) -> Result<Option<TxnOutcome>, Failure> {
        let mut open = self.open(request);
        loop {
            let (Some(txn), Some(level)) = (open.last(), self.levels.last_mut()) else {
                return Err(error::KEY_NOT_FOUND.into());
            };
            let Some(op) = txn::branch(txn, level.succeeded).get(level.at) else {
                self.levels.pop();
                open.pop();
                let Some(outcome) = self.outcomes.pop() else { return Err(error::KEY_NOT_FOUND.into()) };
                let Some(around) = self.outcomes.last_mut() else { return Ok(Some(outcome)) };
                around.responses.push(OpOutcome::Txn(outcome));
                continue;
            };
            if budget.is_spent() {
                return Ok(None);
            }
            budget.spend(1, 0);
            let done = match &op.request {
                Some(Request::RequestRange(range)) => {
                    OpOutcome::Range(write_range(writer, answer, &mut self.known, range)?)
                }
                Some(Request::RequestPut(put)) => {
                    budget.spend(0, (put.key.len() + put.value.len()) as u64);
                    let previous = write_put(writer, accounting, command, put);
                    OpOutcome::Put { revision: writer.revision(), previous }
                }
                Some(Request::RequestDeleteRange(delete)) => {
                    let deletion = self.deletion.get_or_insert_with(|| Deletion::begin(writer));
                    if !deletion.go_on(writer, accounting, delete, answer, budget) {
                        return Ok(None);
                    }
                    let mut deleted = deletion.end(delete);
                    self.deletion = None;
                    deleted.revision = writer.snapshot().current_revision();
                    OpOutcome::DeleteRange(deleted)
                }
                Some(Request::RequestTxn(inner)) => {
                    level.at += 1;
                    if !self.meet() {
                        return Err(error::KEY_NOT_FOUND.into());
                    }
                    open.push(inner);
                    continue;
                }
                None => return Err(error::KEY_NOT_FOUND.into()),
            };
            level.at += 1;
            if let Some(outcome) = self.outcomes.last_mut() {
                outcome.responses.push(done);
            }
        }
    }
}

/// Returns the nested transaction that is open at this position of `txn`.
fn inner(txn: &TxnRequest, level: Level) -> Option<&TxnRequest> {
    let op = txn::branch(txn, level.succeeded).get(level.at.checked_sub(1)?)?;
    match &op.request {
        Some(Request::RequestTxn(inner)) => Some(inner),
        _ => None,
    }
}
