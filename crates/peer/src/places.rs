//! Bounds of the connections and snapshots that other members, or strangers, may have open: [`Places`] and
//! [`SnapshotPlaces`] decide which one makes way for a new one. They serve nothing themselves.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

/// Connections that one member may hold before it counts as a stranger: two streams, the pipeline, requests, a snapshot.
const MEMBER_PLACES: usize = 32;

/// The connections that are served, and those that are shaking hands. When all places are taken, a stranger makes way for who
/// comes: members always find a place. It is the one that has been there longest of the address that has the most, so that
/// an address that opens many does not drive out the others; those whose certificates were verified come last.
pub(crate) struct Places {
    max: usize,
    taken: RefCell<BTreeMap<u64, Rc<Guest>>>,
    next: Cell<u64>,
}

/// One connection.
pub(crate) struct Guest {
    number: u64,
    /// The member that has made itself known on it; 0 for a stranger.
    pub(crate) member: Cell<u64>,
    /// Address of the other end, if it is a socket.
    pub(crate) address: Option<IpAddr>,
    /// True if the client has shown a certificate that was verified.
    pub(crate) is_verified: Cell<bool>,
    /// Notified when the connection has to make way.
    pub(crate) cut: Notify,
}

impl Places {
    pub(crate) fn new(max: usize) -> Places {
        Places { max, taken: RefCell::default(), next: Cell::new(0) }
    }

    /// A place for a connection; whether another one had to make way for it. `None` when there is none to be had.
    pub(crate) fn take(&self, address: Option<IpAddr>) -> Option<(Rc<Guest>, bool)> {
        let mut taken = self.taken.borrow_mut();
        let full = taken.len() >= self.max;
        if full {
            let (address, is_verified, count) = Places::most_strangers(&taken);
            if count > 0 {
                // Several at once, so that not everybody who comes has to look at all.
                let batch = (self.max / 128).min(count / 2).max(1);
                let same = |guest: &Guest| {
                    guest.member.get() == 0
                        && guest.address == address
                        && guest.is_verified.get() == is_verified
                };
                let cut: Vec<u64> = taken
                    .values()
                    .filter(|guest| same(guest))
                    .take(batch)
                    .map(|guest| guest.number)
                    .collect();
                for number in cut {
                    taken.remove(&number)?.cut.notify_one();
                }
            } else {
                let number = Places::least(&taken)?;
                taken.remove(&number)?.cut.notify_one();
            }
        }
        let number = self.next.get();
        self.next.set(number + 1);
        let guest = Rc::new(Guest {
            number,
            member: Cell::new(0),
            address,
            is_verified: Cell::new(false),
            cut: Notify::new(),
        });
        taken.insert(number, Rc::clone(&guest));
        Some((guest, full))
    }

    /// Returns the address that has the most connections of strangers, of those whose certificates were not verified if there
    /// are some; whether they were; and how many there are, which may be none.
    fn most_strangers(taken: &BTreeMap<u64, Rc<Guest>>) -> (Option<IpAddr>, bool, usize) {
        let mut strangers = [HashMap::new(), HashMap::new()];
        for guest in taken.values().filter(|guest| guest.member.get() == 0) {
            let same: &mut HashMap<_, _> = &mut strangers[usize::from(guest.is_verified.get())];
            let (_, count) = same.entry(guest.address).or_insert((guest.number, 0_usize));
            *count += 1;
        }
        for (strangers, is_verified) in strangers.into_iter().zip([false, true]) {
            // Of those that have the most, the one that was there first.
            let most = strangers.into_iter().max_by_key(|(_, (number, count))| (*count, Reverse(*number)));
            if let Some((address, (_, count))) = most {
                return (address, is_verified, count);
            }
        }
        (None, false, 0)
    }

