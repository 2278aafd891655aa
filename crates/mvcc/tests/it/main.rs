//! The index against a naive model, its memory, its threads, and what a restart makes of it.

mod compare;
mod model;
mod naive;
mod random;
