//! The console's server, asked over sockets, in front of members that are scripts.

mod assets;
mod defences;
mod fake_member;
mod forwarding;
mod harness;
mod limits;
mod members;
mod tls;
