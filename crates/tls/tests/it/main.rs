//! Whole handshakes between a server and a client in memory, with certificates made for each test.
//!
//! `data` has keys and certificates in forms that `rcgen` does not write; they were made for these tests with openssl.

mod addresses;
mod bad_certificates;
mod garbage;
mod handshakes;
mod loading;
mod pki;
mod reloading;
mod self_signed;
