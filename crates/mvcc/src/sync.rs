//! Types for sharing between threads. The `interleaving` crate replaces this module by a model of memory.

pub(crate) use std::sync::Arc;
