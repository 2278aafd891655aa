//! Files that change while a member runs.

use std::time::{Duration, SystemTime};

use mainstay_tls::{ClientTls, Event, Refusal, Reloader, ServerTls, Settings};
use rustls::HandshakeKind;

use crate::pki::{
    Authority, Clock, Files, NEXT_LIST, NOW, at, client_of, meet, params, params_for, server_of,
};

/// Polls until a change is used; returns the event.
fn polled(reloader: &mut Reloader) -> Option<Event> {
    let events: Vec<Event> = (0..3).filter_map(|_| reloader.poll(at(NOW))).collect();
    assert!(events.len() < 2, "{events:?}");
    events.into_iter().next()
}

fn kept(event: Option<Event>) -> String {
    match event {
        Some(Event::Kept { error }) => error.problem().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_certificate_is_used_with_its_key_only() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let old = authority.issue(params_for("old", &["a"]));
    let settings = files.settings("server", &old, Some(&authority));
    let (server, tls, mut reloader) = server_of(settings.clone(), &clock);
    let client = client_of(settings.clone(), &clock);
    let name = || {
        let met = meet(&server, &client, "a");
        assert!(met.succeeded());
        client.admit(met.client.peer_certificates()).unwrap().common_name().map(str::to_owned)
    };
    assert_eq!(polled(&mut reloader), None);
    let new = authority.issue(params_for("new", &["a"]));
    files.write("server.crt", &new.cert);
    assert!(kept(polled(&mut reloader)).starts_with("tls: private key does not match public key"));
    assert_eq!(name().as_deref(), Some("old"));
    assert_eq!((tls.generation(), tls.failure().is_some()), (1, true));
    files.write("server.key", &new.key);
    let Some(Event::Reloaded { generation, changed, warnings }) = polled(&mut reloader) else {
        panic!("not reloaded");
    };
    let both = [settings.cert_file.unwrap(), settings.key_file.unwrap()];
    assert_eq!((generation, changed.as_slice(), warnings.len()), (2, both.as_slice(), 0));
    assert_eq!((tls.generation(), tls.failure()), (2, None));
    assert_eq!(name().as_deref(), Some("new"));
    assert_eq!(polled(&mut reloader), None);
}

#[test]
fn what_is_being_written_is_not_taken_for_whole() {
    let (files, clock) = (Files::new(), Clock::new());
    let (one, two) = (Authority::new("one"), Authority::new("two"));
    let own = one.issue(params_for("server", &["a"]));
    let (server, _, mut reloader) = server_of(files.settings("server", &own, Some(&one)), &clock);
    let user = two.issue(params("user")).der;
    // The file grows by one certificate between polls.
    let three = Authority::new("three");
    files.write("server.ca.crt", &three.pem);
    assert_eq!(reloader.poll(at(NOW)), None);
    files.write("server.ca.crt", format!("{}{}", three.pem, two.pem));
    assert_eq!(reloader.poll(at(NOW)), None);
    assert!(server.admit(Some(std::slice::from_ref(&user))).is_err());
    assert!(matches!(reloader.poll(at(NOW)), Some(Event::Reloaded { generation: 2, .. })));
    assert!(server.admit(Some(&[user])).is_ok());
}

#[test]
fn revocation_takes_effect_on_connections_that_exist() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let settings = Settings {
        crl_file: Some(files.write("crl", authority.revoke(&[]))),
        ..files.settings("server", &own, Some(&authority))
    };
    let (server, _, mut reloader) = server_of(settings, &clock);
    let user = |name: &str, serial: u8| {
        let mut params = params(name);
        params.serial_number = Some(rcgen::SerialNumber::from_slice(&[serial]));
        files.settings(name, &authority.issue(params), Some(&authority))
    };
    let (alice, bob) = (client_of(user("alice", 5), &clock), client_of(user("bob", 6), &clock));
    let alices = server.admit(meet(&server, &alice, "a").server.peer_certificates()).unwrap();
    let bobs = server.admit(meet(&server, &bob, "a").server.peer_certificates()).unwrap();
    files.write("crl", authority.revoke(&[&[5]]));
    assert!(matches!(polled(&mut reloader), Some(Event::Reloaded { .. })));
    let revoked = Refusal::Revoked { serial: "05".to_owned() };
    assert_eq!(server.still_valid(&alices), Err(revoked.clone()));
    assert_eq!(server.still_trusted(&alices), Err(revoked.clone()));
    assert_eq!(server.still_valid(&bobs), Ok(()));
    // Tickets from before the reload are invalid, so the handshake is a full one and fails.
    let met = meet(&server, &alice, "a");
    assert_eq!(Refusal::behind(&met.server_result.unwrap_err()), Some(revoked));
    let met = meet(&server, &bob, "a");
    assert_eq!(met.server.handshake_kind(), Some(rustls::HandshakeKind::Full));
    assert_eq!(server.admit(met.server.peer_certificates()).unwrap().generation(), 2);
    // A list that cannot be read leaves the newest valid one in use.
    for broken in [b"".as_slice(), b"garbage"] {
        files.write("crl", broken);
        assert_eq!(kept(polled(&mut reloader)), "x509: malformed crl");
        assert!(server.still_valid(&alices).is_err());
    }
    std::fs::remove_file(files.dir.path().join("crl")).unwrap();
    assert!(kept(polled(&mut reloader)).ends_with("no such file or directory"));
    assert!(server.still_valid(&alices).is_err());
    assert!(!meet(&server, &alice, "a").succeeded());
}

