//! Objects whose names are their digests.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::store::{Creation, Store};
use crate::trouble::{Fault, Trouble};

/// Number of names that are tried for an object: if an object of its name exists with another length, because a
/// store has cut it, the next name is used.
const NAMES_MAX: usize = 10;

/// Maximum number of digits of the mark in a name.
const MARK_DIGITS_MAX: usize = 16;

/// Reference to an object in a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Object {
    /// Name in the directory of the cluster.
    pub name: String,
    /// Number of bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes, in hexadecimal.
    pub sha256: String,
}

/// Returns the SHA-256 of some bytes in hexadecimal.
pub fn sha256(data: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(data) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl Object {
    /// Stores some bytes, unless they are there, and returns the reference to them.
    ///
    /// # Errors
    ///
    /// Returns the error of the store.
    pub fn put(store: &dyn Store, cluster: &str, data: Bytes) -> Result<Object, Trouble> {
        Object::put_as(store, cluster, data, "")
    }

    /// Stores some bytes like [`Object::put`], under a name that only objects with the same mark have. `mark` is at most
    /// 16 hexadecimal digits.
    ///
    /// # Errors
    ///
    /// Returns the error of the store.
    pub fn put_as(store: &dyn Store, cluster: &str, data: Bytes, mark: &str) -> Result<Object, Trouble> {
        let sha256 = sha256(&data);
        let bytes = data.len() as u64;
        for number in 0..NAMES_MAX {
            let suffix = match (mark, number) {
                ("", 0) => String::new(),
                (mark, 0) => format!("-{mark}"),
                (mark, number) => format!("-{mark}{number}"),
            };
            let name = format!("data/{}/{sha256}{suffix}", &sha256[..2]);
            let full = format!("{cluster}/{name}");
            match store.create(&full, data.clone())? {
                Creation::Created => return Ok(Object { name, bytes, sha256 }),
                Creation::Existed => {
                    if store.size(&full)? == Some(bytes) {
                        return Ok(Object { name, bytes, sha256 });
                    }
                }
            }
        }
        Err(Trouble::new(
            Fault::Damaged,
            format!(
                "{NAMES_MAX} objects {cluster}/data/{}/{sha256} in {} are cut",
                &sha256[..2],
                store.url()
            ),
        ))
    }

    /// Returns the bytes of the object, whose digest is verified.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or that the object is missing or damaged.
    pub fn get(&self, store: &dyn Store, cluster: &str) -> Result<Bytes, Trouble> {
        let full = format!("{cluster}/{}", self.name);
        let data = store.read(&full)?.ok_or_else(|| Trouble::damaged(&full, "is missing"))?;
        self.check(&data).map_err(|found| Trouble::damaged(&full, found))?;
        Ok(data)
    }

    /// Returns true if the name is one that [`Object::put`] gives, and not one that leads out of the backup.
    pub fn is_sound(&self) -> bool {
        let hex =
            |text: &str, len: usize| text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let Some((directory, name)) = self.name.strip_prefix("data/").and_then(|rest| rest.split_once('/'))
        else {
            return false;
        };
        let (digest, number) = name.split_once('-').unwrap_or((name, "1"));
        hex(directory, 2)
            && hex(digest, 64)
            && hex(&self.sha256, 64)
            && (1..=MARK_DIGITS_MAX + 1).contains(&number.len())
            && hex(number, number.len())
    }

    /// Returns an error that says how the bytes differ from those of the object.
    ///
    /// # Errors
    ///
    /// As said.
    pub fn check(&self, data: &[u8]) -> Result<(), String> {
        if data.len() as u64 != self.bytes {
            return Err(format!("has {} bytes instead of {}", data.len(), self.bytes));
        }
        match sha256(data) == self.sha256 {
            true => Ok(()),
            false => Err("has other contents than when it was written".to_owned()),
        }
    }
}
