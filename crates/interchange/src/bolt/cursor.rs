//! Iterates over the items of a bucket, in order of keys.

use crate::bolt::database::{Bolt, Bucket, Place};
use crate::bolt::page::Page;
use crate::error::Error;
use crate::source::Source;

/// Maximum depth of a tree. A deeper tree counts as damaged: in a file of bbolt, each branch has at least two
/// children and page numbers have 64 bits, so a valid tree is never deeper.
const DEPTH_MAX: usize = 64;

/// Iterates over the items of a bucket in ascending order of keys. Keeps one page per level of the tree in
/// memory.
///
/// A damaged file cannot make the iteration endless: the keys of every page must lie between those of the
/// branch elements that led to the page.
pub struct Cursor<'b, S> {
    bolt: &'b Bolt<S>,
    start: Option<Place>,
    stack: Vec<Frame>,
    spare: Option<Page>,
    /// Pages that the cursor has read, as (first page, number of pages); `None` if they are not recorded.
    /// [`Bolt::check`] takes the pages out after each step.
    pub(super) trail: Option<Vec<(u64, u64)>>,
}

struct Frame {
    page: Page,
    /// Offset of the page in the file, in bytes.
    offset: u64,
    /// Index of an element: in a branch, the one whose child is being read; in a leaf, the next one to
    /// return.
    at: usize,
}

/// A key with its value, or a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<'c> {
    /// The key.
    pub key: &'c [u8],
    /// Value of the key; if the item is a bucket, the bucket's header.
    pub value: &'c [u8],
    /// The bucket, if the item is a bucket; `None` for a key with a value.
    pub bucket: Option<Bucket>,
    /// Number of the page that contains the item.
    pub page: u64,
    /// Offset of the element in the file, in bytes.
    pub offset: u64,
}

impl<'b, S: Source> Cursor<'b, S> {
    pub(super) fn new(bolt: &'b Bolt<S>, start: Place) -> Cursor<'b, S> {
        Cursor { bolt, start: Some(start), stack: Vec::new(), spare: None, trail: None }
    }

    /// Returns the next item; `None` after the last one. After an error the cursor must not be used any more.
    ///
    /// # Errors
    ///
    /// Returns an error if a page cannot be read or is damaged.
    pub fn step(&mut self) -> Result<Option<Item<'_>>, Error> {
        if !self.find()? {
            return Ok(None);
        }
        let Some(leaf) = self.stack.last_mut() else { return Ok(None) };
        let i = leaf.at;
        leaf.at += 1;
        let at = (leaf.page.id, leaf.offset + Page::position(i));
        let value = leaf.page.value(i);
        let bucket = match leaf.page.is_bucket(i) {
            true => Some(Bucket::decode(value, at)?),
            false => None,
        };
        Ok(Some(Item { key: leaf.page.key(i), value, bucket, page: at.0, offset: at.1 }))
    }

    /// Moves to the first item whose key is not below `key`, so that [`Cursor::step`] returns this item next.
    /// May be called only once, before the first step.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Cursor::step`].
    ///
    /// # Panics
    ///
    /// Panics if [`Cursor::step`] or `seek` was called before.
    pub fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        let start = self.start.take();
        assert!(start.is_some(), "a walk goes to a key before it begins");
        if let Some(start) = start {
            self.enter_root(start)?;
        }
        while let Some(frame) = self.stack.last_mut() {
            let up_to = frame.page.up_to(key);
            if frame.page.is_leaf {
                // An element whose key is equal to `key` is not below it, so the position moves back to that
                // element.
                frame.at = if up_to > 0 && frame.page.key(up_to - 1) == key { up_to - 1 } else { up_to };
                return Ok(());
            }
            frame.at = up_to.saturating_sub(1);
            self.enter_child()?;
        }
        Ok(())
    }

    /// Moves to the next leaf that has an item to return, and puts this leaf on top of the stack. Returns
    /// false if no item is left.
    fn find(&mut self) -> Result<bool, Error> {
        if let Some(start) = self.start.take() {
            self.enter_root(start)?;
        }
        loop {
            let Some(frame) = self.stack.last_mut() else { return Ok(false) };
            if frame.at < frame.page.len() {
                if frame.page.is_leaf {
                    return Ok(true);
                }
                self.enter_child()?;
                continue;
            }
            self.spare = self.stack.pop().map(|frame| frame.page);
            if let Some(parent) = self.stack.last_mut() {
                parent.at += 1;
            }
        }
    }

    fn enter_root(&mut self, place: Place) -> Result<(), Error> {
        let (page, offset) = match place {
            Place::Page(id) => (self.bolt.page(id, (0, 0), self.spare.take())?, self.bolt.offset(id)),
            Place::Inline { bytes, page, offset } => {
                let inline = Page::decode(0, offset, 0, bytes, None).map_err(|e| inside(e, page, offset))?;
                if !inline.is_leaf {
                    return Err(Error::page(page, offset, "an inline bucket is not a leaf"));
                }
                (inline, offset)
            }
        };
        self.note(&page);
        self.stack.push(Frame { page, offset, at: 0 });
        Ok(())
    }

    /// Reads the child at the current element of the branch on top of the stack.
    fn enter_child(&mut self) -> Result<(), Error> {
        let entered = self.child();
        match entered {
            Ok(frame) => {
                self.note(&frame.page);
                self.stack.push(frame);
                Ok(())
            }
            Err(error) => {
                self.stack.clear();
                Err(error)
            }
        }
    }

    fn child(&mut self) -> Result<Frame, Error> {
        let Some(parent) = self.stack.last() else {
            return Err(Error::damaged(0, "there is no branch to go down from"));
        };
        let from = (parent.page.id, parent.offset + Page::position(parent.at));
        if self.stack.len() >= DEPTH_MAX {
            return Err(Error::page(from.0, from.1, "the tree is deeper than any tree can be"));
        }
        let id = parent.page.child(parent.at);
        let page = self.bolt.page(id, from, self.spare.take())?;
        let offset = self.bolt.offset(id);
        if page.len() == 0 {
            return Err(Error::page(id, offset + 10, "an empty page below a branch"));
        }
        if page.key(0) < parent.page.key(parent.at) {
            return Err(Error::page(id, offset, "the first key is below the key that the branch has for it"));
        }
        let above = self.stack.iter().rev().find(|f| f.at + 1 < f.page.len());
        if above.is_some_and(|f| page.key(page.len() - 1) >= f.page.key(f.at + 1)) {
            return Err(Error::page(id, offset, "the last key is not below the next one of the branch"));
        }
        Ok(Frame { page, offset, at: 0 })
    }

    fn note(&mut self, page: &Page) {
        if let Some(trail) = &mut self.trail
            && page.pages > 0
        {
            trail.push((page.id, page.pages));
        }
    }
}

/// Returns the error with the page and offset that contain the inline bucket, because positions inside the
/// bucket mean nothing in the file.
fn inside(error: Error, page: u64, offset: u64) -> Error {
    match error {
        Error::Damaged(damage) => Error::page(page, offset, format!("in an inline bucket: {}", damage.what)),
        error => error,
    }
}
