//! Defines the head of a checkpoint: all state except keys and values.

use numbers::{Index, Revision, Term};

use crate::alarm::Alarms;
use crate::auth::Auth;
use crate::codec::{Input, Malformed, put_i64, put_u64};
use crate::image::{
    FORMAT_COMPRESSED, FORMAT_HASHED, FORMATS_READ, HEAD, IN_BLOCKS, LEASES_APART, LEASES_IN_HEAD_MAX,
    format_written,
};
use crate::lease::Leases;
use crate::machine::Machine;
use crate::member::Members;
use crate::state_hash;

/// The state of a machine except keys and values, copied at a moment between two entries; leases are shared
/// with the machine until they change. The head belongs to the view that is published at the same moment.
#[derive(Clone, Debug)]
pub struct Head {
    /// Current revision of the store.
    pub revision: Revision,
    /// Compact revision; -1 for none.
    pub compact_revision: Revision,
    /// Log index of the last applied entry.
    pub applied_index: Index,
    /// Raft term of the last applied entry.
    pub applied_term: Term,
    /// Lowest revision from which a delta run can start. Compaction has removed deletions with revisions up
    /// to this one from the index. A delta run without these deletions would bring back keys of an earlier
    /// run, so from a lower revision a base run must be written instead.
    pub delta_from_min: Revision,
    /// Bytes in use, which the space quota limits.
    pub in_use_bytes: u64,
    /// Rolling hash of the state; see [`Machine::state_hash`].
    pub state_hash: Option<u64>,
    /// True if values are compressed, or may become compressed before the run is written. An older release,
    /// which would misread their locations, then refuses the run.
    pub compressed_values: bool,
    /// Number of versions in the index. Versions that a compaction made unreadable count until they are
    /// removed.
    pub(crate) versions: u64,
    /// All granted leases.
    pub leases: Leases,
    /// All raised alarms.
    pub alarms: Alarms,
    /// Members of the cluster, and the cluster version.
    pub members: Members,
    /// Users, roles, and whether authentication is enabled.
    pub auth: Auth,
}

impl Machine {
    /// Returns the head of a checkpoint of the current state. Copying the leases costs one pointer per about
    /// 230 leases. The matching view must be published before the next entry is applied.
    pub fn head(&self) -> Head {
        assert!(self.is_whole(), "an image is of a moment between two entries");
        let snapshot = self.store.snapshot();
        Head {
            revision: snapshot.current_revision(),
            compact_revision: snapshot.compact_revision(),
            applied_index: self.applied_index,
            applied_term: self.applied_term,
            delta_from_min: self.delta_from_min,
            in_use_bytes: self.in_use_bytes(),
            state_hash: self.state_hash(),
            compressed_values: self.has_compressed_values(),
            versions: snapshot.versions(),
            leases: self.leases.clone(),
            alarms: self.alarms.clone(),
            members: self.members.clone(),
            auth: self.auth.clone(),
        }
    }
}

impl Head {
    /// Returns true if the leases are so many that they are in blocks of their own in a run.
    pub(crate) fn has_leases_apart(&self) -> bool {
        self.leases.len() > LEASES_IN_HEAD_MAX
    }

    /// Returns a head block that contains the leases, of a stream from revision `from` (0 for everything) with
    /// at most `versions` versions.
    pub(crate) fn encode(&self, from: Revision, versions: u64) -> Vec<u8> {
        self.encode_with(from, versions, false, false)
    }

    /// Returns the head block of a run. It does not contain the leases if [`Head::has_leases_apart`].
    pub(crate) fn encode_of_run(&self, from: Revision, versions: u64) -> Vec<u8> {
        self.encode_with(from, versions, self.has_leases_apart(), false)
    }

    /// Returns the head block of a base run in blocks, with the leases as in [`Head::encode_of_run`].
    pub(crate) fn encode_of_base_in_blocks(&self) -> Vec<u8> {
        self.encode_with(Revision(0), self.versions, self.has_leases_apart(), true)
    }

