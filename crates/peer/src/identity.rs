//! Writes and checks the headers by which members recognize each other: [`Identity`] adds this member's
//! headers to requests, and refuses requests of another cluster or of an incompatible version with etcd's
//! messages. This module does not know which members the cluster has.

use std::io;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::options::Options;

pub(crate) const SERVER_FROM: HeaderName = HeaderName::from_static("x-server-from");
pub(crate) const SERVER_VERSION: HeaderName = HeaderName::from_static("x-server-version");
pub(crate) const MIN_CLUSTER_VERSION: HeaderName = HeaderName::from_static("x-min-cluster-version");
pub(crate) const CLUSTER_ID: HeaderName = HeaderName::from_static("x-etcd-cluster-id");
pub(crate) const RAFT_TO: HeaderName = HeaderName::from_static("x-raft-to");
pub(crate) const PEER_URLS: HeaderName = HeaderName::from_static("x-peerurls");
/// Mainstay's own header with the zone of the sender.
pub(crate) const ZONE: HeaderName = HeaderName::from_static("x-mainstay-zone");
/// Mainstay's own header of a request with a snapshot. It says that the snapshot is in Mainstay's format and
/// not an etcd database file.
pub(crate) const MAINSTAY_SNAPSHOT: HeaderName = HeaderName::from_static("x-mainstay-snapshot");

/// Mainstay's own header of members that know witnesses, which are voters without keys. Members that run etcd, and
/// older versions of Mainstay, do not send it.
pub(crate) const WITNESS: HeaderName = HeaderName::from_static("x-mainstay-witness");
/// Value of [`WITNESS`].
pub(crate) const KNOWS_WITNESSES: HeaderValue = HeaderValue::from_static("1");
/// Message for a peer that knows no witnesses, in a cluster that has one.
pub(crate) const NO_WITNESSES: &str = "the cluster has a witness, and this peer runs etcd or a version of Mainstay that knows none: remove the \
     witness first";

/// etcd's message for a peer with an incompatible version. The refusing end sends it, and the refused end
/// recognizes it.
pub(crate) const INCOMPATIBLE_VERSION: &str = "incompatible version";
pub(crate) const CLUSTER_ID_MISMATCH: &str = "cluster ID mismatch";

/// Maximum length of the name of a zone in bytes.
pub(crate) const ZONE_BYTES_MAX: usize = 64;

/// Version that is assumed for a peer that announces none, as in etcd.
const VERSION_UNSAID: Version = Version { major: 2, minor: 0 };

/// Major and minor number of a version. Only these are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u64,
    minor: u64,
}

impl Version {
    /// Parses `major.minor.patch`, optionally followed by `-pre` or `+build`.
    fn parse(text: &str) -> Option<Version> {
        let numbers = text.split(['-', '+']).next()?;
        let mut parts = numbers.split('.').map(|part| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse::<u64>().ok().filter(|_| digits)
        });
        let (major, minor, _patch) = (parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(Version { major, minor })
    }
}

/// Identity that this member sends in headers, and with which it compares the headers of other members.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) local_id: u64,
    pub(crate) local_hex: HeaderValue,
    pub(crate) cluster_hex: HeaderValue,
    pub(crate) server_version: HeaderValue,
    min_cluster_version: HeaderValue,
    peer_urls: HeaderValue,
    server: Version,
    min_cluster: Version,
    /// Zone of this member; empty if it has none.
    pub(crate) zone: HeaderValue,
}

