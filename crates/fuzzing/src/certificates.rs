//! Checks the code for certificates with arbitrary input: loads files with certificates, keys and revocation
//! lists, and presents certificate chains of peers. Only certificates that the authority has signed may be
//! accepted.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::time_provider::TimeProvider;
use rustls_pki_types::{CertificateDer, UnixTime};
use tls::fuzzing::{Files, load};
use tls::{AddressCheck, PeerNames, Settings, Tls};

use crate::script::{Scribe, Script};

/// Time at which certificates are checked, in seconds since the Unix epoch.
pub(crate) const SECOND: u64 = 1_800_000_000;

pub(crate) const AUTHORITY: &[u8] = include_bytes!("data/ca.der");
pub(crate) const SERVER: &[u8] = include_bytes!("data/server.der");
pub(crate) const SERVER_KEY: &[u8] = include_bytes!("data/server.pkcs8.der");
const SERVER_KEY_SEC1: &[u8] = include_bytes!("data/server.sec1.der");
pub(crate) const ALICE: &[u8] = include_bytes!("data/alice.der");
pub(crate) const ALICE_KEY: &[u8] = include_bytes!("data/alice.pkcs8.der");
const STRANGER: &[u8] = include_bytes!("data/stranger.der");
const REVOCATIONS: &[u8] = include_bytes!("data/ca.crl.der");

/// Clock that always shows the same time.
#[derive(Debug)]
pub(crate) struct Still;

impl TimeProvider for Still {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(SECOND)))
    }
}

/// PEM labels. The script's bytes for a file are DER content, which is wrapped as PEM with one of these
/// labels, so that mutations change the content and not the base64 text. With the empty label the bytes are
/// not wrapped.
const WRAPS: [&str; 6] = ["", "CERTIFICATE", "PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY", "X509 CRL"];
const CERTIFICATE: u8 = 1;
const PRIVATE_KEY: u8 = 2;
const SEC1_KEY: u8 = 3;
const LIST: u8 = 5;

pub(crate) fn pem(label: &str, der: &[u8]) -> Vec<u8> {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n")).into_bytes()
}

fn file(script: &mut Script<'_>) -> Vec<u8> {
    let label = script.pick(&WRAPS);
    let bytes = script.run();
    if label.is_empty() { bytes.to_vec() } else { pem(label, bytes) }
}

/// Asserts that an error message contains no line of the key file that could be a part of the key.
fn assert_keeps(text: &str, key: &[u8]) {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    for line in key.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()) {
        let line = line.trim();
        let is_secret = line.len() >= 16 && line.bytes().all(is_base64);
        assert!(!is_secret || !text.contains(line), "{text} has a part of a key");
    }
}

/// Loads TLS settings with the fixed certificate authority and the fixed server certificate.
pub(crate) fn sound(settings: Settings) -> Tls {
    let (own, key) = (pem("CERTIFICATE", SERVER), pem("PRIVATE KEY", SERVER_KEY));
    let authority = pem("CERTIFICATE", AUTHORITY);
    let files = Files {
        certificate: Some(&own),
        key: Some(&key),
        authorities: Some(&authority),
        revocations: Some(REVOCATIONS),
    };
    load(settings, files, Arc::new(Still), None).expect("sound files")
}

