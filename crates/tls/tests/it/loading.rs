//! Material that can or cannot be loaded, and the messages about it.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainstay_tls::{Owner, Settings};
use rcgen::{ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};

use crate::pki::{
    Authority, Clock, Files, NOW, Pair, at, authority_params, client_of, load, meet, params, params_for,
    server_of,
};

fn problem(settings: Settings) -> String {
    load(settings).unwrap_err().to_string()
}

/// Every kind of key, in each of its formats, works in a handshake.
#[test]
fn every_kind_of_key_is_loaded() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let kinds = [
        (include_str!("data/rsa.pkcs8.pem"), include_str!("data/rsa.pkcs8.pem"), "RSA PKCS#8"),
        (include_str!("data/rsa.pkcs8.pem"), include_str!("data/rsa.pkcs1.pem"), "RSA PKCS#1"),
        (include_str!("data/p256.pkcs8.pem"), include_str!("data/p256.pkcs8.pem"), "P-256 PKCS#8"),
        (include_str!("data/p256.pkcs8.pem"), include_str!("data/p256.sec1.pem"), "P-256 SEC 1"),
        (include_str!("data/p384.pkcs8.pem"), include_str!("data/p384.pkcs8.pem"), "P-384 PKCS#8"),
        (include_str!("data/p384.pkcs8.pem"), include_str!("data/p384.sec1.pem"), "P-384 SEC 1"),
        (include_str!("data/ed25519.pkcs8.pem"), include_str!("data/ed25519.pkcs8.pem"), "Ed25519"),
    ];
    for (known, form, name) in kinds {
        let pair = authority.issue_for(params_for("server", &["a"]), &KeyPair::from_pem(known).unwrap());
        // Like in Go, the label does not matter.
        let mislabelled =
            form.replace("RSA PRIVATE KEY", "PRIVATE KEY").replace("EC PRIVATE KEY", "PRIVATE KEY");
        for key in [form.to_owned(), form.replace('\n', "\r\n"), format!("a note\n{form}"), mislabelled] {
            let pair = Pair { key, ..pair.clone() };
            let settings = files.settings("server", &pair, Some(&authority));
            let (server, ..) = server_of(settings.clone(), &clock);
            let met = meet(&server, &client_of(settings, &clock), "a");
            assert!(met.succeeded(), "{name}: {:?} {:?}", met.server_result, met.client_result);
        }
    }
}

/// rustls accepts RSA keys with inconsistent private numbers; every handshake would fail. The public numbers
/// are correct in all of these keys, so each appears to match the certificate.
#[test]
fn an_rsa_key_that_does_not_sign_is_refused() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let known = KeyPair::from_pem(include_str!("data/rsa.pkcs8.pem")).unwrap();
    let pair = authority.issue_for(params_for("server", &["a"]), &known);
    let lines: Vec<&str> = include_str!("data/rsa.pkcs1.pem").lines().collect();
    let sound = STANDARD.decode(lines[1..lines.len() - 1].concat()).unwrap();
    // Starts after the modulus and the public exponent.
    for at in (300..sound.len()).step_by(41) {
        let mut bent = sound.clone();
        bent[at] ^= 1;
        let key = format!("{}\n{}\n{}\n", lines[0], STANDARD.encode(&bent), lines[lines.len() - 1]);
        let settings = files.settings("server", &Pair { key, ..pair.clone() }, Some(&authority));
        if let Ok((tls, _)) = load(settings.clone()) {
            let client = tls.client();
            let met = meet(&tls.server().unwrap(), &client, "a");
            assert!(met.succeeded(), "byte {at}: {:?}", met.server_result);
        }
    }
}

/// Such a file results from a key in a variable or template that removes line breaks.
#[test]
fn a_key_without_line_breaks_is_not_shown() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let flat = own.key.replace('\n', "");
    let secret = &own.key.lines().nth(1).unwrap()[..16];
    assert!(flat.contains(secret));
    let twice = format!("{flat}\n{flat}\n");
    let with =
        format!("{flat}\n-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n");
    for (cert, key) in
        [(&twice, &own.key), (&with, &own.key), (&own.cert, &twice), (&own.cert, &with), (&own.cert, &flat)]
    {
        let pair = Pair { cert: cert.clone(), key: key.clone(), ..own.clone() };
        let said = problem(files.settings("server", &pair, Some(&authority)));
        assert!(!said.contains(secret), "{said}");
    }
}

