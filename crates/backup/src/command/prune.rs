//! `backup prune`: deletes what only moments before a time need.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use cli::{Command, Failure, Flag};

use super::{CLUSTER_ID, Call, Run, chain, size};
use crate::chain::Chain;
use crate::live::wall_ms;
use crate::manifest::{Manifest, Position};
use crate::object::Object;
use crate::plan::shown;
use crate::trouble::{Fault, Trouble};

const OLDER_THAN: Flag<Duration> = Flag::duration(
    "older-than",
    "0s",
    "Required. Moments that are older than this may be lost, such as 720h",
);
const DELETE: Flag<bool> =
    Flag::bool("delete", "Delete; without this flag the command only says what it would delete");

pub(super) const PRUNE: Command<Run> = Command {
    name: "prune",
    usage: "prune <URL> --older-than <duration> [--delete]",
    about: "Deletes what only moments before a time need",
    long: "\
Deletes what only moments before a time need: whole epochs, each of which begins with a base, and small parts that were
merged since. Every later moment can still be restored. Nothing else in Mainstay deletes anything from a backup. In a
bucket with versions or object lock, deleting an object only hides it, and frees nothing: let a rule of the bucket delete
old versions instead, and prune only what is past its retention.",
    example: "  mainstay backup prune s3://bucket/prefix --older-than 720h
  mainstay backup prune s3://bucket/prefix --older-than 720h --delete",
    flags: &[CLUSTER_ID.row(), DELETE.row(), OLDER_THAN.row()],
    run: Some(Run(run)),
    ..Command::EMPTY
};

fn run(call: &mut Call<'_>) -> Result<(), Failure> {
    let older_than = call.matches.get(OLDER_THAN);
    if older_than.is_zero() {
        return Err(Failure::usage("--older-than is required"));
    }
    let store = call.place()?;
    let (cluster, _) = call.cluster(&*store)?;
    let chain = chain(&*store, &cluster);
    let before_ms =
        wall_ms(SystemTime::now()).saturating_sub(u64::try_from(older_than.as_millis()).unwrap_or(u64::MAX));
    let PruneList { mut names, bytes, oldest } = prune_list(&chain, before_ms)?;
    let kept_text =
        format!("the oldest moment is then revision {} at {}", oldest.revision, shown(oldest.time_ms));
    if !call.matches.get(DELETE) {
        return call.print(&format!(
            "{} objects of {} would be deleted; {kept_text}. Give --delete to delete them\n",
            names.len(),
            size(bytes)
        ));
    }
    // A process may have begun an epoch meanwhile whose base has objects of an old one.
    let now = chain.head_or_refuse()?;
    let base = now.first.base.iter().flat_map(|base| &base.chunks).map(|chunk| &chunk.object);
    let in_use: BTreeSet<String> = base
        .chain(now.parts.iter().map(|part| &part.object))
        .map(|object| format!("{cluster}/{}", object.name))
        .collect();
    names.retain(|name| !in_use.contains(name));
    for name in &names {
        store.remove(name)?;
    }
    call.print(&format!("{} objects of {} deleted; {kept_text}\n", names.len(), size(bytes)))
}

/// Objects that a prune deletes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PruneList {
    /// Names of the objects, in the order in which they are to be deleted: whatever interrupts that, all later moments
    /// can be restored, and the rest can be deleted later.
    pub names: Vec<String>,
    /// Bytes of the objects, without manifests and lists of epochs.
    pub bytes: u64,
    /// Position of the oldest moment that stays.
    pub oldest: Position,
}

