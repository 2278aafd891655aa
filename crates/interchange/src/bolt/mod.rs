//! Reads and writes files of bbolt, the database in which etcd keeps its state.
//!
//! [`Bolt`] reads a file. [`Layout`] and [`Writer`] write one, in two passes. The format is documented in
//! `format.rs`.

mod check;
mod cursor;
mod database;
mod format;
mod page;
mod rewrite;
mod writer;

pub use check::Checked;
pub use cursor::{Cursor, Item};
pub use database::{Bolt, Bucket};
pub use format::{KEY_BYTES_MAX, Meta, PAGE_BYTES_MAX, PAGE_BYTES_MIN, VALUE_BYTES_MAX};
pub use rewrite::{Edit, RewriteError};
pub use writer::{Layout, PAGE_BYTES, Plan, Writer};
