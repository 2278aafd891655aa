//! A database that is read.

use std::io;

use crate::bolt::cursor::Cursor;
use crate::bolt::format::{
    BRANCH, BUCKET_BYTES, META_BYTES, Meta, PAGE_BYTES_MAX, PAGE_BYTES_MIN, PAGE_HEADER_BYTES, u16_at,
    u32_at, u64_at,
};
use crate::bolt::page::Page;
use crate::error::Error;
use crate::source::Source;

/// Bytes of a leaf and the pages that overflow from it, at most: they are in memory at once, and one walk has one leaf. bbolt
/// keeps up to four items together, however long; the longest value that Mainstay takes has less than 1 GiB.
const LEAF_RUN_BYTES_MAX: u64 = (1 << 30) + (1 << 20);

/// The same of a branch, and of a leaf that holds buckets, of which a walk has as many as the tree is deep. bbolt writes no
/// longer one than for four keys, of 32 KiB at most.
pub(super) const INNER_RUN_BYTES_MAX: u64 = 1 << 20;

/// A bbolt file, read page by page: no more is held in memory than a path from the root to a leaf.
///
/// What it gives has been checked as far as the format allows: every page is what it should be, keys ascend, nothing
/// points outside. Values have no checksum in this format; the SHA-256 of a snapshot file covers them.
pub struct Bolt<S> {
    source: S,
    meta: Meta,
}

/// The position of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub(crate) place: Place,
    /// A counter for the database's users; etcd does not use it.
    pub sequence: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// From this page on.
    Page(u64),
    /// In the value that was read: a page, and where it came from.
    Inline { bytes: Vec<u8>, page: u64, offset: u64 },
}

impl<S: Source> Bolt<S> {
    /// Opens a database that takes the first `len` bytes of `source`.
    ///
    /// # Errors
    ///
    /// When it cannot be read or has no valid head.
    pub fn open(source: S, len: u64) -> Result<Bolt<S>, Error> {
        let meta = newest_meta(&source, len)?;
        let bolt = Bolt { source, meta };
        let end = meta.high_water.checked_mul(u64::from(meta.page_bytes));
        if end.is_none_or(|end| end > len) {
            return Err(Error::damaged(
                len,
                format!(
                    "the database ends after {len} bytes and has to have {} pages of {} bytes",
                    meta.high_water, meta.page_bytes
                ),
            ));
        }
        Ok(bolt)
    }

    /// Opens a database that takes all of `source`.
    ///
    /// # Errors
    ///
    /// As [`Bolt::open`].
    pub fn whole(source: S) -> Result<Bolt<S>, Error> {
        let len = source.len_bytes().map_err(|e| Error::io("asking for the database's size", e))?;
        Bolt::open(source, len)
    }

    /// Returns the meta page that is in use.
    pub fn meta(&self) -> Meta {
        self.meta
    }

    /// Returns the source that it is read from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Bytes in use.
    pub fn size_bytes(&self) -> u64 {
        // The product was checked when the file was opened.
        self.meta.high_water.saturating_mul(u64::from(self.meta.page_bytes))
    }