    /// Returns the oldest connection of a member that has too many.
    fn least(taken: &BTreeMap<u64, Rc<Guest>>) -> Option<u64> {
        let mut of = BTreeMap::new();
        for guest in taken.values() {
            let (_, count) = of.entry(guest.member.get()).or_insert((guest.number, 0));
            *count += 1;
        }
        let most = of.into_values().max_by_key(|(_, count)| *count);
        most.filter(|(_, count)| *count > MEMBER_PLACES).map(|(number, _)| number)
    }

    /// The connection has ended.
    pub(crate) fn leave(&self, guest: &Guest) {
        self.taken.borrow_mut().remove(&guest.number);
    }
}

/// The snapshots that come in now.
///
/// Without TLS anybody can name a member. Two rules keep a stranger from holding up the one that a member sends. One that
/// comes from where this member reaches the sender that it names finds a place, as long as another does not. And a sender
/// has one under way at a time: when another begins in its name, those before it make way, unless they come fast.
pub(crate) struct SnapshotPlaces {
    max: usize,
    /// Time that a snapshot may arrive slowly before it makes way for another.
    chance: Duration,
    taken: RefCell<Vec<SnapshotPlace>>,
    next: Cell<u64>,
}

struct SnapshotPlace {
    number: u64,
    from: u64,
    at_home: bool,
    guest: Rc<Guest>,
    progress: Rc<Progress>,
    /// Ends with the task that takes what comes.
    ended: oneshot::Receiver<()>,
}

/// The place that a snapshot got, and the snapshots that made way for it.
pub(crate) struct SnapshotAdmission {
    pub(crate) number: u64,
    pub(crate) progress: Rc<Progress>,
    /// Dropped when the task that takes the snapshot has ended.
    pub(crate) taker: oneshot::Sender<()>,
    /// Snapshots that have made way; each receiver resolves when the task that took it has ended.
    pub(crate) before: Vec<oneshot::Receiver<()>>,
}

/// Progress of a snapshot that is being received.
pub(crate) struct Progress {
    /// Bytes that bring another chance.
    bytes: Cell<usize>,
    /// True if more is waited for, and until when its chance lasts.
    waits: Cell<bool>,
    until: Cell<Instant>,
    chance: Duration,
}

/// Bytes that have to come within each chance.
const CHANCE_BYTES: usize = 16 << 20;

impl Progress {
    fn new(chance: Duration, now: Instant) -> Progress {
        Progress { bytes: Cell::new(0), waits: Cell::new(true), until: Cell::new(now + chance), chance }
    }

    /// Notes that this many bytes have arrived, and that no read waits for more now.
    pub(crate) fn came(&self, bytes: usize, now: Instant) {
        self.waits.set(false);
        let bytes = self.bytes.get() + bytes;
        self.bytes.set(if bytes < CHANCE_BYTES { bytes } else { 0 });
        if bytes >= CHANCE_BYTES {
            self.until.set(now + self.chance);
        }
    }

    /// More is waited for, after so long.
    pub(crate) fn waits(&self, paused: Duration) {
        self.waits.set(true);
        self.until.set(self.until.get() + paused);
    }

    /// All has arrived: what takes time from now on is this member's own work.
    pub(crate) fn arrived(&self) {
        self.waits.set(false);
    }

    fn is_slow(&self, now: Instant) -> bool {
        self.waits.get() && now >= self.until.get()
    }
}

impl SnapshotPlaces {
    pub(crate) fn new(max: usize, chance: Duration) -> SnapshotPlaces {
        SnapshotPlaces { max, chance, taken: RefCell::default(), next: Cell::new(0) }
    }

