//! Decodes one page of a database, and verifies it.

use crate::bolt::format::{
    BRANCH, ELEMENT_BYTES, IS_BUCKET, KEY_BYTES_MAX, LEAF, PAGE_HEADER_BYTES, u16_at, u32_at, u64_at,
};
use crate::error::Error;

/// Maximum bytes, with overflow pages, of a branch or of a leaf that contains buckets. A file with a longer
/// one is refused, because a cursor keeps one such page per level of the tree in memory. No valid file comes
/// near the limit: bbolt lets such a page overflow only for up to four keys, of at most 32 KiB each.
pub(super) const INNER_RUN_BYTES_MAX: u64 = 1 << 20;

/// A branch or leaf page with its overflow pages.
pub(crate) struct Page {
    /// Number of the page; 0 for the page of an inline bucket.
    pub id: u64,
    /// Number of pages that the page takes, including its overflow pages.
    pub pages: u64,
    pub is_leaf: bool,
    bytes: Vec<u8>,
    elements: Vec<Element>,
}

#[derive(Clone, Copy)]
struct Element {
    key: usize,
    value: usize,
    end: usize,
    /// Page number of the child, if the page is a branch; flags of the element, if the page is a leaf.
    word: u64,
}

impl Page {
    /// Decodes and verifies page `id`, which begins `offset` bytes into the file. The memory of `spare` is
    /// reused.
    pub fn decode(
        id: u64,
        offset: u64,
        pages: u64,
        bytes: Vec<u8>,
        spare: Option<Page>,
    ) -> Result<Page, Error> {
        let wrong = |at: usize, what: &str| Error::page(id, offset + at as u64, what);
        if bytes.len() < PAGE_HEADER_BYTES {
            return Err(wrong(0, "the page is shorter than its header"));
        }
        if u64_at(&bytes, 0) != id {
            return Err(wrong(0, "the page has a different page number"));
        }
        let is_leaf = match u16_at(&bytes, 8) {
            LEAF => true,
            BRANCH => false,
            _ => return Err(wrong(8, "the page is neither a branch nor a leaf")),
        };
        let count = usize::from(u16_at(&bytes, 10));
        let data = PAGE_HEADER_BYTES + count * ELEMENT_BYTES;
        if data > bytes.len() {
            return Err(wrong(10, "the page counts more elements than it has room for"));
        }
        if count == 0 && !is_leaf {
            return Err(wrong(10, "a branch without children"));
        }
        let mut elements = spare.map(|page| page.elements).unwrap_or_default();
        elements.clear();
        elements.reserve(count);
        for i in 0..count {
            let at = PAGE_HEADER_BYTES + i * ELEMENT_BYTES;
            let (word, position, key_len, value_len) = if is_leaf {
                let flags = u32_at(&bytes, at);
                if flags & !IS_BUCKET != 0 {
                    return Err(wrong(at, "an element has unknown flags"));
                }
                (u64::from(flags), u32_at(&bytes, at + 4), u32_at(&bytes, at + 8), u32_at(&bytes, at + 12))
            } else {
                (u64_at(&bytes, at + 8), u32_at(&bytes, at), u32_at(&bytes, at + 4), 0)
            };
            // The sums cannot overflow: `position` and the two lengths are below 2^32, and `at` is an offset
            // in the page.
            let key = at as u64 + u64::from(position);
            let value = key + u64::from(key_len);
            let end = value + u64::from(value_len);
            if key < data as u64 || end > bytes.len() as u64 {
                return Err(wrong(at, "an element lies outside of its page"));
            }
            if key_len as usize > KEY_BYTES_MAX {
                return Err(wrong(at, "a key is longer than keys may be"));
            }
            let element = Element { key: key as usize, value: value as usize, end: end as usize, word };
            if let Some(before) = elements.last() {
                let before: &Element = before;
                if bytes.get(before.key..before.value) >= bytes.get(element.key..element.value) {
                    return Err(wrong(at, "a key is not above the one before it"));
                }
            }
            elements.push(element);
        }
        // The limit for branches also applies to a leaf with buckets, because a cursor inside such a bucket
        // keeps the leaf in memory like a branch.
        let has_bucket =
            || is_leaf && elements.iter().any(|element| element.word & u64::from(IS_BUCKET) != 0);
        if bytes.len() as u64 > INNER_RUN_BYTES_MAX && has_bucket() {
            return Err(wrong(12, "a page with buckets is longer than such pages can be"));
        }
        Ok(Page { id, pages, is_leaf, bytes, elements })
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Returns the key of an element; an empty slice if the element does not exist.
    pub fn key(&self, i: usize) -> &[u8] {
        self.elements.get(i).and_then(|e| self.bytes.get(e.key..e.value)).unwrap_or_default()
    }

    /// Returns the value of a leaf's element.
    pub fn value(&self, i: usize) -> &[u8] {
        self.elements.get(i).and_then(|e| self.bytes.get(e.value..e.end)).unwrap_or_default()
    }

    /// Returns the page number of the child at a branch's element.
    pub fn child(&self, i: usize) -> u64 {
        self.elements.get(i).map_or(0, |e| e.word)
    }

    /// Returns true if a leaf's element is a bucket.
    pub fn is_bucket(&self, i: usize) -> bool {
        self.is_leaf && self.elements.get(i).is_some_and(|e| e.word & u64::from(IS_BUCKET) != 0)
    }

    /// Returns the offset of an element in the page, in bytes.
    pub fn position(i: usize) -> u64 {
        (PAGE_HEADER_BYTES + i * ELEMENT_BYTES) as u64
    }

    /// Returns the number of elements whose keys are not above `key`.
    pub fn up_to(&self, key: &[u8]) -> usize {
        self.elements.partition_point(|e| self.bytes.get(e.key..e.value).is_some_and(|found| found <= key))
    }

    /// Takes the buffer out of the page, so that the next page can reuse it.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}
