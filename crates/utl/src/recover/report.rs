//! Says what was found: a table and sentences ([`Report::text`]), or JSON ([`Report::json`]).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;

use cli::Table;
use numbers::Revision;
use serde_json::{Value, json};
use storage::kv_hash::KvHash;
use storage::stopped::Stopped;

use super::found::{Found, Kind, member_name};
use super::judgement::{Judgement, Relation};

/// Revisions that the cluster would lose if it was formed from a directory that does not have the newest state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    /// First and last lost revision.
    pub from: Revision,
    pub to: Revision,
    /// Number of keys that were changed in these revisions.
    pub keys: u64,
    /// True if some of these changes were compacted, so that more keys may have been changed.
    pub is_least: bool,
}

/// Directories of one cluster, those that cannot be used, and what follows.
pub(super) struct Report {
    pub found: Vec<Found>,
    pub unusable: Vec<(PathBuf, String)>,
    pub judgement: Judgement,
    /// Loss of each directory of `found`; `None` if it lacks no revision of the newest.
    pub losses: Vec<Option<Loss>>,
    /// Directories whose keys at a committed revision are not those of the newest, with that revision.
    pub different: Vec<(usize, Revision)>,
}

/// Returns a digest of the keys of a state at a revision, with their values' checksums, revisions and leases; `None` if
/// the history does not reach to that revision. It does not depend on what was compacted. Digests with the same `seed`
/// can be compared.
pub(super) fn keys_at(stopped: &mut Stopped, at: Revision, seed: &RandomState) -> Option<u64> {
    let view = stopped.machine.store.publish();
    if at < view.snapshot().compact_revision() || at > stopped.machine.store.current_revision() {
        return None;
    }
    let mut live: HashMap<u64, u64> = HashMap::new();
    mvcc::hash_versions(&view, Revision::CURRENT, |version| {
        if version.main() > at {
            return;
        }
        let key = seed.hash_one(version.key());
        if version.is_tombstone() {
            live.remove(&key);
            return;
        }
        let mut hash = KvHash::default();
        hash.feed_checksum(version);
        live.insert(key, seed.hash_one((key, hash.finish())));
    })
    .ok()?;
    Some(live.into_values().fold(0, u64::wrapping_add))
}

/// Computes what each of `others` lacks of the newest state, which `newest` holds.
pub(super) fn losses(newest: &mut Stopped, others: &[Found], relations: &[Relation]) -> Vec<Option<Loss>> {
    let to = newest.machine.store.current_revision();
    // Of a log that differs from the newest at its end, only the committed part is certainly shared.
    let shared = |found: &Found| found.committed_revision.max(Revision(0));
    let lowest = others.iter().map(shared).min().unwrap_or(to);
    let view = newest.machine.store.publish();
    let compacted = view.snapshot().compact_revision();
    let mut changed: HashMap<Box<[u8]>, Revision> = HashMap::new();
    // The walk fails only for a revision that does not exist; the current one always does.
    let _ = mvcc::hash_versions(&view, Revision::CURRENT, |version| {
        if version.main() > lowest && !version.key().is_empty() {
            changed.insert(version.key().into(), version.main());
        }
    });
    let loss = |(found, relation): (&Found, &Relation)| {
        let is_part = matches!(relation, Relation::Same | Relation::Behind { .. });
        let from = if is_part && found.has_log() { found.revision } else { shared(found) };
        let from = from.min(to);
        let keys = changed.values().filter(|at| **at > from).count() as u64;
        (from < to).then(|| Loss { from: from.next(), to, keys, is_least: compacted > from })
    };
    others.iter().zip(relations).map(loss).collect()
}

impl Report {
    fn newest(&self) -> &Found {
        &self.found[self.judgement.newest]
    }

    /// Returns names of members, separated by commas.
    fn names(&self, ids: &[u64]) -> String {
        let names: Vec<String> = ids.iter().map(|id| member_name(&self.newest().members, *id)).collect();
        names.join(", ")
    }

