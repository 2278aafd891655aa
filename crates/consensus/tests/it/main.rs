//! Transcripts of one node, what is refused, and a simulated cluster.

mod chaos;
mod refusals;
mod scenarios;
mod sim;
mod transcripts;
