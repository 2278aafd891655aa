//! Writes a database from front to back.
//!
//! The meta pages come first and contain the root page and the number of pages, so both must be known before
//! the first byte is written. Therefore the caller passes the contents twice. In the first pass [`Layout`]
//! needs only keys and the lengths of values, and returns a [`Plan`]. In the second pass [`Writer`] needs
//! everything. It writes pages in order of their numbers, so the output may be a socket. Both keep one branch
//! page per level of a tree in memory. The writer also keeps one leaf, which has at most 8 pages or contains
//! only one larger value.
//!
//! ```text
//! page 0, 1   meta pages, of transactions 2 and 1
//! page 2      an empty free list
//! page 3 …    per bucket: leaves (several pages each if values are large); each branch after its last child
//! last page   the root bucket
//! ```

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::bolt::format::{
    BRANCH, ELEMENT_BYTES, FREELIST, IS_BUCKET, KEY_BYTES_MAX, LEAF, META, Meta, PAGE_HEADER_BYTES,
    VALUE_BYTES_MAX,
};
use crate::error::WriteError;

/// Page size in bytes of the files written here. etcd uses this size on most machines, and can read it on all
/// machines.
pub const PAGE_BYTES: usize = 4096;
const FIRST_PAGE: u64 = 3;
/// Transaction number in the meta page on page 0; page 1 has the number below it. The number is even because
/// bbolt writes the meta page of transaction n to page n modulo 2, so its next transaction overwrites the
/// older meta page.
const TRANSACTION: u64 = 2;
/// Maximum bytes of a leaf that contains more than one value. A longer value gets a leaf with only this
/// value, of the needed length.
const LEAF_BYTES_MAX: usize = 8 * PAGE_BYTES;
/// A page buffer that has grown beyond this many bytes is freed instead of reused.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Size of a database, which the first pass computes and the second pass requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of all pages of the file.
    pub pages: u64,
    /// Number of keys in all buckets.
    pub keys: u64,
    /// Bytes of all keys and values.
    pub content_bytes: u64,
}

impl Plan {
    /// Returns the size of the file in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }
}

/// Computes the size and layout of a database. The first of two passes.
pub struct Layout {
    pages: Pages<Measured>,
}

/// Writes a database. The second of two passes.
pub struct Writer<W> {
    pages: Pages<Written<W>>,
    plan: Plan,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout { pages: Pages::new(Measured) }
    }
}

impl Layout {
    /// Begins a bucket. A name may be used only once.
    ///
    /// # Errors
    ///
    /// Returns an error if the name was used before or is not a valid name.
    pub fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError> {
        self.pages.bucket(name)
    }

    /// Adds a key, which must be above all earlier keys of its bucket, and the length of its value in bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if no bucket was begun, the key is empty or not in order, or the key or the value is
    /// too long.
    pub fn pair(&mut self, key: &[u8], value_len: usize) -> Result<(), WriteError> {
        self.pages.pair(key, value_len, &[])
    }

    /// Returns the computed size.
    ///
    /// # Errors
    ///
    /// Never returns an error; the return type matches [`Writer::finish`].
    pub fn finish(self) -> Result<Plan, WriteError> {
        Ok(self.pages.finish()?.0)
    }
}

impl<W: Write> Writer<W> {
    /// Begins to write a database. `plan` is the result of the first pass.
    ///
    /// # Errors
    ///
    /// Returns an error if the output fails.
    pub fn new(mut out: W, plan: Plan) -> Result<Writer<W>, WriteError> {
        let mut page = vec![0; PAGE_BYTES];
        for (id, transaction) in [(0, TRANSACTION), (1, TRANSACTION - 1)] {
            let meta = Meta {
                page_bytes: PAGE_BYTES as u32,
                root: plan.pages - 1,
                freelist: Some(2),
                high_water: plan.pages,
                transaction,
            };
            put_header(&mut page, id, META, 0, 0);
            page[PAGE_HEADER_BYTES..][..64].copy_from_slice(&meta.encode());
            out.write_all(&page)?;
        }
        page.fill(0);
        put_header(&mut page, 2, FREELIST, 0, 0);
        out.write_all(&page)?;
        Ok(Writer { pages: Pages::new(Written(out)), plan })
    }

