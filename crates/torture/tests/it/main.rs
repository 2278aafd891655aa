//! Tests of the program: its parts, and itself on the loopback. None needs root.

mod options;
mod outcome;
mod program;
mod timeline;