    fn loses(&self, at: usize) -> String {
        let relation = self.judgement.relations[at];
        let mut text = match self.losses[at] {
            None => match relation {
                Relation::Behind { lacks } => format!("{} without a revision", counted(lacks, "entry")),
                _ => "nothing".to_owned(),
            },
            Some(Loss { from, to, keys, is_least }) => {
                let least = if is_least { "at least " } else { "" };
                format!("revisions {from} to {to}, {least}{}", counted(keys, "key"))
            }
        };
        match relation {
            Relation::Differs { common, own, .. } => {
                let _ =
                    write!(text, "; differs after entry {common}, has {} of its own", counted(own, "entry"));
            }
            Relation::Unclear => text.push_str("; its last entries cannot be compared"),
            Relation::Apart if self.newest().kind != Kind::Shadow => text.push_str("; users and roles"),
            _ => {}
        }
        text
    }

    /// Returns the table, followed by what it means.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new([
            "directory",
            "of",
            "member",
            "term",
            "last entry",
            "committed",
            "revision",
            "compacted",
            "keys",
            "would lose",
        ]);
        for (at, found) in self.found.iter().enumerate() {
            table.row(vec![
                found.dir.display().to_string(),
                found.kind.word().to_owned(),
                found.name(),
                found.term.to_string(),
                if found.has_log() {
                    format!("{} of term {}", found.last.index, found.last.term)
                } else {
                    String::new()
                },
                if found.has_log() { found.heard.to_string() } else { String::new() },
                found.revision.to_string(),
                if found.compact_revision < Revision(0) {
                    String::new()
                } else {
                    found.compact_revision.to_string()
                },
                found.keys.to_string(),
                self.loses(at),
            ]);
        }
        let mut text = table.to_string();
        for line in self.sentences() {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    /// Returns what the figures mean, one sentence or two in each line.
    fn sentences(&self) -> Vec<String> {
        let Report { judgement, .. } = self;
        let newest = self.newest();
        let mut lines = Vec::new();
        for (dir, why) in &self.unusable {
            lines.push(format!("Not usable: {}: {why}", dir.display()));
        }
        for found in self.found.iter().filter(|found| found.is_torn) {
            lines.push(format!(
                "{}: its log ends with an interrupted write, which nobody can have been told of unless the disk has lost data.",
                found.dir.display()
            ));
        }
        for (found, to) in self.found.iter().filter_map(|found| Some((found, found.formed.as_ref()?))) {
            lines.push(format!(
                "{}: a cluster was formed again from it in {}.",
                found.dir.display(),
                to.display()
            ));
        }
        for found in self.found.iter().filter(|found| found.is_corrupt) {
            lines.push(format!(
                "{}: the cluster has raised the CORRUPT alarm for this member, so its data may be wrong.",
                found.dir.display()
            ));
        }
        lines.push(format!(
            "Newest: {} of {}, {}revision {}.",
            newest.dir.display(),
            newest.name(),
            if newest.has_log() {
                format!("entry {} of term {}, ", newest.last.index, newest.last.term)
            } else {
                String::new()
            },
            newest.revision
        ));
        lines.extend(self.certainty());
        for at in &judgement.shadows_ahead {
            let shadow = &self.found[*at];
            lines.push(format!(
                "The shadow in {} has later changes, up to revision {}, that no other directory has, but no users and roles.",
                shadow.dir.display(),
                shadow.revision
            ));
        }
        lines
    }

    fn certainty(&self) -> Vec<String> {
        let Report { judgement, .. } = self;
        let newest = self.newest();
        let mut lines = Vec::new();
        if !newest.has_log() {
            lines.push(
                "These are only shadows: whether they have every acknowledged write cannot be known."
                    .to_owned(),
            );
            return lines;
        }
        for (at, revision) in &self.different {
            lines.push(format!(
                "{} has other keys at revision {revision} than {}: these are two histories, for example because two snapshots \
                 were restored under one cluster id, or the data of one of them are wrong. Decide which of them to keep, and \
                 give only its directories.",
                self.found[*at].dir.display(),
                newest.dir.display()
            ));
        }
        for at in &judgement.estranged {
            let other = &self.found[*at];
            let own = match judgement.relations[*at] {
                Relation::Differs { common, own, .. } => {
                    format!("{} after entry {common} of its own", counted(own, "entry"))
                }
                _ => "entries that cannot be compared".to_owned(),
            };
            lines.push(format!(
                "{} has {own}, and {} does not count {} as a voter: if its cluster was begun with --force-new-cluster, the others \
                 may have acknowledged them. If {} was removed in the usual way, leave its directory out.",
                other.dir.display(),
                newest.dir.display(),
                other.name(),
                other.name()
            ));
        }
        for at in &judgement.contradicting {
            if self.different.iter().any(|(other, _)| other == at) {
                continue;
            }
            let other = &self.found[*at];
            lines.push(format!(
                "{} has committed entry {} of term {}, which {} does not have: these are two histories, for example because one \
                 was started with --force-new-cluster. Decide which of them to keep, and give only its directories.",
                other.dir.display(),
                other.committed.index,
                other.committed.term,
                newest.dir.display()
            ));
        }
        if let Some(lost) = judgement.lost {
            lines.push(format!(
                "Entries {} to {lost} were committed, but no directory has them: they are lost unless another directory or a \
                 backup has them.",
                newest.last.index.next()
            ));
        }
        let (here, all) = (judgement.present.len(), judgement.present.len() + judgement.absent.len());
        if judgement.is_complete {
            lines.push(format!(
                "Directories of {here} of {} are here: no acknowledged write is missing.",
                counted(all as u64, "voter")
            ));
            let torn: Vec<String> = self
                .found
                .iter()
                .filter(|found| found.is_torn && judgement.present.contains(&found.member_id))
                .map(|found| found.dir.display().to_string())
                .collect();
            if !torn.is_empty() && here - torn.len().min(here) < judgement.quorum {
                lines.push(format!(
                    "That counts on {}, whose log ends with an interrupted write: nothing on a disk shows whether that write had \
                     been synced and was damaged later. A start of these members would count on it, too.",
                    torn.join(", ")
                ));
            }
        } else if judgement.contradicting.is_empty()
            && judgement.estranged.is_empty()
            && judgement.lost.is_none()
        {
            let why = if here < judgement.quorum {
                format!("{} are needed", judgement.quorum)
            } else {
                "the members changed at the end of the log, and those before the change count, too".to_owned()
            };
            lines.push(format!(
                "Directories of {here} of {} are here, but {why}: whatever only {} acknowledged after entry {} is missing, and \
                 how much that is cannot be known.",
                counted(all as u64, "voter"),
                self.names(&judgement.absent),
                newest.last.index
            ));
        }
        let ahead = |from: numbers::Index, to: numbers::Index| {
            if from == to { format!("Entry {to}") } else { format!("Entries {from} to {to}") }
        };
        if judgement.maybe > judgement.certain {
            lines.push(format!(
                "{} may have been acknowledged to clients, and would be kept.",
                ahead(judgement.certain.next(), judgement.maybe)
            ));
        }
        if newest.last.index > judgement.maybe {
            lines.push(format!(
                "{} cannot have been acknowledged: clients were told of no success, and would find the writes done.",
                ahead(judgement.maybe.next(), newest.last.index)
            ));
        }
        lines
    }

    /// Returns everything as one JSON object.
    pub(super) fn json(&self) -> String {
        let Report { judgement, .. } = self;
        let directories: Vec<Value> = self
            .found
            .iter()
            .enumerate()
            .map(|(at, found)| {
                let entry = |id: numbers::EntryId| json!({ "index": id.index.0, "term": id.term.0 });
                let relation = match judgement.relations[at] {
                    Relation::Same => json!({ "is": "same" }),
                    Relation::Behind { lacks } => json!({ "is": "behind", "lacks_entries": lacks }),
                    Relation::Differs { common, own, lacks } => {
                        json!({ "is": "different", "common_index": common.0, "own_entries": own, "lacks_entries": lacks })
                    }
                    Relation::Unclear => json!({ "is": "unclear" }),
                    Relation::Apart => json!({ "is": "apart" }),
                };
                let loss = self.losses[at].map(|loss| {
                    json!({
                        "from_revision": loss.from.0,
                        "to_revision": loss.to.0,
                        "keys": loss.keys,
                        "keys_at_least": loss.is_least,
                    })
                });
                json!({
                    "directory": found.dir.display().to_string(),
                    "kind": found.kind.word(),
                    "cluster_id": format!("{:x}", found.cluster_id),
                    "member_id": format!("{:x}", found.member_id),
                    "name": found.members.by_id.get(&found.member_id).map_or("", |member| &member.name),
                    "term": found.term.0,
                    "vote": format!("{:x}", found.vote),
                    "last": entry(found.last),
                    "committed": entry(found.committed),
                    "heard_committed_index": found.heard.0,
                    "committed_revision": found.committed_revision.0,
                    "revision": found.revision.0,
                    "compact_revision": found.compact_revision.0,
                    "keys": found.keys,
                    "corrupt_alarm": found.is_corrupt,
                    "interrupted_write": found.is_torn,
                    "formed_again_in": found.formed.as_ref().map(|to| to.display().to_string()),
                    "compared_with_newest": relation,
                    "would_lose": loss,
                })
            })
            .collect();
        let unusable: Vec<Value> = self
            .unusable
            .iter()
            .map(|(dir, why)| json!({ "directory": dir.display().to_string(), "why": why }))
            .collect();
        let newest = self.newest();
        let hex = |ids: &[u64]| ids.iter().map(|id| format!("{id:x}")).collect::<Vec<_>>();
        let dir = |at: &usize| self.found[*at].dir.display().to_string();
        let report = json!({
            "newest": newest.dir.display().to_string(),
            "complete": judgement.is_complete,
            "voters_present": hex(&judgement.present),
            "voters_absent": hex(&judgement.absent),
            "quorum": judgement.quorum,
            "certainly_committed_index": judgement.certain.0,
            "perhaps_acknowledged_index": judgement.maybe.0,
            "lost_up_to_index": judgement.lost.map(|index| index.0),
            "contradicting": judgement.contradicting.iter().map(dir).collect::<Vec<_>>(),
            "estranged": judgement.estranged.iter().map(dir).collect::<Vec<_>>(),
            "shadows_ahead": judgement.shadows_ahead.iter().map(dir).collect::<Vec<_>>(),
            "directories": directories,
            "unusable": unusable,
        });
        format!("{report}\n")
    }
}

/// Returns a number with the singular or plural of a noun.
pub(super) fn counted(number: u64, noun: &str) -> String {
    match (number, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) if noun != "key" => format!("{number} {stem}ies"),
        _ => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recover::judgement::tests::member;

    #[test]
    fn what_counts_on_a_log_with_a_torn_end_is_said() {
        let counts_on = |found: Vec<Found>| {
            let judgement = Judgement::of(&found).expect("there are directories");
            assert!(judgement.is_complete);
            let losses = vec![None; found.len()];
            let report = Report { found, unusable: Vec::new(), judgement, losses, different: Vec::new() };
            report.certainty().iter().any(|line| line.starts_with("That counts on m2"))
        };
        let torn = Found { is_torn: true, ..member(2, &[(1, 1)], 20, 5) };
        assert!(counts_on(vec![member(1, &[(1, 1)], 20, 5), torn.clone()]));
        let third = member(3, &[(1, 1)], 20, 5);
        assert!(!counts_on(vec![member(1, &[(1, 1)], 20, 5), torn, third]), "the others are a majority");
        assert!(!counts_on(vec![member(1, &[(1, 1)], 20, 5), member(2, &[(1, 1)], 20, 5)]));
    }
}
