//! The load generator against its own responder, and what it writes against recorded texts.

mod engine;
mod open_loop;
mod real;
mod reports;
mod served;
mod tool;
