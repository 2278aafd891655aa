//! Describes the versions that the receiver of a transfer has, and decides whether a sender's state can be
//! sent on top of them.

use numbers::{Index, Revision};

use crate::codec::{Input, Malformed, put_i64, put_u64};
use crate::image::Head;
use crate::machine::Machine;
use crate::state_hash::StateTrail;

/// Format number of the encoding without a hash.
const FORMAT_UNHASHED: u64 = 1;
const FORMAT: u64 = 2;

/// The versions that a receiver has: of every revision up to `revision`, all versions except those that a
/// compaction made unreadable. They may consist of several parts: the receiver's own earlier state, and the
/// versions of each stream that it received. The parts are of different moments, and so may have different
/// compact revisions. Each part lacks at most the versions that are unreadable at its own compact revision.
/// So the receiver has every version that is readable at the compact revision `compacted_max`, and possibly
/// older versions, which are readable only at a lower compact revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Revision up to which no version is missing.
    pub revision: Revision,
    /// Lowest compact revision of any part; -1 for none.
    pub compacted_min: Revision,
    /// Highest compact revision of any part; -1 for none.
    pub compacted_max: Revision,
    /// Log index of an entry, and the rolling hash after that entry on the member that sent the newest
    /// versions. `None` if the hash is unknown or the receiver does not send it; the receiver's versions then
    /// cannot be verified.
    pub hashed: Option<(Index, u64)>,
}

impl Held {
    /// Encodes the description for the sender.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.encode(FORMAT);
        put_u64(&mut out, u64::from(self.hashed.is_some()));
        if let Some((index, hash)) = self.hashed {
            put_u64(&mut out, index.0);
            out.extend_from_slice(&hash.to_le_bytes());
        }
        out
    }

    /// Encodes the description without the hash, for a sender that runs an earlier release of Mainstay.
    pub fn to_bytes_unhashed(&self) -> Vec<u8> {
        self.encode(FORMAT_UNHASHED)
    }

    fn encode(&self, format: u64) -> Vec<u8> {
        let mut out = Vec::new();
        put_u64(&mut out, format);
        for number in [self.revision, self.compacted_min, self.compacted_max] {
            put_i64(&mut out, number.0);
        }
        out
    }

    /// Decodes a description that a receiver has sent.
    ///
    /// # Errors
    ///
    /// Returns an error if the format is unknown, or the revisions are out of range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Held, Malformed> {
        const MAX: Revision = Revision(i64::MAX / 2);
        let mut input = Input(bytes);
        let format = input.u64()?;
        if !(FORMAT_UNHASHED..=FORMAT).contains(&format) {
            return Err(Malformed("a format of another version of this program"));
        }
        let mut revision = || input.i64().map(Revision);
        let (revision, compacted_min, compacted_max) = (revision()?, revision()?, revision()?);
        let mut hashed = None;
        if format == FORMAT && input.bool()? {
            let index = Index(input.u64()?);
            let hash = input.raw(8)?.try_into().map_err(|_| Malformed("bytes beyond the end"))?;
            hashed = Some((index, u64::from_le_bytes(hash)));
        }
        let held = Held { revision, compacted_min, compacted_max, hashed };
        if !input.is_empty()
            || !(Revision(0)..=MAX).contains(&held.revision)
            || !(Revision::NEVER_COMPACTED..=MAX).contains(&held.compacted_min)
            || held.compacted_max < held.compacted_min
        {
            return Err(Malformed("a state that no member can have"));
        }
        Ok(held)
    }
}

impl Machine {
    /// Returns which versions this member has: the same as [`Head::held`] of its head.
    pub fn held(&self) -> Held {
        let snapshot = self.store.snapshot();
        Held {
            revision: snapshot.current_revision(),
            compacted_min: snapshot.compact_revision(),
            compacted_max: snapshot.compact_revision(),
            hashed: self.state_hash().map(|hash| (self.applied_index, hash)),
        }
    }
}

