//! Results for every kind of bad certificate that a client may present.

use mainstay_tls::{AddressCheck, Refusal, Settings};
use rcgen::{
    BasicConstraints, CidrSubnet, CustomExtension, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    NameConstraints, SerialNumber, date_time_ymd,
};

use crate::pki::{
    Authority, Clock, Files, Met, Pair, authority_params, client_of, meet, params, params_for, server_of,
};

const VERIFY: &str = "tls: failed to verify certificate: x509: ";

/// Expected log text of the server and error of the client for one client, in handshakes with each version.
struct Case {
    name: &'static str,
    client: Option<Pair>,
    server: &'static str,
    told: &'static str,
}

fn outcome(met: &Met) -> (String, String) {
    let text = |result: &Result<(), rustls::Error>| match result {
        Ok(()) => "taken".to_owned(),
        Err(error) => mainstay_tls::explain(error),
    };
    (text(&met.server_result), text(&met.client_result))
}

fn check(cases: &[Case], server: &Settings, authority: &Authority, files: &Files) {
    let clock = Clock::new();
    let (server, ..) = server_of(server.clone(), &clock);
    for case in cases {
        let settings = match &case.client {
            Some(pair) => files.settings("client", pair, Some(authority)),
            None => Settings {
                trusted_ca_file: Some(files.write("client.ca.crt", &authority.pem)),
                ..Settings::default()
            },
        };
        let met = meet(&server, &client_of(settings, &clock), "a");
        let (server_text, client_text) = outcome(&met);
        let expected = case.server.replace("VERIFY: ", VERIFY);
        assert_eq!(server_text, expected, "{}", case.name);
        assert_eq!(client_text.trim_start_matches("remote error: tls: "), case.told, "{}", case.name);
        // A client that is refused in the handshake is also refused by `admit`.
        if let Some(pair) = &case.client {
            let pem = pair.cert.as_bytes();
            use rustls_pki_types::pem::PemObject as _;
            let chain: Result<Vec<_>, _> = rustls_pki_types::CertificateDer::pem_slice_iter(pem).collect();
            let admitted = server.admit(Some(&chain.unwrap()));
            assert_eq!(admitted.is_ok(), case.server == "taken", "{}", case.name);
            if let (Err(refusal), false) = (admitted, case.name == "huge") {
                assert_eq!(refusal.to_string(), expected, "{}", case.name);
            }
        }
    }
}

