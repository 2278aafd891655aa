//! Handshakes that succeed, and the data about the peer after them.

use mainstay_tls::{Refusal, Settings, Version};
use rustls::{HandshakeKind, ProtocolVersion};

use crate::pki::{
    Authority, Clock, END, Files, NOW, authority_params, client_of, meet, params, params_for, server_of,
};

#[test]
fn both_sides_show_certificates() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let below = authority.below(authority_params("below"));
    let own = authority.issue(params_for("server", &["member.example", "127.0.0.1", "::1"]));
    let (server, tls, _) = server_of(files.settings("server", &own, Some(&authority)), &clock);
    let user = below.issue(params("alice")).with_chain(&[&below]);
    let client = client_of(files.settings("client", &user, Some(&authority)), &clock);
    for host in ["member.example", "MEMBER.example.", "127.0.0.1", "::1"] {
        let met = meet(&server, &client, host);
        assert!(met.succeeded(), "{:?} {:?}", met.server_result, met.client_result);
        let session = server.admit(met.server.peer_certificates()).unwrap();
        assert_eq!(session.common_name(), Some("alice"));
        assert_eq!(session.generation(), 1);
        assert_eq!(session.not_after(), Some(END));
        assert_eq!(server.still_valid(&session), Ok(()));
        let session = client.admit(met.client.peer_certificates()).unwrap();
        assert_eq!(session.common_name(), Some("server"));
        assert_eq!(client.still_valid(&session), Ok(()));
    }
    assert_eq!(tls.generation(), 1);
    let met = meet(&server, &client, "other.example");
    assert_eq!(
        Refusal::behind(&met.client_result.unwrap_err()).unwrap().to_string(),
        "tls: failed to verify certificate: x509: certificate is valid for member.example, not other.example"
    );
}

#[test]
fn a_server_without_authorities_asks_for_no_certificate() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let (server, ..) = server_of(files.settings("server", &own, None), &clock);
    let settings = files.settings("client", &authority.issue(params("alice")), Some(&authority));
    let met = meet(&server, &client_of(settings, &clock), "a");
    assert!(met.succeeded());
    let session = server.admit(met.server.peer_certificates()).unwrap();
    assert_eq!((session.common_name(), session.not_after()), (None, None));
    clock.set(u64::MAX / 2);
    assert_eq!(server.still_valid(&session), Ok(()));
}

/// As in etcd, a file of authorities alone is enough to require certificates.
#[test]
fn a_server_with_authorities_requires_a_certificate() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let settings = files.settings("server", &own, Some(&authority));
    assert!(!settings.client_cert_auth && settings.wants_client_certificates());
    let (server, ..) = server_of(settings.clone(), &clock);
    let nobody = Settings { trusted_ca_file: settings.trusted_ca_file.clone(), ..Settings::default() };
    let met = meet(&server, &client_of(nobody, &clock), "a");
    let error = met.server_result.unwrap_err();
    assert_eq!(mainstay_tls::explain(&error), "tls: client didn't provide a certificate");
    assert_eq!(
        mainstay_tls::explain(&met.client_result.unwrap_err()),
        "remote error: tls: certificate required"
    );
    assert_eq!(server.admit(None), Err(Refusal::NoCertificate));
}

#[test]
fn another_certificate_is_shown_to_servers() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let (server, ..) = server_of(files.settings("server", &own, Some(&authority)), &clock);
    let other = authority.issue(params("outgoing"));
    let settings = Settings {
        client_cert_file: Some(files.write("out.crt", &other.cert)),
        client_key_file: Some(files.write("out.key", &other.key)),
        ..files.settings("member", &own, Some(&authority))
    };
    let met = meet(&server, &client_of(settings, &clock), "a");
    let session = server.admit(met.server.peer_certificates()).unwrap();
    assert_eq!(session.common_name(), Some("outgoing"));
}