impl Head {
    /// Returns which versions the member with this head has.
    pub fn held(&self) -> Held {
        Held {
            revision: self.revision,
            compacted_min: self.compact_revision,
            compacted_max: self.compact_revision,
            hashed: self.state_hash.map(|hash| (self.applied_index, hash)),
        }
    }

    /// Returns true if the receiver gets exactly this state when it merges the versions above `held.revision`
    /// with those that it has, and drops the versions that this state's compact revision makes unreadable.
    pub fn can_follow(&self, held: &Held) -> bool {
        // Let F be `held.revision`, and C the compact revision of this state. The receiver needs every
        // version above C and, for each key, the newest version at or below C, unless that is a deletion
        // below C.
        //
        // No needed version is missing. Versions above F are all sent. Versions at or below F are in the
        // receiver's parts, each of which was compacted at a revision not above C (`compacted_max`): a
        // version above C is above that revision, too, and the newest version of a key at C either was the
        // newest at that revision or is above it. So every part has the versions that are needed.
        //
        // No superfluous version stays. A version of the receiver is superfluous if it is at or below C and
        // not the newest of its key there: then a later version of the key at or below C exists. If the
        // receiver has that later version or gets it, the merge drops the superfluous one. Puts that are
        // newest at C are always sent. Deletions are sent, too, except those below C that compaction has
        // already removed, the highest of which is `delta_from_min`. If none of the removed deletions is
        // above F, nothing is lost.
        //
        // If a removed deletion is above F, it is possibly needed: the receiver may have the key that it
        // deleted. But it is not needed if all of the receiver's parts were compacted at C already. Removed
        // deletions are below C, so F is below C, too. Every version at or below F that the receiver has is
        // therefore the newest of its key at C, and no later deletion of the key at or below C exists. This
        // is why an interrupted transfer of a whole state can be resumed, however often the state was
        // compacted before the transfer, unless a compaction has happened since.
        held.revision <= self.revision
            && held.compacted_max <= self.compact_revision
            && (held.compacted_min == self.compact_revision || held.revision >= self.delta_from_min)
    }

