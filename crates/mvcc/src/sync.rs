//! What threads share things with. The `interleaving` crate puts a model of the memory in its place.

pub(crate) use std::sync::Arc;
