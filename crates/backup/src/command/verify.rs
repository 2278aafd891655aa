//! `backup verify`: reads a whole backup and checks digests, links and gaps.

use std::collections::BTreeSet;

use cli::{Command, Failure, Flag, Progress};

use super::{CLUSTER_ID, Call, Run, chain, size};
use crate::base;
use crate::chain::Chain;
use crate::manifest::{Base, Manifest, Part};
use crate::object::Object;
use crate::part::PartReader;
use crate::plan::shown;
use crate::trouble::Trouble;

const SIZES_ONLY: Flag<bool> =
    Flag::bool("sizes-only", "Check that all objects are there with their sizes, without reading them");

pub(super) const VERIFY: Command<Run> = Command {
    name: "verify",
    usage: "verify <URL> [flags]",
    about: "Reads the whole backup, and checks digests, the links of the chain, and gaps",
    long: "\
Reads every manifest and every object that a restore may need, and checks digests, the links of the chain, and that the
entries follow each other. Names all that is damaged or missing. The exit code is 1 if anything is. Gaps that the backup
itself knows of, because entries could not be shipped, are listed, and no error.",
    example: "  mainstay backup verify s3://bucket/prefix",
    flags: &[CLUSTER_ID.row(), SIZES_ONLY.row()],
    run: Some(Run(run)),
    ..Command::EMPTY
};

struct Checking<'c> {
    chain: Chain<'c>,
    cluster_id: u64,
    sizes_only: bool,
    found: Vec<String>,
    /// Damaged manifests that later ones replace.
    replaced: Vec<String>,
    checked: BTreeSet<String>,
    bytes: u64,
    progress: Progress,
}

fn run(call: &mut Call<'_>) -> Result<(), Failure> {
    let store = call.place()?;
    let (cluster, cluster_id) = call.cluster(&*store)?;
    let mut checking = Checking {
        chain: chain(&*store, &cluster),
        cluster_id,
        sizes_only: call.matches.get(SIZES_ONLY),
        found: Vec::new(),
        replaced: Vec::new(),
        checked: BTreeSet::new(),
        bytes: 0,
        progress: Progress::of_bytes("verifying", None),
    };
    let mut lines = Vec::new();
    let manifests = checking.links()?;
    let head = checking.chain.head_or_refuse();
    match &head {
        Err(trouble) => checking.found.push(trouble.to_string()),
        Ok(head) => {
            let oldest = checking.chain.oldest(head)?;
            let closed = checking.chain.closed_epochs(head)?;
            for (sequence, ..) in checking.chain.epochs(head)?.into_iter().filter(|(at, ..)| *at >= oldest) {
                let epoch = match checking.chain.epoch_among(head, &closed, sequence) {
                    Ok(epoch) => epoch,
                    Err(trouble) => {
                        checking.found.push(trouble.to_string());
                        continue;
                    }
                };
                if let Some(reason) = &epoch.gap {
                    lines.push(format!(
                        "gap before revision {} at {}: {reason}",
                        epoch.base.at.revision,
                        shown(epoch.base.at.time_ms)
                    ));
                }
                checking.base(&epoch.base)?;
                checking.parts(epoch.base.at.index, &epoch.parts)?;
            }
        }
    }
    checking.progress.finish();
    let Checking { found, checked, bytes, replaced, .. } = checking;
    lines.extend(replaced);
    for line in lines {
        call.print(&format!("{line}\n"))?;
    }
    for damage in &found {
        call.print(&format!("DAMAGED: {damage}\n"))?;
    }
    let reaches = head.map_or_else(
        |_| String::new(),
        |head| {
            let at = head.manifest.at;
            format!(", up to revision {} at {}", at.revision, shown(at.time_ms))
        },
    );
    call.print(&format!(
        "{} manifests and {} objects of {} checked{reaches}: {}\n",
        manifests,
        checked.len(),
        size(bytes),
        if found.is_empty() { "all is whole".to_owned() } else { format!("{} damaged", found.len()) }
    ))?;
    if found.is_empty() { Ok(()) } else { Err(Failure::said(Failure::ERROR)) }
}