    /// Returns the revision after which a transfer to this receiver starts; 0 if everything has to be sent.
    ///
    /// A partial transfer is sent only if the receiver provably had the same state as this member: the hash
    /// of the receiver's state after an entry equals this member's hash after the same entry, which `trail`
    /// contains. This is required because the receiver continues with the sender's hash: a difference in the
    /// older versions would never be detected. If the trail does not reach back far enough, or the receiver
    /// sends no hash, everything is sent.
    pub fn transfer_from(&self, held: Option<&Held>, trail: &StateTrail) -> Revision {
        let is_same =
            |held: &&Held| held.hashed.is_some_and(|(index, hash)| trail.hash_at(index) == Some(hash));
        held.filter(|held| self.can_follow(held)).filter(is_same).map_or(Revision(0), |held| held.revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Rules;
    use crate::state_hash::StatePoint;

    fn head(revision: Revision, compact_revision: Revision, delta_from_min: Revision) -> Head {
        let machine = Machine::new(Rules { learners_max: 1 });
        Head { revision, compact_revision, delta_from_min, ..machine.head() }
    }

    #[test]
    fn what_can_follow_on_what() {
        let hashed = Some((Index(7), 70));
        let held =
            |revision, compacted_min, compacted_max| Held { revision, compacted_min, compacted_max, hashed };
        // Neither state was ever compacted.
        assert!(head(Revision(100), Revision(-1), Revision(0)).can_follow(&held(
            Revision(0),
            Revision(-1),
            Revision(-1)
        )));
        assert!(head(Revision(100), Revision(-1), Revision(0)).can_follow(&held(
            Revision(100),
            Revision(-1),
            Revision(-1)
        )));
        assert!(
            !head(Revision(100), Revision(-1), Revision(0)).can_follow(&held(
                Revision(101),
                Revision(-1),
                Revision(-1)
            )),
            "it is ahead"
        );
        // Compacted at 50; the highest removed deletion is at revision 40.
        let now = head(Revision(100), Revision(50), Revision(40));
        assert!(now.can_follow(&held(Revision(40), Revision(-1), Revision(-1))));
        assert!(now.can_follow(&held(Revision(70), Revision(30), Revision(50))));
        assert!(
            !now.can_follow(&held(Revision(39), Revision(-1), Revision(-1))),
            "it may have what the deletion of 40 deleted"
        );
        assert!(!now.can_follow(&held(Revision(39), Revision(30), Revision(50))), "a part of it may");
        assert!(
            now.can_follow(&held(Revision(10), Revision(50), Revision(50))),
            "it has only what is newest at 50"
        );
        assert!(
            !now.can_follow(&held(Revision(60), Revision(51), Revision(51))),
            "it has not what is readable here"
        );
        assert!(!now.can_follow(&held(Revision(60), Revision(50), Revision(51))));
        let point = |index| StatePoint { index: Index(index), revision: Revision(1), hash: index * 10 };
        let trail = |points: &[u64]| StateTrail {
            applied_index: Index(9),
            points: points.iter().map(|index| point(*index)).collect(),
        };
        assert_eq!(
            now.transfer_from(Some(&held(Revision(40), Revision(-1), Revision(-1))), &trail(&[6, 7, 8])),
            Revision(40)
        );
        assert_eq!(
            now.transfer_from(Some(&held(Revision(39), Revision(-1), Revision(-1))), &trail(&[6, 7, 8])),
            Revision(0)
        );
        assert_eq!(now.transfer_from(None, &trail(&[6, 7, 8])), Revision(0));
        // The hash after entry 7 differs, or no hash is known.
        for points in [&[6, 8][..], &[8, 9], &[]] {
            assert_eq!(
                now.transfer_from(Some(&held(Revision(40), Revision(-1), Revision(-1))), &trail(points)),
                Revision(0),
                "{points:?}"
            );
        }
        let unhashed = Held { hashed: None, ..held(Revision(40), Revision(-1), Revision(-1)) };
        assert_eq!(now.transfer_from(Some(&unhashed), &trail(&[6, 7, 8])), Revision(0));
        let ahead = Held { hashed: Some((Index(10), 90)), ..unhashed };
        assert_eq!(
            now.transfer_from(Some(&ahead), &trail(&[9])),
            Revision(0),
            "an entry that is not applied here"
        );
    }

    #[test]
    fn a_machine_says_what_its_head_says() {
        let machine = Machine::new(Rules { learners_max: 1 });
        assert_eq!(machine.held(), machine.head().held());
    }

    #[test]
    fn it_is_told_in_bytes() {
        let held = Held {
            revision: Revision(1 << 40),
            compacted_min: Revision(-1),
            compacted_max: Revision(77),
            hashed: Some((Index(5), u64::MAX)),
        };
        let bytes = held.to_bytes();
        assert_eq!(Held::from_bytes(&bytes), Ok(held));
        let unhashed = Held { hashed: None, ..held };
        assert_eq!(Held::from_bytes(&unhashed.to_bytes()), Ok(unhashed));
        assert_eq!(
            Held::from_bytes(&held.to_bytes_unhashed()),
            Ok(unhashed),
            "as an earlier version tells it"
        );
        for len in 0..bytes.len() {
            assert!(Held::from_bytes(&bytes[..len]).is_err(), "{len}");
        }
        assert!(Held::from_bytes(&[bytes.as_slice(), &[0]].concat()).is_err());
        for wrong in [
            Held { revision: Revision(-1), ..held },
            Held { compacted_min: Revision(-2), ..held },
            Held { compacted_min: Revision(78), ..held },
            Held { revision: Revision::MAX, ..held },
        ] {
            assert!(Held::from_bytes(&wrong.to_bytes()).is_err(), "{wrong:?}");
        }
    }
}
