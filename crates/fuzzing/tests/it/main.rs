//! Runs every target over its seeds and over every file of its corpus.

mod replay;
