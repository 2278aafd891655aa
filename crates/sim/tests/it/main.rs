//! Integration tests of the simulator: many seeds, regression seeds, and determinism.

mod seeds;
