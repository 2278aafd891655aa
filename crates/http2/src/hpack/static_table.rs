//! Defines the static table of header compression (RFC 7541, appendix A).

use crate::fields::Class;

/// Number of entries in the static table. The indices of the dynamic table begin at the next number.
pub(crate) const LEN: usize = STATIC.len();

/// Returns the name, value and class of the entry at an index from 1 to [`LEN`]; `None` for another index.
pub(crate) fn get(index: usize) -> Option<(&'static [u8], &'static [u8], Class)> {
    let at = index.checked_sub(1)?;
    let (name, value) = STATIC.get(at)?;
    Some((name.as_bytes(), value.as_bytes(), CLASSES[at]))
}

/// Returns two indices: of the entry with this name and value, and of the first entry with this name. An
/// index is 0 if there is no such entry.
pub(crate) fn find(name: &[u8], value: &[u8]) -> (u8, u8) {
    let (mut whole, mut first) = (0, 0);
    for (at, (known, its)) in STATIC.iter().enumerate() {
        if known.as_bytes() == name {
            let index = at as u8 + 1;
            if first == 0 {
                first = index;
            }
            if its.as_bytes() == value {
                whole = index;
            }
        }
    }
    (whole, first)
}

static CLASSES: [Class; LEN] = classes();

const fn classes() -> [Class; LEN] {
    let mut classes = [Class::Regular; LEN];
    let mut at = 0;
    while at < LEN {
        classes[at] = Class::of(STATIC[at].0.as_bytes());
        at += 1;
    }
    classes
}

const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
