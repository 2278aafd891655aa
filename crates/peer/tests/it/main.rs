//! Members over loopback, and raw sockets that speak to them.

mod etcd;
mod exchange;
mod figures;
mod garbage;
mod kit;
mod overload;
mod raw;
mod refusals;
mod requests;
mod snapshot;
