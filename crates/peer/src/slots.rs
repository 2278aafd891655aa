//! Limits the number of accepted connections and of snapshots that are received at the same time. If a limit
//! is reached, [`ConnectionSlots`] and [`SnapshotSlots`] decide whether a new one is refused, or which
//! existing one is closed for it. They serve no connection themselves.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

/// Number of connections of one member above which its oldest connection may be closed for a new connection.
/// A member needs only a few connections: for two streams, the pipeline, requests and a snapshot.
const MEMBER_SLOTS: usize = 32;

/// Slots for accepted connections, from the handshake on. When all slots are in use, connections that belong
/// to no member are closed for a new one, so that members find a slot. Of these, the oldest connections of
/// the address with the most connections are closed, so that an address with many connections does not
/// displace others. Connections with a verified certificate are closed only if there are no others.
pub(crate) struct ConnectionSlots {
    max: usize,
    taken: RefCell<BTreeMap<u64, Rc<ConnectionSlot>>>,
    next: Cell<u64>,
}

/// Slot of one accepted connection.
pub(crate) struct ConnectionSlot {
    number: u64,
    /// Id of the member that identified itself on the connection; 0 if none did.
    pub(crate) member: Cell<u64>,
    /// Address of the other end; `None` for a Unix socket.
    pub(crate) address: Option<IpAddr>,
    /// True once the client has presented a certificate that was verified.
    pub(crate) is_verified: Cell<bool>,
    /// Notified when the connection must end.
    pub(crate) cut: Notify,
}

impl ConnectionSlots {
    pub(crate) fn new(max: usize) -> ConnectionSlots {
        ConnectionSlots { max, taken: RefCell::default(), next: Cell::new(0) }
    }

    /// Takes a slot for a connection from this address. Returns the slot, and true if other connections were
    /// closed for it. Returns `None` if no slot can be freed.
    pub(crate) fn take(&self, address: Option<IpAddr>) -> Option<(Rc<ConnectionSlot>, bool)> {
        let mut taken = self.taken.borrow_mut();
        let full = taken.len() >= self.max;
        if full {
            let (address, is_verified, count) = ConnectionSlots::most_strangers(&taken);
            if count > 0 {
                // Several connections are closed, so that this costly search does not run again for every new
                // connection.
                let batch = (self.max / 128).min(count / 2).max(1);
                let same = |connection: &ConnectionSlot| {
                    connection.member.get() == 0
                        && connection.address == address
                        && connection.is_verified.get() == is_verified
                };
                let cut: Vec<u64> = taken
                    .values()
                    .filter(|connection| same(connection))
                    .take(batch)
                    .map(|connection| connection.number)
                    .collect();
                for number in cut {
                    taken.remove(&number)?.cut.notify_one();
                }
            } else {
                let number = ConnectionSlots::least(&taken)?;
                taken.remove(&number)?.cut.notify_one();
            }
        }
        let number = self.next.get();
        self.next.set(number + 1);
        let connection = Rc::new(ConnectionSlot {
            number,
            member: Cell::new(0),
            address,
            is_verified: Cell::new(false),
            cut: Notify::new(),
        });
        taken.insert(number, Rc::clone(&connection));
        Some((connection, full))
    }

    /// Finds the address with the most connections that belong to no member, among unverified connections if
    /// there are any. Returns the address, whether the connections are verified, and their number, which may
    /// be 0.
    fn most_strangers(taken: &BTreeMap<u64, Rc<ConnectionSlot>>) -> (Option<IpAddr>, bool, usize) {
        let mut strangers = [HashMap::new(), HashMap::new()];
        for connection in taken.values().filter(|connection| connection.member.get() == 0) {
            let same: &mut HashMap<_, _> = &mut strangers[usize::from(connection.is_verified.get())];
            let (_, count) = same.entry(connection.address).or_insert((connection.number, 0_usize));
            *count += 1;
        }
        for (strangers, is_verified) in strangers.into_iter().zip([false, true]) {
            // Select the address with the most connections. Of several with equal counts, select the one with
            // the oldest connection.
            let most = strangers.into_iter().max_by_key(|(_, (number, count))| (*count, Reverse(*number)));
            if let Some((address, (_, count))) = most {
                return (address, is_verified, count);
            }
        }
        (None, false, 0)
    }