#[test]
fn an_authority_that_goes_takes_its_connections_along() {
    let (files, clock) = (Files::new(), Clock::new());
    let (one, two) = (Authority::new("one"), Authority::new("two"));
    let own = one.issue(params_for("server", &["a"]));
    let settings = files.settings("server", &own, Some(&one));
    files.write("server.ca.crt", format!("{}{}", one.pem, two.pem));
    let (server, _, mut reloader) = server_of(settings, &clock);
    let session = |authority: &Authority| server.admit(Some(&[authority.issue(params("user")).der])).unwrap();
    let (ones, twos) = (session(&one), session(&two));
    files.write("server.ca.crt", &two.pem);
    assert!(matches!(polled(&mut reloader), Some(Event::Reloaded { .. })));
    assert_eq!(server.still_valid(&ones), Err(Refusal::UnknownAuthority));
    assert_eq!(server.still_valid(&twos), Ok(()));
    // An authority that was renewed with the same key counts as the same.
    let mut renewed = crate::pki::authority_params("two");
    renewed.not_after = rcgen::date_time_ymd(2056, 1, 1);
    files.write("server.ca.crt", renewed.self_signed(two.issuer.key()).unwrap().pem());
    assert!(matches!(polled(&mut reloader), Some(Event::Reloaded { .. })));
    assert_eq!(server.still_valid(&twos), Ok(()));
    // An authority with the same name and another key counts as a different one.
    files.write("server.ca.crt", &Authority::new("two").pem);
    assert!(matches!(polled(&mut reloader), Some(Event::Reloaded { .. })));
    assert_eq!(server.still_valid(&twos), Err(Refusal::UnknownAuthority));
}

#[test]
fn outgoing_connections_follow_too() {
    let (files, clock) = (Files::new(), Clock::new());
    let (one, two) = (Authority::new("one"), Authority::new("two"));
    let own = one.issue(params_for("server", &["a"]));
    let (server, ..) = server_of(files.settings("server", &own, None), &clock);
    let settings = files.settings("client", &own, Some(&one));
    let (tls, mut reloader) = mainstay_tls::Tls::load(settings, clock.clone()).unwrap();
    let client = tls.client();
    let met = meet(&server, &client, "a");
    let session = client.admit(met.client.peer_certificates()).unwrap();
    files.write("client.ca.crt", &two.pem);
    assert!(matches!(polled(&mut reloader), Some(Event::Reloaded { .. })));
    assert_eq!(client.still_valid(&session), Err(Refusal::UnknownAuthority));
    assert_eq!(client.still_trusted(&session), Err(Refusal::UnknownAuthority));
    assert_eq!(client.admit(met.client.peer_certificates()), Err(Refusal::UnknownAuthority));
    assert!(!meet(&server, &client, "a").succeeded());
}

