//! Opens a bbolt file, and reads its pages and buckets.

use std::io;

use crate::bolt::cursor::Cursor;
use crate::bolt::format::{
    BRANCH, BUCKET_BYTES, META_BYTES, Meta, PAGE_BYTES_MAX, PAGE_BYTES_MIN, PAGE_HEADER_BYTES, u16_at,
    u32_at, u64_at,
};
use crate::bolt::page::{INNER_RUN_BYTES_MAX, Page};
use crate::error::Error;
use crate::source::Source;

/// Maximum bytes of a leaf with its overflow pages. A file with a longer one is refused, because a cursor
/// keeps one leaf in memory as a whole. The limit leaves room for the longest value that Mainstay accepts,
/// which has less than 1 GiB. bbolt may put several long values into one leaf; such a leaf is also refused if
/// their total exceeds the limit.
const LEAF_RUN_BYTES_MAX: u64 = (1 << 30) + (1 << 20);

/// A bbolt file that is read page by page: only the path from the root to a leaf is in memory.
///
/// All data is checked, as far as the format allows, before it is returned: every page has the expected type,
/// keys ascend, and no position points outside its page. The format has no checksum for values, so a changed
/// value is detected only in a snapshot file, by its SHA-256.
pub struct Bolt<S> {
    source: S,
    meta: Meta,
}

/// Position of a bucket in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub(crate) place: Place,
    /// A counter that bbolt keeps for users of the bucket; etcd does not use this counter.
    pub sequence: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Number of the bucket's root page.
    Page(u64),
    /// An inline bucket, which is a page inside the value of a leaf element: its bytes, and the page and
    /// offset of that element.
    Inline { bytes: Vec<u8>, page: u64, offset: u64 },
}

impl<S: Source> Bolt<S> {
    /// Opens a database that is stored in the first `len` bytes of `source`.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or has no valid meta page.
    pub fn open(source: S, len: u64) -> Result<Bolt<S>, Error> {
        let meta = newest_meta(&source, len)?;
        let bolt = Bolt { source, meta };
        let end = meta.high_water.checked_mul(u64::from(meta.page_bytes));
        if end.is_none_or(|end| end > len) {
            return Err(Error::damaged(
                len,
                format!(
                    "the database ends after {len} bytes, but must have {} pages of {} bytes",
                    meta.high_water, meta.page_bytes
                ),
            ));
        }
        Ok(bolt)
    }

    /// Opens a database that is stored in the whole of `source`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Bolt::open`].
    pub fn whole(source: S) -> Result<Bolt<S>, Error> {
        let len = source.len_bytes().map_err(|e| Error::io("asking for the database's size", e))?;
        Bolt::open(source, len)
    }

    /// Returns the contents of the meta page with the higher transaction number.
    pub fn meta(&self) -> Meta {
        self.meta
    }

    /// Returns the source from which the database is read.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Returns the number of bytes up to the end of the last page in use.
    pub fn size_bytes(&self) -> u64 {
        // Opening the file has checked that the product does not overflow.
        self.meta.high_water.saturating_mul(u64::from(self.meta.page_bytes))
    }

    /// Returns a cursor over the root bucket; in etcd's databases all items of the root bucket are buckets.
    pub fn root(&self) -> Cursor<'_, S> {
        Cursor::new(self, Place::Page(self.meta.root))
    }

    /// Returns a cursor over a bucket.
    pub fn walk(&self, bucket: &Bucket) -> Cursor<'_, S> {
        Cursor::new(self, bucket.place.clone())
    }

    /// Returns the bucket of this name in the root bucket; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if a page that leads to the bucket is damaged.
    pub fn bucket(&self, name: &[u8]) -> Result<Option<Bucket>, Error> {
        let mut cursor = self.root();
        cursor.seek(name)?;
        Ok(cursor.step()?.filter(|item| item.key == name).and_then(|item| item.bucket))
    }

    /// Returns the offset at which page `id` begins.
    pub(crate) fn offset(&self, id: u64) -> u64 {
        id.saturating_mul(u64::from(self.meta.page_bytes))
    }

    /// Reads page `id`. `from` is the page and offset of the element that refers to this page, for error
    /// messages. The memory of `spare` is reused.
    pub(crate) fn page(&self, id: u64, from: (u64, u64), mut spare: Option<Page>) -> Result<Page, Error> {
        let bytes = spare.as_mut().map(Page::take_bytes).unwrap_or_default();
        let (pages, bytes) = self.page_bytes(id, from, bytes)?;
        Page::decode(id, self.offset(id), pages, bytes, spare)
    }

    /// Reads a page with its overflow pages into `bytes`. Also returns the number of pages.
    pub(crate) fn page_bytes(
        &self,
        id: u64,
        from: (u64, u64),
        mut bytes: Vec<u8>,
    ) -> Result<(u64, Vec<u8>), Error> {
        if id < 2 || id >= self.meta.high_water {
            let what = format!("points to page {id}, but only pages 2 to {} exist", self.meta.high_water - 1);
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
            // The allocation is bounded, even if the count is forged: `most` limits it, and the file was
            // found to contain that many pages.
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
    /// Decodes the value of a leaf element that is a bucket. `at` is the page and offset of the element.
    pub(crate) fn decode(value: &[u8], at: (u64, u64)) -> Result<Bucket, Error> {
        if value.len() < BUCKET_BYTES {
            return Err(Error::page(at.0, at.1, "a bucket's header is truncated"));
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

/// Returns the valid meta page with the higher transaction number.
fn newest_meta(source: &impl Source, len: u64) -> Result<Meta, Error> {
    let first = meta_at(source, len, 0)?;
    // The second meta page is at the offset of the page size. If the first one, which contains the page size,
    // is invalid, try all possible sizes.
    let mut second = Err("no valid second header");
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
            return Err(Error::page(0, 0, format!("no header of the database is valid: {what}")));
        }
    };
    if meta.high_water < 3 {
        return Err(Error::page(0, 40, "the header says that there are no pages"));
    }
    Ok(meta)
}

/// Reads the meta page at an offset. The inner error is the reason why the page is invalid.
fn meta_at(source: &impl Source, len: u64, page: u64) -> Result<Result<Meta, &'static str>, Error> {
    let offset = page + PAGE_HEADER_BYTES as u64;
    if len < offset + META_BYTES as u64 {
        return Ok(Err("the file ends before"));
    }
    let mut bytes = [0; META_BYTES];
    source
        .read_exact_at(&mut bytes, offset)
        .map_err(|e| Error::io(format!("reading the header at byte {offset}"), e))?;
    Ok(Meta::decode(&bytes))
}
