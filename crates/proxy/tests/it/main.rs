//! The proxies in this process: help texts, and the TCP gateway against sockets.

mod cache;
mod gateway;
mod help;
mod leasing;
mod renewals;
