//! Defines the format of bbolt's files, version 2, and encodes and decodes meta pages. bbolt writes numbers
//! in the byte order of the machine. This module reads and writes only little-endian numbers. So it refuses a
//! file from a big-endian machine, because the magic number does not match.
//!
//! ```text
//! file     pages of equal size, a power of two: by default the size of a memory page of the machine on
//!          which bbolt created the file
//!          pages 0 and 1 are meta pages: the valid one with the higher transaction number counts
//!
//! page
//!        0  id               8   number of the page; its offset in the file is number x page size
//!        8  flags            2   1 branch, 2 leaf, 4 meta, 16 free list
//!       10  count            2   elements
//!       12  overflow         4   pages that follow and belong to this one
//!       16  elements, then what they point to
//!
//! meta     (after the header)
//!        0  magic            4   ED 0C DA ED as a number
//!        4  version          4   2
//!        8  page size        4
//!       12  flags            4   0
//!       16  root page        8   of the root bucket
//!       24  sequence         8   of the root bucket
//!       32  free list        8   its page; all ones: not in the file
//!       40  high water       8   number of the first page after all pages in use
//!       48  transaction      8
//!       56  checksum         8   FNV-1a of the 56 bytes before
//!
//! branch element                 leaf element
//!        0  position   4                0  flags       4   1: the value is a bucket
//!        4  key size   4                4  position    4
//!        8  child page 8                8  key size    4
//!                                      12  value size  4
//!          Positions count from the beginning of the element. At the position of a leaf element are the key
//!          and directly after it the value. The key of a branch element is not above the least key of its
//!          child.
//!
//! bucket   (a value)
//!        0  root page        8   0: the bucket is inline, and a leaf page follows here
//!        8  sequence         8
//!
//! free list                      page numbers, 8 bytes each, as many as the page's count says; if the count
//!                                is 65535, the real count is in place of the first number
//! ```

pub(crate) const MAGIC: u32 = 0xED0C_DAED;
pub(crate) const VERSION: u32 = 2;
pub(crate) const PAGE_HEADER_BYTES: usize = 16;
pub(crate) const ELEMENT_BYTES: usize = 16;
pub(crate) const META_BYTES: usize = 64;
pub(crate) const BUCKET_BYTES: usize = 16;
pub(crate) const BRANCH: u16 = 1;
pub(crate) const LEAF: u16 = 2;
pub(crate) const META: u16 = 4;
pub(crate) const FREELIST: u16 = 16;
/// Flag of a leaf element whose value is a bucket.
pub(crate) const IS_BUCKET: u32 = 1;
pub(crate) const NO_FREELIST: u64 = u64::MAX;
/// Value of the field `count` if a free list has too many pages for this field. In this case, the real count
/// is in the place of the first page number.
pub(crate) const COUNT_ELSEWHERE: u16 = u16::MAX;
/// Maximum length of a key in bytes.
pub const KEY_BYTES_MAX: usize = 32_768;
/// Maximum length of a value in bytes.
pub const VALUE_BYTES_MAX: usize = (1 << 31) - 2;
/// Minimum page size in bytes.
pub const PAGE_BYTES_MIN: u32 = 4096;
/// Maximum page size in bytes.
pub const PAGE_BYTES_MAX: u32 = 65_536;

/// Contents of a meta page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Page size in bytes.
    pub page_bytes: u32,
    /// First page of the root bucket.
    pub root: u64,
    /// First page of the free list; `None` if the list is not in the file.
    pub freelist: Option<u64>,
    /// Number of pages in use: every page with this number or a higher one is unused.
    pub high_water: u64,
    /// Number of the transaction that wrote the meta page.
    pub transaction: u64,
}

impl Meta {
    pub(crate) fn encode(&self) -> [u8; META_BYTES] {
        let mut bytes = [0; META_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.page_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.root.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.freelist.unwrap_or(NO_FREELIST).to_le_bytes());
        bytes[40..48].copy_from_slice(&self.high_water.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.transaction.to_le_bytes());
        let checksum = fnv1a(&bytes[..56]);
        bytes[56..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a meta page. The returned error describes what is wrong with it, without naming the page.
    pub(crate) fn decode(bytes: &[u8; META_BYTES]) -> Result<Meta, &'static str> {
        if u32_at(bytes, 0) != MAGIC {
            return Err("it does not start with a database header");
        }
        if u32_at(bytes, 4) != VERSION {
            return Err("it has a format version other than 2");
        }
        if fnv1a(&bytes[..56]) != u64_at(bytes, 56) {
            return Err("its checksum does not match");
        }
        let freelist = u64_at(bytes, 32);
        let meta = Meta {
            page_bytes: u32_at(bytes, 8),
            root: u64_at(bytes, 16),
            freelist: (freelist != NO_FREELIST).then_some(freelist),
            high_water: u64_at(bytes, 40),
            transaction: u64_at(bytes, 48),
        };
        if !meta.page_bytes.is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&meta.page_bytes)
        {
            return Err("it has a page size that etcd does not use");
        }
        Ok(meta)
    }
}

pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Returns the bytes at `at`. Returns zeros if `bytes` is too short, which does not happen because callers
/// check the length.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied().unwrap_or([0; N])
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_fnv_1a() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_meta_comes_back_and_no_flipped_bit_does() {
        let meta = Meta { page_bytes: 4096, root: 7, freelist: None, high_water: 9, transaction: 12 };
        let bytes = meta.encode();
        assert_eq!(Meta::decode(&bytes), Ok(meta));
        for bit in 0..META_BYTES * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Meta::decode(&bytes).is_err(), "bit {bit}");
        }
    }
}
