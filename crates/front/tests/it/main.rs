//! A running front, spoken to by the workspace's client and by raw sockets.

mod echo;
mod unary;
