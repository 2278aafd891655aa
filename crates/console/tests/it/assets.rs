use std::io::Write as _;

use testkit::http1;

use crate::harness::{OWN, Setup};

/// Headers that every response has.
const SECURITY: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    (
        "permissions-policy",
        "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
];

#[test]
fn every_answer_tells_browsers_what_it_is_not_for() {
    let console = Setup::endpoints(&[testkit::ports::free_address()]).start();
    for (method, path, headers, status) in [
        ("GET", "/", &[][..], 200),
        ("HEAD", "/", &[], 200),
        ("GET", "/assets/index.html", &[], 200),
        ("GET", "/", &[("If-None-Match", "*")], 304),
        ("POST", "/", &[], 405),
        ("GET", "/elsewhere", &[], 404),
        ("GET", "/", &[("Host", "evil.example")], 421),
        ("GET", "/api/members", &[], 403),
        ("GET", "/api/members", &[OWN], 200),
        ("GET", "/api/endpoint/0/metrics", &[OWN], 502),
        ("GET", "/api/endpoint/7/metrics", &[OWN], 404),
        ("OPTIONS", "/api/members", &[OWN], 405),
    ] {
        let answer = console.request(method, path, headers, b"");
        assert_eq!(answer.status, status, "{method} {path}");
        for (name, value) in SECURITY {
            assert_eq!(answer.header(name), Some(value), "{name} of {method} {path}");
        }
        let cache = if path.starts_with("/api/") || status > 304 { "no-store" } else { "no-cache" };
        assert_eq!(answer.header("cache-control"), Some(cache), "{method} {path}");
        let others = answer.headers.iter().filter(|(name, _)| name.starts_with("access-control"));
        assert_eq!(others.count(), 0, "no page from elsewhere may read it");
    }
}

#[test]
fn pages_are_sent_again_only_when_they_changed() {
    let console = Setup::endpoints(&[testkit::ports::free_address()]).start();
    let first = console.request("GET", "/", &[], b"");
    assert_eq!(first.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(first.text().contains("Mainstay"), "{}", first.text());
    let tag = first.header("etag").expect("a tag").to_owned();
    let again = console.request("GET", "/", &[("If-None-Match", &format!("\"x\", {tag}"))], b"");
    assert_eq!((again.status, again.body.len()), (304, 0));
    let changed = console.request("GET", "/", &[("If-None-Match", "W/\"other\"")], b"");
    assert_eq!((changed.status, changed.body), (200, first.body));
}

#[test]
fn no_path_leads_out_of_the_table() {
    let console = Setup::endpoints(&[testkit::ports::free_address()]).start();
    for path in [
        "/index.html",
        "/assets",
        "/assets/",
        "/assets/../Cargo.toml",
        "/assets/..%2fCargo.toml",
        "/assets/%2e%2e/%2e%2e/etc/passwd",
        "/assets//etc/passwd",
        "/assets/index.html/..",
        "/assets/index.html%00.css",
        "/../../etc/passwd",
        "//etc/passwd",
        "/assets/INDEX.HTML",
        "/api",
        "/api/",
    ] {
        let answer = console.request("GET", path, &[OWN], b"");
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.text().starts_with("{\"code\":5,"), "{}", answer.text());
    }
}

#[test]
fn requests_on_one_connection_are_answered_in_order() {
    let console = Setup::endpoints(&[testkit::ports::free_address()]).start();
    let mut stream = http1::connect(console.address);
    let one = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all([one("/"), one("/x"), one("/")].concat().as_bytes()).expect("the console reads");
    let statuses: Vec<u16> = (0..3).map(|_| http1::read_answer(&mut stream).status).collect();
    assert_eq!(statuses, [200, 404, 200]);
}