/// Presents a peer's certificate chain to all checks that a listener makes. Returns true if the listener
/// accepts the chain.
fn show(tls: &Tls, chain: &[CertificateDer<'_>], remote: IpAddr) -> bool {
    let Some(server) = tls.server() else { return false };
    let _ = PeerNames::of(Some(chain));
    match server.check_address(Some(chain), remote) {
        AddressCheck::Refused(why) => assert!(!why.to_string().is_empty()),
        AddressCheck::Ask(mut look_up) => {
            let mut asked = 0;
            while look_up.question().is_some() {
                asked += 1;
                assert!(asked <= 17, "more questions than are allowed");
                look_up.answer(Ok(vec!["10.0.0.9".to_owned(), "member.example".to_owned()]));
            }
            let _ = look_up.outcome();
        }
        AddressCheck::Passed => {}
    }
    let admitted = server.admit(Some(chain));
    if let Ok(session) = &admitted {
        assert_eq!(server.still_valid(session), Ok(()));
        assert!(session.common_name().is_none_or(|name| name.len() <= 1024));
    }
    let _ = tls.client().admit(Some(chain));
    admitted.is_ok()
}

/// Fuzz target: loads the files in the script, and presents the certificate chain in the script to two
/// listeners: one with the loaded files, and one with fixed files.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let flags = script.u8();
    let (certificate, key) = (file(&mut script), file(&mut script));
    let (authorities, revocations) = (file(&mut script), file(&mut script));
    let settings = Settings {
        client_cert_auth: flags & 1 != 0,
        allowed_cns: if flags & 2 != 0 { vec!["alice".to_owned()] } else { Vec::new() },
        allowed_hostnames: if flags & 6 == 4 { vec!["member.example".to_owned()] } else { Vec::new() },
        alpn: vec![b"h2".to_vec()],
        dials: flags & 8 != 0,
        ..Settings::default()
    };
    let files = Files {
        certificate: Some(&certificate),
        key: Some(&key),
        authorities: (flags & 16 == 0).then_some(&authorities),
        revocations: (flags & 32 == 0).then_some(&revocations),
    };
    let remote: IpAddr =
        if flags & 64 == 0 { [10, 0, 0, 9].into() } else { [0xfe80, 0, 0, 0, 0, 0, 0, 1].into() };
    let mut chain = Vec::new();
    while !script.is_done() && chain.len() < 4 {
        chain.push(CertificateDer::from(script.run().to_vec()));
    }

    let before = sound(settings.clone());
    let loaded = load(settings.clone(), files, Arc::new(Still), Some(&before));
    match &loaded {
        Err(error) => assert_keeps(&error.to_string(), &key),
        Ok(tls) => {
            let said = format!("{:?} {:?} {:?} {:?}", tls, tls.describe(), tls.warnings(), tls.expiries());
            assert_keeps(&said, &key);
            show(tls, &chain, remote);
            // Files that were loaded as a reload of earlier settings must also load without earlier settings.
            assert!(load(settings, files, Arc::new(Still), None).is_ok());
        }
    }
    // The fixed listener must refuse every chain that the fixed authority has not signed. A client that has
    // the authority's key may also present the authority's own certificate, as in Go.
    let is_known = |der: &CertificateDer<'_>| [SERVER, ALICE, AUTHORITY].contains(&der.as_ref());
    if show(&before, &chain, remote) {
        assert!(chain.first().is_some_and(is_known), "somebody else was let in");
    }
}

/// Returns valid files and chains in every form.
pub fn seeds() -> Vec<Vec<u8>> {
    let begin = |flags: u8, key: (u8, &[u8])| {
        Scribe::default().u8(flags).u8(CERTIFICATE).run(SERVER).u8(key.0).run(key.1)
    };
    let rest = |scribe: Scribe| scribe.u8(CERTIFICATE).run(AUTHORITY).u8(LIST).run(REVOCATIONS);
    let mut seeds: Vec<Vec<u8>> = [0, 1, 2, 4, 8, 16, 32, 64, 72]
        .map(|flags| rest(begin(flags, (PRIVATE_KEY, SERVER_KEY))).run(ALICE).run(AUTHORITY).done())
        .to_vec();
    seeds.push(rest(begin(0, (SEC1_KEY, SERVER_KEY_SEC1))).run(STRANGER).done());
    let text = [pem("CERTIFICATE", SERVER), b"note\n".to_vec(), pem("CERTIFICATE", AUTHORITY)].concat();
    let key =
        [pem("EC PARAMETERS", b"\x06\x08*\x86H\xce=\x03\x01\x07"), pem("EC PRIVATE KEY", SERVER_KEY_SEC1)]
            .concat();
    let both = [pem("CERTIFICATE", AUTHORITY), pem("CERTIFICATE", STRANGER)].concat();
    let plain = Scribe::default().u8(1).u8(0).run(&text).u8(0).run(&key).u8(0).run(&both);
    seeds.push(plain.u8(0).run(REVOCATIONS).run(ALICE).run(STRANGER).run(AUTHORITY).done());
    // Swaps certificate and key, and combines a key with a certificate to which it does not belong.
    seeds.push(Scribe::default().u8(0).u8(PRIVATE_KEY).run(SERVER_KEY).u8(CERTIFICATE).run(SERVER).done());
    seeds.push(rest(begin(0, (PRIVATE_KEY, ALICE_KEY))).done());
    seeds
}
