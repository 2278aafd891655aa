//! Tests of the index: against a naive model, its memory, its threads, and loading after a restart.

#![allow(clippy::disallowed_methods, reason = "tests may use threads and the environment")]

mod base_edges;
mod bases;
mod compare;
mod leaks;
mod load;
mod memory_blocks;
mod model;
mod moments;
mod naive;
mod operations;
mod poison;
mod property;
mod random;
mod threads;
