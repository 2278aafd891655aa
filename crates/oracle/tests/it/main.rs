//! The judge against histories that a right store gives, and against planted mistakes.

mod lines;
mod planted;
mod right;
mod script;
mod search;
