//! Selects keys of a range that a request wants sorted or filtered by revision.
//!
//! Every key of the range has to be visited, but memory and time are limited: keys are visited in slices,
//! keys beyond the limit are dropped early, and sorting yields to other calls regularly. If values of a slice
//! are not in memory, they are fetched, and then the slice is repeated up to the same key.

use std::cmp::{Ordering, Reverse};
use storage::values::unreadable;

use accounting::{Account, Held};
use api::etcdserverpb::RangeRequest;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::{Code, Status};
use bytes::BytesMut;
use machine::key_value::{StoredKeyValue, read_version};
use machine::{Values, range};
use mvcc::Version;

/// Maximum bytes of keys that one request may gather at a time; if it sorts by value, values count too
/// (COMPAT-73).
const GATHERED_BYTES_MAX: usize = 256 << 20;
/// A request may gather at most the memory budget of all clients divided by this number.
const GATHERED_PART: usize = 4;

/// Returns the maximum number of bytes that the current request may gather.
pub(super) fn gathered_bytes_max() -> usize {
    let budget = Account::of_turn().map_or(usize::MAX, |account| account.budget().bytes_max());
    GATHERED_BYTES_MAX.min(budget / GATHERED_PART)
}
/// Memory in bytes that a gathered key takes in addition to its own bytes.
const ITEM_BYTES: usize = size_of::<Item>();
/// Number of keys that are sorted before the sort yields to other calls.
const SORTED_AT_ONCE: usize = 2048;
/// Work of merging [`SORTED_AT_ONCE`] gathered keys, as the number of key visits that cost the same.
const SORTED_WORK: u64 = 512;
/// Bytes of values that are read before a walk yields to other calls. The last value may exceed this number.
pub(super) const READ_AT_ONCE: usize = 256 << 10;

/// A key, and its value if the request sorts by value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    found: StoredKeyValue,
    value: Option<BytesMut>,
}

/// Bytes of values that a slice reads even if little work is left in the connection's turn.
const READ_AT_ONCE_MIN: usize = 4 << 10;
/// Work in bytes that is counted for the system call of reading one value, in addition to the length of the
/// value.
const READ_WORK: usize = 512;

/// Returns the number of bytes of values that the next slice may read, which depends on the work left in the
/// connection's turn.
pub(super) fn read_at_once() -> usize {
    accounting::work_left().clamp(READ_AT_ONCE_MIN, READ_AT_ONCE)
}

/// Keys that a [`Chooser`] has accepted in one slice.
pub(super) struct Seen {
    items: Vec<Item>,
    passed: u64,
    /// Bytes of the values that were read, plus [`READ_WORK`] for each.
    read: usize,
    /// Value of `read` at which the slice ends.
    read_max: usize,
}

impl Seen {
    /// Returns an empty slice that ends after about `read_max` bytes of values. A repeated slice uses the
    /// same `read_max`, which is [`read_at_once`] at the time when the slice first began.
    pub fn up_to(read_max: usize) -> Seen {
        Seen { items: Vec::new(), passed: 0, read: 0, read_max }
    }

    /// Returns the work of reading values for the slice, in bytes.
    pub fn read_bytes(&self) -> usize {
        self.read
    }

    /// Returns true if the slice has read enough bytes of values and should end.
    pub fn is_due(&self) -> bool {
        self.read >= self.read_max
    }
}

/// Takes keys in key order, and returns the keys that a request selects, in the order of the request.
pub(super) struct Chooser {
    request: RangeRequest,
    target: SortTarget,
    descend: bool,
    limit: usize,
    items: Vec<Item>,
    bytes: usize,
    bytes_max: usize,
    passed: u64,
    /// Reservation for the gathered keys and values in the memory account of the client's connection.
    held: Option<Held>,
    /// Largest number of items held so far.
    #[cfg(test)]
    held_max: usize,
}

impl Chooser {
    pub fn new(request: &RangeRequest, bytes_max: usize) -> Chooser {
        let limit = match usize::try_from(request.limit) {
            Ok(0) | Err(_) => usize::MAX,
            Ok(limit) => limit,
        };
        // This code runs in the turn of the client's connection, so `Account::of_turn` is the memory account
        // of that connection.
        Chooser {
            request: request.clone(),
            target: SortTarget::try_from(request.sort_target).unwrap_or(SortTarget::Key),
            descend: request.sort_order == SortOrder::Descend as i32,
            limit,
            items: Vec::new(),
            bytes: 0,
            bytes_max,
            passed: 0,
            held: Account::of_turn().map(|account| account.hold(0)),
            #[cfg(test)]
            held_max: 0,
        }
    }

