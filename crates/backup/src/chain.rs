//! Reads and extends the chain of manifests of a cluster.

use bytes::Bytes;

use crate::manifest::{Catalog, FORMAT, Manifest, Part};
use crate::object::sha256;
use crate::store::{Creation, Store};
use crate::trouble::{Fault, Trouble};

/// Highest index and number that is accepted: half of the range, so that sums cannot overflow.
const NUMBER_MAX: u64 = u64::MAX / 2;

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
        let manifest: Manifest = serde_json::from_slice(&data)
            .map_err(|error| Trouble::damaged(&name, format!("cannot be read: {error}")))?;
        if manifest.format != FORMAT {
            return Err(Trouble::new(
                Fault::Refused,
                format!(
                    "{name} has format {}, which this release does not know: use a newer one",
                    manifest.format
                ),
            ));
        }
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
            .chain(manifest.epochs.iter().map(|epoch| &epoch.catalog));
        let positions = [manifest.at.index, manifest.sequence].into_iter();
        let indexes = manifest.parts.iter().flat_map(|part| [part.first, part.at.index]);
        let is_high = |number: u64| number > NUMBER_MAX;
        if !objects.all(crate::object::Object::is_sound) || positions.chain(indexes).any(is_high) {
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

    /// Returns the newest manifest with the parts of its epoch; `None` if there is no manifest. The links of the
    /// manifests that are read are verified.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or what is damaged.
    pub fn head(&self) -> Result<Option<Head>, Trouble> {
        let Some(newest) = self.newest()? else { return Ok(None) };
        let (manifest, digest) = self.read(newest)?;
        let through =
            manifest.catalog.as_ref().map_or(manifest.epoch.saturating_sub(1), |known| known.through);
        // Parts of the manifests after the catalog, the newest first.
        let mut later = vec![manifest.parts.clone()];
        let mut next = manifest.clone();
        let mut first = (manifest.base.is_some()).then(|| manifest.clone());
        while next.sequence > through + 1 && next.sequence > manifest.epoch {
            let before = self.before(&next)?;
            later.push(before.parts.clone());
            if before.base.is_some() {
                first = Some(before.clone());
            }
            next = before;
        }
        let mut parts = match &manifest.catalog {
            Some(known) => {
                // The manifest of the newest number that the catalog covers is not read: its parts are in there.
                if next.sequence <= known.through {
                    later.pop();
                }
                self.catalog(&known.object, manifest.epoch)?.parts
            }
            None => Vec::new(),
        };
        let in_catalog = parts.len();
        parts.extend(later.into_iter().rev().flatten());
        let first = match first {
            Some(first) => first,
            None => self.read(manifest.epoch)?.0,
        };
        if first.base.is_none() {
            return Err(Trouble::damaged(&self.full(&Manifest::name(manifest.epoch)), "has no base"));
        }
        Ok(Some(Head { manifest, digest, first, parts, in_catalog }))
    }

    /// Returns the manifest before another one, whose link to it is verified.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or that the link is broken.
    pub fn before(&self, manifest: &Manifest) -> Result<Manifest, Trouble> {
        let (before, digest) = self.read(manifest.sequence.saturating_sub(1))?;
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

/// Returns the number of the manifest of this name.
fn number_of(name: &str) -> Option<u64> {
    name.strip_suffix(".json")?.parse().ok()
}
