//! Reads and extends the chain of manifests of a cluster.

use bytes::Bytes;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::manifest::{Catalog, EarlierEpochs, EpochList, FORMAT, FORMAT_NEWEST, Manifest, Part};
use crate::object::sha256;
use crate::store::{Creation, Store};
use crate::trouble::{Fault, Trouble};

/// Highest index and number that is accepted: half of the range, so that sums cannot overflow.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// Maximum number of newest manifests that are skipped because they are damaged.
const DAMAGED_MAX: usize = 8;

/// Maximum number of manifests that are skipped because they are damaged or follow a damaged one.
const SKIPPED_MAX: u64 = 256;

/// The chain of one cluster in a store.
#[derive(Clone, Copy)]
pub struct Chain<'s> {
    /// The store.
    pub store: &'s dyn Store,
    /// Id of the cluster in hexadecimal, 16 digits.
    pub cluster: &'s str,
}

/// The newest manifest of a chain, and the parts of its epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The newest manifest.
    pub manifest: Manifest,
    /// SHA-256 of the manifest.
    pub digest: String,
    /// The manifest that begins the epoch.
    pub first: Manifest,
    /// Parts of the epoch, in order: those of the catalog, then those of the manifests after it.
    pub parts: Vec<Part>,
    /// Number of parts that the catalog lists.
    pub in_catalog: usize,
    /// Manifests after [`Head::manifest`] that are there and cannot be read: number and what is wrong. What they had is
    /// not known.
    pub damaged: Vec<(u64, String)>,
}

impl Head {
    /// Returns the number of the newest manifest, also if it cannot be read.
    pub fn newest(&self) -> u64 {
        self.damaged.last().map_or(self.manifest.sequence, |(number, _)| *number)
    }
}

/// Result of [`Chain::append`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The manifest is the newest of the chain, with this digest.
    Done(String),
    /// Another process has appended a manifest of that number.
    Lost,
}

/// Returns the ids of the clusters that have a chain in a store.
///
/// # Errors
///
/// Returns the error of the store.
pub fn clusters(store: &dyn Store) -> Result<Vec<String>, Trouble> {
    let is_id = |name: &String| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(store.list("")?.directories.into_iter().filter(is_id).collect())
}

impl<'s> Chain<'s> {
    fn full(&self, name: &str) -> String {
        format!("{}/{name}", self.cluster)
    }

    /// Returns the number of the newest manifest; `None` if there is none.
    ///
    /// # Errors
    ///
    /// Returns the error of the store.
    pub fn newest(&self) -> Result<Option<u64>, Trouble> {
        let chain = self.full("chain");
        for directory in self.store.list(&chain)?.directories.iter().rev() {
            let objects = self.store.list(&format!("{chain}/{directory}"))?.objects;
            if let Some(newest) = objects.iter().filter_map(|name| number_of(name)).max() {
                return Ok(Some(newest));
            }
        }
        Ok(None)
    }

