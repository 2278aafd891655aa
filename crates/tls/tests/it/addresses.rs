//! Certificates, and the addresses that their owners connect from.

use std::collections::HashMap;
use std::net::IpAddr;

use mainstay_tls::{AddressCheck, PeerNames, Question, Resolver, ServerTls};

use crate::pki::{Authority, Clock, Files, params_for, server_of};

/// Resolver with a fixed table.
#[derive(Default)]
struct Table {
    names: HashMap<&'static str, Vec<&'static str>>,
    addresses: HashMap<&'static str, Vec<&'static str>>,
}

impl Resolver for Table {
    fn names(&self, address: IpAddr) -> Result<Vec<String>, String> {
        let found = self.names.get(address.to_string().as_str());
        let found = found.ok_or_else(|| format!("lookup {address}: no such host"))?;
        Ok(found.iter().map(|name| (*name).to_owned()).collect())
    }

    fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let found = self.addresses.get(name).ok_or_else(|| format!("lookup {name}: no such host"))?;
        Ok(found.iter().map(|address| address.parse().unwrap()).collect())
    }
}

fn server(authority: &Authority) -> ServerTls {
    let files = Files::new();
    let own = authority.issue(params_for("server", &["a"]));
    server_of(files.settings("server", &own, Some(authority)), &Clock::new()).0
}

fn check(server: &ServerTls, authority: &Authority, hosts: &[&str], remote: &str) -> AddressCheck {
    let user = authority.issue(params_for("user", hosts));
    server.check_address(Some(&[user.der]), remote.parse().unwrap())
}

#[test]
fn names_are_looked_up_both_ways() {
    let authority = Authority::new("ca");
    let server = server(&authority);
    let table = Table {
        names: HashMap::from([("10.0.0.1", vec!["one.example."]), ("10.0.0.9", vec!["x.y.wild.example"])]),
        addresses: HashMap::from([
            ("two.example", vec!["10.0.0.7", "10.0.0.2"]),
            ("six.example", vec!["::6"]),
        ]),
    };
    // Hosts of the certificate, the client's address, and the expected result.
    let rows: [(&[&str], &str, Result<(), &str>); 14] = [
        (&[], "10.0.0.1", Ok(())),
        (&["10.0.0.1"], "10.0.0.1", Ok(())),
        (&["10.0.0.1"], "::ffff:10.0.0.1", Ok(())),
        (&["10.0.0.8", "one.example"], "10.0.0.1", Ok(())),
        (&["one.example"], "10.0.0.1", Ok(())),
        (&["one.example"], "::ffff:10.0.0.1", Ok(())),
        (&["zero.example", "two.example"], "10.0.0.2", Ok(())),
        (&["six.example"], "::6", Ok(())),
        (&["*.wild.example"], "10.0.0.9", Ok(())),
        (&["*.example"], "10.0.0.9", Ok(())),
        (
            &["*.example"],
            "10.0.0.2",
            Err(
                "tls: \"10.0.0.2\" does not match any of DNSNames [\"*.example\"] (lookup 10.0.0.2: no such host)",
            ),
        ),
        (
            &["two.example"],
            "10.0.0.1",
            Err("tls: \"10.0.0.1\" does not match any of DNSNames [\"two.example\"]"),
        ),
        (
            &["one.example", "zero.example"],
            "10.0.0.3",
            Err(
                "tls: \"10.0.0.3\" does not match any of DNSNames [\"one.example\" \"zero.example\"] (lookup \
                 zero.example: no such host)",
            ),
        ),
        (&["10.0.0.8"], "10.0.0.1", Err("x509: certificate is valid for 10.0.0.8, not 10.0.0.1")),
    ];
    for (hosts, remote, expected) in rows {
        let result = match check(&server, &authority, hosts, remote) {
            AddressCheck::Passed => Ok(()),
            AddressCheck::Refused(refusal) => Err(refusal),
            AddressCheck::Ask(look_up) => look_up.resolve(&table),
        };
        let result = result.map_err(|refusal| refusal.to_string());
        assert_eq!(result, expected.map_err(str::to_owned), "{hosts:?} from {remote}");
    }
    assert!(matches!(server.check_address(None, "10.0.0.1".parse().unwrap()), AddressCheck::Passed));
}

#[test]
fn questions_are_few() {
    let authority = Authority::new("ca");
    let server = server(&authority);
    let hosts: Vec<String> = (0..200).map(|number| format!("n{number}.example")).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let AddressCheck::Ask(mut look_up) = check(&server, &authority, &hosts, "10.0.0.1") else {
        panic!("names are to be looked up");
    };
    assert_eq!(look_up.question(), Some(Question::Names("10.0.0.1".parse().unwrap())));
    let mut asked = 0;
    while look_up.question().is_some() {
        asked += 1;
        // Only a bounded number of answers is examined.
        let mut answers = vec!["10.0.0.9".to_owned(); 64];
        answers.push("10.0.0.1".to_owned());
        look_up.answer(Ok(answers));
    }
    assert_eq!(asked, 17);
    let text = look_up.outcome().unwrap_err().to_string();
    assert_eq!(text, "tls: \"10.0.0.1\" does not match any of DNSNames [\"200 names\"]");

    let AddressCheck::Ask(look_up) = check(&server, &authority, &["a.example"], "10.0.0.1") else {
        panic!("a name is to be looked up");
    };
    assert!(look_up.outcome().is_err(), "unanswered");
}

#[test]
fn names_are_shown_for_the_log() {
    let authority = Authority::new("ca");
    let user = authority.issue(params_for("user", &["a.example", "10.0.0.1", "*.b.example", "::1"])).der;
    let names = PeerNames::of(Some(&[user])).unwrap();
    assert_eq!(names.dns_names, ["a.example", "*.b.example"]);
    assert_eq!(names.ip_addresses, ["10.0.0.1".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
    assert_eq!(PeerNames::of(None), None);
    assert_eq!(PeerNames::of(Some(&[vec![0x30].into()])), None);
}