    /// A place for a snapshot that comes on this connection in the name of `from`. Those that do not come from their senders
    /// make way for one that does, and so do those that have come slowly for a while: of this name, and of any if there is no
    /// place left. Their connections end, whether there are places left or not: only one is received at a time, and it would
    /// have to wait. `None` when there is none to be had.
    pub(crate) fn take(
        &self,
        guest: &Rc<Guest>,
        from: u64,
        at_home: bool,
        now: Instant,
    ) -> Option<SnapshotAdmission> {
        let mut taken = self.taken.borrow_mut();
        let full = taken.len() >= self.max;
        let makes_way = |place: &mut SnapshotPlace| {
            let stranger = at_home && !place.at_home;
            let slow = place.progress.is_slow(now) && (full || place.from == from);
            stranger || slow && (at_home || !place.at_home)
        };
        let mut before = Vec::new();
        for place in taken.extract_if(.., makes_way) {
            place.guest.cut.notify_one();
            before.push(place.ended);
        }
        let is_well =
            |place: &SnapshotPlace| place.from == from && place.at_home && !place.progress.is_slow(now);
        // One that is not would come before one that is, which may be waiting yet for those that made way for it.
        if taken.len() >= self.max || !at_home && taken.iter().any(is_well) {
            return None;
        }
        let number = self.next.get();
        self.next.set(number + 1);
        let progress = Rc::new(Progress::new(self.chance, now));
        let (taker, ended) = oneshot::channel();
        let place = SnapshotPlace {
            number,
            from,
            at_home,
            guest: Rc::clone(guest),
            progress: Rc::clone(&progress),
            ended,
        };
        taken.push(place);
        Some(SnapshotAdmission { number, progress, taker, before })
    }