#[test]
fn versions_and_suites_are_as_set() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let base = files.settings("server", &own, Some(&authority));
    let suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";
    let old =
        Settings { max_version: Some(Version::Tls12), cipher_suites: vec![suite.to_owned()], ..base.clone() };
    let new = Settings { min_version: Some(Version::Tls13), ..base.clone() };
    let cases = [
        (&base, &base, Some(ProtocolVersion::TLSv1_3)),
        (&base, &old, Some(ProtocolVersion::TLSv1_2)),
        (&old, &base, Some(ProtocolVersion::TLSv1_2)),
        (&new, &base, Some(ProtocolVersion::TLSv1_3)),
        (&old, &new, None),
        (&new, &old, None),
    ];
    for (server, client, version) in cases {
        let (server, ..) = server_of(server.clone(), &clock);
        let met = meet(&server, &client_of(client.clone(), &clock), "a");
        assert_eq!(met.succeeded(), version.is_some());
        let agreed = met.server.protocol_version().filter(|_| met.succeeded());
        assert_eq!(agreed, version);
        if version == Some(ProtocolVersion::TLSv1_2) {
            let suite = met.server.negotiated_cipher_suite().unwrap().suite();
            assert_eq!(suite, rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384);
            assert!(server.admit(met.server.peer_certificates()).is_ok());
        }
    }
    let (server, ..) = server_of(new, &clock);
    let met = meet(&server, &client_of(old, &clock), "a");
    assert_eq!(
        mainstay_tls::explain(&met.server_result.unwrap_err()),
        "tls: client offered only unsupported versions"
    );
}

#[test]
fn protocols_are_negotiated() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let base = files.settings("server", &own, Some(&authority));
    let protocols = |list: &[&str]| list.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
    let cases = [
        (&["h2", "http/1.1"][..], &["http/1.1", "h2"][..], Ok(Some("h2"))),
        (&["h2", "http/1.1"], &["http/1.1"], Ok(Some("http/1.1"))),
        (&["h2", "http/1.1"], &[], Ok(None)),
        (&[], &["h2"], Ok(None)),
        (&["http/1.1"], &["h2"], Err("tls: client requested unsupported application protocols")),
    ];
    for (server, client, expected) in cases {
        let (server, ..) = server_of(Settings { alpn: protocols(server), ..base.clone() }, &clock);
        let client = client_of(Settings { client_alpn: protocols(client), ..base.clone() }, &clock);
        let met = meet(&server, &client, "a");
        let result = match &met.server_result {
            Ok(()) => Ok(met.server.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned())),
            Err(error) => Err(mainstay_tls::explain(error)),
        };
        assert_eq!(result, expected.map(|name| name.map(str::to_owned)).map_err(str::to_owned));
    }
}

#[test]
fn sessions_are_resumed() {
    for max_version in [Some(Version::Tls12), None] {
        let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
        let own = authority.issue(params_for("server", &["a"]));
        let settings = Settings { max_version, ..files.settings("server", &own, Some(&authority)) };
        let (server, ..) = server_of(settings.clone(), &clock);
        let client = client_of(settings, &clock);
        assert_eq!(meet(&server, &client, "a").server.handshake_kind(), Some(HandshakeKind::Full));
        let met = meet(&server, &client, "a");
        assert_eq!(met.server.handshake_kind(), Some(HandshakeKind::Resumed));
        let session = server.admit(met.server.peer_certificates()).unwrap();
        assert_eq!(session.common_name(), Some("server"));
    }
}

