//! A running front, spoken to by the workspace's client and by raw sockets.

mod abuse;
mod compression;
mod drains;
mod echo;
mod garbage;
mod gives_way;
mod http1;
mod idle;
mod keepalive;
mod limits;
mod memory;
mod pages;
mod pki;
mod shutdown;
mod stream;
mod tls;
mod tunnel;
mod turns;
mod unary;
mod unread;