    /// The snapshot has come to its end.
    pub(crate) fn leave(&self, number: u64) {
        self.taken.borrow_mut().retain(|place| place.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANCE: Duration = Duration::from_secs(20);

    fn is_cut(guest: &Guest) -> bool {
        use std::future::Future;
        let mut cut = Box::pin(guest.cut.notified());
        cut.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn strangers_make_way_and_members_stay() {
        let places = Places::new(80);
        let take = |member| {
            let (guest, _) = places.take(None).expect("there is a place");
            guest.member.set(member);
            guest
        };
        let members: Vec<_> = (0..8).map(|n| take(1 + n % 2)).collect();
        let strangers: Vec<_> = (0..200).map(|_| take(0)).collect();
        assert_eq!(places.taken.borrow().len(), 80);
        assert_eq!(strangers.iter().filter(|guest| is_cut(guest)).count(), 200 - 72);
        // A member that comes back finds a place, whichever others are there.
        let back: Vec<_> = (0..20).map(|_| take(1)).collect();
        assert!(!members.iter().chain(&back).any(|guest| is_cut(guest)));
        // One that says that it is a member does not drive the others out.
        let many: Vec<_> = (0..200).map(|_| take(2)).collect();
        assert!(!back.iter().any(|guest| is_cut(guest)));
        assert_eq!(places.taken.borrow().len(), 80);
        drop((strangers, many));
        places.leave(&back[0]);
        assert_eq!(places.taken.borrow().len(), 79);
        assert!(places.take(None).is_some_and(|(_, cut)| !cut));
    }

    #[test]
    fn an_address_with_many_connections_drives_out_its_own() {
        let places = Places::new(20);
        let take = |address: &str| places.take(Some(address.parse().unwrap())).expect("there is a place").0;
        let member = take("10.0.0.1");
        let flood: Vec<_> = (0..200).map(|_| take("10.0.0.66")).collect();
        assert!(!is_cut(&member), "it shakes hands");
        assert_eq!(flood.iter().filter(|guest| is_cut(guest)).count(), 200 - 19);
        // Of strangers from as many addresses, the one that shows a certificate stays.
        let places = Places::new(20);
        let all: Vec<_> =
            (0..20).map(|n| places.take(Some([10, 0, 0, n].into())).expect("there is a place").0).collect();
        all[0].is_verified.set(true);
        places.take(Some([10, 0, 1, 0].into())).expect("there is a place");
        assert_eq!((is_cut(&all[0]), is_cut(&all[1])), (false, true));
    }

    #[test]
    fn when_members_have_all_places_nobody_else_comes() {
        let places = Places::new(4);
        for member in 1..=4 {
            places.take(None).expect("there is a place").0.member.set(member);
        }
        assert!(places.take(None).is_none());
    }

    #[test]
    fn a_snapshot_from_its_senders_address_finds_a_place() {
        let guests = Places::new(10);
        let guest = || guests.take(None).expect("there is a place").0;
        let now = Instant::now();
        let snapshots = SnapshotPlaces::new(3, CHANCE);
        let take = |guest: &Rc<Guest>, at_home| {
            snapshots.take(guest, 1, at_home, now).map(|admission| (admission.number, admission.before.len()))
        };
        let (member, strangers) = (guest(), [guest(), guest(), guest()]);
        for stranger in &strangers {
            take(stranger, false).expect("there is a place");
        }
        assert_eq!(take(&guest(), false), None, "strangers drive nobody out");
        let (first, before) = take(&member, true).expect("the strangers make way");
        assert!(strangers.iter().all(|guest| is_cut(guest)) && !is_cut(&member) && before == 3);
        // Until they have, no other comes first.
        assert_eq!(take(&guest(), false), None);
        let more = [take(&member, true), take(&member, true)];
        assert!(more.iter().all(Option::is_some), "there is a place");
        assert_eq!(take(&member, true), None, "no member drives out a member");
        snapshots.leave(first);
        more.into_iter().flatten().for_each(|(number, _)| snapshots.leave(number));
        // A place that was lost is left as well.
        snapshots.leave(77);
        assert!(take(&guest(), false).is_some_and(|(number, _)| number > first));
    }

    #[test]
    fn a_snapshot_that_comes_slowly_makes_way_for_the_next_of_its_name() {
        let guests = Places::new(10);
        let guest = || guests.take(None).expect("there is a place").0;
        let now = Instant::now();
        let snapshots = SnapshotPlaces::new(3, CHANCE);
        let all: Vec<_> = (0..3)
            .map(|n| {
                let guest = guest();
                let admission = snapshots.take(&guest, [1, 1, 2][n], true, now).expect("there is a place");
                (guest, admission)
            })
            .collect();
        let cut = || all.iter().map(|(guest, _)| is_cut(guest)).collect::<Vec<_>>();
        // The first comes fast, the second does not.
        let late = now + CHANCE;
        all[0].1.progress.came(CHANCE_BYTES, late);
        all[0].1.progress.waits(Duration::ZERO);
        all[1].1.progress.came(CHANCE_BYTES - 1, late);
        assert!(snapshots.take(&guest(), 1, true, late - CHANCE / 2).is_none(), "they have their chance");
        assert!(snapshots.take(&guest(), 3, true, late - CHANCE / 2).is_none());
        // What comes is being taken for a while: that is nobody's fault.
        let later = late + CHANCE / 2;
        assert!(
            snapshots.take(&guest(), 2, false, later).is_none(),
            "one that is no member's drives out none"
        );
        let next = guest();
        let admission = snapshots.take(&next, 2, true, later).expect("the slow one makes way");
        assert_eq!((cut(), admission.before.len()), (vec![false, false, true], 1));
        all[1].1.progress.waits(CHANCE / 2);
        assert!(snapshots.take(&guest(), 1, true, later - Duration::from_nanos(1)).is_none());
        let admission = snapshots.take(&guest(), 1, true, later).expect("the slow one makes way");
        assert_eq!((cut(), admission.before.len()), (vec![false, true, false], 1));
        // Of another name only where there is no place left.
        snapshots.leave(admission.number);
        let latest = later + 2 * CHANCE;
        let admission = snapshots.take(&guest(), 3, true, latest).expect("there is a place");
        assert!(admission.before.is_empty());
        let admission = snapshots.take(&guest(), 4, true, latest).expect("the slow ones make way");
        assert_eq!((cut(), admission.before.len()), (vec![true, false, false], 2));
        assert!(is_cut(&next));
    }
}
