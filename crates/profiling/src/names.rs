//! Looks up the names of functions by address, in the files whose code is mapped into this process.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::elf::Functions;

/// Maximum number of files whose symbol tables are read. Functions of further files get the name of the file.
const FILES_MAX: usize = 32;

/// A range of memory into which the code of a file is mapped.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Offset in the file of the byte that is mapped at `start`.
    pub offset: u64,
    pub file: String,
}

/// Returns the executable mappings, from `/proc/self/maps`.
pub(crate) fn mappings() -> Vec<Mapping> {
    let text = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    text.lines().filter_map(mapping).collect()
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let mode = words.next()?;
    let offset = words.next()?;
    let file = words.nth(2)?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let found =
        Mapping { start: number(start)?, end: number(end)?, offset: number(offset)?, file: file.to_owned() };
    mode.contains('x').then_some(found)
}

/// Looks up names of functions by address. The symbol table of each file is read once and kept.
pub(crate) struct Names {
    files: HashMap<String, Option<Functions>>,
}

impl Names {
    pub(crate) fn new() -> Names {
        Names { files: HashMap::new() }
    }

    /// Returns the mangled name of the function at this address in a mapping, or the name of the mapped file
    /// if the function is not known.
    pub(crate) fn at(&mut self, mapping: &Mapping, address: u64) -> String {
        let known = self.files.len();
        let read = |file: &str| (known < FILES_MAX).then(|| Functions::read(Path::new(file))).flatten();
        let functions = self.files.entry(mapping.file.clone()).or_insert_with(|| read(&mapping.file));
        let offset = address.wrapping_sub(mapping.start).wrapping_add(mapping.offset);
        let name = functions.as_ref().and_then(|functions| functions.at(offset));
        name.unwrap_or_else(|| format!("[{}]", mapping.file.rsplit('/').next().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_read() {
        let line = "7f00-7fff r-xp 00001000 fe:01 123                        /usr/lib/libc.so.6";
        let found = mapping(line).expect("a mapping");
        assert_eq!((found.start, found.end, found.offset), (0x7f00, 0x7fff, 0x1000));
        assert_eq!(found.file, "/usr/lib/libc.so.6");
        for line in ["", "7f00-7fff r--p 0 0 0 /x", "7f00-7fff r-xp 0 0 0", "x-y r-xp 0 0 0 /x", "7f00"] {
            assert!(mapping(line).is_none(), "{line}");
        }
        assert!(!mappings().is_empty());
    }
}