    /// Returns the numbers of all manifests in ascending order.
    ///
    /// # Errors
    ///
    /// Returns the error of the store.
    pub fn all(&self) -> Result<Vec<u64>, Trouble> {
        let chain = self.full("chain");
        let mut numbers = Vec::new();
        for directory in self.store.list(&chain)?.directories {
            let objects = self.store.list(&format!("{chain}/{directory}"))?.objects;
            numbers.extend(objects.iter().filter_map(|name| number_of(name)));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Returns a manifest and its digest.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or that the manifest is missing, cannot be read, or belongs elsewhere.
    pub fn read(&self, sequence: u64) -> Result<(Manifest, String), Trouble> {
        let name = self.full(&Manifest::name(sequence));
        let data = self.store.read(&name)?.ok_or_else(|| Trouble::damaged(&name, "is missing"))?;
        let manifest = manifest_of(&name, &data)?;
        if manifest.cluster != self.cluster || manifest.sequence != sequence {
            return Err(Trouble::damaged(
                &name,
                format!("is manifest {} of cluster {}", manifest.sequence, manifest.cluster),
            ));
        }
        let chunks = manifest.base.iter().flat_map(|base| &base.chunks).map(|chunk| &chunk.object);
        let mut objects = chunks
            .chain(manifest.parts.iter().map(|part| &part.object))
            .chain(manifest.catalog.iter().map(|catalog| &catalog.object))
            .chain(manifest.epochs.iter().map(|epoch| &epoch.catalog))
            .chain(manifest.earlier.iter().map(|earlier| &earlier.object));
        let skipped = manifest.skipped.len() as u64;
        let skips_those_before =
            skipped < sequence && (sequence - skipped..sequence).eq(manifest.skipped.iter().copied());
        let positions = [manifest.at.index, manifest.sequence].into_iter();
        let indexes = manifest.parts.iter().flat_map(|part| [part.first, part.at.index]);
        let is_high = |number: u64| number > NUMBER_MAX;
        if !objects.all(crate::object::Object::is_sound)
            || positions.chain(indexes).any(is_high)
            || !skips_those_before
        {
            return Err(Trouble::damaged(&name, "has a name or a number that no backup has"));
        }
        Ok((manifest, sha256(&data)))
    }

    /// Returns the catalog of an epoch.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or that the catalog is damaged or belongs elsewhere.
    pub fn catalog(&self, object: &crate::object::Object, epoch: u64) -> Result<Catalog, Trouble> {
        let data = object.get(self.store, self.cluster)?;
        let name = self.full(&object.name);
        let catalog: Catalog = serde_json::from_slice(&data)
            .map_err(|error| Trouble::damaged(&name, format!("cannot be read: {error}")))?;
        if catalog.format != FORMAT || catalog.cluster != self.cluster || catalog.epoch != epoch {
            return Err(Trouble::damaged(&name, "is not the catalog of this epoch"));
        }
        let is_high = |part: &Part| part.first > NUMBER_MAX || part.at.index > NUMBER_MAX;
        if !catalog.parts.iter().all(|part| part.object.is_sound() && !is_high(part)) {
            return Err(Trouble::damaged(&name, "has a name or a number that no backup has"));
        }
        Ok(catalog)
    }

    /// Returns the list of epochs that are before those of a manifest.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or that the list is damaged or belongs elsewhere.
    pub fn epoch_list(&self, earlier: &EarlierEpochs) -> Result<EpochList, Trouble> {
        let data = earlier.object.get(self.store, self.cluster)?;
        let name = self.full(&earlier.object.name);
        let list: EpochList = serde_json::from_slice(&data)
            .map_err(|error| Trouble::damaged(&name, format!("cannot be read: {error}")))?;
        let numbers: Vec<u64> = list.epochs.iter().map(|epoch| epoch.sequence).collect();
        let is_sorted = numbers.is_sorted() && numbers.last() == Some(&earlier.through);
        let is_before = list.earlier.as_ref().is_none_or(|before| numbers.first() > Some(&before.through));
        let objects = list.epochs.iter().map(|epoch| &epoch.catalog);
        let mut objects = objects.chain(list.earlier.iter().map(|earlier| &earlier.object));
        if list.format != FORMAT
            || list.cluster != self.cluster
            || !(is_sorted && is_before && objects.all(crate::object::Object::is_sound))
        {
            return Err(Trouble::damaged(&name, "is not the list of the epochs before"));
        }
        Ok(list)
    }

    /// Returns the newest manifest that can be read, and its digest, and the damaged ones after it.
    #[expect(clippy::type_complexity)]
    fn newest_readable(&self, newest: u64) -> Result<(Manifest, String, Vec<(u64, String)>), Trouble> {
        let (mut damaged, mut first) = (Vec::new(), None);
        for number in (1..=newest).rev().take(DAMAGED_MAX + 1) {
            match self.read(number) {
                Ok((manifest, digest)) => {
                    damaged.reverse();
                    return Ok((manifest, digest, damaged));
                }
                // One that is missing proves nothing about those before it.
                Err(trouble) if trouble.fault == Fault::Damaged => {
                    let is_there = self.store.size(&self.full(&Manifest::name(number)))?.is_some();
                    damaged.push((number, trouble.text.clone()));
                    first.get_or_insert(trouble);
                    if !is_there {
                        break;
                    }
                }
                Err(trouble) => return Err(trouble),
            }
        }
        Err(first.unwrap_or_else(|| Trouble::damaged(&self.full(&Manifest::name(newest)), "is missing")))
    }

    /// Returns the newest manifest that can be read and whose epoch is known, with the parts of that epoch; `None` if
    /// there is no manifest. The links of the manifests that are read are verified. Manifests that follow a damaged one
    /// count as damaged, until a catalog lists the parts of all.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or what is damaged.
    pub fn head(&self) -> Result<Option<Head>, Trouble> {
        let Some(newest) = self.newest()? else { return Ok(None) };
        let (mut from, mut damaged) = (newest, Vec::new());
        loop {
            let (manifest, digest, mut behind) = self.newest_readable(from)?;
            let number = manifest.sequence;
            behind.append(&mut damaged);
            match self.head_at(manifest, digest) {
                Ok(head) => return Ok(Some(Head { damaged: behind, ..head })),
                Err((broken, trouble))
                    if trouble.fault == Fault::Damaged
                        && (2..number).contains(&broken)
                        && newest - broken < SKIPPED_MAX =>
                {
                    damaged.push((broken, trouble.text));
                    damaged.extend(
                        (broken + 1..=number)
                            .map(|number| (number, format!("{} follows it", Manifest::name(number)))),
                    );
                    damaged.append(&mut behind);
                    from = broken - 1;
                }
                Err((_, trouble)) => return Err(trouble),
            }
        }
    }

    /// Returns the head if this manifest is the newest. An error has the number of the manifest that is damaged, or 0.
    fn head_at(&self, mut manifest: Manifest, digest: String) -> Result<Head, (u64, Trouble)> {
        let elsewhere = |trouble: Trouble| (0, trouble);
        let catalog = match &manifest.catalog {
            Some(known) => match self.catalog(&known.object, manifest.epoch) {
                Ok(catalog) => Some(catalog.parts),
                // The manifests before still name the parts from which those of the catalog were merged.
                Err(trouble) if trouble.fault == Fault::Damaged => {
                    manifest.catalog = None;
                    None
                }
                Err(trouble) => return Err(elsewhere(trouble)),
            },
            None => None,
        };
        let through =
            manifest.catalog.as_ref().map_or(manifest.epoch.saturating_sub(1), |known| known.through);
        // Parts of the manifests after the catalog, the newest first.
        let mut later = vec![manifest.parts.clone()];
        let mut next = manifest.clone();
        let mut first = (manifest.base.is_some()).then(|| manifest.clone());
        while next.sequence > through + 1 && next.sequence > manifest.epoch {
            let number = next.sequence - 1 - next.skipped.len() as u64;
            let before = self.before(&next).map_err(|trouble| (number, trouble))?;
            later.push(before.parts.clone());
            if before.base.is_some() {
                first = Some(before.clone());
            }
            next = before;
        }
        if manifest.catalog.as_ref().is_some_and(|known| next.sequence <= known.through) {
            // The manifest of the newest number that the catalog covers is not needed: its parts are in there.
            later.pop();
        }
        let mut parts = catalog.unwrap_or_default();
        let in_catalog = parts.len();
        parts.extend(later.into_iter().rev().flatten());
        let first = match first {
            Some(first) => first,
            None => self.read(manifest.epoch).map_err(|trouble| (manifest.epoch, trouble))?.0,
        };
        if first.base.is_none() {
            let name = self.full(&Manifest::name(manifest.epoch));
            return Err(elsewhere(Trouble::damaged(&name, "has no base")));
        }
        Ok(Head { manifest, digest, first, parts, in_catalog, damaged: Vec::new() })
    }

    /// Returns the manifest before another one and those that it skips. The link is verified.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or that the link is broken.
    pub fn before(&self, manifest: &Manifest) -> Result<Manifest, Trouble> {
        let (before, digest) =
            self.read(manifest.sequence.saturating_sub(1 + manifest.skipped.len() as u64))?;
        if digest != manifest.previous {
            return Err(Trouble::damaged(
                &self.full(&Manifest::name(before.sequence)),
                format!("is not the manifest that manifest {} follows", manifest.sequence),
            ));
        }
        Ok(before)
    }

    /// Appends a manifest.
    ///
    /// # Errors
    ///
    /// Returns the error of the store. The manifest may have been appended nevertheless, so the caller has to read
    /// the head again.
    pub fn append(&self, manifest: &Manifest) -> Result<Appended, Trouble> {
        let data = Bytes::from(manifest.encode());
        let name = self.full(&Manifest::name(manifest.sequence));
        let digest = sha256(&data);
        match self.store.create(&name, data.clone())? {
            Creation::Created => Ok(Appended::Done(digest)),
            // The manifest may be this one, if the store has made an earlier attempt of its client twice.
            Creation::Existed => match self.store.read(&name)? {
                Some(there) if there == data => Ok(Appended::Done(digest)),
                _ => Ok(Appended::Lost),
            },
        }
    }
}

/// The part of a manifest that every release reads.
#[derive(Deserialize)]
struct AnyManifest {
    format: u32,
}

/// Reads a manifest. One that another release has written is refused, and not taken for damaged: damaged ones are skipped.
fn manifest_of(name: &str, data: &[u8]) -> Result<Manifest, Trouble> {
    let refused = |why: String| Trouble::new(Fault::Refused, format!("{name} {why}"));
    match serde_json::from_slice::<AnyManifest>(data) {
        Ok(any) if !(FORMAT..=FORMAT_NEWEST).contains(&any.format) => {
            return Err(refused(format!(
                "has format {}, which this release does not know: use a newer one",
                any.format
            )));
        }
        _ => {}
    }
    serde_json::from_slice(data).map_err(|error| match serde_json::from_slice::<IgnoredAny>(data) {
        Ok(_) => refused(format!(
            "has something that this release does not know ({error}): use a newer one. If there is none, it is damaged: move \
             it away, and `mainstay backup run` goes on after the one before"
        )),
        Err(_) => Trouble::damaged(name, format!("cannot be read: {error}")),
    })
}

/// Returns the number of the manifest of this name.
fn number_of(name: &str) -> Option<u64> {
    name.strip_suffix(".json")?.parse().ok()
}
