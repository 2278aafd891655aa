//! The console's server, tested over sockets with scripted members.

mod assets;
mod defences;
mod fake_member;
mod forwarding;
mod harness;
mod limits;
mod members;
mod tls;
