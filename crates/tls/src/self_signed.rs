//! Generates self-signed certificates for `--auto-tls` and `--peer-auto-tls`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType,
};

use crate::certificate::Certificate;
use crate::error::LoadError;
use crate::pem;
use crate::settings::Settings;

/// Maximum validity in years. More years are refused, because etcd's arithmetic overflows there.
const MAX_YEARS: u64 = 292;

/// Self-signed certificate of this member, with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfSigned {
    /// Path of the file with the certificate, `cert.pem`.
    pub cert_file: PathBuf,
    /// Path of the file with the private key, `key.pem`.
    pub key_file: PathBuf,
    /// Last second in which the certificate is valid.
    pub not_after: SystemTime,
    /// Reason, for the log, why a new certificate was generated; `None` if an existing one is used.
    pub made: Option<String>,
}

impl SelfSigned {
    /// Uses the certificate in `dir`, or generates one that is valid for `years` years of 365 days from
    /// `now`.
    ///
    /// `hosts` are the addresses of the listeners, each `host:port`. An existing certificate is used even if
    /// it is for other hosts, as in etcd. A certificate that has expired or cannot be used is replaced. The
    /// old files are kept with `.old` appended to their names. The certificates that etcd generates are
    /// replaced, too, because their P-521 keys are not supported.
    ///
    /// The directory is created with mode 0700, the files with mode 0600.
    ///
    /// # Errors
    /// Returns an error if `years` is 0 or above 292, or if files cannot be written.
    pub fn prepare(
        dir: &Path,
        hosts: &[String],
        years: u64,
        now: SystemTime,
    ) -> Result<SelfSigned, LoadError> {
        if years == 0 {
            return Err(LoadError::new("selfSignedCertValidity is invalid,it should be greater than 0"));
        }
        if years > MAX_YEARS {
            return Err(LoadError::new(format!(
                "selfSignedCertValidity is invalid,it should be at most {MAX_YEARS}"
            )));
        }
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| LoadError::of_file(&path, error.to_string())
        };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed(dir))?;
        let cert_file = std::path::absolute(dir.join("cert.pem")).map_err(failed(dir))?;
        let key_file = std::path::absolute(dir.join("key.pem")).map_err(failed(dir))?;
        let made = match usable(&cert_file, &key_file, now) {
            Ok(not_after) => return Ok(SelfSigned { cert_file, key_file, not_after, made: None }),
            Err(why) => why,
        };
        for file in [&cert_file, &key_file] {
            if file.exists() {
                fs::rename(file, file.with_extension("pem.old")).map_err(failed(file))?;
            }
        }
        let not_after = now
            .checked_add(Duration::from_secs(years * 365 * 86_400))
            .ok_or_else(|| LoadError::new("selfSignedCertValidity is invalid,it is beyond the calendar"))?;
        let (cert, key) = generate(hosts, now, not_after)
            .map_err(|error| LoadError::of_file(&cert_file, error.to_string()))?;
        // The order does not matter: if the member crashes between the two writes, the next start finds no
        // usable pair and generates a new one.
        write(&key_file, &key).map_err(failed(&key_file))?;
        write(&cert_file, &cert).map_err(failed(&cert_file))?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed(dir))?;
        let not_after = whole_seconds(not_after);
        Ok(SelfSigned { cert_file, key_file, not_after, made: Some(made) })
    }

    /// Returns settings that use this certificate. They replace the TLS flags, as in etcd: clients are not
    /// asked for certificates, and the certificates of other members are not verified.
    pub fn settings(&self) -> Settings {
        Settings {
            cert_file: Some(self.cert_file.clone()),
            key_file: Some(self.key_file.clone()),
            client_cert_file: Some(self.cert_file.clone()),
            client_key_file: Some(self.key_file.clone()),
            insecure_skip_verify: true,
            ..Settings::default()
        }
    }
}

fn whole_seconds(time: SystemTime) -> SystemTime {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    crate::material::system_time(seconds)
}

/// Returns the expiry time of the existing certificate, or the reason why a new one must be generated.
fn usable(cert_file: &Path, key_file: &Path, now: SystemTime) -> Result<SystemTime, String> {
    if !cert_file.exists() && !key_file.exists() {
        return Err("there was none".to_owned());
    }
    let read = |file: &Path| fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
    let (cert, key) = (read(cert_file)?, read(key_file)?);
    let pair = pem::key_pair(cert_file, &cert, key_file, &key).map_err(|error| error.to_string())?;
    let certificate = pair.cert.first().and_then(|der| Certificate::parse(der));
    let not_after = certificate.map_or(0, |certificate| certificate.not_after);
    let not_after = crate::material::system_time(not_after);
    if not_after < now {
        return Err("the one that was there has expired".to_owned());
    }
    Ok(not_after)
}

fn generate(
    hosts: &[String],
    not_before: SystemTime,
    not_after: SystemTime,
) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "etcd");
    params.not_before = whole_seconds(not_before).into();
    params.not_after = whole_seconds(not_after).into();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    for host in hosts {
        // Remove the port, and the brackets of an IPv6 address.
        let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name);
        let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let name = match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) if name.is_empty() => continue,
            Err(_) => SanType::DnsName(name.try_into()?),
        };
        if !params.subject_alt_names.contains(&name) {
            params.subject_alt_names.push(name);
        }
    }
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// Writes a new file atomically: after a crash or a power failure the file either is complete or does not
/// exist.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let unfinished = file.with_extension("pem.tmp");
    let _ = fs::remove_file(&unfinished);
    let mut open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    open.write_all(text.as_bytes())?;
    open.sync_all()?;
    fs::rename(&unfinished, file)
}
