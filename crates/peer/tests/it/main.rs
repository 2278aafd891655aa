//! Members over loopback, and raw sockets that speak to them.

mod etcd;
mod exchange;
mod figures;
mod garbage;
mod kit;
mod overload;
mod pki;
mod raw;
mod refusals;
mod requests;
mod secure;
mod snapshot;