    fn encode_with(&self, from: Revision, versions: u64, leases_apart: bool, in_blocks: bool) -> Vec<u8> {
        let mut out = vec![HEAD];
        let format = format_written(self.compressed_values, in_blocks);
        put_u64(&mut out, format + if leases_apart { LEASES_APART } else { 0 });
        put_u64(&mut out, from.0 as u64);
        put_u64(&mut out, self.revision.0 as u64);
        put_i64(&mut out, self.compact_revision.0);
        put_u64(&mut out, self.applied_index.0);
        put_u64(&mut out, self.applied_term.0);
        put_u64(&mut out, versions);
        match leases_apart {
            true => put_u64(&mut out, self.leases.len() as u64),
            false => self.leases.encode(&mut out),
        }
        self.alarms.encode(&mut out);
        self.members.encode(&mut out);
        state_hash::encode(self.state_hash, &mut out);
        self.auth.encode(&mut out);
        out
    }
}

/// A decoded head block.
#[derive(Debug)]
pub(crate) struct SavedHead {
    /// True if this is the head of a base run in blocks.
    pub is_in_blocks: bool,
    pub from: Revision,
    pub revision: Revision,
    pub compact_revision: Revision,
    pub applied_index: Index,
    pub applied_term: Term,
    pub versions: u64,
    pub state_hash: Option<u64>,
    /// Leases in the head block.
    pub leases: Leases,
    pub alarms: Alarms,
    pub members: Members,
    pub auth: Auth,
}

impl SavedHead {
    /// Decodes a head that contains the leases.
    pub fn decode(block: &[u8]) -> Result<SavedHead, Malformed> {
        match SavedHead::decode_of_run(block, true)? {
            (head, 0) if head.is_in_blocks => Err(Malformed("a head of a base run in another place")),
            (head, 0) => Ok(head),
            _ => Err(Malformed("a head without its leases")),
        }
    }

    /// Decodes the head of a run. Returns also the number of leases that follow in blocks of their own. Keeps
    /// the leases in the head only if `keeps_leases` is true.
    pub fn decode_of_run(block: &[u8], keeps_leases: bool) -> Result<(SavedHead, u64), Malformed> {
        let mut input = Input(block);
        if input.raw(1)? != [HEAD] {
            return Err(Malformed("no head at the beginning"));
        }
        let format = input.u64()?;
        if !FORMATS_READ.contains(&format) {
            return Err(Malformed("a format of another version of this program"));
        }
        let mut leases_apart = 0;
        let number = |n: u64| i64::try_from(n).map_err(|_| Malformed("a revision out of range"));
        let is_in_blocks = format > FORMAT_COMPRESSED + LEASES_APART;
        let without_blocks = if is_in_blocks { format - IN_BLOCKS } else { format };
        let mut head = SavedHead {
            is_in_blocks,
            from: Revision(number(input.u64()?)?),
            revision: Revision(number(input.u64()?)?),
            compact_revision: Revision(input.i64()?),
            applied_index: Index(input.u64()?),
            applied_term: Term(input.u64()?),
            versions: input.u64()?,
            state_hash: None,
            leases: Leases::default(),
            alarms: Alarms::default(),
            members: Members::default(),
            auth: Auth::default(),
        };
        match keeps_leases {
            _ if without_blocks > FORMAT_COMPRESSED => leases_apart = input.u64()?,
            true => head.leases = Leases::decode(&mut input)?,
            false => Leases::skip(&mut input)?,
        }
        head.alarms = Alarms::decode(&mut input)?;
        head.members = Members::decode(&mut input)?;
        if format >= 2 {
            let hash = state_hash::decode(&mut input)?;
            head.state_hash = hash.filter(|_| format >= FORMAT_HASHED);
        }
        if format >= 3 {
            head.auth = Auth::decode(&mut input)?;
        }
        if !input.is_empty() {
            return Err(Malformed("more than a head in the first block"));
        }
        // Revisions and log indexes must be in the lower half of the range of numbers, so that later ones
        // cannot overflow.
        let bounds = Revision::FIRST..=Revision(i64::MAX / 2);
        if !bounds.contains(&head.revision)
            || head.from > head.revision
            || head.is_in_blocks && head.from > Revision(0)
            || head.compact_revision < Revision::NEVER_COMPACTED
            || head.compact_revision > head.revision
            || head.applied_index.0 > u64::MAX / 2
        {
            return Err(Malformed("a revision out of range"));
        }
        Ok((head, leases_apart))
    }
}
