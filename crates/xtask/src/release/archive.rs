//! Archives whose bytes depend only on their content: `tar` in the format ustar, compressed with gzip without
//! a name and a time. All entries have the same time.

use std::io::Write as _;

use flate2::{Compression, GzBuilder};

const BLOCK: usize = 512;
/// Maximum length of a path in a header's first field.
const NAME_BYTES_MAX: usize = 100;
/// Maximum length of the folders of a path that is longer than [`NAME_BYTES_MAX`].
const PREFIX_BYTES_MAX: usize = 155;

/// An archive that is being written.
pub struct Archive {
    bytes: Vec<u8>,
    /// Time of all entries, in seconds since 1970.
    time: u64,
}

/// Type, mode and owner of an entry.
struct Entry<'a> {
    kind: u8,
    mode: u32,
    owner: u32,
    link: &'a str,
}

impl Archive {
    /// Begins an archive whose entries have the time `time`, in seconds since 1970.
    pub fn new(time: u64) -> Archive {
        Archive { bytes: Vec::new(), time }
    }

    /// Adds a file that belongs to root.
    ///
    /// # Errors
    ///
    /// Returns an error if the path is too long for the format.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<(), String> {
        self.entry(path, &Entry { kind: b'0', mode, owner: 0, link: "" }, content)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    ///
    /// Returns an error if the path or the link is too long for the format.
    pub fn link(&mut self, path: &str, to: &str) -> Result<(), String> {
        self.entry(path, &Entry { kind: b'2', mode: 0o777, owner: 0, link: to }, &[])
    }

    /// Adds a directory. `owner` is the number of its user and group.
    ///
    /// # Errors
    ///
    /// Returns an error if the path is too long for the format.
    pub fn directory(&mut self, path: &str, mode: u32, owner: u32) -> Result<(), String> {
        self.entry(&format!("{path}/"), &Entry { kind: b'5', mode, owner, link: "" }, &[])
    }

    fn entry(&mut self, path: &str, entry: &Entry, content: &[u8]) -> Result<(), String> {
        let (prefix, name) = split(path).ok_or_else(|| format!("{path}: longer than tar's format allows"))?;
        if entry.link.len() > NAME_BYTES_MAX {
            return Err(format!("{}: longer than tar's format allows", entry.link));
        }
        let mut header = [0u8; BLOCK];
        let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, name);
        put(100, &format!("{:07o}", entry.mode));
        put(108, &format!("{:07o}", entry.owner));
        put(116, &format!("{:07o}", entry.owner));
        put(124, &format!("{:011o}", content.len()));
        put(136, &format!("{:011o}", self.time));
        // The checksum counts its own field as blanks.
        put(148, "        ");
        put(157, entry.link);
        put(257, "ustar");
        put(263, "00");
        put(345, prefix);
        header[156] = entry.kind;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        Ok(())
    }

    /// Returns the complete archive, not compressed.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK, 0);
        self.bytes
    }
}

/// Splits a path into the header's fields for folders and for the rest; `None` if it is too long.
fn split(path: &str) -> Option<(&str, &str)> {
    if path.len() <= NAME_BYTES_MAX {
        return Some(("", path));
    }
    path.match_indices('/').map(|(at, _)| (&path[..at], &path[at + 1..])).find(|(prefix, name)| {
        prefix.len() <= PREFIX_BYTES_MAX && !name.is_empty() && name.len() <= NAME_BYTES_MAX
    })
}

/// Compresses bytes with gzip.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    out.write_all(bytes).and_then(|()| out.finish()).map_err(|e| format!("gzip: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_gives_the_same_bytes_that_a_header_describes() {
        let write = || {
            let mut archive = Archive::new(1_700_000_000);
            archive.directory("a", 0o755, 65532).unwrap();
            archive.file("a/b", 0o644, b"text").unwrap();
            archive.link("a/c", "b").unwrap();
            archive.finish()
        };
        let bytes = write();
        assert_eq!(bytes, write());
        assert_eq!(bytes.len(), 6 * BLOCK, "three headers, a block of content, and two empty blocks");
        let file = &bytes[BLOCK..2 * BLOCK];
        assert_eq!(&file[..4], b"a/b\0");
        assert_eq!(&file[124..136], b"00000000004\0");
        let sum: u32 = file
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        assert_eq!(&file[148..156], format!("{sum:06o}\0 ").as_bytes());
        assert_eq!(gzip(&bytes).unwrap(), gzip(&write()).unwrap());
    }

    #[test]
    fn long_paths_are_split_at_a_folder_or_refused() {
        let long = format!("{}/{}", "f".repeat(90), "n".repeat(90));
        assert_eq!(split(&long), Some((&long[..90], &long[91..])));
        assert_eq!(split(&"n".repeat(101)), None);
        let mut archive = Archive::new(0);
        assert!(archive.file(&"n".repeat(300), 0o644, b"").unwrap_err().contains("longer"));
    }
}
