//! The judge against histories that a right store gives, and against planted mistakes.

mod expiry;
mod lines;
mod permissions;
mod planted;
mod recorded;
mod right;
mod script;
mod search;
mod undecided;
