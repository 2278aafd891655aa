//! Whole handshakes between a server and a client in memory, with certificates made for each test.
//!
//! `data` has keys and certificates in formats that `rcgen` does not write; they were generated for these
//! tests with openssl.

mod addresses;
mod bad_certificates;
mod garbage;
mod handshakes;
mod loading;
mod pki;
mod reloading;
mod self_signed;
