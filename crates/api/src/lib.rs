//! Wire messages, field numbers, the error catalogue and limits. Knows no runtime.

pub mod error;

pub use error::{Code, Status};
