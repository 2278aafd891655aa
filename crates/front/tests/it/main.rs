//! A running front, spoken to by the workspace's client and by raw sockets.

mod compression;
mod echo;
mod garbage;
mod http1;
mod keepalive;
mod limits;
mod memory;
mod shutdown;
mod stream;
mod turns;
mod unary;
mod unread;
