//! Tests with members over loopback, and with raw sockets that speak to members.

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
