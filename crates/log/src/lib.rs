//! The segmented log.
