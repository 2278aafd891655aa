//! Checks a whole database for damage, as bbolt's own check does: every page must be valid, and either free
//! or used exactly once.

use crate::bolt::database::Bolt;
use crate::bolt::format::{COUNT_ELSEWHERE, FREELIST, PAGE_HEADER_BYTES, u16_at, u64_at};
use crate::error::Error;
use crate::source::Source;

/// Maximum nesting of buckets. A database with deeper nesting is refused; etcd does not nest its buckets.
const NESTING_MAX: usize = 16;

/// The result of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Number of buckets, not counting the root bucket.
    pub buckets: u64,
    /// Number of keys in all buckets.
    pub keys: u64,
    /// Number of pages that can be reached, including meta pages and the free list.
    pub used_pages: u64,
    /// Number of free pages.
    pub free_pages: u64,
}

impl<S: Source> Bolt<S> {
    /// Reads every reachable page once and compares them with the free list: each page below the high water
    /// mark must be either free or used exactly once. The check takes one bit of memory per page, and a
    /// second one if the file has a free list.
    ///
    /// # Errors
    ///
    /// Returns the first error found.
    pub fn check(&self) -> Result<Checked, Error> {
        let meta = self.meta();
        let mut used = Pages::new(meta.high_water);
        used.take(0, 2, self)?;
        let mut checked = Checked::default();
        let mut nested = vec![self.root()];
        while let Some(cursor) = nested.last_mut() {
            cursor.trail.get_or_insert_default();
            let step = cursor.step()?.map(|item| (item.bucket, item.page, item.offset));
            for (page, count) in cursor.trail.iter_mut().flat_map(|trail| trail.drain(..)) {
                used.take(page, count, self)?;
            }
            match step {
                None => {
                    nested.pop();
                }
                Some((None, ..)) => checked.keys += 1,
                Some((Some(bucket), page, offset)) => {
                    checked.buckets += 1;
                    if nested.len() > NESTING_MAX {
                        return Err(Error::page(page, offset, "buckets are nested deeper than etcd's are"));
                    }
                    nested.push(self.walk(&bucket));
                }
            }
        }
        match meta.freelist {
            None => checked.free_pages = meta.high_water - used.taken,
            Some(page) => checked.free_pages = self.check_freelist(page, &mut used)?,
        }
        checked.used_pages = meta.high_water - checked.free_pages;
        Ok(checked)
    }

    /// Compares the free list with the pages that are in use: each page must be in exactly one of the two
    /// sets. Returns the number of free pages.
    fn check_freelist(&self, id: u64, used: &mut Pages) -> Result<u64, Error> {
        let (pages, bytes) = self.page_bytes(id, (0, 0), Vec::new())?;
        let offset = self.offset(id);
        if u64_at(&bytes, 0) != id || u16_at(&bytes, 8) != FREELIST {
            return Err(Error::page(id, offset, "the page is not the free list named by the header"));
        }
        used.take(id, pages, self)?;
        let mut at = PAGE_HEADER_BYTES;
        let mut count = u64::from(u16_at(&bytes, 10));
        if count == u64::from(COUNT_ELSEWHERE) {
            count = u64_at(&bytes, at);
            at += 8;
        }
        if count > ((bytes.len() - at) / 8) as u64 {
            return Err(Error::page(id, offset + 10, "the free list counts more pages than it has room for"));
        }
        for _ in 0..count {
            let free = u64_at(&bytes, at);
            if free < 2 || free >= self.meta().high_water {
                return Err(Error::page(
                    id,
                    offset + at as u64,
                    format!("page {free} is free but does not exist"),
                ));
            }
            if used.is_taken(free) {
                let what = format!("page {free} is both free and in use, or listed twice");
                return Err(Error::page(id, offset + at as u64, what));
            }
            used.take(free, 1, self)?;
            at += 8;
        }
        if used.taken < self.meta().high_water {
            let lost = (0..self.meta().high_water).find(|page| !used.is_taken(*page)).unwrap_or_default();
            return Err(Error::page(lost, self.offset(lost), "the page is neither in use nor free"));
        }
        Ok(count)
    }
}

/// A set of page numbers, with one bit per page.
struct Pages {
    bits: Vec<u64>,
    taken: u64,
}

impl Pages {
    fn new(count: u64) -> Pages {
        Pages { bits: vec![0; count.div_ceil(64) as usize], taken: 0 }
    }

    fn is_taken(&self, page: u64) -> bool {
        self.bits.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 != 0)
    }

    fn take<S: Source>(&mut self, first: u64, count: u64, bolt: &Bolt<S>) -> Result<(), Error> {
        for page in first..first.saturating_add(count) {
            if self.is_taken(page) {
                return Err(Error::page(page, bolt.offset(page), "the page is used twice"));
            }
            if let Some(word) = self.bits.get_mut((page / 64) as usize) {
                *word |= 1 << (page % 64);
            }
            self.taken += 1;
        }
        Ok(())
    }
}