#[test]
fn a_failure_is_reported_once_and_then_every_hour() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let (_, tls, mut reloader) = server_of(files.settings("server", &own, Some(&authority)), &clock);
    files.write("server.crt", "");
    assert!(kept(polled(&mut reloader)).starts_with("tls: failed to find any PEM data"));
    // The same failure is not reported again when the same contents are written again.
    files.write("server.crt", "");
    assert_eq!(polled(&mut reloader), None);
    let hour = at(NOW) + Duration::from_secs(3600);
    assert_eq!(reloader.poll(hour - Duration::from_secs(1)), None);
    assert!(kept(reloader.poll(hour)).starts_with("tls: failed to find any PEM data"));
    assert_eq!(reloader.poll(hour), None);
    // A different failure is reported immediately.
    files.write("server.crt", "garbage");
    assert!(kept(polled(&mut reloader)).starts_with("tls: failed to find any PEM data"));
    assert!(tls.failure().is_some());
    files.write("server.crt", &own.cert);
    assert_eq!(polled(&mut reloader), Some(Event::Restored));
    assert_eq!((tls.failure(), tls.generation()), (None, 1));
    assert_eq!(polled(&mut reloader), None);
}

/// Kubernetes changes mounted files by replacing a symbolic link to the directory.
#[test]
fn files_behind_links_are_followed() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let dir = files.dir.path();
    let write = |name: &str, own: &crate::pki::Pair| {
        std::fs::create_dir(dir.join(name)).unwrap();
        files.write(&format!("{name}/crt"), &own.cert);
        files.write(&format!("{name}/key"), &own.key);
    };
    write("1", &authority.issue(params_for("one", &["a"])));
    std::os::unix::fs::symlink("1", dir.join("data")).unwrap();
    let settings = Settings {
        cert_file: Some(dir.join("data/crt")),
        key_file: Some(dir.join("data/key")),
        ..Settings::default()
    };
    let (_, tls, mut reloader) = server_of(settings, &clock);
    assert_eq!(polled(&mut reloader), None);
    write("2", &authority.issue(params_for("two", &["a"])));
    std::os::unix::fs::symlink("2", dir.join("next")).unwrap();
    std::fs::rename(dir.join("next"), dir.join("data")).unwrap();
    assert!(matches!(polled(&mut reloader), Some(Event::Reloaded { .. })));
    assert!(tls.describe()[0].contains("\"two\""));
}

#[test]
fn a_list_that_is_overdue_is_used_with_a_warning() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let settings = Settings {
        crl_file: Some(files.write("crl", authority.revoke(&[]))),
        ..files.settings("server", &own, Some(&authority))
    };
    let (_, tls, mut reloader) = server_of(settings, &clock);
    assert_eq!(tls.warnings(), []);
    clock.set(NEXT_LIST + 1);
    files.write("crl", authority.revoke(&[&[1]]));
    let Some(Event::Reloaded { warnings, .. }) = polled(&mut reloader) else { panic!("not reloaded") };
    assert_eq!(warnings[0].text, "a newer list was due at 2050-01-01T00:00:00Z; this one is still used");
}

#[test]
fn nobody_resumes_what_began_before_a_reload() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let (server, _, mut reloader) = server_of(files.settings("server", &own, Some(&authority)), &clock);
    let client = client_of(files.settings("client", &own, Some(&authority)), &clock);
    let kind = || meet(&server, &client, "a").server.handshake_kind();
    assert_eq!(kind(), Some(rustls::HandshakeKind::Full));
    assert_eq!(kind(), Some(rustls::HandshakeKind::Resumed));
    let new = authority.issue(params_for("new", &["a"]));
    files.write("server.crt", &new.cert);
    files.write("server.key", &new.key);
    assert!(matches!(polled(&mut reloader), Some(Event::Reloaded { .. })));
    assert_eq!(kind(), Some(rustls::HandshakeKind::Full));
    assert_eq!(kind(), Some(rustls::HandshakeKind::Resumed));
}