    /// Begins a bucket. A name may be used only once.
    ///
    /// # Errors
    ///
    /// Returns an error if the name was used before or is not a valid name, or the output fails.
    pub fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError> {
        self.pages.bucket(name)
    }

    /// Adds a key, which must be above all earlier keys of its bucket, and its value, which is the
    /// concatenation of these slices.
    ///
    /// # Errors
    ///
    /// Returns an error if no bucket was begun, the key is empty or not in order, the key or the value is too
    /// long, more is written than in the first pass, or the output fails.
    pub fn pair(&mut self, key: &[u8], value: &[&[u8]]) -> Result<(), WriteError> {
        if self.pages.next >= self.plan.pages {
            return Err(WriteError::Differs("there is more than was measured".to_owned()));
        }
        self.pages.pair(key, value.iter().map(|piece| piece.len()).sum(), value)
    }

    /// Returns the output. The caller must not write to it, because the bytes would end up in the middle of
    /// the database.
    pub fn output(&mut self) -> &mut W {
        &mut self.pages.output.0
    }

    /// Writes everything that is still buffered and returns the output.
    ///
    /// # Errors
    ///
    /// Returns an error if the written data differs from that of the first pass, or the output fails.
    pub fn finish(self) -> Result<W, WriteError> {
        let (written, output) = self.pages.finish()?;
        if written != self.plan {
            return Err(WriteError::Differs(format!("measured {:?}, written {written:?}", self.plan)));
        }
        Ok(output.0)
    }
}

trait Output {
    /// True if values are written; false if only their lengths are known.
    const WRITES: bool;
    fn page(&mut self, bytes: &[u8]) -> io::Result<()>;
}

struct Measured;

impl Output for Measured {
    const WRITES: bool = false;

