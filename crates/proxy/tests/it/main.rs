//! The proxies in this process: help texts, and the TCP gateway against sockets.

mod gateway;
mod help;
