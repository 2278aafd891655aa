//! The TLS options of the listeners for clients and of those for members.

use std::path::PathBuf;

use tls::{Version, check_versions};

use super::refusal::Refusal;
use super::settings::Settings;

/// TLS options of one kind of listener, as set by flags. The files are not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// Files, names, versions and cipher suites. The listeners add the application protocols.
    pub settings: tls::Settings,
    /// True if the member creates its own certificate when the settings have none.
    pub auto: bool,
    /// Number of years for which a certificate created by the member is valid.
    pub self_signed_years: u64,
}

/// Reads the TLS options for clients and for members.
pub(super) fn read(settings: &Settings) -> Result<(TlsOptions, TlsOptions), Refusal> {
    let refused = |error: tls::LoadError| Refusal::invalid(error.to_string());
    let version = |name| Version::parse(&settings.text(name)).map_err(refused);
    let (min_version, max_version) = (version("tls-min-version")?, version("tls-max-version")?);
    let cipher_suites = settings.words("cipher-suites");
    check_versions(min_version, max_version, &cipher_suites).map_err(refused)?;
    let file = |name| Some(settings.text(name)).filter(|path| !path.is_empty()).map(PathBuf::from);
    let both = |settings: tls::Settings| tls::Settings {
        cipher_suites: cipher_suites.clone(),
        min_version,
        max_version,
        ..settings
    };
    let years = settings.uint("self-signed-cert-validity");
    let clients = TlsOptions {
        settings: both(tls::Settings {
            cert_file: file("cert-file"),
            key_file: file("key-file"),
            client_cert_file: file("client-cert-file"),
            client_key_file: file("client-key-file"),
            trusted_ca_file: file("trusted-ca-file"),
            client_cert_auth: settings.bool("client-cert-auth"),
            crl_file: file("client-crl-file"),
            allowed_hostnames: settings.words("client-cert-allowed-hostname"),
            allowed_cns: settings.client_allowed_cns.clone(),
            skip_client_san_verify: settings.client_skips_san,
            ..tls::Settings::default()
        }),
        auto: settings.bool("auto-tls"),
        self_signed_years: years,
    };
    let members = TlsOptions {
        settings: both(tls::Settings {
            cert_file: file("peer-cert-file"),
            key_file: file("peer-key-file"),
            client_cert_file: file("peer-client-cert-file"),
            client_key_file: file("peer-client-key-file"),
            trusted_ca_file: file("peer-trusted-ca-file"),
            client_cert_auth: settings.bool("peer-client-cert-auth"),
            crl_file: file("peer-crl-file"),
            allowed_cns: settings.words("peer-cert-allowed-cn"),
            allowed_hostnames: settings.words("peer-cert-allowed-hostname"),
            skip_client_san_verify: settings.bool("peer-skip-client-san-verification"),
            ..tls::Settings::default()
        }),
        auto: settings.bool("peer-auto-tls"),
        self_signed_years: years,
    };
    Ok((clients, members))
}
