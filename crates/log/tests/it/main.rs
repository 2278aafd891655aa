//! The log from outside, on disks that lose power, fail and fill up.

mod append;
mod kit;