#[test]
fn each_bad_certificate_is_refused_for_its_reason() {
    let (files, authority, stranger) = (Files::new(), Authority::new("ca"), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let revoked = {
        let mut params = params("revoked");
        params.serial_number = Some(SerialNumber::from_slice(&[0x7c, 0x7d, 0x33, 0x0f]));
        authority.issue(params)
    };
    let expired = {
        let mut params = params("expired");
        params.not_after = date_time_ymd(2026, 5, 1);
        authority.issue(params)
    };
    let early = {
        let mut params = params("early");
        params.not_before = date_time_ymd(2026, 7, 1);
        authority.issue(params)
    };
    let with_purposes = |purposes: Vec<ExtendedKeyUsagePurpose>| {
        let mut params = params("purpose");
        params.extended_key_usages = purposes;
        authority.issue(params)
    };
    let below_expired = {
        let mut below = authority_params("below");
        below.not_after = date_time_ymd(2026, 5, 1);
        let below = authority.below(below);
        below.issue(params("user")).with_chain(&[&below])
    };
    let below_leaf = {
        let mut leaf = params("leaf");
        leaf.is_ca = IsCa::ExplicitNoCa;
        let leaf = authority.below(leaf);
        leaf.issue(params("user")).with_chain(&[&leaf])
    };
    let below_constrained = {
        let mut below = authority_params("below");
        below.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix([10, 0, 0, 0], 8))],
            excluded_subtrees: Vec::new(),
        });
        let below = authority.below(below);
        below.issue(params_for("user", &["192.168.0.1"])).with_chain(&[&below])
    };
    let below_for_servers = {
        let mut below = authority_params("below");
        below.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let below = authority.below(below);
        below.issue(params("user")).with_chain(&[&below])
    };
    let critical = {
        let mut params = params("critical");
        let mut extension = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
        extension.set_criticality(true);
        params.custom_extensions.push(extension);
        authority.issue(params)
    };
    let with_padding = |bytes: usize| {
        let mut params = params("padded");
        let content = [&[4, 0x83, (bytes >> 16) as u8, (bytes >> 8) as u8, bytes as u8][..], &vec![0; bytes]];
        params.custom_extensions.push(CustomExtension::from_oid_content(&[1, 2, 3, 4], content.concat()));
        authority.issue(params)
    };
    let chain_of = |length: usize| {
        let mut chain = vec![authority.below(authority_params("0"))];
        for at in 1..length {
            let next = chain[at - 1].below(authority_params(&at.to_string()));
            chain.push(next);
        }
        let leaf = chain[length - 1].issue(params("deep"));
        leaf.with_chain(&chain.iter().rev().collect::<Vec<_>>())
    };
    let long_name = authority.issue(params(&"n".repeat(1025)));
    let case = |name, client: &Pair, server, told| Case { name, client: Some(client.clone()), server, told };
    let too_deep = "VERIFY: too many intermediates for path length constraint";
    let cases = [
        case("sound", &authority.issue(params("alice")), "taken", "taken"),
        Case {
            name: "none given",
            client: None,
            server: "tls: client didn't provide a certificate",
            told: "certificate required",
        },
        case(
            "expired",
            &expired,
            "VERIFY: certificate has expired or is not yet valid: current time 2026-06-01T00:00:00Z is after \
             2026-05-01T00:00:00Z",
            "expired certificate",
        ),
        case(
            "not yet valid",
            &early,
            "VERIFY: certificate has expired or is not yet valid: current time 2026-06-01T00:00:00Z is before \
             2026-07-01T00:00:00Z",
            "expired certificate",
        ),
        case(
            "an authority in between has expired",
            &below_expired,
            "VERIFY: certificate has expired or is not yet valid: current time 2026-06-01T00:00:00Z is after \
             2026-05-01T00:00:00Z",
            "expired certificate",
        ),
        case(
            "for servers only",
            &with_purposes(vec![ExtendedKeyUsagePurpose::ServerAuth]),
            "VERIFY: certificate specifies an incompatible key usage",
            "unsupported certificate",
        ),
        case("for clients only", &with_purposes(vec![ExtendedKeyUsagePurpose::ClientAuth]), "taken", "taken"),
        case("for any purpose", &with_purposes(vec![ExtendedKeyUsagePurpose::Any]), "taken", "taken"),
        case("without purposes", &with_purposes(Vec::new()), "taken", "taken"),
        case(
            "an authority in between is for servers only",
            &below_for_servers,
            "VERIFY: certificate specifies an incompatible key usage",
            "unsupported certificate",
        ),
        case(
            "another authority of the same name",
            &stranger.issue(params("alice")),
            "VERIFY: certificate signed by unknown authority",
            "unknown certificate authority",
        ),
        case(
            "signed by what may not sign",
            &below_leaf,
            "VERIFY: certificate is not authorized to sign other certificates",
            "unknown certificate",
        ),
        case(
            "name out of bounds",
            &below_constrained,
            "VERIFY: a root or intermediate certificate is not authorized to sign for this name",
            "unknown certificate",
        ),
        case(
            "unknown critical extension",
            &critical,
            "VERIFY: unhandled critical extension",
            "unknown certificate",
        ),
        case("revoked", &revoked, "transport: certificate serial 7c7d330f revoked", "unknown certificate"),
        case("common name of 1 KiB", &long_name, "VERIFY: common name is too long", "unknown certificate"),
        case("large", &with_padding(40_000), "taken", "taken"),
        case(
            "too large",
            &with_padding(50_000),
            "tls: too large a certificate chain: 1 certificates, 50337 bytes (at most 10, 49152)",
            "unknown certificate",
        ),
        case("5 authorities deep", &chain_of(5), "taken", "taken"),
        case("9 authorities deep", &chain_of(9), too_deep, "unknown certificate"),
        case(
            "20 authorities deep",
            &chain_of(20),
            "tls: too large a certificate chain: 21 certificates, BYTES bytes (at most 10, 49152)",
            "unknown certificate",
        ),
    ];
    let settings = Settings {
        client_cert_auth: true,
        crl_file: Some(files.write("crl", authority.revoke(&[&[1], &[0x7c, 0x7d, 0x33, 0x0f]]))),
        ..files.settings("server", &own, Some(&authority))
    };
    // Sizes vary by some bytes with the signatures.
    let cases: Vec<Case> = cases
        .into_iter()
        .map(|mut case| {
            if let (true, Some(pair)) = (case.server.contains(" bytes "), &case.client) {
                case.server = Box::leak(with_size(case.server, pair).into_boxed_str());
            }
            case
        })
        .collect();
    check(&cases, &settings, &authority, &files);
}

fn with_size(text: &str, pair: &Pair) -> String {
    use rustls_pki_types::pem::PemObject as _;
    let chain = rustls_pki_types::CertificateDer::pem_slice_iter(pair.cert.as_bytes());
    let bytes: usize = chain.map(|der| der.unwrap().len()).sum();
    let (before, after) = text.split_once("certificates, ").unwrap();
    let (_, after) = after.split_once(" bytes").unwrap();
    format!("{before}certificates, {bytes} bytes{after}")
}

