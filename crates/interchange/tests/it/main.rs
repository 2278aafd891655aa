//! etcd's formats from outside: against files that real etcd made, against damage, and, where it is installed, against
//! real etcd itself.

mod bolt;
mod damage;
mod etcd;
mod golden;
mod hash;
mod kit;
mod members;
mod old_store;
mod relog;
mod server;
mod wal;