#[test]
fn files_that_cannot_be_used_are_refused_in_gos_words() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let other = authority.issue(params("other"));
    let rsa = include_str!("data/rsa.pkcs8.pem");
    let encrypted = "tls: failed to parse private key: it is encrypted, which is not supported";
    let supported = "tls: failed to parse private key: supported are RSA of 2048 to 4096 bits, ECDSA on P-256 and \
                     P-384, and Ed25519, in PKCS#1, SEC 1 or PKCS#8";
    let half = |text: &str| text[..text.len() / 2].to_owned();
    let csr = own.cert.replace("CERTIFICATE", "CERTIFICATE REQUEST");
    let cut = "malformed PEM: a section has no end; the file may be truncated";
    let no_der = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    // Certificate file, key file, expected problem, and the file that the error names.
    let rows: Vec<(String, String, &str, &str)> = vec![
        (String::new(), own.key.clone(), "tls: failed to find any PEM data in certificate input", "crt"),
        (
            "no PEM".to_owned(),
            own.key.clone(),
            "tls: failed to find any PEM data in certificate input",
            "crt",
        ),
        (
            own.key.clone(),
            own.cert.clone(),
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may \
             have been switched",
            "crt",
        ),
        (
            csr.clone(),
            own.key.clone(),
            "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the \
             following types: [CERTIFICATE REQUEST]",
            "crt",
        ),
        (half(&own.cert), own.key.clone(), cut, "crt"),
        (format!("{}{}", own.cert, half(&other.cert)), own.key.clone(), cut, "crt"),
        (no_der.to_owned(), own.key.clone(), "x509: malformed certificate", "crt"),
        (format!("{}{no_der}", own.cert), own.key.clone(), "x509: malformed certificate", "crt"),
        (own.cert.clone(), String::new(), "tls: failed to find any PEM data in key input", "key"),
        (
            own.cert.clone(),
            own.cert.clone(),
            "tls: found a certificate rather than a key in the PEM for the private key",
            "key",
        ),
        (
            own.cert.clone(),
            format!("{csr}{csr}"),
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of \
             the following types: [CERTIFICATE REQUEST CERTIFICATE REQUEST]",
            "key",
        ),
        (own.cert.clone(), half(&own.key), cut, "key"),
        (
            own.cert.clone(),
            own.key.replace("-\n", "-\n!"),
            "malformed PEM: a section cannot be decoded",
            "key",
        ),
        (own.cert.clone(), no_der.replace("CERTIFICATE", "PRIVATE KEY"), supported, "key"),
        (own.cert.clone(), include_str!("data/encrypted.pkcs8.pem").to_owned(), encrypted, "key"),
        (own.cert.clone(), include_str!("data/encrypted.sec1.pem").to_owned(), encrypted, "key"),
        (
            include_str!("data/p521.cert.pem").to_owned(),
            include_str!("data/p521.pkcs8.pem").to_owned(),
            supported,
            "key",
        ),
        (
            include_str!("data/p521.cert.pem").to_owned(),
            include_str!("data/p521.sec1.pem").to_owned(),
            supported,
            "key",
        ),
        (own.cert.clone(), other.key.clone(), "tls: private key does not match public key", "key"),
        (own.cert.clone(), rsa.to_owned(), "tls: private key type does not match public key type", "key"),
    ];
    for (cert, key, expected, file) in rows {
        let pair = Pair { cert, key, der: own.der.clone() };
        let error = load(files.settings("server", &pair, None)).unwrap_err();
        assert!(error.problem().starts_with(expected), "{error}\nnot {expected}");
        assert!(error.file().unwrap().ends_with(format!("server.{file}")), "{error}");
        assert!(error.to_string().contains(&format!("server.{file}")), "{error}");
        // The certificate for outgoing connections uses the same files.
        let named = files.settings("server", &pair, None);
        let outgoing = Settings {
            client_cert_file: named.cert_file,
            client_key_file: named.key_file,
            ..Settings::default()
        };
        assert!(problem(outgoing).starts_with(expected));
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let base = files.settings("server", &own, Some(&authority));
    let missing = files.dir.path().join("missing");
    let expected = format!("open {}: no such file or directory", missing.display());
    let cases = [
        Settings { cert_file: Some(missing.clone()), ..base.clone() },
        Settings { key_file: Some(missing.clone()), ..base.clone() },
        Settings { trusted_ca_file: Some(missing.clone()), ..base.clone() },
        Settings { crl_file: Some(missing.clone()), ..base.clone() },
        Settings {
            client_cert_file: Some(missing.clone()),
            client_key_file: base.key_file.clone(),
            ..base.clone()
        },
    ];
    for settings in cases {
        assert_eq!(problem(settings), expected);
    }
    let dir = files.dir.path().to_owned();
    assert_eq!(
        problem(Settings { key_file: Some(dir.clone()), ..base.clone() }),
        format!("read {}: is a directory", dir.display())
    );
    let pipe = files.dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    assert_eq!(
        problem(Settings { cert_file: Some(pipe.clone()), ..base.clone() }),
        format!("read {}: not a regular file", pipe.display())
    );
    let device = PathBuf::from("/dev/zero");
    assert_eq!(
        problem(Settings { trusted_ca_file: Some(device), ..base.clone() }),
        "read /dev/zero: not a regular file"
    );
    let large = files.write("large", vec![b'x'; 4 * 1024 * 1024 + 1]);
    assert_eq!(
        problem(Settings { trusted_ca_file: Some(large.clone()), ..base }),
        format!("read {}: larger than 4194304 bytes", large.display())
    );
}

