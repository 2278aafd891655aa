//! Transcripts of one node, what is refused, and a simulated cluster.

mod chaos;
mod sim;
mod transcripts;
