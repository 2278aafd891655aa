//! Config, core loop, services.