#[test]
fn authorities_and_lists_that_cannot_be_used_are_refused() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let base = files.settings("server", &own, None);
    let with_authorities = |bytes: &[u8]| {
        problem(Settings { trusted_ca_file: Some(files.write("authorities", bytes)), ..base.clone() })
    };
    let list = authority.revoke(&[&[1]]);
    let with_list =
        |bytes: &[u8]| problem(Settings { crl_file: Some(files.write("crl", bytes)), ..base.clone() });
    let path = |name: &str| files.dir.path().join(name).display().to_string();
    let none = format!("no certificates of trusted authorities found ({})", path("authorities"));
    assert_eq!(with_authorities(b""), none);
    assert_eq!(with_authorities(b"nothing"), none);
    let malformed = format!("x509: malformed certificate ({})", path("authorities"));
    assert_eq!(with_authorities(own.key.as_bytes()), malformed);
    assert_eq!(with_authorities(format!("{}{}", authority.pem, own.key).as_bytes()), malformed);
    let cut = &authority.pem[..authority.pem.len() / 2];
    assert!(with_authorities(cut.as_bytes()).starts_with("malformed PEM: "));
    assert!(with_authorities(format!("{}{cut}", authority.pem).as_bytes()).starts_with("malformed PEM: "));
    let malformed = format!("x509: malformed crl ({})", path("crl"));
    for bytes in [&b""[..], b"nothing", &list[..list.len() - 1], own.der.as_ref(), own.cert.as_bytes()] {
        assert_eq!(with_list(bytes), malformed);
    }
}

