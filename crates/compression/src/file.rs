//! Encodes and decodes the files of dictionaries. All numbers are little-endian. Every later release must be
//! able to read these files.
//!
//! ```text
//! dictionary file  <data-dir>/member/log/<id, 8 hex digits>.dict
//!
//!        0  magic           8   "MNSTDIC\n"
//!        8  version         4   1
//!       12  prefix length   4   at most 256
//!       16  prefix              of the keys whose values the dictionary was trained from
//!        .  dictionary          as zstd made it, at most 64 KiB, up to 4 bytes before the end of the file
//!        .  crc32c          4   of all bytes before it: the dictionary's id
//! ```

const MAGIC: [u8; 8] = *b"MNSTDIC\n";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 16;

/// Maximum length of a prefix in bytes. Keys with a longer one belong to the group of the empty prefix.
const PREFIX_BYTES_MAX: usize = 256;

/// Maximum size of a dictionary in bytes.
pub const DICTIONARY_BYTES_MAX: usize = 64 << 10;

/// Maximum size of a dictionary's file in bytes.
pub(crate) const FILE_BYTES_MAX: usize = HEAD_BYTES + PREFIX_BYTES_MAX + DICTIONARY_BYTES_MAX + 4;

/// Returns the part of a key that names the group of keys to which it belongs: everything up to and including
/// the third `/`, such as `/registry/pods/`, or, if the key has only two, the second. The prefix of other keys,
/// and of keys with a prefix longer than 256 bytes, is empty.
///
/// ```
/// use mainstay_compression::prefix_of;
///
/// assert_eq!(prefix_of(b"/registry/pods/default/web-0"), b"/registry/pods/");
/// assert_eq!(prefix_of(b"/registry/ranges"), b"/registry/");
/// assert_eq!(prefix_of(b"config"), b"");
/// ```
pub fn prefix_of(key: &[u8]) -> &[u8] {
    let slashes = key.iter().enumerate().filter(|(_, byte)| **byte == b'/').take(3);
    let nth = slashes.enumerate().filter(|(nth, _)| *nth > 0);
    let end = nth.map(|(_, (at, _))| at + 1).last().unwrap_or(0);
    if end <= PREFIX_BYTES_MAX { &key[..end] } else { b"" }
}

/// Returns the name of the file of a dictionary.
pub(crate) fn name_of(id: u32) -> String {
    format!("{id:08x}.dict")
}

/// Returns the id in the name of a dictionary's file; `None` for other names.
pub(crate) fn id_of(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".dict")?;
    let is_plain = digits.len() == 8 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_plain { u32::from_str_radix(digits, 16).ok() } else { None }
}

/// Returns the contents of the file of a dictionary, and its id.
pub(crate) fn encode(prefix: &[u8], dictionary: &[u8]) -> (Vec<u8>, u32) {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + prefix.len() + dictionary.len() + 4);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(prefix.len() as u32).to_le_bytes());
    bytes.extend_from_slice(prefix);
    bytes.extend_from_slice(dictionary);
    let id = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&id.to_le_bytes());
    (bytes, id)
}

/// Decodes the file of the dictionary `id`. Returns its prefix and the dictionary, or a description of the
/// damage.
pub(crate) fn decode(bytes: &[u8], id: u32) -> Result<(&[u8], &[u8]), &'static str> {
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    if bytes.len() > FILE_BYTES_MAX {
        return Err("the file is larger than a dictionary can be");
    }
    if !bytes.starts_with(&MAGIC) {
        return Err("the file does not start as the file of a dictionary");
    }
    let Some((body, end)) = bytes.split_last_chunk::<4>().filter(|(body, _)| body.len() >= HEAD_BYTES) else {
        return Err("the file is shorter than that of a dictionary");
    };
    if crc32c::crc32c(body) != u32::from_le_bytes(*end) {
        return Err("the checksum of the dictionary does not match");
    }
    if u32::from_le_bytes(*end) != id {
        return Err("the file contains another dictionary than its name says");
    }
    if number(8) != Some(VERSION) {
        return Err("the dictionary has a format version that this release does not know");
    }
    let prefix_len = number(12).and_then(|len| usize::try_from(len).ok()).unwrap_or(usize::MAX);
    let rest = &body[HEAD_BYTES..];
    if prefix_len > PREFIX_BYTES_MAX || prefix_len > rest.len() {
        return Err("the dictionary has an impossible prefix");
    }
    Ok(rest.split_at(prefix_len))
}
