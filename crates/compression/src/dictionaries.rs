//! The dictionaries of a member ([`Dictionaries`]), with which values are decompressed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use disk::Disk;
use zstd_safe::{DCtx, DDict};

use crate::file::{FILE_BYTES_MAX, decode, encode, id_of, name_of};
use crate::{DICTIONARIES_MAX, DICTIONARY_BYTES_MAX, NO_DICTIONARY};

/// Name under which a dictionary is written before it gets its own.
const TMP: &str = "dictionary.tmp";

thread_local! {
    /// The memory that zstd needs for decompression, some 100 KiB, which is used again for every value that a
    /// thread decompresses.
    static CONTEXT: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// A dictionary that can be used.
pub struct Dictionary {
    id: u32,
    prefix: Vec<u8>,
    bytes: Vec<u8>,
    prepared: DDict<'static>,
}

impl Dictionary {
    /// Returns the number that identifies the dictionary: the checksum of its file.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns a dictionary that is not stored, to find out whether it helps; `None` if zstd does not accept it.
    pub fn candidate(bytes: &[u8]) -> Option<Dictionary> {
        prepare(b"", bytes, encode(b"", bytes).1)
    }

    /// Returns the dictionary as zstd made it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = self.prefix.escape_ascii().to_string();
        f.debug_struct("Dictionary").field("id", &self.id).field("prefix", &prefix).finish_non_exhaustive()
    }
}

/// A dictionary that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Path of the dictionary's file.
    pub path: PathBuf,
    /// Description of the damage, or of the error with which the file could not be read.
    pub found: String,
}

/// Reason why a value could not be decompressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecompressError {
    /// The dictionary is damaged or missing.
    Dictionary(Damage),
    /// The bytes are not a frame of zstd, or need another dictionary. Contains zstd's description.
    Frame(&'static str),
    /// The bytes are a frame of zstd that contains fewer bytes than the value has. Contains their number.
    Short(usize),
}

impl fmt::Display for DecompressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecompressError::Dictionary(Damage { path, found }) => {
                write!(f, "the value needs the dictionary {}: {found}", path.display())
            }
            DecompressError::Frame(why) => write!(f, "the value cannot be decompressed: {why}"),
            DecompressError::Short(bytes) => {
                write!(f, "the value has only {bytes} bytes when it is decompressed")
            }
        }
    }
}

impl std::error::Error for DecompressError {}

/// The dictionaries of a member. Any thread can decompress with them; one thread adds to them.
///
/// All dictionaries are loaded when the log is opened, and stay in memory: a thread that must not wait for a
/// disk can then decompress every value that it finds in the page cache. A dictionary takes some 100 KiB of
/// memory, and there are at most 64. A damaged dictionary is no reason to refuse the log: only the values
/// that need it cannot be read.
pub struct Dictionaries {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    known: RwLock<BTreeMap<u32, Result<Arc<Dictionary>, Damage>>>,
}

