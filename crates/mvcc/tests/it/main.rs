//! The index against a naive model, its memory, its threads, and what a restart makes of it.

mod compare;
mod leaks;
mod load;
mod model;
mod moments;
mod naive;
mod operations;
mod property;
mod random;
mod threads;
