//! Tests of the state machine, its checkpoints and its snapshots, driven by random lists of commands.

#![allow(clippy::disallowed_methods, reason = "tests may use threads and the environment")]

mod apply;
mod as_of;
mod auth;
mod base;
mod commands;
mod compare;
mod cost;
mod image;
mod journal;
mod membership;
mod model;
mod sliced;
mod snapshot;
mod state_hash;
mod transfer;
