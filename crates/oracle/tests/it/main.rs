//! Tests the judge with histories of a correct store and with planted mistakes.

mod expiry;
mod lines;
mod permissions;
mod planted;
mod recorded;
mod right;
mod script;
mod search;
mod undecided;