impl Identity {
    pub(crate) fn new(options: &Options) -> io::Result<Identity> {
        let invalid = |what: &str, value: &str| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{what} {value:?} is invalid"))
        };
        let version = |text| Version::parse(text).ok_or_else(|| invalid("version", text));
        let peer_urls = options.peer_urls.join(",");
        Ok(Identity {
            local_id: options.local_id,
            local_hex: hex(options.local_id),
            cluster_hex: hex(options.cluster_id),
            server_version: HeaderValue::from_static(options.server_version),
            min_cluster_version: HeaderValue::from_static(options.min_cluster_version),
            peer_urls: HeaderValue::from_str(&peer_urls).map_err(|_| invalid("peer URLs", &peer_urls))?,
            zone: HeaderValue::from_str(&options.zone).map_err(|_| invalid("zone", &options.zone))?,
            server: version(options.server_version)?,
            min_cluster: version(options.min_cluster_version)?,
        })
    }

    /// Adds the headers that identify this member as the sender of a request.
    pub(crate) fn stamp(&self, headers: &mut HeaderMap) {
        headers.insert(SERVER_FROM, self.local_hex.clone());
        headers.insert(SERVER_VERSION, self.server_version.clone());
        headers.insert(MIN_CLUSTER_VERSION, self.min_cluster_version.clone());
        headers.insert(CLUSTER_ID, self.cluster_hex.clone());
        headers.insert(WITNESS, KNOWS_WITNESSES);
        if !self.peer_urls.is_empty() {
            headers.insert(PEER_URLS, self.peer_urls.clone());
        }
        if !self.zone.is_empty() {
            headers.insert(ZONE, self.zone.clone());
        }
    }

    /// Checks whether the sender of a request is compatible with this member.
    ///
    /// # Errors
    ///
    /// Returns the message of the refusal if the versions are incompatible or the cluster id is different.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), &'static str> {
        let version = |name| match headers.get(name) {
            None => Ok(VERSION_UNSAID),
            Some(value) if value.is_empty() => Ok(VERSION_UNSAID),
            Some(value) => value.to_str().ok().and_then(Version::parse).ok_or(INCOMPATIBLE_VERSION),
        };
        if version(SERVER_VERSION)? < self.min_cluster || version(MIN_CLUSTER_VERSION)? > self.server {
            return Err(INCOMPATIBLE_VERSION);
        }
        if headers.get(CLUSTER_ID) != Some(&self.cluster_hex) {
            return Err(CLUSTER_ID_MISMATCH);
        }
        Ok(())
    }
}

/// Returns the major and minor version number of the sender of these headers; `None` if they contain no valid
/// version.
pub(crate) fn release(headers: &HeaderMap) -> Option<(u32, u32)> {
    let Version { major, minor } = Version::parse(headers.get(SERVER_VERSION)?.to_str().ok()?)?;
    Some((u32::try_from(major).ok()?, u32::try_from(minor).ok()?))
}

/// Returns true if the sender of these headers knows witnesses.
pub(crate) fn knows_witnesses(headers: &HeaderMap) -> bool {
    headers.get(WITNESS) == Some(&KNOWS_WITNESSES)
}

/// Returns the zone of the sender of these headers; empty if they contain none that is valid.
pub(crate) fn zone(headers: &HeaderMap) -> &str {
    let zone = headers.get(ZONE).and_then(|zone| zone.to_str().ok()).unwrap_or_default();
    if zone.len() <= ZONE_BYTES_MAX { zone } else { "" }
}

/// Formats an id for headers and paths: lowercase hex without leading zeros.
pub(crate) fn hex(id: u64) -> HeaderValue {
    // The default is never used, because hex digits always form a valid header value.
    HeaderValue::from_str(&format!("{id:x}")).unwrap_or(HeaderValue::from_static("0"))
}

/// Parses an id in hex from a header or path; `None` if it is not valid.
pub(crate) fn parse_id(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| digits)
}

/// Returns the id and the peer URLs of the sender of a request; `None` if the headers do not contain both.
pub(crate) fn sender(headers: &HeaderMap) -> Option<(u64, Vec<String>)> {
    let id = parse_id(headers.get(SERVER_FROM)?.to_str().ok()?)?;
    Some((id, urls(headers)?))
}

