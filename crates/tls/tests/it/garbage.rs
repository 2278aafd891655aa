//! Files and certificates that are truncated or changed anywhere cause no panic, and the loaded material
//! stays in use.

use mainstay_tls::{Event, Settings};
use rustls_pki_types::CertificateDer;
use testkit::Random;

use crate::pki::{Authority, Clock, Files, NOW, at, params, params_for, server_of};

/// Changes some bytes, truncates, or duplicates a piece.
fn damage(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    match random.below(4) {
        0 => damaged.truncate(random.index(bytes.len())),
        1 => damaged.extend_from_slice(&bytes[random.index(bytes.len())..]),
        _ => {
            for _ in 0..=random.below(4) {
                let at = random.index(bytes.len());
                damaged[at] = random.below(256) as u8;
            }
        }
    }
    damaged
}

#[test]
fn damaged_files_never_replace_sound_ones() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let list = authority.revoke(&[&[1], &[2, 3]]);
    let settings = Settings {
        crl_file: Some(files.write("server.crl", &list)),
        ..files.settings("server", &own, Some(&authority))
    };
    let (server, tls, mut reloader) = server_of(settings, &clock);
    let mut revoked = params("revoked");
    revoked.serial_number = Some(rcgen::SerialNumber::from_slice(&[2, 3]));
    let revoked = authority.issue(revoked).der;
    let sound = [
        ("server.crt", own.cert.clone().into_bytes()),
        ("server.key", own.key.clone().into_bytes()),
        ("server.ca.crt", authority.pem.clone().into_bytes()),
        ("server.crl", list),
    ];
    let mut random = Random::new(1);
    let (mut kept, mut reloaded) = (0, 0);
    for (name, bytes) in &sound {
        for _ in 0..400 {
            files.write(name, damage(&mut random, bytes));
            for _ in 0..2 {
                match reloader.poll(at(NOW)) {
                    // Some changes are harmless, in text around PEM sections or in signatures.
                    Some(Event::Reloaded { .. }) => reloaded += 1,
                    Some(Event::Kept { .. }) => kept += 1,
                    _ => {}
                }
            }
            assert!(tls.server().is_some());
            _ = server.config();
            _ = server.admit(Some(std::slice::from_ref(&revoked)));
        }
        files.write(name, bytes);
        for _ in 0..2 {
            _ = reloader.poll(at(NOW));
        }
        assert_eq!(tls.failure(), None);
        assert!(server.admit(Some(std::slice::from_ref(&revoked))).is_err());
        assert!(server.admit(Some(std::slice::from_ref(&own.der))).is_ok());
    }
    assert!(kept > 1000, "{kept} kept, {reloaded} reloaded");
}

#[test]
fn every_cut_of_a_file_is_refused() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let clock = Clock::new();
    let own = authority.issue(params_for("server", &["a"]));
    let list = authority.revoke(&[&[1]]);
    let settings = Settings {
        crl_file: Some(files.write("server.crl", &list)),
        ..files.settings("server", &own, Some(&authority))
    };
    let sound = [
        ("server.crt", own.cert.as_bytes()),
        ("server.key", own.key.as_bytes()),
        ("server.ca.crt", authority.pem.as_bytes()),
        ("server.crl", list.as_slice()),
    ];
    for (name, bytes) in sound {
        // The end of the last line may be missing, and so may the end of the line before it.
        let whole = String::from_utf8_lossy(bytes).trim_end().len().min(bytes.len());
        let whole = if name.ends_with("crl") { bytes.len() } else { whole };
        for cut in 0..whole {
            files.write(name, &bytes[..cut]);
            assert!(mainstay_tls::Tls::load(settings.clone(), clock.clone()).is_err(), "{name} cut at {cut}");
        }
        files.write(name, bytes);
    }
    assert!(mainstay_tls::Tls::load(settings, clock).is_ok());
}

#[test]
fn damaged_certificates_are_refused() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let (server, ..) = server_of(files.settings("server", &own, Some(&authority)), &clock);
    let user = authority.issue(params_for("user", &["a.example", "*.example", "10.0.0.1"])).der;
    let mut random = Random::new(2);
    for _ in 0..5000 {
        let damaged = CertificateDer::from(damage(&mut random, &user));
        if damaged != user {
            assert!(server.admit(Some(std::slice::from_ref(&damaged))).is_err());
        }
        // A damaged certificate that one function rejects may still be parsed by another.
        _ = server.check_address(Some(std::slice::from_ref(&damaged)), "10.0.0.1".parse().unwrap());
        _ = server.admit(Some(&[user.clone(), damaged]));
    }
    assert!(server.admit(Some(&[user])).is_ok());
}

#[test]
fn garbage_in_a_handshake_ends_it() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let settings = files.settings("server", &own, Some(&authority));
    let (server, tls, _) = server_of(settings, &clock);
    let client = tls.client();
    let mut connection =
        rustls::ClientConnection::new(client.config(), client.server_name("a").unwrap()).unwrap();
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    let mut random = Random::new(3);
    for _ in 0..2000 {
        let mut connection = rustls::ServerConnection::new(server.config()).unwrap();
        let damaged = damage(&mut random, &hello);
        let mut rest = damaged.as_slice();
        while !rest.is_empty() {
            let Ok(1..) = connection.read_tls(&mut rest) else { break };
            if let Err(error) = connection.process_new_packets() {
                assert!(!mainstay_tls::explain(&error).is_empty());
                break;
            }
        }
        assert!(connection.is_handshaking());
    }
}