#[test]
fn lists_are_taken_in_der_and_in_pem() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let base = files.settings("server", &own, Some(&authority));
    let user = |serial: &[u8]| {
        let mut params = params("user");
        params.serial_number = Some(rcgen::SerialNumber::from_slice(serial));
        authority.issue(params)
    };
    let pem = |der: &[u8]| {
        let mut text = "-----BEGIN X509 CRL-----\n".to_owned();
        for line in base64(der).as_bytes().chunks(64) {
            text.push_str(std::str::from_utf8(line).unwrap());
            text.push('\n');
        }
        text + "-----END X509 CRL-----\n"
    };
    let (one, two) = (authority.revoke(&[&[1]]), Authority::new("any issuer").revoke(&[&[2, 0], &[0x90]]));
    let lists: [(Vec<u8>, &[&[u8]]); 4] = [
        (one.clone(), &[&[1]]),
        (authority.revoke(&[]), &[]),
        (two.clone(), &[&[2, 0], &[0x90]]),
        (format!("{}{}", pem(&one), pem(&two)).into_bytes(), &[&[1], &[2, 0], &[0x90]]),
    ];
    for (list, revoked) in lists {
        let settings = Settings { crl_file: Some(files.write("crl", list)), ..base.clone() };
        let (server, tls, _) = server_of(settings, &clock);
        for serial in [&[1][..], &[2, 0], &[2], &[0x90], &[3; 20]] {
            let expected = !revoked.contains(&serial);
            assert_eq!(server.admit(Some(&[user(serial).der])).is_ok(), expected, "{serial:x?}");
        }
        assert!(tls.describe().iter().any(|line| line.ends_with("serial numbers revoked")));
    }
    // An intermediate authority may be revoked too.
    let mut below = authority_params("below");
    below.serial_number = Some(rcgen::SerialNumber::from_slice(&[1]));
    let below = authority.below(below);
    let chain = below.issue(params("user")).with_chain(&[&below]);
    let settings = Settings { crl_file: Some(files.write("crl", one)), ..base };
    let (server, ..) = server_of(settings, &clock);
    let client = client_of(files.settings("client", &chain, Some(&authority)), &clock);
    let met = meet(&server, &client, "a");
    assert_eq!(
        mainstay_tls::explain(&met.server_result.unwrap_err()),
        "transport: certificate serial 01 revoked"
    );
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = three.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte))
            << (8 * (3 - three.len()));
        for place in 0..4 {
            let digit = DIGITS[(number >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[test]
fn days_left_are_counted_for_every_certificate() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let mut own = params_for("server", &["a"]);
    own.not_after = date_time_ymd(2026, 6, 11);
    let own = authority.issue(own);
    let mut out = params("out");
    out.not_after = date_time_ymd(2026, 5, 31);
    let out = authority.issue(out);
    let settings = Settings {
        client_cert_file: Some(files.write("out.crt", &out.cert)),
        client_key_file: Some(files.write("out.key", &out.key)),
        ..files.settings("server", &own, Some(&authority))
    };
    let (tls, _) = load(settings).unwrap();
    let expiries = tls.expiries();
    let days: Vec<_> = expiries.iter().map(|expiry| (expiry.of, expiry.days_left(at(NOW)))).collect();
    assert_eq!(days, [(Owner::Listener, 10), (Owner::Client, -1), (Owner::Authority, 10_441)]);
    assert_eq!(expiries[0].days_left(at(NOW + 1)), 9);
    assert_eq!(expiries[0].expires_in(at(NOW)).unwrap().as_secs(), 10 * 86_400);
    assert_eq!(expiries[1].expires_in(at(NOW)), None);
    let warnings: Vec<String> = tls.warnings().into_iter().map(|warning| warning.text).collect();
    assert_eq!(warnings, ["a certificate has expired at 2026-05-31T00:00:00Z"]);
}

#[test]
fn certificates_for_the_wrong_purpose_are_warned_of() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let with = |purpose: ExtendedKeyUsagePurpose| {
        let mut params = params_for("server", &["a"]);
        params.extended_key_usages = vec![purpose];
        authority.issue(params)
    };
    let (for_servers, for_clients) =
        (with(ExtendedKeyUsagePurpose::ServerAuth), with(ExtendedKeyUsagePurpose::ClientAuth));
    let warned = |own: &Pair, dials: bool| {
        let settings = Settings { dials, ..files.settings("server", own, Some(&authority)) };
        let warnings = load(settings).unwrap().0.warnings();
        warnings.into_iter().map(|warning| warning.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(warned(&for_servers, false), Vec::<String>::new());
    let warning = &warned(&for_servers, true)[0];
    assert!(warning.contains("server.crt: the certificate is not valid for clients"), "{warning}");
    let warning = &warned(&for_clients, false)[0];
    assert!(warning.contains("server.crt: the certificate is not valid for servers"), "{warning}");
}

#[test]
fn an_authority_whose_key_is_not_supported_is_warned_of() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let settings = files.settings("server", &own, Some(&authority));
    let warned = || {
        let warnings = load(settings.clone()).unwrap().0.warnings();
        warnings.iter().any(|warning| warning.text.starts_with("an authority's key type"))
    };
    assert!(!warned());
    let p521 = include_str!("data/p521.cert.pem");
    files.write("server.ca.crt", format!("{}{p521}", authority.pem));
    assert!(warned());
}

#[test]
fn no_secret_is_shown() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let mut own = params_for("server", &["a"]);
    own.serial_number = Some(rcgen::SerialNumber::from_slice(&[0x0b]));
    let own = authority.issue(own);
    let settings = files.settings("server", &own, Some(&authority));
    let (tls, reloader) = load(settings.clone()).unwrap();
    let described = tls.describe();
    assert_eq!(
        described,
        [format!(
            "listener certificate {}: common name \"server\", serial number 0b, valid until 2055-01-01T00:00:00Z",
            settings.cert_file.as_ref().unwrap().display()
        )]
    );
    let shown = format!("{settings} {settings:?} {tls:?} {:?} {:?} {reloader:?}", tls.server(), tls.client());
    let secret = own.key.lines().nth(1).unwrap();
    assert!(!shown.contains(&secret[..16]) && !shown.contains("PRIVATE"));
}

#[test]
fn nothing_is_needed_to_connect() {
    let (tls, mut reloader) = load(Settings::default()).unwrap();
    assert!(tls.server().is_none());
    assert!(tls.client().server_name("10.0.0.1").is_ok());
    assert_eq!(reloader.poll(at(NOW)), None);
    let mut broken = Settings::default();
    broken.cipher_suites.push("FOO".to_owned());
    assert_eq!(problem(broken), "unexpected TLS cipher suite \"FOO\"");
}
