//! The simulator's own tests, and a look at many seeds.

mod seeds;