/// rustls does not verify certificates again when a session is resumed.
#[test]
fn a_resumed_session_of_an_expired_certificate_is_not_admitted() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let (server, ..) = server_of(files.settings("server", &own, Some(&authority)), &clock);
    let mut short = params("alice");
    short.not_after = short.not_before + (rcgen::date_time_ymd(2026, 6, 2) - short.not_before);
    let user = authority.issue(short);
    let client = client_of(files.settings("client", &user, Some(&authority)), &clock);
    let end = NOW + 86_400;
    // Tickets are valid for hours.
    clock.set(end - 60);
    let met = meet(&server, &client, "a");
    let session = server.admit(met.server.peer_certificates()).unwrap();
    assert_eq!(session.not_after(), Some(end));
    clock.set(end);
    assert_eq!(server.still_valid(&session), Ok(()));
    clock.set(end + 1);
    let expired = Refusal::Expired { now: end + 1, not_after: end };
    assert_eq!(server.still_valid(&session), Err(expired.clone()));
    assert_eq!(server.still_trusted(&session), Ok(()));
    let met = meet(&server, &client, "a");
    assert!(met.succeeded());
    assert_eq!(met.server.handshake_kind(), Some(HandshakeKind::Resumed));
    assert_eq!(server.admit(met.server.peer_certificates()), Err(expired.clone()));
    assert_eq!(
        expired.to_string(),
        "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time \
         2026-06-02T00:00:01Z is after 2026-06-02T00:00:00Z"
    );
}

#[test]
fn any_server_is_taken_when_told_to() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let (server, ..) = server_of(files.settings("server", &own, None), &clock);
    let stranger = Authority::new("stranger");
    let settings = files.settings("client", &own, Some(&stranger));
    let met = meet(&server, &client_of(settings.clone(), &clock), "a");
    assert_eq!(
        mainstay_tls::explain(&met.client_result.unwrap_err()),
        "tls: failed to verify certificate: x509: certificate signed by unknown authority"
    );
    assert_eq!(
        mainstay_tls::explain(&met.server_result.unwrap_err()),
        "remote error: tls: unknown certificate authority"
    );
    let careless = Settings { insecure_skip_verify: true, ..settings.clone() };
    let client = client_of(careless.clone(), &clock);
    let met = meet(&server, &client, "b");
    assert!(met.succeeded());
    assert_eq!(client.admit(met.client.peer_certificates()).unwrap().common_name(), None);
    // etcd checks allowed names in verified chains only, and this chain is not verified.
    let picky = Settings { allowed_cns: vec!["server".to_owned()], ..careless };
    let met = meet(&server, &client_of(picky, &clock), "a");
    assert_eq!(
        mainstay_tls::explain(&met.client_result.unwrap_err()),
        "client certificate authentication failed"
    );
}

#[test]
fn the_name_of_a_server_can_be_set() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["cluster.example"]));
    let (server, ..) = server_of(files.settings("server", &own, None), &clock);
    let base = files.settings("client", &own, Some(&authority));
    assert!(!meet(&server, &client_of(base.clone(), &clock), "10.0.0.1").succeeded());
    let named = Settings { server_name: Some("cluster.example".to_owned()), ..base };
    let client = client_of(named, &clock);
    assert!(meet(&server, &client, "10.0.0.1").succeeded());
    assert!(client.server_name("not a host").is_ok());
}

/// A server's certificate must also have an allowed name, as in etcd, where both directions share the rule.
#[test]
fn allowed_names_hold_for_servers_too() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let (server, ..) = server_of(files.settings("server", &own, None), &clock);
    let base = files.settings("client", &own, Some(&authority));
    for (allowed, expected) in [("server", true), ("other", false)] {
        let settings = Settings { allowed_cns: vec![allowed.to_owned()], ..base.clone() };
        assert_eq!(meet(&server, &client_of(settings, &clock), "a").succeeded(), expected);
    }
}

#[test]
fn a_revoked_server_is_refused() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let mut named = params_for("server", &["a"]);
    named.serial_number = Some(rcgen::SerialNumber::from_slice(&[0x0a, 0xbc]));
    let own = authority.issue(named);
    let (server, ..) = server_of(files.settings("server", &own, None), &clock);
    let settings = Settings {
        crl_file: Some(files.write("crl", authority.revoke(&[&[0x0a, 0xbc]]))),
        ..files.settings("client", &own, Some(&authority))
    };
    let met = meet(&server, &client_of(settings, &clock), "a");
    assert_eq!(
        mainstay_tls::explain(&met.client_result.unwrap_err()),
        "transport: certificate serial 0abc revoked"
    );
}

