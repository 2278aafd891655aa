//! Load and measurement.
pub mod drive;
pub mod engine;
pub mod go;
pub mod histogram;
pub mod report;
pub mod responder;
pub mod samples;
pub mod wire;
