//! Transcripts of one node, what is refused, and a simulated cluster.

mod transcripts;