#[test]
fn what_is_no_tls_is_explained() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let (server, ..) = server_of(files.settings("server", &own, None), &clock);
    let mut connection = rustls::ServerConnection::new(server.config()).unwrap();
    connection.read_tls(&mut b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".as_slice()).unwrap();
    let error = connection.process_new_packets().unwrap_err();
    assert_eq!(mainstay_tls::explain(&error), "tls: first record does not look like a TLS handshake");
}

/// A certificate that is itself trusted needs no authority, and one that may not sign cannot vouch for
/// others.
#[test]
fn a_trusted_certificate_vouches_for_itself_only() {
    let (files, clock) = (Files::new(), Clock::new());
    let key = rcgen::KeyPair::generate().unwrap();
    let lone = Authority::with_key(params_for("lone", &["a"]), key);
    let forged = lone.issue(params_for("forged", &["a"]));
    let server = |own: &crate::pki::Pair| server_of(files.settings("server", own, None), &clock).0;
    let trusting =
        Settings { trusted_ca_file: Some(files.write("lone.crt", &lone.pem)), ..Settings::default() };
    let client = client_of(trusting, &clock);
    let own = crate::pki::Pair {
        cert: lone.pem.clone(),
        key: lone.issuer.key().serialize_pem(),
        der: forged.der.clone(),
    };
    assert!(meet(&server(&own), &client, "a").succeeded());
    let met = meet(&server(&forged), &client, "a");
    assert_eq!(Refusal::behind(&met.client_result.unwrap_err()), Some(Refusal::UnknownAuthority));
}

/// Go accepts certificates of version 1 and certificates of authorities; `webpki` accepts neither.
#[test]
fn old_and_odd_certificates_are_taken_when_a_trusted_authority_signed_them() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    for max_version in [Some(Version::Tls12), None] {
        let old_authority = include_str!("data/version1.ca.pem");
        let settings = Settings {
            trusted_ca_file: Some(files.write("ca", format!("{}{old_authority}", authority.pem))),
            max_version,
            ..files.settings("server", &own, None)
        };
        let (server, ..) = server_of(settings, &clock);
        clock.set(NOW + 365 * 86_400);
        let old = Settings {
            cert_file: Some(files.write("v1.crt", include_str!("data/version1.cert.pem"))),
            key_file: Some(files.write("v1.key", include_str!("data/p256.pkcs8.pem"))),
            trusted_ca_file: Some(files.write("v1.ca", &authority.pem)),
            ..Settings::default()
        };
        let met = meet(&server, &client_of(old, &clock), "a");
        assert!(met.succeeded(), "{:?}", met.server_result);
        let session = server.admit(met.server.peer_certificates()).unwrap();
        assert_eq!(session.common_name(), Some("version1"));

        let mut odd = params_for("odd", &["a"]);
        odd.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let odd = authority.issue(odd);
        let client = client_of(files.settings("odd", &odd, Some(&authority)), &clock);
        assert!(meet(&server, &client, "a").succeeded());
        let met = meet(&server_of(files.settings("odd", &odd, None), &clock).0, &client, "a");
        assert!(met.succeeded(), "{:?}", met.client_result);
        clock.set(NOW);
    }
}

/// Without a file of authorities, etcd uses Go's default: the authorities of the system.
#[test]
fn without_a_file_of_authorities_those_of_the_system_decide() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let settings = Settings { client_cert_auth: true, ..files.settings("server", &own, None) };
    let (server, ..) = server_of(settings, &clock);
    let client = client_of(files.settings("client", &own, Some(&authority)), &clock);
    let unknown = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    assert_eq!(mainstay_tls::explain(&meet(&server, &client, "a").server_result.unwrap_err()), unknown);
    let (server, ..) = server_of(files.settings("server", &own, None), &clock);
    let met = meet(&server, &client_of(Settings::default(), &clock), "a");
    assert_eq!(mainstay_tls::explain(&met.client_result.unwrap_err()), unknown);
}