/// Returns the peer URLs of the sender of a request; `None` if the headers contain none.
pub(crate) fn urls(headers: &HeaderMap) -> Option<Vec<String>> {
    let urls = headers.get(PEER_URLS)?.to_str().ok()?;
    (!urls.is_empty()).then(|| urls.split(',').map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn identity() -> Identity {
        Identity::new(&Options {
            local_id: 0xabc,
            cluster_id: 0x0f,
            peer_urls: vec!["http://a:1".to_owned(), "http://b:2".to_owned()],
            server_version: "3.7.1",
            min_cluster_version: "3.0.0",
            read_timeout: Duration::ZERO,
            write_timeout: Duration::ZERO,
            listeners: Vec::new(),
            tls: None,
            local_address: None,
            zone: "north".to_owned(),
        })
        .unwrap()
    }

    #[test]
    fn a_request_says_who_sends_it() {
        let mut headers = HeaderMap::new();
        identity().stamp(&mut headers);
        let mut seen: Vec<_> = headers.iter().map(|(k, v)| format!("{k}: {}", v.to_str().unwrap())).collect();
        seen.sort_unstable();
        assert_eq!(
            seen,
            [
                "x-etcd-cluster-id: f",
                "x-mainstay-witness: 1",
                "x-mainstay-zone: north",
                "x-min-cluster-version: 3.0.0",
                "x-peerurls: http://a:1,http://b:2",
                "x-server-from: abc",
                "x-server-version: 3.7.1",
            ]
        );
        assert_eq!(identity().check(&headers), Ok(()));
        assert_eq!(
            sender(&headers).unwrap(),
            (0xabc, vec!["http://a:1".to_owned(), "http://b:2".to_owned()])
        );
    }

    #[test]
    fn versions_and_cluster_are_checked() {
        let check = |server: Option<&'static str>, min: Option<&'static str>, cluster: &'static str| {
            let mut headers = HeaderMap::new();
            for (name, value) in
                [(SERVER_VERSION, server), (MIN_CLUSTER_VERSION, min), (CLUSTER_ID, Some(cluster))]
            {
                if let Some(value) = value {
                    headers.insert(name, HeaderValue::from_static(value));
                }
            }
            identity().check(&headers)
        };
        assert_eq!(check(Some("3.7.1"), Some("3.0.0"), "f"), Ok(()));
        assert_eq!(check(Some("3.0.0-rc.1"), Some("3.7.9"), "f"), Ok(()));
        assert_eq!(check(Some("4.0.0"), Some("3.0.0+git"), "f"), Ok(()));
        assert_eq!(check(Some("3.7.1"), None, "f"), Ok(()), "2.0.0 is not above ours");
        assert_eq!(check(Some("3.7.1"), Some("3.0.0"), "0f"), Err("cluster ID mismatch"));
        assert_eq!(check(Some("3.7.1"), Some("3.0.0"), ""), Err("cluster ID mismatch"));
        for (server, min) in [
            (None, None),
            (Some("2.3.0"), Some("2.0.0")),
            (Some("9.0.0"), Some("3.8.0")),
            (Some("junk"), Some("3.0.0")),
            (Some("3.7"), Some("3.0.0")),
            (Some("3.7.+1"), Some("3.0.0")),
            (Some("3.7.1.0"), Some("3.0.0")),
            (Some("99999999999999999999.0.0"), Some("3.0.0")),
        ] {
            assert_eq!(check(server, min, "f"), Err("incompatible version"), "{server:?} {min:?}");
        }
    }

    #[test]
    fn ids_are_hex() {
        assert_eq!(parse_id("13fdd5eaf37aaa49"), Some(0x13fd_d5ea_f37a_aa49));
        for bad in ["", "+1", "zz", "0x1", "1ffffffffffffffff", "1 "] {
            assert_eq!(parse_id(bad), None, "{bad:?}");
        }
        assert_eq!(hex(u64::MAX), "ffffffffffffffff");
    }
}