/// Finds what only moments before a time, in milliseconds since 1970, need.
///
/// # Errors
///
/// Returns the error of the store, or what is damaged.
pub fn prune_list(chain: &Chain<'_>, before_ms: u64) -> Result<PruneList, Trouble> {
    let cluster = chain.cluster;
    let head = chain.head_or_refuse()?;
    if let Some((_, found)) = head.damaged.first() {
        return Err(Trouble::new(
            Fault::Refused,
            format!("{found}. Nothing is deleted before `mainstay backup run` has gone on after it"),
        ));
    }
    let through = head.manifest.catalog.as_ref().map_or(0, |catalog| catalog.through);
    let epochs = chain.epochs(&head)?;
    let closed = chain.closed_epochs(&head)?;
    let oldest = chain.oldest(&head)?;
    // The last epoch that begins before the time is needed for the moments right after the time.
    let first_kept = epochs
        .iter()
        .filter(|(sequence, from, _)| *sequence >= oldest && from.time_ms <= before_ms)
        .map(|(sequence, ..)| *sequence)
        .next_back()
        .unwrap_or(oldest);
    let mut kept: BTreeSet<String> = BTreeSet::new();
    let keep = |kept: &mut BTreeSet<String>, object: &Object| {
        kept.insert(object.name.clone());
    };
    for (sequence, ..) in epochs.iter().filter(|(sequence, ..)| *sequence >= first_kept) {
        let epoch = chain.epoch_among(&head, &closed, *sequence)?;
        epoch.base.chunks.iter().for_each(|chunk| keep(&mut kept, &chunk.object));
        epoch.parts.iter().for_each(|part| keep(&mut kept, &part.object));
    }
    closed.iter().filter(|epoch| epoch.sequence >= first_kept).for_each(|epoch| {
        keep(&mut kept, &epoch.catalog);
    });
    let mut earlier = head.first.earlier.clone();
    while let Some(before) = earlier.filter(|before| before.through >= first_kept) {
        keep(&mut kept, &before.object);
        earlier = chain.epoch_list(&before)?.earlier;
    }
    head.manifest.catalog.iter().for_each(|catalog| keep(&mut kept, &catalog.object));
    let (mut names, mut bytes, mut listed, mut lists) = (Vec::new(), 0, BTreeSet::new(), Vec::new());
    let mut skipped: BTreeSet<u64> = BTreeSet::new();
    let mut catalogs: Vec<String> = Vec::new();
    // From the newest on: a manifest says which damaged ones before it count for nothing.
    for number in chain.all()?.into_iter().rev() {
        let manifest = match chain.read(number) {
            Ok((manifest, _)) => {
                skipped.extend(&manifest.skipped);
                manifest
            }
            // The manifest after it or a catalog has what it had; its own objects stay.
            Err(trouble)
                if trouble.fault == Fault::Damaged
                    && (skipped.contains(&number) || number < head.manifest.epoch || number <= through) =>
            {
                if number < first_kept {
                    names.push(format!("{cluster}/{}", Manifest::name(number)));
                }
                continue;
            }
            Err(trouble) => return Err(trouble),
        };
        // Of the present epoch everything stays, because a process may be about to merge its parts.
        let is_closed = manifest.epoch < head.manifest.epoch;
        let mut may_go: Vec<Object> = Vec::new();
        if is_closed {
            may_go.extend(manifest.parts.iter().map(|part| part.object.clone()));
            may_go
                .extend(manifest.base.iter().flat_map(|base| &base.chunks).map(|chunk| chunk.object.clone()));
            may_go.extend(manifest.catalog.iter().map(|catalog| catalog.object.clone()));
        }
        lists.extend(manifest.earlier.iter().filter(|_| is_closed).map(|earlier| earlier.object.clone()));
        // What the parts of an epoch were merged into is named only by its catalog, which the next epoch names.
        for epoch in manifest.epochs.iter().filter(|epoch| (oldest..first_kept).contains(&epoch.sequence)) {
            if listed.insert(epoch.sequence) {
                match chain.catalog(&epoch.catalog, epoch.sequence) {
                    Ok(catalog) => may_go.extend(catalog.parts.into_iter().map(|part| part.object)),
                    // A prune that was interrupted has deleted it, after the objects that it lists. What a damaged one
                    // lists stays.
                    Err(trouble) if trouble.fault == Fault::Damaged => {}
                    Err(trouble) => return Err(trouble),
                }
                catalogs.push(format!("{cluster}/{}", epoch.catalog.name));
                may_go.push(epoch.catalog.clone());
            }
        }
        for object in may_go {
            if kept.insert(object.name.clone()) {
                names.push(format!("{cluster}/{}", object.name));
                bytes += object.bytes;
            }
        }
        if number < first_kept {
            names.push(format!("{cluster}/{}", Manifest::name(number)));
        }
    }
    let oldest = epochs.iter().find(|(sequence, ..)| *sequence == first_kept);
    let oldest = oldest.map_or_else(Position::default, |(_, from, _)| *from);
    // Manifests go last and from the oldest on, so that what is left is a chain at any moment.
    names.sort();
    let (manifests, data): (Vec<&String>, Vec<&String>) =
        names.iter().partition(|name| name.contains("/chain/"));
    // Catalogs go after what they list, and lists of epochs after the manifests of these epochs: whatever interrupts this,
    // all later moments can be restored, and the command can be repeated.
    let catalogs: BTreeSet<&String> = catalogs.iter().collect();
    let (catalogs, data): (Vec<&String>, Vec<&String>) =
        data.into_iter().partition(|name| catalogs.contains(name));
    let lists = lists
        .iter()
        .filter(|list| kept.insert(list.name.clone()))
        .map(|list| format!("{cluster}/{}", list.name));
    let lists: Vec<String> = lists.collect();
    let names = data.into_iter().chain(catalogs).chain(manifests).chain(&lists).cloned().collect();
    Ok(PruneList { names, bytes, oldest })
}
