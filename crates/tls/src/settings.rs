use std::fmt;
use std::path::{Path, PathBuf};

use rustls::{CipherSuite, SupportedCipherSuite};

use crate::error::LoadError;

/// Version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl Version {
    /// Parses the value of `--tls-min-version` or `--tls-max-version`. Returns `None` for an empty value.
    ///
    /// # Errors
    /// Returns an error with etcd's message if the value is not valid.
    pub fn parse(text: &str) -> Result<Option<Version>, LoadError> {
        match text {
            "" => Ok(None),
            "TLS1.2" => Ok(Some(Version::Tls12)),
            "TLS1.3" => Ok(Some(Version::Tls13)),
            _ => Err(LoadError::new(format!(
                "unexpected TLS version {text:?} (must be one of: TLS1.2, TLS1.3)"
            ))),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::Tls12 => "TLS1.2",
            Version::Tls13 => "TLS1.3",
        })
    }
}

/// Values of the TLS flags for one kind of listener: for clients (`--cert-file`, …) or for other members
/// (`--peer-cert-file`, …). Displayed as in etcd's log: with file names and without secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Certificate of the listeners, followed by the intermediate certificates (PEM). This member also
    /// presents it when it connects to other servers, unless [`Settings::client_cert_file`] is set.
    pub cert_file: Option<PathBuf>,
    /// Private key of [`Settings::cert_file`] (PEM): RSA, ECDSA on P-256 or P-384, or Ed25519, in PKCS#1, SEC
    /// 1 or PKCS#8 format.
    pub key_file: Option<PathBuf>,
    /// Certificate that this member presents on connections that it opens (PEM).
    pub client_cert_file: Option<PathBuf>,
    /// Private key of [`Settings::client_cert_file`] (PEM).
    pub client_key_file: Option<PathBuf>,
    /// Authorities that may sign the certificates of clients and servers (PEM); if `None`, the system's
    /// authorities are trusted. If set, clients must present a certificate even if
    /// [`Settings::client_cert_auth`] is false, as in etcd.
    pub trusted_ca_file: Option<PathBuf>,
    /// True if clients must present a certificate.
    pub client_cert_auth: bool,
    /// File with the serial numbers of revoked certificates: one revocation list in DER, or several in PEM.
    pub crl_file: Option<PathBuf>,
    /// Common names that are allowed: a peer's certificate must have one of them. If empty, any is allowed.
    pub allowed_cns: Vec<String>,
    /// Host names or addresses that are allowed: a peer's certificate must be valid for one of them. If
    /// empty, any is allowed.
    pub allowed_hostnames: Vec<String>,
    /// If true, the names and addresses in clients' certificates are not compared with the addresses from
    /// which the clients connect. Listeners for clients never compare them.
    pub skip_client_san_verify: bool,
    /// Minimum version of TLS; `None` means TLS 1.2.
    pub min_version: Option<Version>,
    /// Maximum version of TLS; `None` means TLS 1.3.
    pub max_version: Option<Version>,
    /// Cipher suites for TLS 1.2, by Go's names; empty enables all supported ones. Those of TLS 1.3 are
    /// always enabled.
    pub cipher_suites: Vec<String>,
    /// Name that the certificates of servers must match; if `None` or empty, they must match the host that is
    /// dialed.
    pub server_name: Option<String>,
    /// If true, servers' certificates are not verified: any certificate is accepted.
    pub insecure_skip_verify: bool,
    /// True if this member also connects to other members with these settings. The only effect is a warning
    /// if its certificate cannot be used for that.
    pub dials: bool,
    /// Application protocols that a listener accepts in ALPN negotiation, in order of preference, such as
    /// `h2` and `http/1.1`. If empty, no protocol is negotiated.
    pub alpn: Vec<Vec<u8>>,
    /// Application protocols that this member offers to servers in ALPN negotiation. If empty, none is
    /// offered.
    pub client_alpn: Vec<Vec<u8>>,
}

impl Settings {
    /// Returns true if the settings name neither certificate nor key for listeners, which then cannot serve
    /// `https`.
    pub fn is_empty(&self) -> bool {
        self.cert_file.is_none() && self.key_file.is_none()
    }

    /// Returns true if clients must present a certificate.
    pub fn wants_client_certificates(&self) -> bool {
        self.client_cert_auth || self.trusted_ca_file.is_some()
    }

