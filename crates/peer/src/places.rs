use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use tokio::sync::Notify;

/// Connections that one member may hold before it counts as a stranger: two streams, the pipeline, requests, a snapshot.
const MEMBER_PLACES: usize = 32;

/// The connections that are served. When all places are taken, the stranger that has been there longest makes way for
/// who comes: members always find a place.
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
    /// Where it comes from, if it is a socket.
    pub(crate) address: Option<IpAddr>,
    /// It has to make way.
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
            let number = Places::least(&taken)?;
            taken.remove(&number)?.cut.notify_one();
        }
        let number = self.next.get();
        self.next.set(number + 1);
        let guest = Rc::new(Guest { number, member: Cell::new(0), address, cut: Notify::new() });
        taken.insert(number, Rc::clone(&guest));
        Some((guest, full))
    }

    /// Who has to make way: the oldest stranger, or else the oldest connection of a member that has too many.
    fn least(taken: &BTreeMap<u64, Rc<Guest>>) -> Option<u64> {
        let mut of = BTreeMap::new();
        for guest in taken.values() {
            match guest.member.get() {
                0 => return Some(guest.number),
                member => {
                    let (_, count) = of.entry(member).or_insert((guest.number, 0));
                    *count += 1;
                }
            }
        }
        let most = of.into_values().max_by_key(|(_, count)| *count);
        most.filter(|(_, count)| *count > MEMBER_PLACES).map(|(number, _)| number)
    }

    /// The connection has ended.
    pub(crate) fn leave(&self, guest: &Guest) {
        self.taken.borrow_mut().remove(&guest.number);
    }
}

/// The snapshots that come in now. One that comes from where this member reaches the sender that it names finds a place,
/// as long as another does not: without TLS anybody can name a member, but not send from its address.
pub(crate) struct SnapshotPlaces {
    max: usize,
    taken: RefCell<Vec<SnapshotPlace>>,
    next: Cell<u64>,
}

struct SnapshotPlace {
    number: u64,
    at_home: bool,
    guest: Rc<Guest>,
}

impl SnapshotPlaces {
    pub(crate) fn new(max: usize) -> SnapshotPlaces {
        SnapshotPlaces { max, taken: RefCell::default(), next: Cell::new(0) }
    }

    /// A place for a snapshot that comes on this connection, by number. Those that do not come from their senders make way for
    /// one that does, and their connections with them, whether there are places left or not: only one is received at a time,
    /// and it would have to wait. `None` when there is none to be had.
    pub(crate) fn take(&self, guest: &Rc<Guest>, at_home: bool) -> Option<u64> {
        let mut taken = self.taken.borrow_mut();
        if at_home {
            taken.extract_if(.., |place| !place.at_home).for_each(|place| place.guest.cut.notify_one());
        }
        if taken.len() >= self.max {
            return None;
        }
        let number = self.next.get();
        self.next.set(number + 1);
        taken.push(SnapshotPlace { number, at_home, guest: Rc::clone(guest) });
        Some(number)
    }

    /// The snapshot has come to its end.
    pub(crate) fn leave(&self, number: u64) {
        self.taken.borrow_mut().retain(|place| place.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // A member that comes back finds a place, whoever else is there.
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
        let snapshots = SnapshotPlaces::new(3);
        let (member, strangers) = (guest(), [guest(), guest()]);
        let first = snapshots.take(&member, true).expect("there is a place");
        for stranger in &strangers {
            snapshots.take(stranger, false).expect("there is a place");
        }
        assert_eq!(snapshots.take(&guest(), false), None, "strangers drive nobody out");
        let second = snapshots.take(&member, true).expect("the strangers make way");
        assert!(is_cut(&strangers[0]) && is_cut(&strangers[1]) && !is_cut(&member));
        snapshots.take(&member, true).expect("there is a place");
        assert_eq!(snapshots.take(&member, true), None, "no member drives out a member");
        snapshots.leave(first);
        // A place that was lost is left as well.
        snapshots.leave(77);
        assert!(snapshots.take(&guest(), false).is_some_and(|number| number > second));
    }
}
