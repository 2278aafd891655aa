//! A small Rust client.
