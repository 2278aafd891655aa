//! Synchronization primitives of this crate. The `interleaving` crate replaces this file with versions that
//! run under a model of memory, so that it can test all orders in which threads may run.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
pub(crate) use std::thread::{Thread, current, park_timeout};
