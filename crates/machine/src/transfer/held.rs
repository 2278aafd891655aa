//! What a receiver has, and whether a sender's state can follow on it.

use numbers::{Index, Revision};

use crate::codec::{Input, Malformed, put_i64, put_u64};
use crate::image::Head;
use crate::machine::Machine;
use crate::state_hash::StateTrail;

/// The first format has no hash.
const FORMAT_UNHASHED: u64 = 1;
const FORMAT: u64 = 2;

/// The versions that a receiver has: of every revision up to `revision`, all but those that some compaction made
/// unreadable. Its parts may have come at different moments, so these may be several compactions: it has all that the
/// states compacted at the revisions `compacted_min` through `compacted_max` keep, and may have versions that only the
/// oldest keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The revision up to which nothing is missing.
    pub revision: Revision,
    /// The oldest compact revision of any part; -1 for none.
    pub compacted_min: Revision,
    /// The newest.
    pub compacted_max: Revision,
    /// An entry, and the rolling hash of the state after it: of the member whose state the newest part is of. `None`
    /// if it is not known, or the receiver does not say; then nobody can tell whether what it has is right.
    pub hashed: Option<(Index, u64)>,
}

impl Held {
    /// The bytes by which a sender learns of it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.encode(FORMAT);
        put_u64(&mut out, u64::from(self.hashed.is_some()));
        if let Some((index, hash)) = self.hashed {
            put_u64(&mut out, index.0);
            out.extend_from_slice(&hash.to_le_bytes());
        }
        out
    }

    /// Returns the bytes without the hash, for a sender of an earlier version.
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

    /// Reads them.
    ///
    /// # Errors
    ///
    /// When they are of another format, or nobody can have that.
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
            return Err(Malformed("a state that nobody can have"));
        }
        Ok(held)
    }
}

impl Machine {
    /// Returns what this member has, as [`Head::held`] does.
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
    /// Returns what the member with this head has.
    pub fn held(&self) -> Held {
        Held {
            revision: self.revision,
            compacted_min: self.compact_revision,
            compacted_max: self.compact_revision,
            hashed: self.state_hash.map(|hash| (self.applied_index, hash)),
        }
    }

    /// Returns true if what this state has above `held.revision`, merged with what is held, and without what this state's
    /// compact revision makes unreadable, is this state.
    ///
    /// Let F be `held.revision` and C the compact revision here. What is wanted is every version above C, and at or
    /// below it the newest of each key unless it is a deletion below C.
    ///
    /// Nothing wanted is missing. Above F all of it is sent. At or below F it was written before, and whatever part
    /// is held was compacted at a revision not above C (`compacted_max`): what is above C is above that too, and
    /// what is its key's newest at C was its newest there, or is above. So every part has it.
    ///
    /// Nothing unwanted stays. A version held is unwanted if it lies at or below C and is not its key's newest there:
    /// then something at or below C came after it. If that is held or sent, merging sees it and drops the older one.
    /// Puts that are newest at C are always sent. So are deletions, but for those below C that compaction has
    /// already removed: if none of them lies above F, all is well, and `delta_from_min` is the highest of them. If
    /// one does, the held keys that it deleted would come back. But then F is below C, and if what is held was
    /// compacted at C already, whenever and wherever, all of it at or below F is its key's newest at C: nothing
    /// came after it at or below C, no deletion either. That is what lets the transfer of a whole state, once broken
    /// off, go on after years of compactions that lie behind it, as long as none has come since.
    pub fn can_follow(&self, held: &Held) -> bool {
        held.revision <= self.revision
            && held.compacted_max <= self.compact_revision
            && (held.compacted_min == self.compact_revision || held.revision >= self.delta_from_min)
    }

    /// The revision behind which a transfer to the holder of this begins; 0 when everything has to be sent.
    ///
    /// Less than everything is sent only to a receiver that is known to hold what this member held: the hash of its
    /// state is that of `trail`, which is this member's, after the same entry. The receiver goes on with the sender's
    /// hash, so a difference below the transfer would never be seen again. Where the trail does not go back so far, or
    /// the receiver tells no hash, it gets everything.
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
        // Nothing was ever compacted.
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
        // Compacted at 50 here, the last deletion removed is that of 40.
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
        // Another hash after entry 7, or none that is known.
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