    /// A walk over the root bucket, whose items are buckets in etcd's databases.
    pub fn root(&self) -> Cursor<'_, S> {
        Cursor::new(self, Place::Page(self.meta.root))
    }

    /// A walk over a bucket.
    pub fn walk(&self, bucket: &Bucket) -> Cursor<'_, S> {
        Cursor::new(self, bucket.place.clone())
    }

    /// A bucket by its name in the root bucket.
    ///
    /// # Errors
    ///
    /// When the way there is damaged.
    pub fn bucket(&self, name: &[u8]) -> Result<Option<Bucket>, Error> {
        let mut cursor = self.root();
        cursor.seek(name)?;
        Ok(cursor.step()?.filter(|item| item.key == name).and_then(|item| item.bucket))
    }

    /// Returns the offset at which page `id` begins.
    pub(crate) fn offset(&self, id: u64) -> u64 {
        id.saturating_mul(u64::from(self.meta.page_bytes))
    }

    /// Reads a page. `from` is the page and offset that point to it; `spare` gives its memory.
    pub(crate) fn page(&self, id: u64, from: (u64, u64), mut spare: Option<Page>) -> Result<Page, Error> {
        let bytes = spare.as_mut().map(Page::take_bytes).unwrap_or_default();
        let (pages, bytes) = self.page_bytes(id, from, bytes)?;
        Page::decode(id, self.offset(id), pages, bytes, spare)
    }

    /// Reads a page and those that overflow from it into `bytes`; also gives how many they are.
    pub(crate) fn page_bytes(
        &self,
        id: u64,
        from: (u64, u64),
        mut bytes: Vec<u8>,
    ) -> Result<(u64, Vec<u8>), Error> {
        if id < 2 || id >= self.meta.high_water {
            let what = format!("points to page {id}, and pages 2 to {} are there", self.meta.high_water - 1);
            return Err(Error::page(from.0, from.1, what));
        }
        let offset = self.offset(id);
        let page_bytes = self.meta.page_bytes as usize;
        let failed = |e| Error::io(format!("reading page {id} at byte {offset}"), e);
        bytes.clear();
        bytes.resize(page_bytes, 0);
        self.source.read_exact_at(&mut bytes, offset).map_err(failed)?;
        let pages = 1 + u64::from(u32_at(&bytes, 12));
        if pages > self.meta.high_water - id {
            return Err(Error::page(id, offset + 12, "the page overflows beyond the end"));
        }
        let most = if u16_at(&bytes, 8) == BRANCH { INNER_RUN_BYTES_MAX } else { LEAF_RUN_BYTES_MAX };
        if pages > most / page_bytes as u64 {
            let what = format!(
                "the page and what overflows from it have {pages} x {page_bytes} bytes, and at most {most} are read"
            );
            return Err(Error::page(id, offset + 12, what));
        }
        if pages > 1 {
            // The file is known to be that long, so a claim alone does not make anybody allocate.
            let all = usize::try_from(pages).ok().and_then(|pages| pages.checked_mul(page_bytes));
            let all = all.filter(|all| bytes.try_reserve_exact(*all - page_bytes).is_ok());
            let all = all.ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
            bytes.resize(all, 0);
            let rest = bytes.get_mut(page_bytes..).unwrap_or_default();
            self.source.read_exact_at(rest, offset + page_bytes as u64).map_err(failed)?;
        }
        Ok((pages, bytes))
    }
}

impl Bucket {
    /// Takes the value of a leaf's element that is a bucket. `at` is the page and offset it was found at.
    pub(crate) fn decode(value: &[u8], at: (u64, u64)) -> Result<Bucket, Error> {
        if value.len() < BUCKET_BYTES {
            return Err(Error::page(at.0, at.1, "a bucket's head is cut off"));
        }
        let sequence = u64_at(value, 8);
        let place = match u64_at(value, 0) {
            0 => Place::Inline {
                bytes: value.get(BUCKET_BYTES..).unwrap_or_default().to_vec(),
                page: at.0,
                offset: at.1,
            },
            root => Place::Page(root),
        };
        Ok(Bucket { place, sequence })
    }
}

/// The meta that counts: the valid one of the later transaction.
fn newest_meta(source: &impl Source, len: u64) -> Result<Meta, Error> {
    let first = meta_at(source, len, 0)?;
    // Without a first one the page size is unknown, and with it where the second one stands.
    let mut second = Err("no valid second head");
    let mut page_bytes = PAGE_BYTES_MIN;
    while page_bytes <= PAGE_BYTES_MAX {
        if first.as_ref().map_or(true, |meta| meta.page_bytes == page_bytes)
            && let Ok(meta) = meta_at(source, len, u64::from(page_bytes))?
            && meta.page_bytes == page_bytes
        {
            second = Ok(meta);
            break;
        }
        page_bytes *= 2;
    }
    let meta = match (first, second) {
        (Ok(first), Ok(second)) if second.transaction > first.transaction => second,
        (Ok(first), _) => first,
        (Err(_), Ok(second)) => second,
        (Err(what), Err(_)) => {
            return Err(Error::page(0, 0, format!("no head of a database is valid: {what}")));
        }
    };
    if meta.high_water < 3 {
        return Err(Error::page(0, 40, "the head says that there are no pages"));
    }
    Ok(meta)
}

/// The inner error says why there is no meta.
fn meta_at(source: &impl Source, len: u64, page: u64) -> Result<Result<Meta, &'static str>, Error> {
    let offset = page + PAGE_HEADER_BYTES as u64;
    if len < offset + META_BYTES as u64 {
        return Ok(Err("the file ends before"));
    }
    let mut bytes = [0; META_BYTES];
    source
        .read_exact_at(&mut bytes, offset)
        .map_err(|e| Error::io(format!("reading the head at byte {offset}"), e))?;
    Ok(Meta::decode(&bytes))
}
