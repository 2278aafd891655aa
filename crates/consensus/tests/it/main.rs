//! Transcripts of one node, refused input, and a simulated cluster.

#![allow(clippy::disallowed_methods, reason = "tests may use threads and the environment")]

mod chaos;
mod messages;
mod refusals;
mod scenarios;
mod sim;
mod transcripts;
mod witness;
mod witness_losses;