    /// Checks the settings without reading files.
    ///
    /// # Errors
    /// Returns an error with etcd's message if settings contradict each other or a cipher suite is unknown,
    /// or an error of Mainstay if a cipher suite is not supported.
    pub fn check(&self) -> Result<(), LoadError> {
        check_versions(self.min_version, self.max_version, &self.cipher_suites)?;
        suites(&self.cipher_suites, &self.alpn)?;
        let shown = |path: &Option<PathBuf>| path.as_deref().map(show).unwrap_or_default();
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err(LoadError::new(format!(
                "KeyFile and CertFile must both be present[key: {}, cert: {}]",
                shown(&self.key_file),
                shown(&self.cert_file)
            )));
        }
        if self.client_cert_file.is_some() != self.client_key_file.is_some() {
            return Err(LoadError::new(format!(
                "ClientKeyFile and ClientCertFile must both be present or both absent: key: {}, cert: {}]",
                shown(&self.client_key_file),
                shown(&self.client_cert_file)
            )));
        }
        if !self.allowed_cns.is_empty() && !self.allowed_hostnames.is_empty() {
            return Err(LoadError::new(format!(
                "AllowedCNs and AllowedHostnames are mutually exclusive (cns={}, hostnames={})",
                quoted(&self.allowed_cns),
                quoted(&self.allowed_hostnames)
            )));
        }
        Ok(())
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |path: &Option<PathBuf>| path.as_deref().map(show).unwrap_or_default();
        write!(
            f,
            "cert = {}, key = {}, client-cert={}, client-key={}, trusted-ca = {}, client-cert-auth = {}, crl-file = {}",
            shown(&self.cert_file),
            shown(&self.key_file),
            shown(&self.client_cert_file),
            shown(&self.client_key_file),
            shown(&self.trusted_ca_file),
            self.client_cert_auth,
            shown(&self.crl_file)
        )
    }
}

fn show(path: &Path) -> String {
    path.display().to_string()
}

/// Formats a list of strings as Go's `%q` does for ordinary text. The escapes of some special characters, for
/// example of most control characters, differ.
pub(crate) fn quoted(texts: &[impl AsRef<str>]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| format!("{:?}", text.as_ref())).collect();
    format!("[{}]", texts.join(" "))
}

/// Checks that the versions do not contradict each other or the cipher suites, as etcd does when it parses
/// its flags.
///
/// # Errors
/// Returns an error with etcd's message if they contradict each other.
pub fn check_versions(
    min: Option<Version>,
    max: Option<Version>,
    cipher_suites: &[String],
) -> Result<(), LoadError> {
    let shown = |version: Option<Version>| version.map(|version| version.to_string()).unwrap_or_default();
    if max.is_some_and(|max| min > Some(max)) {
        return Err(LoadError::new(format!(
            "min version ({}) is greater than max version ({})",
            shown(min),
            shown(max)
        )));
    }
    if min == Some(Version::Tls13) && !cipher_suites.is_empty() {
        return Err(LoadError::new("cipher suites cannot be configured when only TLS1.3 is enabled"));
    }
    Ok(())
}

/// Go's names of the TLS 1.3 cipher suites, which are always enabled.
const ALWAYS_ON: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// Go's names of the supported TLS 1.2 cipher suites. The last two are etcd's own names.
const SUPPORTED: [(&str, CipherSuite); 8] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Go's names of unsupported cipher suites: CBC, RC4, 3DES, and RSA key exchange.
const UNSUPPORTED: [&str; 16] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
];

