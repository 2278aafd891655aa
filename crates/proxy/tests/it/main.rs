//! The proxies in the test's process: help texts, and the TCP gateway against sockets.

mod cache;
mod gateway;
mod help;
mod leasing;
mod renewals;
