//! TLS: trust in servers, client certificates, and faulty files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::Rpc;
use api::etcdserverpb::{RangeRequest, RangeResponse};
use mainstay_client::{Channel, Client, Endpoint, Settings, TlsFiles, Transport};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use testkit::TempDir;
use testkit::certificates::{self, Pair, params_for};
use tokio_rustls::TlsAcceptor;

use crate::run;
use crate::server::{Call, Server};

/// Certificate authority, and a folder with the files that it signed. The folder is removed on drop.
struct Authority {
    issuer: certificates::Authority,
    folder: TempDir,
}

impl Authority {
    fn new(name: &str) -> Authority {
        Authority { issuer: certificates::Authority::new(name), folder: TempDir::new(name) }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn cacert(&self) -> PathBuf {
        self.file("ca.pem", &self.issuer.pem)
    }

    fn sign(&self, name: &str, days: u64) -> Pair {
        let mut params = params_for(name, &[name]);
        params.not_after = (SystemTime::UNIX_EPOCH + end(days)).into();
        self.issuer.issue(params)
    }

    /// Starts a server whose certificate contains this name. With `ask`, the server requires a client
    /// certificate.
    async fn server(&self, name: &str, ask: bool, alpn: &str) -> Server {
        let own = self.sign(name, DAYS);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = if ask {
            let mut roots = RootCertStore::empty();
            roots.add(self.issuer.der.clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
        let mut config = builder.with_single_cert(vec![own.der], key).unwrap();
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        Server::start_with(Some(TlsAcceptor::from(Arc::new(config))), |call: Call| async {
            call.reply(Ok(RangeResponse { count: 9, ..RangeResponse::default() }));
        })
        .await
    }
}

/// Expiry date far in the future, in days since 1970-01-01.
const DAYS: u64 = 36_500;

fn end(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 60 * 60)
}

async fn open(server: &Server, files: &TlsFiles) -> Result<Channel, String> {
    let transport = Transport { tls: Some(files.load().unwrap()), ..Transport::default() };
    Channel::open(&Endpoint::new(server.endpoint()), &transport).await.map_err(|error| error.to_string())
}

#[test]
fn a_trusted_server_is_called_and_shown() {
    run(async {
        let authority = Authority::new("trusted");
        let server = authority.server("127.0.0.1", false, "h2").await;
        let mut settings = Settings::of([format!("https://{}", server.address)]);
        let files = TlsFiles { cacert: Some(authority.cacert()), ..TlsFiles::default() };
        settings.secure(&files, true).unwrap();
        let client = Client::new(settings).unwrap();
        let answer: RangeResponse = client.call(Rpc::KvRange, &RangeRequest::default()).await.unwrap();
        assert_eq!(answer.count, 9);
        let peer = client.peer().await.unwrap().unwrap();
        assert_eq!((peer.chain.len(), peer.version), (1, "TLS 1.3"));
        assert_eq!(peer.not_after(), Some(SystemTime::UNIX_EPOCH + end(DAYS)));
    });
}

#[test]
fn strangers_and_wrong_names_are_refused() {
    run(async {
        let (ours, other) = (Authority::new("ours"), Authority::new("other"));
        let cacert = Some(ours.cacert());
        let stranger = other.server("127.0.0.1", false, "h2").await;
        let trusting = TlsFiles { cacert: cacert.clone(), ..TlsFiles::default() };
        let refused = open(&stranger, &trusting).await.err().unwrap();
        assert!(refused.contains("authentication handshake failed: invalid peer certificate"), "{refused}");

        let misnamed = ours.server("a.example", false, "h2").await;
        let refused = open(&misnamed, &trusting).await.err().unwrap();
        assert!(refused.contains("not valid for name"), "{refused}");
        let named = TlsFiles { cacert, server_name: Some("a.example".to_owned()), ..TlsFiles::default() };
        assert!(open(&misnamed, &named).await.is_ok());

        let careless = TlsFiles { insecure_skip_verify: true, ..TlsFiles::default() };
        assert!(open(&stranger, &careless).await.is_ok());
        assert!(open(&misnamed, &careless).await.is_ok());

        let old = ours.server("127.0.0.1", false, "http/1.1").await;
        assert!(open(&old, &trusting).await.is_err());
    });
}

#[test]
fn our_certificate_is_shown_to_who_asks() {
    run(async {
        let authority = Authority::new("asking");
        let server = authority.server("127.0.0.1", true, "h2").await;
        let own = authority.sign("client", DAYS);
        let files = TlsFiles {
            cacert: Some(authority.cacert()),
            cert: Some(authority.file("client.pem", &own.cert)),
            key: Some(authority.file("client-key.pem", &own.key)),
            ..TlsFiles::default()
        };
        let channel = open(&server, &files).await.unwrap();
        assert!(channel.unary(Rpc::KvRange.path(), bytes::Bytes::new()).await.is_ok());
        let without = TlsFiles { cert: None, key: None, ..files };
        // With TLS 1.3, the server may reject the client after the handshake, so that only the first call
        // fails.
        if let Ok(channel) = open(&server, &without).await {
            assert!(channel.unary(Rpc::KvRange.path(), bytes::Bytes::new()).await.is_err());
        }
    });
}

#[test]
fn a_certificate_that_changes_is_shown_at_the_next_connection() {
    run(async {
        let (authority, other) = (Authority::new("changing"), Authority::new("changing-other"));
        let server = authority.server("127.0.0.1", true, "h2").await;
        let install = |pair: &Pair| {
            (authority.file("client.pem", &pair.cert), authority.file("client-key.pem", &pair.key))
        };
        let (good, bad) = (authority.sign("client", DAYS), other.sign("client", DAYS));
        let (cert, key) = install(&good);
        let files = TlsFiles {
            cacert: Some(authority.cacert()),
            cert: Some(cert),
            key: Some(key),
            ..TlsFiles::default()
        };
        let marked = |contents: &[u8]| !contents.starts_with(b"refused");
        let transport =
            Transport { tls: Some(files.load_for_each_connection(marked).unwrap()), ..Transport::default() };
        let is_let_in = async || {
            let Ok(channel) = Channel::open(&Endpoint::new(server.endpoint()), &transport).await else {
                return false;
            };
            channel.unary(Rpc::KvRange.path(), bytes::Bytes::new()).await.is_ok()
        };
        assert!(is_let_in().await);
        install(&bad);
        assert!(!is_let_in().await);
        install(&good);
        assert!(is_let_in().await);
        // If the new files are not usable, the pair that was read before stays in use.
        authority.file("client.pem", "");
        assert!(is_let_in().await);
        authority.file("client.pem", &bad.cert);
        assert!(is_let_in().await, "the key is another's");
        authority.file("client.pem", &format!("refused\n{}", bad.cert));
        authority.file("client-key.pem", &bad.key);
        assert!(is_let_in().await);
    });
}

#[test]
fn the_scheme_goes_before_the_material() {
    run(async {
        let authority = Authority::new("scheme");
        let plain = Server::start(|call: Call| async {
            call.reply(Ok(RangeResponse::default()));
        })
        .await;
        let files = TlsFiles { cacert: Some(authority.cacert()), ..TlsFiles::default() };
        let transport = Transport { tls: Some(files.load().unwrap()), ..Transport::default() };
        let http = Endpoint::new(format!("http://{}", plain.address));
        let channel = Channel::open(&http, &transport).await.unwrap();
        assert!(channel.peer().is_none());
        let bare = Endpoint::new(plain.endpoint());
        assert!(Channel::open(&bare, &transport).await.is_err());
        let https = Endpoint::new(format!("https://{}", plain.address));
        assert!(Channel::open(&https, &Transport::default()).await.is_err());

        let mut settings = Settings::of([plain.endpoint()]);
        settings.secure(&TlsFiles::default(), true).unwrap();
        assert!(settings.tls.is_none());
        settings.secure(&TlsFiles::default(), false).unwrap();
        assert!(settings.tls.is_some());
    });
}

#[test]
fn what_is_wrong_with_files_is_told() {
    let authority = Authority::new("files");
    let own = authority.sign("a", DAYS);
    let other = authority.sign("b", DAYS);
    let cert = Some(authority.file("a.pem", &own.cert));
    let empty = Some(authority.file("empty.pem", ""));
    let other = Some(authority.file("b-key.pem", &other.key));
    let told = |files: TlsFiles| files.load().err().map(|error| error.to_string()).unwrap_or_default();
    let none = TlsFiles::default;
    let missing = authority.folder.join("missing.pem");
    assert_eq!(
        told(TlsFiles { cacert: Some(missing.clone()), ..none() }),
        format!("open {}: no such file or directory", missing.display())
    );
    assert_eq!(
        told(TlsFiles { key: Some("k.pem".into()), ..none() }),
        "KeyFile and CertFile must both be present[key: k.pem, cert: ]"
    );
    assert_eq!(
        told(TlsFiles { cert: empty.clone(), key: other.clone(), ..none() }),
        "tls: failed to find any PEM data in certificate input"
    );
    assert_eq!(
        told(TlsFiles { cert: cert.clone(), key: empty, ..none() }),
        "tls: failed to find any PEM data in key input"
    );
    assert!(!told(TlsFiles { cert, key: other, ..none() }).is_empty());
}
