//! The file seam.
