//! Generated certificates.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use mainstay_tls::{AddressCheck, SelfSigned, Settings};

use crate::pki::{Clock, Files, NOW, at, client_of, meet, server_of};

fn prepare(dir: &Path, hosts: &[&str], years: u64, now: SystemTime) -> Result<SelfSigned, String> {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    SelfSigned::prepare(dir, &hosts, years, now).map_err(|error| error.to_string())
}

#[test]
fn a_member_makes_its_certificate_once() {
    let (files, clock) = (Files::new(), Clock::new());
    let dir = files.dir.path().join("fixtures/client");
    let hosts = ["127.0.0.1:2379", "[::1]:2379", "member.example:2379", "127.0.0.1:2380"];
    let made = prepare(&dir, &hosts, 1, at(NOW)).unwrap();
    assert_eq!(made.made.as_deref(), Some("there was none"));
    assert_eq!(made.not_after, at(NOW + 365 * 86_400));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&made.cert_file), mode(&made.key_file)), (0o600, 0o600));
    assert_eq!((mode(&dir), mode(dir.parent().unwrap())), (0o700, 0o700));
    assert_eq!((made.cert_file.clone(), made.key_file.clone()), (dir.join("cert.pem"), dir.join("key.pem")));

    let (server, ..) = server_of(made.settings(), &clock);
    // Members accept any certificate from each other; tools may use the file as a trusted authority.
    let careful = Settings { trusted_ca_file: Some(made.cert_file.clone()), ..Settings::default() };
    let (careless, careful) = (client_of(made.settings(), &clock), client_of(careful, &clock));
    for host in ["127.0.0.1", "::1", "member.example"] {
        assert!(meet(&server, &careless, host).succeeded());
        let met = meet(&server, &careful, host);
        assert!(met.succeeded(), "{:?}", met.client_result);
    }
    assert!(!meet(&server, &careful, "other.example").succeeded());
    assert!(matches!(server.check_address(None, "10.0.0.1".parse().unwrap()), AddressCheck::Passed));

    let before = std::fs::read(&made.cert_file).unwrap();
    let again = prepare(&dir, &["other:1"], 5, at(NOW + 365 * 86_400)).unwrap();
    assert_eq!(again, SelfSigned { made: None, ..made });
    assert_eq!(std::fs::read(&again.cert_file).unwrap(), before);
}

#[test]
fn what_cannot_be_used_is_made_again() {
    let files = Files::new();
    let dir = files.dir.path().join("fixtures");
    let first = prepare(&dir, &["a:1"], 1, at(NOW)).unwrap();
    let later = first.not_after + Duration::from_secs(1);
    let second = prepare(&dir, &["a:1"], 292, later).unwrap();
    assert_eq!(second.made.as_deref(), Some("the one that was there has expired"));
    assert!(second.not_after > later);
    assert!(dir.join("cert.pem.old").exists() && dir.join("key.pem.old").exists());
    let why = || prepare(&dir, &["a:1"], 1, at(NOW)).unwrap().made;
    std::fs::remove_file(&second.key_file).unwrap();
    assert!(why().unwrap().contains("key.pem"));
    assert_eq!(why(), None);
    std::fs::write(&second.cert_file, "garbage").unwrap();
    assert!(why().unwrap().starts_with("tls: failed to find any PEM data in certificate input"));
    assert_eq!(why(), None);
    // Files as etcd generates them.
    std::fs::write(&second.cert_file, include_str!("data/p521.cert.pem")).unwrap();
    std::fs::write(&second.key_file, include_str!("data/p521.sec1.pem")).unwrap();
    assert!(why().unwrap().starts_with("tls: failed to parse private key"));
    assert_eq!(why(), None);
    assert_eq!(std::fs::read_to_string(dir.join("key.pem.old")).unwrap(), include_str!("data/p521.sec1.pem"));
}

#[test]
fn wrong_validity_and_places_are_refused() {
    let files = Files::new();
    let dir = files.dir.path().join("fixtures");
    assert_eq!(
        prepare(&dir, &[], 0, at(NOW)),
        Err("selfSignedCertValidity is invalid,it should be greater than 0".to_owned())
    );
    assert!(prepare(&dir, &[], 293, at(NOW)).is_err());
    let file = files.write("file", "");
    let error = prepare(&file, &[], 1, at(NOW)).unwrap_err();
    assert!(error.contains(&*file.to_string_lossy()), "{error}");
    assert!(prepare(&dir, &["not a name:1"], 1, at(NOW)).is_ok() || !dir.join("cert.pem").exists());
}
