//! The multi-version index: keys, versions, views. Does no IO.
