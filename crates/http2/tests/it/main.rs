//! Tests of both roles against each other, against `h2`, and against abusive peers.

mod against_h2;
mod cuts;
mod ends;
mod floods;
mod frames;
mod memory;
mod protocol;
mod responses;
mod shutdown;
mod windows;
