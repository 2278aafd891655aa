//! Checks whether a certificate is valid for a host name or an address, by the rules of Go's
//! `VerifyHostname`, which etcd uses.

use std::net::IpAddr;

use crate::certificate::Certificate;

/// Minimum number of names in a certificate for which an error message contains only their count.
const MAX_NAMES_SHOWN: usize = 100;

/// Checks that the certificate is valid for `host`, which is a name or an address; an address may be in
/// brackets.
///
/// * An address must be one of the certificate's addresses.
/// * A name must match one of the certificate's names, ignoring case. In these, `*` as the first label
///   matches any one label.
/// * The common name is ignored.
///
/// # Errors
/// Returns Go's message if the certificate is not valid for `host`.
pub(crate) fn verify(certificate: &Certificate<'_>, host: &str) -> Result<(), String> {
    let unbracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(ip) = unbracketed.parse::<IpAddr>() {
        let found = certificate.ip_addresses.contains(&ip.to_canonical());
        return if found { Ok(()) } else { Err(mismatch(certificate, unbracketed, Some(ip))) };
    }
    let wanted = host.to_ascii_lowercase();
    let is_host = is_valid(&wanted, false);
    let found = certificate.dns_names.iter().any(|name| {
        if is_host && is_valid(name, true) { matches(name, &wanted) } else { matches_exactly(name, &wanted) }
    });
    if found { Ok(()) } else { Err(mismatch(certificate, host, None)) }
}

fn mismatch(certificate: &Certificate<'_>, host: &str, ip: Option<IpAddr>) -> String {
    let common_name = certificate.common_name.as_deref().unwrap_or_default();
    if !certificate.has_alternative_names && matches(common_name, &host.to_ascii_lowercase()) {
        return "x509: certificate relies on legacy Common Name field, use SANs instead".to_owned();
    }
    let (names, kind): (Vec<String>, _) = match ip {
        Some(_) if certificate.ip_addresses.is_empty() => {
            return format!(
                "x509: cannot validate certificate for {host} because it doesn't contain any IP SANs"
            );
        }
        Some(_) => (certificate.ip_addresses.iter().map(IpAddr::to_string).collect(), "IP SANs"),
        None => (certificate.dns_names.iter().map(|name| (*name).to_owned()).collect(), "names"),
    };
    if names.len() >= MAX_NAMES_SHOWN {
        return format!("x509: certificate is valid for {} {kind}, but none matched {host}", names.len());
    }
    let names = names.join(", ");
    if names.is_empty() {
        return format!("x509: certificate is not valid for any names, but wanted to match {host}");
    }
    format!("x509: certificate is valid for {names}, not {host}")
}

/// Returns true if the host name `host`, in lower case, matches `pattern`, a name in a certificate.
fn matches(pattern: &str, host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    if pattern.is_empty() || host.is_empty() {
        return false;
    }
    let (mut pattern, mut host) = (pattern.split('.'), host.split('.'));
    let (Some(first), Some(label)) = (pattern.next(), host.next()) else { return false };
    (first == "*" || first.eq_ignore_ascii_case(label))
        && pattern.clone().count() == host.clone().count()
        && pattern.zip(host).all(|(left, right)| left.eq_ignore_ascii_case(right))
}

fn matches_exactly(name: &str, host: &str) -> bool {
    !host.is_empty() && host != "." && !name.is_empty() && name != "." && name.eq_ignore_ascii_case(host)
}

/// Returns true if `host` is a valid host name or, if `is_pattern` is true, a valid name in a certificate,
/// whose first label may be `*`.
fn is_valid(host: &str, is_pattern: bool) -> bool {
    let host = if is_pattern { host } else { host.strip_suffix('.').unwrap_or(host) };
    host != "*"
        && host.split('.').enumerate().all(|(at, label)| {
            let wildcard = is_pattern && at == 0 && label == "*";
            wildcard
                || !label.is_empty()
                    && !label.starts_with('-')
                    && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_in_go() {
        // Pattern of the certificate, host, and expected result, from the tests of Go's `crypto/x509`.
        let cases = [
            ("", "b.b.c", false),
            ("a.b.c", "", false),
            ("", "", false),
            ("a.b.c", "d.b.c", false),
            ("*.b.c", "a.b.c", true),
            ("a*.b.c", "ax.b.c", false),
            ("a*.b.c", "a.b.c", false),
            ("*", "a", false),
            ("a.b.c", "a.b.c.", true),
            ("*.b.c.", "a.b.c.", false),
            ("*.b.c.", "a.b.c", false),
            ("*.b.c", "a.b.c.", true),
            ("a.b.c.", "a.b.c", false),
            ("", "a.b.c", false),
            ("*.b.c", "x.a.b.c", false),
            ("*.b.c", "b.c", false),
            ("EXAMPLE.com", "example.COM", true),
            ("*.Example.com", "a.example.com", true),
            ("test_underscore", "test_underscore", true),
            ("-host", "-host", true),
            ("not valid", "NOT valid", true),
            ("a..b", "a..b", true),
            (".", ".", false),
        ];
        for (pattern, host, expected) in cases {
            let certificate = certificate(pattern);
            assert_eq!(verify(&certificate, host).is_ok(), expected, "{pattern} for {host}");
        }
    }

    fn certificate(pattern: &str) -> Certificate<'_> {
        Certificate { dns_names: vec![pattern], has_alternative_names: true, ..Certificate::default() }
    }

    #[test]
    fn errors_are_those_of_go() {
        let mut named = certificate("a.example");
        let text = |certificate: &Certificate<'_>, host: &str| verify(certificate, host).unwrap_err();
        assert_eq!(text(&named, "b"), "x509: certificate is valid for a.example, not b");
        assert_eq!(
            text(&named, "[::1]"),
            "x509: cannot validate certificate for ::1 because it doesn't contain any IP SANs"
        );
        named.ip_addresses = vec!["10.0.0.1".parse().unwrap(), "::2".parse().unwrap()];
        assert_eq!(text(&named, "10.0.0.2"), "x509: certificate is valid for 10.0.0.1, ::2, not 10.0.0.2");
        assert_eq!(verify(&named, "::ffff:10.0.0.1"), Ok(()));
        assert_eq!(verify(&named, "[::2]"), Ok(()));
        let nameless = Certificate { common_name: Some("a".to_owned()), ..Certificate::default() };
        assert_eq!(
            text(&nameless, "A"),
            "x509: certificate relies on legacy Common Name field, use SANs instead"
        );
        assert_eq!(
            text(&nameless, "b"),
            "x509: certificate is not valid for any names, but wanted to match b"
        );
        let many = Certificate { dns_names: vec!["a"; 100], ..Certificate::default() };
        assert_eq!(text(&many, "b"), "x509: certificate is valid for 100 names, but none matched b");
    }
}