impl Checking<'_> {
    /// Notes what is damaged; other errors end the command.
    fn note(&mut self, trouble: Trouble) -> Result<(), Failure> {
        if trouble.fault != crate::Fault::Damaged {
            return Err(trouble.into());
        }
        self.found.push(trouble.text);
        Ok(())
    }

    /// Reads all manifests and checks their links. Returns their number.
    fn links(&mut self) -> Result<usize, Failure> {
        let numbers = self.chain.all()?;
        let mut before: Option<(Manifest, String)> = None;
        let mut unreadable: Vec<(u64, Trouble)> = Vec::new();
        for number in &numbers {
            let (manifest, digest) = match self.chain.read(*number) {
                Ok(read) => read,
                Err(trouble) if trouble.fault == crate::Fault::Damaged => {
                    unreadable.push((*number, trouble));
                    continue;
                }
                Err(trouble) => return Err(trouble.into()),
            };
            let count = unreadable.len();
            unreadable.retain(|(number, _)| !manifest.skipped.contains(number));
            let replaced = count - unreadable.len();
            if replaced > 0 {
                let reached = before.as_ref().map(|(last, _)| last.at.index);
                let first = manifest.parts.first().map(|part| part.first);
                let continues = reached.is_some_and(|reached| first.is_none_or(|first| first <= reached + 1));
                let text = if continues && manifest.gap.is_none() {
                    "which has the entries that they had; times between are those of shipping them again"
                } else {
                    "and what they had is missing: see the gap"
                };
                self.replaced.push(format!("{replaced} damaged before {}, {text}", Manifest::name(*number)));
            }
            if !unreadable.is_empty() {
                before = None;
            }
            for (_, trouble) in unreadable.drain(..) {
                self.found.push(trouble.text);
            }
            if let Some((last, last_digest)) = &before {
                let name = Manifest::name(*number);
                let follows = last.sequence + 1 + manifest.skipped.len() as u64;
                if manifest.sequence != follows {
                    self.found.push(format!(
                        "{} manifests before {name} are missing",
                        manifest.sequence.saturating_sub(follows)
                    ));
                } else if manifest.previous != *last_digest {
                    self.found.push(format!("{name} does not follow the manifest before it"));
                } else if (manifest.at.index < last.at.index && manifest.stream == last.stream)
                    || manifest.at.time_ms < last.at.time_ms
                    || manifest.base.as_ref().is_some_and(|base| base.at.time_ms < last.at.time_ms)
                {
                    self.found.push(format!("{name} is at an earlier position than the manifest before it"));
                }
            }
            before = Some((manifest, digest));
        }
        for (_, trouble) in unreadable {
            self.note(trouble)?;
        }
        Ok(numbers.len())
    }

    /// Checks an object once. Returns its bytes if they were read.
    fn object(&mut self, object: &Object) -> Result<Option<bytes::Bytes>, Failure> {
        self.progress.at(self.bytes, "");
        if !self.checked.insert(object.name.clone()) {
            return Ok(None);
        }
        self.bytes += object.bytes;
        if self.sizes_only {
            let full = format!("{}/{}", self.chain.cluster, object.name);
            match self.chain.store.size(&full)? {
                Some(bytes) if bytes == object.bytes => {}
                Some(bytes) => {
                    self.found.push(format!("{full} has {bytes} bytes instead of {}", object.bytes));
                }
                None => self.found.push(format!("{full} is missing")),
            }
            return Ok(None);
        }
        match object.get(self.chain.store, self.chain.cluster) {
            Ok(data) => Ok(Some(data)),
            Err(trouble) => self.note(trouble).map(|()| None),
        }
    }

    fn base(&mut self, base: &Base) -> Result<(), Failure> {
        for chunk in &base.chunks {
            if let Some(data) = self.object(&chunk.object)?
                && let Err(trouble) = base::read(chunk, &data)
            {
                self.note(trouble)?;
            }
        }
        Ok(())
    }

    fn parts(&mut self, index: u64, parts: &[Part]) -> Result<(), Failure> {
        let mut reached = index;
        for part in parts {
            if part.first > reached + 1 {
                self.found.push(format!("entries {} to {} are in no part", reached + 1, part.first - 1));
            }
            reached = reached.max(part.at.index);
            let Some(data) = self.object(&part.object)? else { continue };
            if let Err(found) = entries_of(data, self.cluster_id, part) {
                self.found.push(format!("{} {found}", part.object.name));
            }
        }
        Ok(())
    }
}

/// Checks that a part has the entries that its manifest says.
fn entries_of(data: bytes::Bytes, cluster_id: u64, part: &Part) -> Result<(), String> {
    let mut reader = PartReader::open(data, cluster_id)?;
    let mut next = part.first;
    while let Some(block) = reader.next()? {
        if block.first.0 > next {
            return Err(format!("lacks the entries {next} to {}", block.first.0 - 1));
        }
        next = next.max(block.last.0 + 1);
    }
    match next == part.at.index + 1 {
        true => Ok(()),
        false => Err(format!("ends with entry {} instead of {}", next - 1, part.at.index)),
    }
}