#[test]
fn a_client_resumes_at_another_member_only_under_the_same_policy() {
    let (clock, authority) = (Clock::new(), Authority::new("ca"));
    let list = authority.revoke(&[]);
    let member = |name: &str| {
        let (files, own) = (Files::new(), authority.issue(params_for(name, &["a"])));
        let settings = Settings {
            client_cert_auth: true,
            crl_file: Some(files.write("crl", &list)),
            ..files.settings(name, &own, Some(&authority))
        };
        let (server, tls, reloader) = server_of(settings, &clock);
        (server, tls, reloader, files)
    };
    let (one, first, mut one_reloader, one_files) = member("one");
    let (other, second, mut reloader, files) = member("other");
    let user = |serial: u8| {
        let mut params = params("user");
        params.serial_number = Some(rcgen::SerialNumber::from_slice(&[serial]));
        client_of(files.settings("user", &authority.issue(params), Some(&authority)), &clock)
    };
    let (alice, bob) = (user(5), user(6));
    let kind = |server: &ServerTls, client: &ClientTls| {
        let met = meet(server, client, "a");
        if let Err(error) = &met.server_result {
            return Err(Refusal::behind(error).expect("a refusal").to_string());
        }
        let kind = met.server.handshake_kind().expect("the handshake is complete");
        server.admit(met.server.peer_certificates()).map(|_| kind).map_err(|refusal| refusal.to_string())
    };
    let (full, resumed) = (Ok(HandshakeKind::Full), Ok(HandshakeKind::Resumed));
    assert_eq!(kind(&one, &alice), full);
    assert_eq!(kind(&other, &alice), full, "each member has secrets of its own");
    second.tickets().adopt(&first.tickets().offer(at(NOW)), at(NOW)).expect("a good offer");
    assert_eq!(kind(&one, &alice), full, "this ticket is of the other member's own secret");
    assert_eq!(kind(&other, &alice), resumed);
    assert_eq!(kind(&one, &alice), resumed);
    assert_eq!(kind(&one, &bob), full);

    // The other member is the first to learn that Bob is revoked.
    let revoked = authority.revoke(&[&[6]]);
    files.write("crl", &revoked);
    assert!(matches!(polled(&mut reloader), Some(Event::Reloaded { .. })));
    let refusal = Err(Refusal::Revoked { serial: "06".to_owned() }.to_string());
    assert_eq!(kind(&other, &bob), refusal, "with a ticket of the first member");
    assert_eq!(kind(&other, &alice), full);
    assert_eq!(kind(&other, &alice), resumed);
    assert_eq!(kind(&one, &alice), full, "the first member has another list");
    assert_eq!(kind(&one, &bob), full);
    one_files.write("crl", &revoked);
    assert!(matches!(polled(&mut one_reloader), Some(Event::Reloaded { .. })));
    assert_eq!(kind(&one, &bob), refusal);
    assert_eq!(kind(&one, &alice), full);
    assert_eq!(kind(&other, &alice), resumed, "both have the same list again");
}

/// Long after the last change, files are only checked by their stamps and not read.
#[test]
fn a_change_is_noticed_by_the_stamps_of_files() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let (_, tls, mut reloader) = server_of(files.settings("server", &own, Some(&authority)), &clock);
    let later = SystemTime::now() + Duration::from_secs(3600);
    assert_eq!((reloader.poll(later), reloader.poll(later)), (None, None));
    let new = authority.issue(params_for("new", &["a"]));
    files.write("server.crt", &new.cert);
    files.write("server.key", &new.key);
    assert_eq!(reloader.poll(later), None);
    assert!(matches!(reloader.poll(later), Some(Event::Reloaded { .. })));
    assert_eq!((reloader.poll(later), tls.generation()), (None, 2));
}
