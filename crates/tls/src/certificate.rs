//! Parses the fields of a certificate that this crate needs (RFC 5280 section 4.1).
//!
//! `webpki` verifies chains, but does not provide the common name, the serial number, the validity period,
//! and the names that Go's rules need. It does not accept certificates of version 1, which etcd accepts. This
//! module does.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::der::{self, Element, Reader};

/// Purpose of a certificate. A certificate without the extended key usage extension has every purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Authentication of a server.
    Server,
    /// Authentication of a client.
    Client,
}

/// Purposes listed in a certificate's extended key usage extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Purposes {
    server: bool,
    client: bool,
    any: bool,
}

impl Purposes {
    fn read(mut list: Reader<'_>) -> Option<Purposes> {
        let mut purposes = Purposes::default();
        while !list.is_empty() {
            match list.element(der::OBJECT_IDENTIFIER)?.contents {
                SERVER_AUTH => purposes.server = true,
                CLIENT_AUTH => purposes.client = true,
                ANY_PURPOSE => purposes.any = true,
                _ => {}
            }
        }
        Some(purposes)
    }

    fn contain(self, purpose: Purpose) -> bool {
        self.any
            || match purpose {
                Purpose::Server => self.server,
                Purpose::Client => self.client,
            }
    }
}

pub(crate) const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
pub(crate) const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
pub(crate) const ANY_PURPOSE: &[u8] = &[0x55, 0x1d, 0x25, 0];

const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 17];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
const NAME_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 30];
const POLICIES: &[u8] = &[0x55, 0x1d, 32];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];

/// Maximum length of a serial number in bytes; RFC 5280 allows 20.
const MAX_SERIAL_BYTES: usize = 64;

/// Parsed certificate. The slices borrow from its DER encoding.
#[derive(Clone, Debug, Default)]
pub(crate) struct Certificate<'a> {
    /// Version of the certificate: 1, 2 or 3.
    pub(crate) version: u8,
    /// Serial number without its sign, most significant byte first, without leading zeros.
    pub(crate) serial: &'a [u8],
    /// Signed part of the certificate (TBSCertificate).
    pub(crate) signed: &'a [u8],
    /// Contents of the AlgorithmIdentifier for the signature.
    pub(crate) signature_algorithm: &'a [u8],
    pub(crate) signature: &'a [u8],
    /// Contents of the DER element of the issuer name.
    pub(crate) issuer: &'a [u8],
    /// Contents of the DER element of the subject name.
    pub(crate) subject: &'a [u8],
    /// SubjectPublicKeyInfo, including its tag.
    pub(crate) public_key: &'a [u8],
    /// First second of validity, in seconds since 1970.
    pub(crate) not_before: u64,
    /// Last second of validity, in seconds since 1970.
    pub(crate) not_after: u64,
    /// Common name of the subject. If there are several, the last one, as in Go.
    pub(crate) common_name: Option<String>,
    pub(crate) dns_names: Vec<&'a str>,
    pub(crate) ip_addresses: Vec<IpAddr>,
    /// True if the certificate has the subject alternative name extension.
    pub(crate) has_alternative_names: bool,
    /// Purposes in the extended key usage extension; `None` without this extension, which allows every
    /// purpose.
    pub(crate) purposes: Option<Purposes>,
    /// CA flag of the basic constraints extension; `None` without this extension.
    pub(crate) authority: Option<bool>,
    /// Path length constraint: the maximum number of intermediate authorities below this one.
    pub(crate) path_length: Option<u32>,
    pub(crate) has_name_constraints: bool,
    /// True if the certificate has a critical extension that this parser does not know.
    pub(crate) has_unknown_critical: bool,
}