    /// Visits the next key of a slice.
    ///
    /// # Errors
    ///
    /// Returns an error if the value of the key is needed and cannot be read.
    pub fn look(&self, version: Version<'_>, values: &dyn Values, seen: &mut Seen) -> Result<(), Status> {
        if !range::passes(version, &self.request) {
            return Ok(());
        }
        seen.passed += 1;
        let held = self.items.len() + seen.items.len();
        if self.target == SortTarget::Key && !self.descend && held >= self.limit {
            return Ok(());
        }
        let value = match self.target {
            SortTarget::Value => {
                let mut value = BytesMut::new();
                read_version(version, values, &mut value).map_err(|e| unreadable(&e))?;
                seen.read += value.len() + READ_WORK;
                Some(value)
            }
            _ => None,
        };
        seen.items.push(Item { found: StoredKeyValue::of(version), value });
        Ok(())
    }

    /// Adds the keys of a finished slice.
    ///
    /// # Errors
    ///
    /// Returns an error if the request gathers too many bytes.
    pub fn take(&mut self, seen: Seen) -> Result<(), Status> {
        self.passed += seen.passed;
        seen.items.into_iter().try_for_each(|item| self.hold(item))?;
        if let Some(held) = &mut self.held {
            held.set(self.bytes);
        }
        Ok(())
    }

