//! Reads the TLS options of the listeners for clients, and of the listeners for members.

use std::path::PathBuf;

use tls::{Version, check_versions};

use super::flag::Flag;
use super::refusal::Refusal;
use super::settings::Settings;
use super::table;

/// TLS options of one kind of listener, as set by flags. The files are not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// Certificate files, allowed names, TLS versions and cipher suites. The application protocols (ALPN) are
    /// not set here; each listener adds its own.
    pub settings: tls::Settings,
    /// True if the member creates its own certificate when the settings have none.
    pub auto: bool,
    /// Number of years for which a certificate created by the member is valid.
    pub self_signed_years: u64,
}

/// Reads the TLS options for clients and for members.
pub(super) fn read(settings: &Settings) -> Result<(TlsOptions, TlsOptions), Refusal> {
    let refused = |error: tls::LoadError| Refusal::invalid(error.to_string());
    let version = |flag| Version::parse(settings.get(flag)).map_err(refused);
    let (min_version, max_version) = (version(table::TLS_MIN_VERSION)?, version(table::TLS_MAX_VERSION)?);
    let cipher_suites = settings.words(table::CIPHER_SUITES);
    check_versions(min_version, max_version, &cipher_suites).map_err(refused)?;
    let file = |flag: Flag<String>| settings.non_empty(flag).map(PathBuf::from);
    let both = |settings: tls::Settings| tls::Settings {
        cipher_suites: cipher_suites.clone(),
        min_version,
        max_version,
        ..settings
    };
    let years = settings.get(table::SELF_SIGNED_CERT_VALIDITY);
    let clients = TlsOptions {
        settings: both(tls::Settings {
            cert_file: file(table::CERT_FILE),
            key_file: file(table::KEY_FILE),
            client_cert_file: file(table::CLIENT_CERT_FILE),
            client_key_file: file(table::CLIENT_KEY_FILE),
            trusted_ca_file: file(table::TRUSTED_CA_FILE),
            client_cert_auth: settings.get(table::CLIENT_CERT_AUTH),
            crl_file: file(table::CLIENT_CRL_FILE),
            allowed_hostnames: settings.words(table::CLIENT_CERT_ALLOWED_HOSTNAME),
            allowed_cns: settings.client_allowed_cns.clone(),
            skip_client_san_verify: settings.client_skips_san,
            ..tls::Settings::default()
        }),
        auto: settings.get(table::AUTO_TLS),
        self_signed_years: years,
    };
    let members = TlsOptions {
        settings: both(tls::Settings {
            cert_file: file(table::PEER_CERT_FILE),
            key_file: file(table::PEER_KEY_FILE),
            client_cert_file: file(table::PEER_CLIENT_CERT_FILE),
            client_key_file: file(table::PEER_CLIENT_KEY_FILE),
            trusted_ca_file: file(table::PEER_TRUSTED_CA_FILE),
            client_cert_auth: settings.get(table::PEER_CLIENT_CERT_AUTH),
            crl_file: file(table::PEER_CRL_FILE),
            allowed_cns: settings.words(table::PEER_CERT_ALLOWED_CN),
            allowed_hostnames: settings.words(table::PEER_CERT_ALLOWED_HOSTNAME),
            skip_client_san_verify: settings.get(table::PEER_SKIP_CLIENT_SAN_VERIFICATION),
            ..tls::Settings::default()
        }),
        auto: settings.get(table::PEER_AUTO_TLS),
        self_signed_years: years,
    };
    Ok((clients, members))
}