impl<'a> Certificate<'a> {
    /// Returns the algorithm of the public key: the contents of the AlgorithmIdentifier in
    /// [`Self::public_key`].
    pub(crate) fn key_algorithm(&self) -> Option<&'a [u8]> {
        let mut key = Reader::new(self.public_key).enter(der::SEQUENCE)?;
        key.element(der::SEQUENCE).map(|algorithm| algorithm.contents)
    }

    /// Parses a certificate in DER; `None` if the bytes are not a valid certificate.
    pub(crate) fn parse(der: &'a [u8]) -> Option<Certificate<'a>> {
        let mut outer = Reader::new(der);
        let mut certificate = outer.enter(der::SEQUENCE)?;
        if !outer.is_empty() {
            return None;
        }
        let signed = certificate.element(der::SEQUENCE)?;
        let signature_algorithm = certificate.element(der::SEQUENCE)?.contents;
        let signature = certificate.bit_string()?;
        if !certificate.is_empty() {
            return None;
        }

        let mut body = Reader::new(signed.contents);
        let version = match body.optional(der::context(0, true)) {
            None => 1,
            Some(version) => match Reader::new(version.contents).unsigned()? {
                [] => 1,
                [1] => 2,
                [2] => 3,
                _ => return None,
            },
        };
        let serial = body.unsigned().filter(|serial| serial.len() <= MAX_SERIAL_BYTES)?;
        if body.element(der::SEQUENCE)?.contents != signature_algorithm {
            return None;
        }
        let issuer = body.element(der::SEQUENCE)?.contents;
        let mut validity = body.enter(der::SEQUENCE)?;
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        let subject = body.element(der::SEQUENCE)?.contents;
        let public_key = body.element(der::SEQUENCE)?.whole;
        // Skip the unique identifiers of issuer and subject, which are obsolete.
        body.optional(der::context(1, false));
        body.optional(der::context(2, false));
        let extensions = body.optional(der::context(3, true));
        if !body.is_empty() || !validity.is_empty() || (extensions.is_some() && version != 3) {
            return None;
        }

        let mut parsed = Certificate {
            version,
            serial,
            signed: signed.whole,
            signature_algorithm,
            signature,
            issuer,
            subject,
            public_key,
            not_before,
            not_after,
            common_name: common_name(subject)?,
            dns_names: Vec::new(),
            ip_addresses: Vec::new(),
            has_alternative_names: false,
            purposes: None,
            authority: None,
            path_length: None,
            has_name_constraints: false,
            has_unknown_critical: false,
        };
        if let Some(extensions) = extensions {
            parsed.read_extensions(extensions)?;
        }
        Some(parsed)
    }

    fn read_extensions(&mut self, extensions: Element<'a>) -> Option<()> {
        let mut outer = Reader::new(extensions.contents);
        let mut list = outer.enter(der::SEQUENCE)?;
        if !outer.is_empty() {
            return None;
        }
        let mut seen: Vec<&[u8]> = Vec::new();
        while !list.is_empty() {
            let mut extension = list.enter(der::SEQUENCE)?;
            let id = extension.element(der::OBJECT_IDENTIFIER)?.contents;
            let critical = extension.flag()?;
            let value = extension.element(der::OCTET_STRING)?.contents;
            // Refuse more than 64 extensions, so that the search for duplicates is cheap. Only about thirty
            // extensions are defined.
            if !extension.is_empty() || seen.contains(&id) || seen.len() == 64 {
                return None;
            }
            seen.push(id);
            let mut value = Reader::new(value);
            match id {
                ALTERNATIVE_NAMES => {
                    self.has_alternative_names = true;
                    self.read_names(value.enter(der::SEQUENCE)?)?;
                }
                BASIC_CONSTRAINTS => {
                    let mut constraints = value.enter(der::SEQUENCE)?;
                    self.authority = Some(constraints.flag()?);
                    if !constraints.is_empty() {
                        let length = constraints.unsigned().filter(|length| length.len() <= 2)?;
                        self.path_length =
                            Some(length.iter().fold(0, |length, byte| (length << 8) | u32::from(*byte)));
                    }
                }
                EXTENDED_KEY_USAGE => self.purposes = Some(Purposes::read(value.enter(der::SEQUENCE)?)?),
                NAME_CONSTRAINTS => self.has_name_constraints = true,
                KEY_USAGE | POLICIES => {}
                _ => self.has_unknown_critical |= critical,
            }
        }
        Some(())
    }

    fn read_names(&mut self, mut names: Reader<'a>) -> Option<()> {
        const DNS: u8 = der::context(2, false);
        const IP: u8 = der::context(7, false);
        while !names.is_empty() {
            let name = names.any()?;
            match name.tag {
                DNS => {
                    let text = std::str::from_utf8(name.contents).ok().filter(|text| text.is_ascii())?;
                    self.dns_names.push(text);
                }
                IP => self.ip_addresses.push(ip_address(name.contents)?),
                _ => {}
            }
        }
        Some(())
    }

    /// Returns true if the certificate allows this purpose. The certificates of its authorities are not
    /// considered.
    pub(crate) fn allows(&self, purpose: Purpose) -> bool {
        self.purposes.is_none_or(|purposes| purposes.contain(purpose))
    }

    /// Returns true if the certificate may sign others. It may if it has the CA flag, or if its version is
    /// below 3 and so cannot have the flag.
    pub(crate) fn can_sign(&self) -> bool {
        self.authority.unwrap_or(self.version < 3)
    }
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::V4(Ipv4Addr::from(bytes)));
    }
    // Convert an IPv4 address in IPv6 form, because Go treats both forms as equal.
    <[u8; 16]>::try_from(bytes).ok().map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical())
}

