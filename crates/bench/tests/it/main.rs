//! Tests of the load generator against its own responder, and of its output against recorded texts.

mod engine;
mod kubernetes;
mod open_loop;
mod real;
mod reports;
mod served;
mod tool;