    /// Returns the number of the oldest connection of the member that has the most connections; `None` if no
    /// member has more than [`MEMBER_SLOTS`] connections.
    fn least(taken: &BTreeMap<u64, Rc<ConnectionSlot>>) -> Option<u64> {
        let mut of = BTreeMap::new();
        for connection in taken.values() {
            let (_, count) = of.entry(connection.member.get()).or_insert((connection.number, 0));
            *count += 1;
        }
        let most = of.into_values().max_by_key(|(_, count)| *count);
        most.filter(|(_, count)| *count > MEMBER_SLOTS).map(|(number, _)| number)
    }

    /// Frees the slot of a connection that has ended.
    pub(crate) fn leave(&self, connection: &ConnectionSlot) {
        self.taken.borrow_mut().remove(&connection.number);
    }
}

/// Slots for snapshots that are being received.
///
/// Without TLS any client can claim to be a member. Two rules keep such a client from blocking a real
/// snapshot. First, a snapshot that comes from an address at which this member reaches the claimed sender
/// (`at_home`) gets a slot, unless other such snapshots hold all slots. Second, a slow snapshot is ended when
/// another one begins in the name of the same sender, unless only the slow one is `at_home`.
pub(crate) struct SnapshotSlots {
    max: usize,
    /// Time in which [`CHANCE_BYTES`] of a snapshot must arrive. After that the snapshot counts as slow, and
    /// another snapshot may displace it.
    chance: Duration,
    taken: RefCell<Vec<SnapshotSlot>>,
    next: Cell<u64>,
}

struct SnapshotSlot {
    number: u64,
    from: u64,
    at_home: bool,
    connection: Rc<ConnectionSlot>,
    progress: Rc<Progress>,
    /// Resolves when the thread that receives the snapshot has ended.
    ended: oneshot::Receiver<()>,
}

/// Result of [`SnapshotSlots::take`]: the slot of a new snapshot, and the snapshots that were ended for it.
pub(crate) struct SnapshotAdmission {
    pub(crate) number: u64,
    pub(crate) progress: Rc<Progress>,
    /// Dropped when the thread that receives the snapshot has ended, which the next snapshot waits for.
    pub(crate) taker: oneshot::Sender<()>,
    /// One receiver for each snapshot that was ended. It resolves when the thread that received that snapshot
    /// has ended.
    pub(crate) before: Vec<oneshot::Receiver<()>>,
}

/// Progress of a snapshot that is being received.
pub(crate) struct Progress {
    /// Bytes received since the deadline was last extended.
    bytes: Cell<usize>,
    /// True while a read waits for more bytes. Only then can the snapshot count as slow, from the deadline
    /// `until` on.
    waits: Cell<bool>,
    until: Cell<Instant>,
    chance: Duration,
}

/// Number of bytes that must arrive before each deadline, so that a snapshot does not count as slow.
const CHANCE_BYTES: usize = 16 << 20;

impl Progress {
    fn new(chance: Duration, now: Instant) -> Progress {
        Progress { bytes: Cell::new(0), waits: Cell::new(true), until: Cell::new(now + chance), chance }
    }

    /// Records that `bytes` bytes have arrived, and that no read waits for more at the moment.
    pub(crate) fn note_received(&self, bytes: usize, now: Instant) {
        self.waits.set(false);
        let bytes = self.bytes.get() + bytes;
        self.bytes.set(if bytes < CHANCE_BYTES { bytes } else { 0 });
        if bytes >= CHANCE_BYTES {
            self.until.set(now + self.chance);
        }
    }

    /// Records that a read waits for bytes again. `paused` is the time for which this member did not read;
    /// the deadline is extended by this time, because the sender could not make progress.
    pub(crate) fn note_wait(&self, paused: Duration) {
        self.waits.set(true);
        self.until.set(self.until.get() + paused);
    }

    /// Records that the whole snapshot has arrived. From now on there is no deadline, because only this
    /// member's own work takes time.
    pub(crate) fn note_complete(&self) {
        self.waits.set(false);
    }

    fn is_slow(&self, now: Instant) -> bool {
        self.waits.get() && now >= self.until.get()
    }
}

impl SnapshotSlots {
    pub(crate) fn new(max: usize, chance: Duration) -> SnapshotSlots {
        SnapshotSlots { max, chance, taken: RefCell::default(), next: Cell::new(0) }
    }

