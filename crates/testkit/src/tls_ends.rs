//! Creates both ends of a TLS connection in memory, after the handshake.
//!
//! All functions in this module panic if rustls returns an error.

use std::io::Read as _;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::{
    CipherSuiteCommon, ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
    SupportedCipherSuite, Tls12CipherSuite,
};
use rustls_pki_types::{PrivatePkcs8KeyDer, ServerName};

/// Returns both ends of a connection after the handshake.
pub fn pair() -> (ServerConnection, ClientConnection) {
    pair_by(default_provider(), default_provider())
}

/// Returns the configurations of a server with the name `a`, and of a client that trusts this server.
pub fn configurations() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    configurations_by(default_provider(), default_provider())
}

fn configurations_by(
    at_server: CryptoProvider,
    at_client: CryptoProvider,
) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let certified = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let server = ServerConfig::builder_with_provider(at_server.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.into())
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder_with_provider(at_client.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), Arc::new(client))
}

/// Returns both ends of a connection after the handshake, with the given crypto providers.
pub fn pair_by(at_server: CryptoProvider, at_client: CryptoProvider) -> (ServerConnection, ClientConnection) {
    let (server, client) = configurations_by(at_server, at_client);
    let mut server = ServerConnection::new(server).unwrap();
    let name = ServerName::try_from("a").unwrap();
    let mut client = ClientConnection::new(client, name).unwrap();
    while server.is_handshaking() || client.is_handshaking() || server.wants_write() {
        let sent = sent_by(&mut client);
        let mut rest = sent.as_slice();
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets().unwrap();
        }
        let mut sent = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut sent).unwrap();
        }
        receive(&mut client, &sent);
    }
    (server, client)
}

/// Returns the TLS records that the client has to send now.
pub fn sent_by(client: &mut ClientConnection) -> Vec<u8> {
    let mut sent = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut sent).unwrap();
    }
    sent
}

/// Passes bytes from the server to the client, and returns the decrypted data.
pub fn receive(client: &mut ClientConnection, bytes: &[u8]) -> Vec<u8> {
    let (mut rest, mut plain) = (bytes, Vec::new());
    while !rest.is_empty() {
        client.read_tls(&mut rest).unwrap();
        let state = client.process_new_packets().unwrap();
        let start = plain.len();
        plain.resize(start + state.plaintext_bytes_to_read(), 0);
        client.reader().read_exact(&mut plain[start..]).unwrap();
    }
    plain
}

/// Returns TLS records with this number of key updates, which are cheap to send and expensive to process. The
/// receiver (rustls) tolerates 16 consecutive ones.
pub fn flood(client: &mut ClientConnection, updates: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..updates {
        client.refresh_traffic_keys().unwrap();
        bytes.extend(sent_by(client));
    }
    bytes
}

/// Returns a crypto provider that supports only TLS 1.2 and allows at most `records` records to be encrypted
/// with one key.
pub fn short_lived(records: u64) -> CryptoProvider {
    let suite = cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
    let SupportedCipherSuite::Tls12(suite) = suite else { panic!("it is a suite of TLS 1.2") };
    let Tls12CipherSuite { prf_provider, kx, sign, aead_alg, .. } = *suite;
    let common = CipherSuiteCommon { confidentiality_limit: records, ..suite.common };
    let suite = Tls12CipherSuite { common, prf_provider, kx, sign, aead_alg };
    let cipher_suites = vec![SupportedCipherSuite::Tls12(Box::leak(Box::new(suite)))];
    CryptoProvider { cipher_suites, ..default_provider() }
}
