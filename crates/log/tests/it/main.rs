//! Tests of the log's public interface, on disks that lose power, fail and fill up.

mod append;
mod checkpoint;
mod compressed;
mod crash;
mod damage;
mod forgery;
mod golden;
mod kit;
mod space;