    /// Takes a slot for a snapshot that arrives on `connection` in the name of `from`. `at_home` is true if
    /// it comes from an address at which this member reaches `from`. Returns `None` if the snapshot must be
    /// refused.
    ///
    /// A snapshot that is `at_home` ends all snapshots that are not. Slow snapshots are ended, too: those in
    /// the name of the same sender, and those of any sender if no slot is free. But a snapshot that is not
    /// `at_home` ends none that is. Snapshots are ended even if slots are free, because the handler processes
    /// one snapshot at a time, and the new one would have to wait.
    pub(crate) fn take(
        &self,
        connection: &Rc<ConnectionSlot>,
        from: u64,
        at_home: bool,
        now: Instant,
    ) -> Option<SnapshotAdmission> {
        let mut taken = self.taken.borrow_mut();
        let full = taken.len() >= self.max;
        let makes_way = |slot: &mut SnapshotSlot| {
            let stranger = at_home && !slot.at_home;
            let slow = slot.progress.is_slow(now) && (full || slot.from == from);
            stranger || slow && (at_home || !slot.at_home)
        };
        let mut before = Vec::new();
        for slot in taken.extract_if(.., makes_way) {
            slot.connection.cut.notify_one();
            before.push(slot.ended);
        }
        let is_well = |slot: &SnapshotSlot| slot.from == from && slot.at_home && !slot.progress.is_slow(now);
        // Refuse a snapshot that is not `at_home` while one in the name of the same sender is `at_home` and
        // not slow. The latter may still be waiting for the end of other snapshots, and the new one must not
        // begin before it.
        if taken.len() >= self.max || !at_home && taken.iter().any(is_well) {
            return None;
        }
        let number = self.next.get();
        self.next.set(number + 1);
        let progress = Rc::new(Progress::new(self.chance, now));
        let (taker, ended) = oneshot::channel();
        let slot = SnapshotSlot {
            number,
            from,
            at_home,
            connection: Rc::clone(connection),
            progress: Rc::clone(&progress),
            ended,
        };
        taken.push(slot);
        Some(SnapshotAdmission { number, progress, taker, before })
    }