/// Returns the last common name in a name, given as the contents of its DER element. The outer `None` means
/// that the name is malformed, the inner one that it has no common name.
#[allow(clippy::option_option)]
fn common_name(name: &[u8]) -> Option<Option<String>> {
    let mut sets = Reader::new(name);
    let mut found = None;
    while !sets.is_empty() {
        let mut set = sets.enter(der::SET)?;
        while !set.is_empty() {
            let mut attribute = set.enter(der::SEQUENCE)?;
            let id = attribute.element(der::OBJECT_IDENTIFIER)?.contents;
            let value = attribute.any()?;
            let text = text(value)?;
            if id == COMMON_NAME {
                found = Some(text);
            }
        }
    }
    Some(found.filter(|name| !name.is_empty()))
}

/// Decodes a DER string as Go's `crypto/x509` does; `None` for a string that Go rejects.
fn text(value: Element<'_>) -> Option<String> {
    const UTF8: u8 = 0x0c;
    const NUMERIC: u8 = 0x12;
    const PRINTABLE: u8 = 0x13;
    const T61: u8 = 0x14;
    const IA5: u8 = 0x16;
    const BMP: u8 = 0x1e;
    let bytes = value.contents;
    let ascii = |allowed: fn(&u8) -> bool| {
        bytes.iter().all(allowed).then(|| bytes.iter().map(|byte| char::from(*byte)).collect())
    };
    match value.tag {
        UTF8 => std::str::from_utf8(bytes).ok().map(str::to_owned),
        PRINTABLE => ascii(|byte| byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(byte)),
        NUMERIC => ascii(|byte| byte.is_ascii_digit() || *byte == b' '),
        IA5 => ascii(u8::is_ascii),
        // As in Go, every byte is a character of Latin-1.
        T61 => ascii(|_| true),
        BMP => {
            let bytes = bytes.strip_suffix(&[0, 0]).unwrap_or(bytes);
            let (pairs, rest) = bytes.as_chunks::<2>();
            let mut points = pairs.iter().map(|pair| u16::from_be_bytes(*pair));
            let text: Option<String> = points
                .by_ref()
                .map(|point| {
                    let refused = matches!(point, 0xfffe | 0xffff | 0xfdd0..=0xfdef);
                    char::from_u32(u32::from(point)).filter(|_| !refused)
                })
                .collect();
            text.filter(|_| rest.is_empty())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(tag: u8, bytes: &[u8]) -> Option<String> {
        text(Element { tag, whole: &[], contents: bytes })
    }

    #[test]
    fn strings_are_read_as_go_reads_them() {
        assert_eq!(string(0x0c, "zoë".as_bytes()).as_deref(), Some("zoë"));
        assert_eq!(string(0x0c, &[0xff]), None);
        assert_eq!(string(0x13, b"a *b&c").as_deref(), Some("a *b&c"));
        assert_eq!(string(0x13, b"a@b"), None);
        assert_eq!(string(0x14, &[b'z', 0xeb]).as_deref(), Some("zë"));
        assert_eq!(string(0x16, b"a@b").as_deref(), Some("a@b"));
        assert_eq!(string(0x16, &[0x80]), None);
        assert_eq!(string(0x12, b"12 3").as_deref(), Some("12 3"));
        assert_eq!(string(0x12, b"a"), None);
        assert_eq!(string(0x1e, &[0, b'a', 1, 0x51, 0, 0]).as_deref(), Some("aő"));
        assert_eq!(string(0x1e, &[0, b'a', 0]), None);
        assert_eq!(string(0x1e, &[0xd8, 0]), None);
        assert_eq!(string(0x1e, &[0xff, 0xff]), None);
        assert_eq!(string(0x04, b"a"), None);
    }

    #[test]
    fn the_last_of_several_common_names_counts() {
        let attribute = |name: &str| {
            let value = [&[0x0c, name.len() as u8], name.as_bytes()].concat();
            let pair = [[6, 3, 0x55, 4, 3].as_slice(), &value].concat();
            let sequence = [[der::SEQUENCE, pair.len() as u8].as_slice(), &pair].concat();
            [[der::SET, sequence.len() as u8].as_slice(), &sequence].concat()
        };
        assert_eq!(common_name(&[attribute("one"), attribute("two")].concat()), Some(Some("two".to_owned())));
        assert_eq!(common_name(&[]), Some(None));
        assert_eq!(common_name(&attribute("")), Some(None));
        assert_eq!(common_name(&[0x31, 0x05, 0x30]), None);
    }
}
