//! Finds the members' endpoints by DNS SRV records, for both proxies. As in etcd's proxies, endpoints that do
//! not prove their identity by TLS are left out unless `--insecure-discovery` is given. The log lines are
//! also etcd's.

use std::path::PathBuf;
use std::time::Duration;

use client::discovery::{Resolver, Service};
use client::{Endpoint, RawConnection, TlsFiles, Transport};
use telemetry::logging::{Logger, Value};

/// Timeout of a TLS handshake with a discovered endpoint.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Values of the flags about discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// `--discovery-srv`: the domain that has the SRV records; empty for no discovery.
    pub domain: String,
    /// `--discovery-srv-name`: suffix of the service name in the SRV records; empty for none.
    pub name: String,
    /// `--insecure-discovery`: use endpoints without checking that they support TLS.
    pub is_insecure_allowed: bool,
    /// File with the certificate authorities by which discovered endpoints are verified; `None` for the
    /// system's authorities.
    pub trusted_ca: Option<PathBuf>,
}

impl Discovery {
    /// Returns the discovered URLs with their SRV records; an empty list if no domain is given. An endpoint
    /// without TLS, or without a certificate for the domain, is left out unless the flags allow it.
    ///
    /// # Errors
    /// Returns an error if the domain has no records, or if the file with the authorities cannot be used.
    pub async fn find(&self, logger: &Logger) -> Result<Vec<(String, Service)>, String> {
        if self.domain.is_empty() {
            return Ok(Vec::new());
        }
        let found = Resolver::system()
            .client_services(&self.domain, &self.name)
            .await
            .map_err(|error| error.to_string())?;
        self.tell(logger, "discovered cluster from SRV", &found, None);
        if self.is_insecure_allowed {
            return Ok(found);
        }
        self.tell(logger, "validating discovered SRV endpoints", &found, None);
        let files = TlsFiles {
            cacert: self.trusted_ca.clone(),
            server_name: Some(self.domain.clone()),
            ..TlsFiles::default()
        };
        let tls = files.load().map_err(|error| error.to_string())?;
        let transport =
            Transport { tls: Some(tls), dial_timeout: Some(PROBE_TIMEOUT), ..Transport::default() };
        let (mut sound, mut faults) = (Vec::new(), Vec::new());
        for (url, service) in found {
            if !url.starts_with("https://") {
                faults.push(format!("{url:?} is insecure"));
                continue;
            }
            match RawConnection::open(&Endpoint::new(url.clone()), &transport).await {
                Ok(_) => sound.push((url, service)),
                Err(error) => faults.push(format!("{url:?} failed to dial ({error})")),
            }
        }
        match faults.is_empty() {
            true => self.tell(logger, "using validated discovered SRV endpoints", &sound, None),
            false => {
                let faults = faults.join(",");
                self.tell(logger, "failed to validate discovered endpoints", &sound, Some(&faults));
            }
        }
        Ok(sound)
    }

    fn tell(&self, logger: &Logger, line: &str, found: &[(String, Service)], error: Option<&str>) {
        let urls: Vec<&str> = found.iter().map(|(url, _)| url.as_str()).collect();
        let mut fields = vec![("srv-server", Value::Str(&self.domain)), ("endpoints", Value::List(&urls))];
        match error {
            None => logger.info(line, &fields),
            Some(error) => {
                fields.push(("error", Value::Str(error)));
                logger.warn(line, &fields);
            }
        }
    }
}
