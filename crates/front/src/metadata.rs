use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http2::Fields;

/// Metadata of a call. For a call over HTTP/2 this is the received header list, which calls with equal
/// headers share, so values that are added later are stored separately. For other calls, all values are
/// stored separately.
#[derive(Clone, Default)]
pub struct Metadata {
    received: Option<Arc<Fields>>,
    #[expect(clippy::box_collection, reason = "open streams keep it, and most have nothing of their own")]
    own: Option<Box<Vec<Own>>>,
}

/// Key and value.
type Own = (Box<str>, Box<[u8]>);

impl Metadata {
    fn own(&self) -> &[Own] {
        self.own.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Returns the first value of a key; the key must be in lower case.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        let own = self.own().iter().find(|(its, _)| **its == *key).map(|(_, value)| &**value);
        own.or_else(|| self.received.as_ref()?.get(key.as_bytes()))
    }

    /// Returns true if the key has a value; the key must be in lower case.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Sets the value of a key, in place of all its earlier values; the key must be in lower case.
    pub fn insert(&mut self, key: &str, value: impl AsRef<[u8]>) {
        let own = self.own.get_or_insert_default();
        own.retain(|(its, _)| **its != *key);
        own.push((key.into(), value.as_ref().into()));
    }

    /// Returns the heap memory of the metadata, in bytes.
    pub fn heap_bytes(&self) -> usize {
        let own: usize = self.own().iter().map(|(key, value)| key.len() + value.len() + 64).sum();
        own + self.received.as_ref().map_or(0, |fields| fields.heap_bytes())
    }
}

impl From<Arc<Fields>> for Metadata {
    fn from(fields: Arc<Fields>) -> Metadata {
        Metadata { received: Some(fields), own: None }
    }
}

impl From<&HeaderMap> for Metadata {
    fn from(headers: &HeaderMap) -> Metadata {
        let own = headers.iter().map(|(name, value)| (name.as_str().into(), value.as_bytes().into()));
        Metadata { received: None, own: Some(Box::new(own.collect())) }
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only names are printed, since values may be secrets.
        let received = self.received.iter().flat_map(|fields| fields.regular().map(|(name, _)| name));
        let names = self.own().iter().map(|(key, _)| key.as_bytes()).chain(received);
        f.debug_set().entries(names.map(String::from_utf8_lossy)).finish()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_first_value_counts_and_one_put_in_replaces_all() {
        let mut headers = HeaderMap::new();
        for value in ["1", "2"] {
            headers.append("token", HeaderValue::from_static(value));
        }
        let mut metadata = Metadata::from(&headers);
        assert_eq!((metadata.get("token"), metadata.contains_key("other")), (Some(&b"1"[..]), false));
        metadata.insert("token", "3");
        assert_eq!(metadata.get("token"), Some(&b"3"[..]));
        assert_eq!(format!("{metadata:?}"), "{\"token\"}");
    }
}