    /// Frees the slot of a snapshot that has ended.
    pub(crate) fn leave(&self, number: u64) {
        self.taken.borrow_mut().retain(|slot| slot.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANCE: Duration = Duration::from_secs(20);

    fn is_cut(connection: &ConnectionSlot) -> bool {
        use std::future::Future;
        let mut cut = Box::pin(connection.cut.notified());
        cut.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn strangers_make_way_and_members_stay() {
        let slots = ConnectionSlots::new(80);
        let take = |member| {
            let (connection, _) = slots.take(None).expect("there is a slot");
            connection.member.set(member);
            connection
        };
        let members: Vec<_> = (0..8).map(|n| take(1 + n % 2)).collect();
        let strangers: Vec<_> = (0..200).map(|_| take(0)).collect();
        assert_eq!(slots.taken.borrow().len(), 80);
        assert_eq!(strangers.iter().filter(|connection| is_cut(connection)).count(), 200 - 72);
        // A member that reconnects finds a slot, whatever connections exist.
        let back: Vec<_> = (0..20).map(|_| take(1)).collect();
        assert!(!members.iter().chain(&back).any(|connection| is_cut(connection)));
        // A client that claims to be a member and has too many connections does not displace other
        // connections.
        let many: Vec<_> = (0..200).map(|_| take(2)).collect();
        assert!(!back.iter().any(|connection| is_cut(connection)));
        assert_eq!(slots.taken.borrow().len(), 80);
        drop((strangers, many));
        slots.leave(&back[0]);
        assert_eq!(slots.taken.borrow().len(), 79);
        assert!(slots.take(None).is_some_and(|(_, cut)| !cut));
    }

    #[test]
    fn an_address_with_many_connections_drives_out_its_own() {
        let slots = ConnectionSlots::new(20);
        let take = |address: &str| slots.take(Some(address.parse().unwrap())).expect("there is a slot").0;
        let member = take("10.0.0.1");
        let flood: Vec<_> = (0..200).map(|_| take("10.0.0.66")).collect();
        assert!(!is_cut(&member), "it shakes hands");
        assert_eq!(flood.iter().filter(|connection| is_cut(connection)).count(), 200 - 19);
        // Unknown clients from 20 addresses have one connection each. The connection with a verified
        // certificate is not closed.
        let slots = ConnectionSlots::new(20);
        let all: Vec<_> =
            (0..20).map(|n| slots.take(Some([10, 0, 0, n].into())).expect("there is a slot").0).collect();
        all[0].is_verified.set(true);
        slots.take(Some([10, 0, 1, 0].into())).expect("there is a slot");
        assert_eq!((is_cut(&all[0]), is_cut(&all[1])), (false, true));
    }

    #[test]
    fn when_members_have_all_places_nobody_else_comes() {
        let slots = ConnectionSlots::new(4);
        for member in 1..=4 {
            slots.take(None).expect("there is a slot").0.member.set(member);
        }
        assert!(slots.take(None).is_none());
    }

    #[test]
    fn a_snapshot_from_its_senders_address_finds_a_place() {
        let connections = ConnectionSlots::new(10);
        let connection = || connections.take(None).expect("there is a slot").0;
        let now = Instant::now();
        let snapshots = SnapshotSlots::new(3, CHANCE);
        let take = |connection: &Rc<ConnectionSlot>, at_home| {
            snapshots
                .take(connection, 1, at_home, now)
                .map(|admission| (admission.number, admission.before.len()))
        };
        let (member, strangers) = (connection(), [connection(), connection(), connection()]);
        for stranger in &strangers {
            take(stranger, false).expect("there is a slot");
        }
        assert_eq!(take(&connection(), false), None, "strangers drive nobody out");
        let (first, before) = take(&member, true).expect("the strangers make way");
        assert!(strangers.iter().all(|connection| is_cut(connection)) && !is_cut(&member) && before == 3);
        // While their tasks still run, no other snapshot gets a slot.
        assert_eq!(take(&connection(), false), None);
        let more = [take(&member, true), take(&member, true)];
        assert!(more.iter().all(Option::is_some), "there is a slot");
        assert_eq!(take(&member, true), None, "no member drives out a member");
        snapshots.leave(first);
        more.into_iter().flatten().for_each(|(number, _)| snapshots.leave(number));
        // A slot that was already lost can be left again.
        snapshots.leave(77);
        assert!(take(&connection(), false).is_some_and(|(number, _)| number > first));
    }

    #[test]
    fn a_snapshot_that_comes_slowly_makes_way_for_the_next_of_its_name() {
        let connections = ConnectionSlots::new(10);
        let connection = || connections.take(None).expect("there is a slot").0;
        let now = Instant::now();
        let snapshots = SnapshotSlots::new(3, CHANCE);
        let all: Vec<_> = (0..3)
            .map(|n| {
                let connection = connection();
                let admission =
                    snapshots.take(&connection, [1, 1, 2][n], true, now).expect("there is a slot");
                (connection, admission)
            })
            .collect();
        let cut = || all.iter().map(|(connection, _)| is_cut(connection)).collect::<Vec<_>>();
        // The first snapshot arrives fast, the second does not.
        let late = now + CHANCE;
        all[0].1.progress.note_received(CHANCE_BYTES, late);
        all[0].1.progress.note_wait(Duration::ZERO);
        all[1].1.progress.note_received(CHANCE_BYTES - 1, late);
        assert!(
            snapshots.take(&connection(), 1, true, late - CHANCE / 2).is_none(),
            "they have their chance"
        );
        assert!(snapshots.take(&connection(), 3, true, late - CHANCE / 2).is_none());
        // The received bytes are being processed for a while, which does not count as slow.
        let later = late + CHANCE / 2;
        assert!(
            snapshots.take(&connection(), 2, false, later).is_none(),
            "one that is no member's drives out none"
        );
        let next = connection();
        let admission = snapshots.take(&next, 2, true, later).expect("the slow one makes way");
        assert_eq!((cut(), admission.before.len()), (vec![false, false, true], 1));
        all[1].1.progress.note_wait(CHANCE / 2);
        assert!(snapshots.take(&connection(), 1, true, later - Duration::from_nanos(1)).is_none());
        let admission = snapshots.take(&connection(), 1, true, later).expect("the slow one makes way");
        assert_eq!((cut(), admission.before.len()), (vec![false, true, false], 1));
        // Snapshots of other senders are ended only if no slot is free.
        snapshots.leave(admission.number);
        let latest = later + 2 * CHANCE;
        let admission = snapshots.take(&connection(), 3, true, latest).expect("there is a slot");
        assert!(admission.before.is_empty());
        let admission = snapshots.take(&connection(), 4, true, latest).expect("the slow ones make way");
        assert_eq!((cut(), admission.before.len()), (vec![true, false, false], 2));
        assert!(is_cut(&next));
    }
}
