//! Both roles against each other, against `h2`, and against those who mean harm.

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
