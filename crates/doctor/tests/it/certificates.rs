//! Certificates of members, trusted or not.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::commands::{Outcome, outcome};
use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use testkit::certificates::{Pair, params_for};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const DAY: Duration = Duration::from_secs(86_400);

/// Serves a certificate with this expiry, and sends no responses.
async fn serve(listener: TcpListener, not_after: SystemTime) {
    let mut params = params_for("member", &["127.0.0.1"]);
    params.not_after = not_after.into();
    let own = Pair::self_signed(&params);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(vec![own.der], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    while let Ok((stream, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let Ok(mut connection) = h2::server::handshake(stream).await else { return };
            while connection.accept().await.is_some() {}
        });
    }
}

/// Returns the doctor's output about a server whose certificate, of an unknown authority, expires at this time.
fn doctor(not_after: SystemTime) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let server = std::thread::spawn(move || {
        runtime.block_on(async {
            let serving = tokio::spawn(serve(listener, not_after));
            let _ = (&mut stopped).await;
            serving.abort();
        });
    });
    let args = [OsString::from(format!("--endpoints=https://{address}")), OsString::from("--for=50ms")];
    let mut outcome = outcome(&args);
    drop(stop);
    server.join().unwrap();
    for text in [&mut outcome.output, &mut outcome.error] {
        *text = text.replace(&address.to_string(), "ADDRESS");
    }
    outcome
}

#[test]
fn one_that_ended_is_seen_though_nobody_trusts_it() {
    let outcome = doctor(SystemTime::now() - 3 * DAY);
    assert_eq!(outcome.code, 5, "{outcome:?}");
    assert!(outcome.output.contains("certificate-expiry"), "{}", outcome.output);
    assert!(outcome.output.contains("https://ADDRESS: expired 3 days ago"), "{}", outcome.output);
    assert!(outcome.output.contains("unreachable"), "{}", outcome.output);
}

#[test]
fn one_that_is_only_not_trusted_is_a_reason() {
    let outcome = doctor(SystemTime::now() + 300 * DAY);
    assert_eq!((outcome.code, &*outcome.output), (1, ""));
    assert!(
        outcome
            .error
            .starts_with("Error: no member can be reached: https://ADDRESS: authentication handshake failed")
    );
}