impl Dictionaries {
    /// Loads the dictionaries in a directory, which must exist. The caller removes files whose names end in
    /// `.tmp`, which an interrupted [`Dictionaries::store`] leaves.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory cannot be listed.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path) -> io::Result<Dictionaries> {
        let mut known = BTreeMap::new();
        for name in disk.list(dir)? {
            let Some(id) = id_of(&name) else { continue };
            let path = dir.join(&name);
            known.insert(id, load(&*disk, &path, id).map(Arc::new).map_err(|found| Damage { path, found }));
        }
        Ok(Dictionaries { disk, dir: dir.to_owned(), known: RwLock::new(known) })
    }

    /// Returns the dictionaries that cannot be used.
    pub fn damaged(&self) -> Vec<Damage> {
        self.known().values().filter_map(|known| known.as_ref().err().cloned()).collect()
    }

    /// Returns the number of dictionaries, damaged ones included.
    pub fn count(&self) -> usize {
        self.known().len()
    }

    /// Returns the dictionary for the keys with this prefix; `None` if there is none.
    pub fn of_prefix(&self, prefix: &[u8]) -> Option<Arc<Dictionary>> {
        let known = self.known();
        known.values().flatten().find(|dictionary| dictionary.prefix == prefix).cloned()
    }

    /// Writes a dictionary for the keys with this prefix to the disk, and returns it once it is durable.
    /// Returns `None` if there are too many dictionaries, if the dictionary is too large, or if zstd does not
    /// accept it.
    ///
    /// # Errors
    ///
    /// Returns an error if the disk fails. The dictionary may exist nevertheless.
    pub fn store(&self, prefix: &[u8], bytes: &[u8]) -> io::Result<Option<Arc<Dictionary>>> {
        let (contents, id) = encode(prefix, bytes);
        let is_taken = self.known().contains_key(&id);
        if self.count() >= DICTIONARIES_MAX
            || bytes.len() > DICTIONARY_BYTES_MAX
            || id == NO_DICTIONARY
            || is_taken
        {
            return Ok(None);
        }
        let Some(dictionary) = prepare(prefix, bytes, id) else { return Ok(None) };
        let tmp = self.dir.join(TMP);
        if self.disk.exists(&tmp)? {
            // An earlier attempt failed after it had created the file.
            self.disk.remove(&tmp)?;
        }
        let file = self.disk.create(&tmp)?;
        file.write_at(&contents, 0)?;
        file.sync_all()?;
        self.disk.rename(&tmp, &self.dir.join(name_of(id)))?;
        self.disk.sync_dir(&self.dir)?;
        let dictionary = Arc::new(dictionary);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(id, Ok(Arc::clone(&dictionary)));
        Ok(Some(dictionary))
    }

    /// Decompresses a frame that was compressed with the dictionary `id` ([`NO_DICTIONARY`] for none), and
    /// fills `out` with it. The bytes of `out` are undefined after an error.
    ///
    /// The contents are not verified: a damaged frame may also decompress to wrong bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the frame does not have exactly as many bytes as `out`, or cannot be decompressed.
    pub fn decompress(&self, id: u32, frame: &[u8], out: &mut [u8]) -> Result<(), DecompressError> {
        let dictionary = match id {
            NO_DICTIONARY => None,
            id => Some(self.find(id).map_err(DecompressError::Dictionary)?),
        };
        CONTEXT.with_borrow_mut(|context| {
            let out_of_memory = DecompressError::Frame("out of memory");
            if context.is_none() {
                *context = DCtx::try_create();
            }
            let context = context.as_mut().ok_or(out_of_memory)?;
            let written = match &dictionary {
                Some(dictionary) => context.decompress_using_ddict(out, frame, &dictionary.prepared),
                None => context.decompress(out, frame),
            };
            match written {
                Ok(written) if written == out.len() => Ok(()),
                Ok(written) => Err(DecompressError::Short(written)),
                Err(code) => Err(DecompressError::Frame(zstd_safe::get_error_name(code))),
            }
        })
    }

    fn find(&self, id: u32) -> Result<Arc<Dictionary>, Damage> {
        let known = self.known();
        known.get(&id).cloned().unwrap_or_else(|| {
            Err(Damage { path: self.dir.join(name_of(id)), found: "the file does not exist".to_owned() })
        })
    }

    fn known(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<u32, Result<Arc<Dictionary>, Damage>>> {
        // Nothing panics while it holds the lock, so the table is consistent even if the lock is poisoned.
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Dictionaries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dictionaries").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// Prepares a dictionary for decompression. Returns `None` if zstd does not accept it.
fn prepare(prefix: &[u8], bytes: &[u8], id: u32) -> Option<Dictionary> {
    let prepared = DDict::try_create(bytes)?;
    Some(Dictionary { id, prefix: prefix.to_vec(), bytes: bytes.to_vec(), prepared })
}

fn load(disk: &dyn Disk, path: &Path, id: u32) -> Result<Dictionary, String> {
    let read = || {
        let file = disk.open_read(path)?;
        let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        // A longer file is no dictionary, so it need not be read as a whole to be refused.
        let mut bytes = vec![0; len.min(FILE_BYTES_MAX + 1)];
        file.read_exact_at(&mut bytes, 0)?;
        io::Result::Ok(bytes)
    };
    let bytes = read().map_err(|error| format!("the file cannot be read: {error}"))?;
    let (prefix, dictionary) = decode(&bytes, id)?;
    prepare(prefix, dictionary, id).ok_or_else(|| "zstd does not accept the dictionary".to_owned())
}
