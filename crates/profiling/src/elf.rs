//! Finds the names of functions in ELF files (64 bit, little endian), by reading their symbol tables.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Maximum size in bytes of a table that is read. Larger tables are ignored.
const TABLE_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of sections, and of segments, that are read; further ones are ignored.
const HEADERS_MAX: usize = 4096;

const SYMBOLS: u32 = 2;
const DYNAMIC_SYMBOLS: u32 = 11;
const LOADED: u32 = 1;
const FUNCTION: u8 = 2;

/// A function: its start address as the file gives it, its size in bytes, and the offset of its name in the
/// string table.
#[derive(Clone, Copy)]
struct Symbol {
    start: u64,
    bytes: u64,
    name: u32,
}

/// The functions of a file, sorted by address.
pub(crate) struct Functions {
    symbols: Vec<Symbol>,
    names: Vec<u8>,
    segments: Vec<Segment>,
}

/// A part of the file that is loaded into memory: its offset in the file, its size in bytes, and its address.
struct Segment {
    offset: u64,
    bytes: u64,
    address: u64,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut wide = [0; 8];
    wide.get_mut(..N)?.copy_from_slice(bytes.get(at..at.checked_add(N)?)?);
    Some(u64::from_le_bytes(wide))
}

fn small(bytes: &[u8], at: usize) -> Option<u32> {
    u32::try_from(number::<4>(bytes, at)?).ok()
}

fn read(file: &File, at: u64, bytes: u64) -> Option<Vec<u8>> {
    let mut read = vec![0; usize::try_from(bytes).ok().filter(|_| bytes <= TABLE_BYTES_MAX)?];
    file.read_exact_at(&mut read, at).ok()?;
    Some(read)
}

impl Functions {
    /// Reads the symbol table of a file: the full table if there is one, otherwise the table for dynamic
    /// linking. Returns `None` if the file cannot be read or has neither.
    pub(crate) fn read(path: &Path) -> Option<Functions> {
        let file = File::open(path).ok()?;
        let header = read(&file, 0, 64)?;
        if header.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let table = |at: usize, size: usize, count: usize| {
            let size = number::<2>(&header, size)?;
            let count = usize::try_from(number::<2>(&header, count)?).ok()?.min(HEADERS_MAX);
            let rows = read(&file, number::<8>(&header, at)?, size.checked_mul(count as u64)?)?;
            Some((rows, usize::try_from(size).ok()?.max(1)))
        };
        let (segments, size) = table(0x20, 0x36, 0x38)?;
        let segment = |row: &[u8]| {
            let (offset, address, bytes) =
                (number::<8>(row, 0x08)?, number::<8>(row, 0x10)?, number::<8>(row, 0x20)?);
            (small(row, 0)? == LOADED).then_some(Segment { offset, bytes, address })
        };
        let segments = segments.chunks_exact(size).filter_map(segment).collect();
        let (sections, size) = table(0x28, 0x3a, 0x3c)?;
        let row = |kind| sections.chunks_exact(size).find(|row| small(row, 4) == Some(kind));
        let symbols = row(SYMBOLS).or_else(|| row(DYNAMIC_SYMBOLS))?;
        let names = sections.chunks_exact(size).nth(small(symbols, 0x28)? as usize)?;
        let content = |row: &[u8]| read(&file, number::<8>(row, 0x18)?, number::<8>(row, 0x20)?);
        let symbol = |row: &[u8]| {
            let (start, bytes) = (number::<8>(row, 8)?, number::<8>(row, 16)?);
            let is_function = row.get(4)? & 0xf == FUNCTION && start != 0;
            is_function.then_some(Symbol { start, bytes, name: small(row, 0)? })
        };
        let mut symbols: Vec<Symbol> = content(symbols)?.chunks_exact(24).filter_map(symbol).collect();
        symbols.sort_by_key(|symbol| symbol.start);
        Some(Functions { symbols, names: content(names)?, segments })
    }

    /// Returns the mangled name of the function whose code contains this offset in the file; `None` if it is
    /// not known.
    pub(crate) fn at(&self, offset: u64) -> Option<String> {
        let holds = |segment: &&Segment| {
            offset.checked_sub(segment.offset).is_some_and(|behind| behind < segment.bytes)
        };
        let segment = self.segments.iter().find(holds)?;
        let address = (offset - segment.offset).checked_add(segment.address)?;
        let behind = self.symbols.partition_point(|symbol| symbol.start <= address);
        let symbol = self.symbols.get(behind.checked_sub(1)?)?;
        // The address must be within the function. A size of 0, as functions in assembly may have, means that
        // the size is not known, so it is not checked.
        if symbol.bytes != 0 && address - symbol.start >= symbol.bytes {
            return None;
        }
        let name = self.names.get(symbol.name as usize..)?;
        let name = name.get(..name.iter().position(|byte| *byte == 0)?)?;
        Some(String::from_utf8_lossy(name).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_has_no_functions() {
        let path = std::env::temp_dir().join(format!("profiling-elf-{}", std::process::id()));
        let own = std::fs::read("/proc/self/exe").expect("the program of this test");
        // The intact file has symbols; a truncated or changed file may have some or none, but must not cause
        // a panic.
        assert!(Functions::read(Path::new("/proc/self/exe")).is_some_and(|found| !found.symbols.is_empty()));
        for (cut, change) in [(0, 0), (10, 0), (64, 0), (4096, 0), (4096, 0x28), (4096, 0x20), (4096, 0x3c)] {
            let mut bytes = own.get(..cut).unwrap_or(&own).to_vec();
            if let Some(byte) = bytes.get_mut(change) {
                *byte ^= 0xff;
            }
            std::fs::write(&path, &bytes).expect("it is written");
            assert!(Functions::read(&path).is_none_or(|found| found.at(u64::MAX).is_none()));
        }
        std::fs::remove_file(&path).expect("it is removed");
        assert!(Functions::read(Path::new("/none")).is_none());
    }
}
