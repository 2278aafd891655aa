//! Load and measurement.
pub mod ask;
pub mod drive;
pub mod engine;
pub mod go;
pub mod histogram;
pub mod loads;
pub mod machine;
pub mod outcome;
pub mod report;
pub mod responder;
pub mod samples;
pub mod tables;
pub mod tls;
pub mod usage;
pub mod wire;