/// Returns the cipher suites for these names. Their order is that of rustls; the order of `names` is ignored,
/// as in Go.
///
/// # Errors
/// Returns an error with etcd's message for a name that etcd does not know, and, for a listener with HTTP/2,
/// for a list without a suite that HTTP/2 requires. Returns an error of Mainstay for names of suites that
/// etcd supports and Mainstay does not.
pub(crate) fn suites(names: &[String], alpn: &[Vec<u8>]) -> Result<Vec<SupportedCipherSuite>, LoadError> {
    let all = rustls::crypto::ring::ALL_CIPHER_SUITES;
    if names.is_empty() {
        return Ok(all.to_vec());
    }
    let mut chosen = Vec::new();
    let mut unsupported = Vec::new();
    for name in names {
        match SUPPORTED.iter().find(|(supported, _)| supported == name) {
            Some((_, suite)) => chosen.push(*suite),
            None if ALWAYS_ON.contains(&name.as_str()) => {}
            None if UNSUPPORTED.contains(&name.as_str()) => unsupported.push(name.as_str()),
            None => return Err(LoadError::new(format!("unexpected TLS cipher suite {name:?}"))),
        }
    }
    if !unsupported.is_empty() {
        return Err(LoadError::new(format!(
            "cipher suites that are not supported: {} (CBC, RC4, 3DES and RSA key exchange are not; remove them)",
            unsupported.join(", ")
        )));
    }
    let required = [
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ];
    let serves_http2 = alpn.iter().any(|protocol| protocol == b"h2");
    if serves_http2 && !chosen.iter().any(|suite| required.contains(suite)) {
        return Err(LoadError::new(
            "http2: TLSConfig.CipherSuites is missing an HTTP/2-required AES_128_GCM_SHA256 cipher (need at least one of \
             TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)",
        ));
    }
    let is_on = |suite: &&SupportedCipherSuite| suite.tls13().is_some() || chosen.contains(&suite.suite());
    Ok(all.iter().filter(is_on).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(result: Result<impl fmt::Debug, LoadError>) -> String {
        result.unwrap_err().to_string()
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn versions_are_refused_as_etcd_refuses_them() {
        assert_eq!(Version::parse(""), Ok(None));
        assert_eq!(Version::parse("TLS1.3"), Ok(Some(Version::Tls13)));
        assert_eq!(
            problem(Version::parse("TLS1.1")),
            "unexpected TLS version \"TLS1.1\" (must be one of: TLS1.2, TLS1.3)"
        );
        let (old, new) = (Some(Version::Tls12), Some(Version::Tls13));
        let suite = names(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
        assert_eq!(
            problem(check_versions(new, old, &[])),
            "min version (TLS1.3) is greater than max version (TLS1.2)"
        );
        assert_eq!(
            problem(check_versions(new, None, &suite)),
            "cipher suites cannot be configured when only TLS1.3 is enabled"
        );
        assert_eq!(check_versions(old, new, &suite), Ok(()));
        assert_eq!(check_versions(None, None, &suite), Ok(()));
    }

    #[test]
    fn every_suite_of_go_is_supported_or_refused_by_name() {
        assert_eq!(suites(&[], &[]).unwrap().len(), 9);
        for (name, suite) in SUPPORTED {
            let chosen = suites(&names(&[name]), &[]).unwrap();
            assert_eq!(chosen.len(), 4, "{name}");
            assert!(chosen.iter().any(|chosen| chosen.suite() == suite), "{name}");
        }
        for name in ALWAYS_ON {
            assert_eq!(suites(&names(&[name]), &[]).unwrap().len(), 3, "{name}");
        }
        for name in UNSUPPORTED {
            assert!(problem(suites(&names(&[name]), &[])).contains(name));
        }
        assert_eq!(problem(suites(&names(&["FOO"]), &[])), "unexpected TLS cipher suite \"FOO\"");
        let http2 = [b"h2".to_vec()];
        let without = names(&["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]);
        assert!(problem(suites(&without, &http2)).starts_with("http2: TLSConfig.CipherSuites is missing"));
        assert!(suites(&without, &[b"http/1.1".to_vec()]).is_ok());
        assert!(suites(&names(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]), &http2).is_ok());
    }

    #[test]
    fn contradictions_are_refused_in_etcds_words() {
        let some = |path: &str| Some(PathBuf::from(path));
        let settings = Settings { key_file: some("k"), ..Settings::default() };
        assert_eq!(problem(settings.check()), "KeyFile and CertFile must both be present[key: k, cert: ]");
        let settings = Settings { client_cert_file: some("c"), ..Settings::default() };
        assert_eq!(
            problem(settings.check()),
            "ClientKeyFile and ClientCertFile must both be present or both absent: key: , cert: c]"
        );
        let settings = Settings {
            allowed_cns: names(&["a", "b"]),
            allowed_hostnames: names(&["c"]),
            ..Settings::default()
        };
        assert_eq!(
            problem(settings.check()),
            "AllowedCNs and AllowedHostnames are mutually exclusive (cns=[\"a\" \"b\"], hostnames=[\"c\"])"
        );
    }

    #[test]
    fn the_log_shows_what_etcd_shows() {
        let some = |path: &str| Some(PathBuf::from(path));
        let settings = Settings {
            cert_file: some("server.crt"),
            key_file: some("server.key"),
            trusted_ca_file: some("ca.crt"),
            client_cert_auth: true,
            ..Settings::default()
        };
        assert_eq!(
            settings.to_string(),
            "cert = server.crt, key = server.key, client-cert=, client-key=, trusted-ca = ca.crt, \
             client-cert-auth = true, crl-file = "
        );
    }
}