    fn hold(&mut self, item: Item) -> Result<(), Status> {
        self.bytes += item.bytes();
        self.items.push(item);
        #[cfg(test)]
        {
            self.held_max = self.held_max.max(self.items.len());
        }
        let many = self.limit.saturating_mul(2).max(SORTED_AT_ONCE);
        if self.limit < usize::MAX && (self.items.len() >= many || self.bytes > self.bytes_max) {
            self.prune();
            // Half of the bytes must be free after pruning; otherwise every further key would prune again.
            if self.bytes > self.bytes_max / 2 {
                self.bytes = usize::MAX;
            }
        }
        if self.bytes > self.bytes_max {
            let text = "mainstay: too many keys and values to sort at once; request parts of the range, or \
                        order by key";
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        Ok(())
    }

    /// Drops keys that cannot be in the response.
    fn prune(&mut self) {
        if self.items.len() <= self.limit {
            return;
        }
        if self.target == SortTarget::Key {
            // The items are in ascending order of keys. With ascending sort, later keys are not collected at
            // all, so this is a descending sort, for which the keys that came first are dropped.
            self.items.drain(..self.items.len() - self.limit);
        } else {
            let (target, descend) = (self.target, self.descend);
            self.items.select_nth_unstable_by(self.limit, |a, b| order(target, descend, a, b));
            self.items.truncate(self.limit);
        }
        self.bytes = self.items.iter().map(Item::bytes).sum();
    }

    /// Returns the selected keys, last one first, and true if the limit left some out. The locations of their
    /// values may have changed since the keys were visited.
    pub async fn finish(mut self) -> (Vec<StoredKeyValue>, bool) {
        let more = self.passed > self.limit as u64;
        let mut items = std::mem::take(&mut self.items);
        if self.target != SortTarget::Key {
            let (target, descend) = (self.target, self.descend);
            items = sorted(items, &|a: &Item, b: &Item| order(target, descend, a, b)).await;
        } else if self.descend {
            items.reverse();
        }
        items.truncate(self.limit);
        items.reverse();
        (items.into_iter().map(|item| item.found).collect(), more)
    }
}

impl Item {
    fn bytes(&self) -> usize {
        ITEM_BYTES + self.found.key.len() + self.value.as_ref().map_or(0, BytesMut::len)
    }
}

fn order(target: SortTarget, descend: bool, a: &Item, b: &Item) -> Ordering {
    let number = |item: &Item| match target {
        SortTarget::Version => item.found.version,
        SortTarget::Create => item.found.create_revision.0,
        SortTarget::Mod => item.found.mod_revision.0,
        SortTarget::Key | SortTarget::Value => 0,
    };
    let by_target = match (target == SortTarget::Value, descend) {
        (true, false) => a.value.cmp(&b.value),
        (true, true) => b.value.cmp(&a.value),
        (false, false) => number(a).cmp(&number(b)),
        (false, true) => Reverse(number(a)).cmp(&Reverse(number(b))),
    };
    // Ties are in ascending key order, even if the sort order is descending.
    by_target.then_with(|| a.found.key.cmp(&b.found.key))
}

/// Sorts stably by merging, and yields to other calls regularly.
async fn sorted<T>(items: Vec<T>, order: &impl Fn(&T, &T) -> Ordering) -> Vec<T> {
    let mut runs: Vec<Vec<T>> = Vec::new();
    let mut items = items.into_iter();
    loop {
        let mut run: Vec<T> = items.by_ref().take(SORTED_AT_ONCE).collect();
        if run.is_empty() {
            break;
        }
        run.sort_by(order);
        accounting::note_work(run.len() as u64, 0);
        runs.push(run);
        if items.len() > 0 {
            tokio::task::yield_now().await;
        }
    }
    while runs.len() > 1 {
        let mut merged = Vec::with_capacity(runs.len().div_ceil(2));
        let mut pairs = runs.into_iter();
        while let Some(one) = pairs.next() {
            merged.push(match pairs.next() {
                Some(other) => merge(one, other, order).await,
                None => one,
            });
        }
        runs = merged;
    }
    runs.pop().unwrap_or_default()
}

async fn merge<T>(one: Vec<T>, other: Vec<T>, order: &impl Fn(&T, &T) -> Ordering) -> Vec<T> {
    let mut merged = Vec::with_capacity(one.len() + other.len());
    let (mut one, mut other) = (one.into_iter().peekable(), other.into_iter().peekable());
    loop {
        let next = match (one.peek(), other.peek()) {
            (Some(a), Some(b)) if order(a, b).is_gt() => other.next(),
            (Some(_), _) => one.next(),
            (None, _) => other.next(),
        };
        let Some(next) = next else { return merged };
        merged.push(next);
        if merged.len() % SORTED_AT_ONCE == 0 {
            accounting::note_work(SORTED_WORK, 0);
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use numbers::{LeaseId, Revision};

    use super::*;
    use machine::ReadError;
    use mvcc::{KeyRange, Location, Store, Value};
    use storage::block_on::block_on;

    /// A source of values that returns the offset of each value as four bytes.
    struct Placed;

    impl Values for Placed {
        fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
            out.extend_from_slice(&value.location.offset().to_be_bytes());
            Ok(())
        }
    }

    fn store(keys: u32) -> Store {
        let mut store = Store::new();
        for n in 0..keys {
            let offset = n.wrapping_mul(0x9e37_79b9) % 1000;
            let value = Value { location: Location::new(1, offset), len: 4, crc: 0 };
            let mut writer = store.begin();
            writer.put(format!("{:06}", n.wrapping_mul(7919) % 100_000).as_bytes(), value, LeaseId::NONE);
            writer.finish();
        }
        store
    }

    #[test]
    fn chooses_what_sorting_the_whole_chooses_and_holds_little() {
        let store = store(10_000);
        let snapshot = store.snapshot();
        for target in
            [SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value]
        {
            for descend in [SortOrder::None, SortOrder::Ascend, SortOrder::Descend] {
                for limit in [0, 1, 7, 3_000, 9_999, 10_000, 20_000] {
                    let request = RangeRequest {
                        sort_target: target as i32,
                        sort_order: descend as i32,
                        min_mod_revision: 5,
                        limit,
                        ..RangeRequest::default()
                    };
                    let mut all: Vec<StoredKeyValue> = Vec::new();
                    let mut chooser = Chooser::new(&request, gathered_bytes_max());
                    let mut seen = Seen::up_to(read_at_once());
                    for (n, version) in
                        snapshot.range(KeyRange::ALL, Revision::CURRENT).expect("is there").enumerate()
                    {
                        chooser.look(version, &Placed, &mut seen).expect("is read");
                        if n % 100 == 99 {
                            chooser
                                .take(std::mem::replace(&mut seen, Seen::up_to(read_at_once())))
                                .expect("is not too much");
                        }
                        if range::passes(version, &request) {
                            all.push(StoredKeyValue::of(version));
                        }
                    }
                    chooser.take(seen).expect("is not too much");
                    range::sort(&mut all, &request, &Placed).expect("sorts");
                    let held = chooser.held_max;
                    let (mut chosen, more) = block_on(chooser.finish());
                    chosen.reverse();
                    let take = if limit == 0 { all.len() } else { limit as usize };
                    assert_eq!(more, all.len() > take);
                    all.truncate(take);
                    assert!(chosen == all, "{target:?} {descend:?} {limit}");
                    if limit > 0 {
                        assert!(held <= (2 * take).max(SORTED_AT_ONCE), "{held} held for {limit}");
                    }
                }
            }
        }
    }

    #[test]
    fn refuses_to_hold_too_much() {
        let store = store(2_000);
        let snapshot = store.snapshot();
        let take = |limit| {
            let request =
                RangeRequest { sort_target: SortTarget::Value as i32, limit, ..RangeRequest::default() };
            let mut chooser = Chooser::new(&request, 50 * (ITEM_BYTES + 10));
            let mut all = snapshot.range(KeyRange::ALL, Revision::CURRENT).expect("is there");
            all.try_for_each(|version| {
                let mut seen = Seen::up_to(read_at_once());
                chooser.look(version, &Placed, &mut seen)?;
                chooser.take(seen)
            })
            .map_err(|status: Status| status.code)
        };
        assert_eq!(take(0), Err(Code::ResourceExhausted));
        assert_eq!(take(30), Err(Code::ResourceExhausted));
        assert_eq!(take(20), Ok(()));
    }
}
