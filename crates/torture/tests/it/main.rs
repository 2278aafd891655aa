//! Tests of the program's parts, and of the program itself on the loopback. None needs root.

mod options;
mod outcome;
mod program;
mod timeline;