    fn page(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

struct Written<W>(W);

impl<W: Write> Output for Written<W> {
    const WRITES: bool = true;

    fn page(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
}

/// The algorithm that both passes, [`Layout`] and [`Writer`], have in common: divides the pairs into pages.
struct Pages<O> {
    output: O,
    /// Number of the next page.
    next: u64,
    keys: u64,
    content_bytes: u64,
    /// Root pages of the finished buckets, by name.
    roots: BTreeMap<Vec<u8>, u64>,
    open: Option<(Vec<u8>, Tree)>,
    buffer: Vec<u8>,
}

impl<O: Output> Pages<O> {
    fn new(output: O) -> Pages<O> {
        let (roots, buffer) = (BTreeMap::new(), Vec::new());
        Pages { output, next: FIRST_PAGE, keys: 0, content_bytes: 0, roots, open: None, buffer }
    }

    fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError> {
        self.close()?;
        if name.is_empty() || name.len() > KEY_BYTES_MAX || self.roots.contains_key(name) {
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(WriteError::Refused(format!("a bucket named {name:?} cannot be added")));
        }
        self.open = Some((name.to_vec(), Tree::default()));
        Ok(())
    }

    fn close(&mut self) -> Result<(), WriteError> {
        if let Some((name, tree)) = self.open.take() {
            let root = self.finish_tree(tree)?;
            self.roots.insert(name, root);
        }
        Ok(())
    }

    fn pair(&mut self, key: &[u8], value_len: usize, value: &[&[u8]]) -> Result<(), WriteError> {
        let Some((name, mut tree)) = self.open.take() else {
            return Err(WriteError::Refused("a key comes before the first bucket".to_owned()));
        };
        self.keys += 1;
        self.content_bytes += (key.len() + value_len) as u64;
        self.add(&mut tree, 0, key, value_len, value)?;
        self.open = Some((name, tree));
        Ok(())
    }

    fn finish(mut self) -> Result<(Plan, O), WriteError> {
        self.close()?;
        let mut root = Tree::default();
        for (name, page) in std::mem::take(&mut self.roots) {
            let mut head = [0; 16];
            head[..8].copy_from_slice(&page.to_le_bytes());
            self.add(&mut root, IS_BUCKET, &name, head.len(), &[&head])?;
        }
        self.finish_tree(root)?;
        let plan = Plan { pages: self.next, keys: self.keys, content_bytes: self.content_bytes };
        Ok((plan, self.output))
    }

    fn add(
        &mut self,
        tree: &mut Tree,
        flags: u32,
        key: &[u8],
        value_len: usize,
        value: &[&[u8]],
    ) -> Result<(), WriteError> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX || value_len > VALUE_BYTES_MAX {
            let what = format!("a key of {} bytes with a value of {value_len} cannot be kept", key.len());
            return Err(WriteError::Refused(what));
        }
        if tree.any && key <= tree.last_key.as_slice() {
            return Err(WriteError::Refused("a key is not above the one before it".to_owned()));
        }
        let with_it = tree.leaf_bytes() + ELEMENT_BYTES + key.len() + value_len;
        let held = tree.leaf_bytes().next_multiple_of(PAGE_BYTES);
        if !tree.leaf.is_empty() && with_it > held {
            // End the leaf before this pair only if at most an eighth of its pages stays empty, or if the
            // leaf would become too long. Otherwise, let the leaf grow by overflow pages. If each leaf ended
            // at one page, values of somewhat more than half a page would leave almost half of each page
            // empty.
            let lost = held - tree.leaf_bytes();
            if lost * 8 <= held || with_it > LEAF_BYTES_MAX {
                self.close_leaf(tree)?;
            }
        }
        if tree.leaf.is_empty() {
            tree.first_key.clear();
            tree.first_key.extend_from_slice(key);
        }
        tree.any = true;
        tree.last_key.clear();
        tree.last_key.extend_from_slice(key);
        tree.leaf.push(LeafElement { flags, key_len: key.len() as u32, value_len: value_len as u32 });
        tree.data_len += key.len() + value_len;
        if O::WRITES {
            tree.data.extend_from_slice(key);
            value.iter().for_each(|piece| tree.data.extend_from_slice(piece));
        }
        Ok(())
    }

    fn finish_tree(&mut self, mut tree: Tree) -> Result<u64, WriteError> {
        // An empty bucket consists of one empty leaf.
        if !tree.leaf.is_empty() || !tree.any {
            self.close_leaf(&mut tree)?;
        }
        let mut level = 0;
        loop {
            let is_top = level + 1 == tree.branches.len();
            let branch = &mut tree.branches[level];
            if is_top && branch.open.len() == 1 {
                return Ok(branch.open[0].1);
            }
            let children = std::mem::take(&mut branch.open);
            self.close_branch(&mut tree, level, children)?;
            level += 1;
        }
    }

    fn close_leaf(&mut self, tree: &mut Tree) -> Result<(), WriteError> {
        let len = tree.leaf_bytes();
        let id = self.take(len);
        if O::WRITES {
            let mut position = tree.leaf.len() * ELEMENT_BYTES;
            begin_page(&mut self.buffer, id, LEAF, tree.leaf.len(), len);
            for element in &tree.leaf {
                self.buffer.extend_from_slice(&element.flags.to_le_bytes());
                self.buffer.extend_from_slice(&(position as u32).to_le_bytes());
                self.buffer.extend_from_slice(&element.key_len.to_le_bytes());
                self.buffer.extend_from_slice(&element.value_len.to_le_bytes());
                position += element.key_len as usize + element.value_len as usize;
                position -= ELEMENT_BYTES;
            }
            self.buffer.extend_from_slice(&tree.data);
            self.end_page(len)?;
        }
        tree.leaf.clear();
        tree.data.clear();
        if tree.data.capacity() > KEPT_BYTES_MAX {
            tree.data = Vec::new();
        }
        tree.data_len = 0;
        let first = tree.first_key.clone();
        self.add_child(tree, 0, first, id)
    }

    fn add_child(&mut self, tree: &mut Tree, level: usize, key: Vec<u8>, id: u64) -> Result<(), WriteError> {
        if level == tree.branches.len() {
            tree.branches.push(Branch { open: Vec::new(), bytes: PAGE_HEADER_BYTES });
        }
        let branch = &mut tree.branches[level];
        let bytes = ELEMENT_BYTES + key.len();
        let mut full = None;
        // A branch needs at least two children. So move the last child of the full page to the next page,
        // where the new child becomes the second one.
        if branch.bytes + bytes > PAGE_BYTES && branch.open.len() >= 3 {
            full = branch.open.pop().map(|last| std::mem::replace(&mut branch.open, vec![last]));
            branch.bytes =
                PAGE_HEADER_BYTES + branch.open.iter().map(|c| ELEMENT_BYTES + c.0.len()).sum::<usize>();
        }
        branch.open.push((key, id));
        branch.bytes += bytes;
        match full {
            Some(children) => self.close_branch(tree, level, children),
            None => Ok(()),
        }
    }

    fn close_branch(
        &mut self,
        tree: &mut Tree,
        level: usize,
        mut children: Vec<(Vec<u8>, u64)>,
    ) -> Result<(), WriteError> {
        assert!(children.len() >= 2, "a branch has two children at least");
        let len = PAGE_HEADER_BYTES + children.iter().map(|c| ELEMENT_BYTES + c.0.len()).sum::<usize>();
        let id = self.take(len);
        if O::WRITES {
            let mut position = children.len() * ELEMENT_BYTES;
            begin_page(&mut self.buffer, id, BRANCH, children.len(), len);
            for (key, child) in &children {
                self.buffer.extend_from_slice(&(position as u32).to_le_bytes());
                self.buffer.extend_from_slice(&(key.len() as u32).to_le_bytes());
                self.buffer.extend_from_slice(&child.to_le_bytes());
                position += key.len();
                position -= ELEMENT_BYTES;
            }
            children.iter().for_each(|(key, _)| self.buffer.extend_from_slice(key));
            self.end_page(len)?;
        }
        let first = std::mem::take(&mut children[0].0);
        self.add_child(tree, level + 1, first, id)
    }

    /// Allocates as many pages as `len` bytes need. Returns the number of the first page.
    fn take(&mut self, len: usize) -> u64 {
        let id = self.next;
        self.next += len.div_ceil(PAGE_BYTES) as u64;
        id
    }

    fn end_page(&mut self, len: usize) -> Result<(), WriteError> {
        assert_eq!(self.buffer.len(), len, "a page is as long as it was measured");
        self.buffer.resize(len.next_multiple_of(PAGE_BYTES), 0);
        self.output.page(&self.buffer)?;
        if self.buffer.capacity() > KEPT_BYTES_MAX {
            self.buffer = Vec::new();
        }
        Ok(())
    }
}

/// The tree of a bucket that is being written.
#[derive(Default)]
struct Tree {
    any: bool,
    last_key: Vec<u8>,
    /// Elements of the open leaf.
    leaf: Vec<LeafElement>,
    /// First key of the open leaf.
    first_key: Vec<u8>,
    /// Keys and values of the open leaf; empty in the first pass.
    data: Vec<u8>,
    /// Total length of the keys and values of the open leaf.
    data_len: usize,
    /// Open branch pages, from the level above the leaves upwards.
    branches: Vec<Branch>,
}

struct LeafElement {
    flags: u32,
    key_len: u32,
    value_len: u32,
}

/// An open branch page: the first key and the page number of each child, and the size of the page.
struct Branch {
    open: Vec<(Vec<u8>, u64)>,
    bytes: usize,
}

impl Tree {
    fn leaf_bytes(&self) -> usize {
        PAGE_HEADER_BYTES + self.leaf.len() * ELEMENT_BYTES + self.data_len
    }
}

fn begin_page(buffer: &mut Vec<u8>, id: u64, flags: u16, count: usize, len: usize) {
    buffer.clear();
    buffer.resize(PAGE_HEADER_BYTES, 0);
    let overflow = len.div_ceil(PAGE_BYTES) - 1;
    put_header(buffer, id, flags, count as u16, overflow as u32);
}

fn put_header(page: &mut [u8], id: u64, flags: u16, count: u16, overflow: u32) {
    page[..8].copy_from_slice(&id.to_le_bytes());
    page[8..10].copy_from_slice(&flags.to_le_bytes());
    page[10..12].copy_from_slice(&count.to_le_bytes());
    page[12..16].copy_from_slice(&overflow.to_le_bytes());
}