/// rustls rejects handshake messages of 64 KiB or more, so such a certificate is never parsed.
#[test]
fn a_huge_certificate_ends_the_handshake() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let (server, ..) = server_of(files.settings("server", &own, Some(&authority)), &clock);
    let mut huge = params("huge");
    let content = [&[4, 0x83, 1, 0, 0][..], &[0; 0x1_0000]].concat();
    huge.custom_extensions.push(CustomExtension::from_oid_content(&[1, 2, 3, 4], content));
    let huge = authority.issue(huge);
    let met = meet(&server, &client_of(files.settings("client", &huge, Some(&authority)), &clock), "a");
    assert!(met.server_result.is_err());
    assert!(matches!(server.admit(Some(&[huge.der])), Err(Refusal::TooLarge { certificates: 1, .. })));
}

#[test]
fn only_allowed_names_get_in() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let base = files.settings("server", &own, Some(&authority));
    let refused = "client certificate authentication failed";
    let clock = Clock::new();
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    // Allowed common names, allowed host names, the client's common name, its hosts, and whether it is
    // admitted.
    type Row<'a> = (&'a [&'a str], &'a [&'a str], &'a str, &'a [&'a str], bool);
    let rows: [Row<'_>; 12] = [
        (&[], &[], "alice", &[], true),
        (&["alice"], &[], "alice", &[], true),
        (&["bob", "alice"], &[], "alice", &[], true),
        (&["bob"], &[], "alice", &[], false),
        (&["alice"], &[], "Alice", &[], false),
        (&["*"], &[], "alice", &[], false),
        (&[], &["a.example"], "alice", &["a.example"], true),
        (&[], &["b.example", "A.example"], "alice", &["*.example"], true),
        (&[], &["x.a.example"], "alice", &["*.example"], false),
        (&[], &["alice"], "alice", &[], false),
        (&[], &["10.0.0.1"], "alice", &["10.0.0.1"], true),
        (&[], &["10.0.0.2"], "alice", &["10.0.0.1"], false),
    ];
    for (names, hosts, name, own_hosts, expected) in rows {
        let settings = Settings { allowed_cns: list(names), allowed_hostnames: list(hosts), ..base.clone() };
        let (server, ..) = server_of(settings, &clock);
        let user = authority.issue(params_for(name, own_hosts));
        let client = client_of(files.settings("client", &user, Some(&authority)), &clock);
        let (text, _) = outcome(&meet(&server, &client, "a"));
        assert_eq!(
            text,
            if expected { "taken" } else { refused },
            "{names:?} {hosts:?} {name} {own_hosts:?}"
        );
        assert_eq!(server.admit(Some(&[user.der])).is_ok(), expected);
    }
}

/// Go checks validity, purposes and path length of the trusted authority itself; `webpki` does not.
#[test]
fn the_authority_itself_must_be_valid() {
    let files = Files::new();
    let own_authority = Authority::new("servers");
    let own = own_authority.issue(params_for("server", &["a"]));
    let expired = {
        let mut params = authority_params("expired");
        params.not_after = date_time_ymd(2026, 5, 1);
        Authority::with(params)
    };
    let short = {
        let mut params = authority_params("short");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        Authority::with(params)
    };
    let for_servers = {
        let mut params = authority_params("for servers");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        Authority::with(params)
    };
    let below_short = short.below(authority_params("below"));
    let cases = [
        (&expired, expired.issue(params("user")), "certificate has expired or is not yet valid"),
        (&short, short.issue(params("user")), "taken"),
        (
            &short,
            below_short.issue(params("user")).with_chain(&[&below_short]),
            "too many intermediates for path length constraint",
        ),
        (&for_servers, for_servers.issue(params("user")), "certificate specifies an incompatible key usage"),
    ];
    for (authority, user, expected) in cases {
        let clock = Clock::new();
        let (server, ..) = server_of(files.settings("server", &own, Some(authority)), &clock);
        let client = client_of(files.settings("client", &user, Some(&own_authority)), &clock);
        let (text, _) = outcome(&meet(&server, &client, "a"));
        assert!(text.contains(expected), "{text}, not {expected}");
    }
}

#[test]
fn an_address_that_does_not_match_is_refused() {
    let (files, clock, authority) = (Files::new(), Clock::new(), Authority::new("ca"));
    let own = authority.issue(params_for("server", &["a"]));
    let settings = files.settings("server", &own, Some(&authority));
    let (server, ..) = server_of(settings.clone(), &clock);
    let user = authority.issue(params_for("user", &["10.0.0.1"]));
    let check = server.check_address(Some(std::slice::from_ref(&user.der)), "10.0.0.2".parse().unwrap());
    let AddressCheck::Refused(refusal) = check else { panic!("{check:?}") };
    assert_eq!(refusal.to_string(), "x509: certificate is valid for 10.0.0.1, not 10.0.0.2");
    let (careless, ..) = server_of(Settings { skip_client_san_verify: true, ..settings }, &clock);
    let check = careless.check_address(Some(&[user.der]), "10.0.0.2".parse().unwrap());
    assert!(matches!(check, AddressCheck::Passed));
}
