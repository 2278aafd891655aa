//! Complete outputs of the tool against a server that responds from a script.

mod authentication;
mod cluster;
mod concurrency;
mod fake_server;
mod help;
mod keys;
mod leases;
mod messages;
mod mirror;
mod snapshot;
mod transcript;
mod unreached;
mod watches;
