//! Sets of keys: what several permissions allow together.

use bytes::Bytes;

/// Keys from `start` on, before `end`; without an end all keys behind.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    start: Bytes,
    end: Option<Bytes>,
}

impl Span {
    /// Whether the span reaches at least to `end`, `None` being behind all keys.
    fn reaches(&self, end: Option<&[u8]>) -> bool {
        match (&self.end, end) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(end)) => own.as_ref() >= end,
        }
    }
}

/// What a request or a permission means by a key and a range end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent<'a> {
    /// One key: the range end is empty.
    Key(&'a [u8]),
    /// From a key on, before another.
    Between(&'a [u8], &'a [u8]),
    /// From a key on: the range end is one zero byte.
    From(&'a [u8]),
}

impl<'a> Extent<'a> {
    fn of(key: &'a [u8], range_end: &'a [u8]) -> Extent<'a> {
        match range_end {
            [] => Extent::Key(key),
            [0] => Extent::From(key),
            end => Extent::Between(key, end),
        }
    }
}

/// Whether etcd takes this as the range of a permission: a key that is not empty, and an end behind it.
pub(crate) fn is_valid(key: &[u8], range_end: &[u8]) -> bool {
    !key.is_empty() && !matches!(Extent::of(key, range_end), Extent::Between(start, end) if start >= end)
}

/// A set of keys as disjoint spans in order, so that a question costs one binary search. Spans that overlap or touch are
/// one: what several permissions allow together they allow as if it were one.
///
/// ```text
/// [a, c)  [b, e)  f  [f\0, g)   become   [a, e)  [f, g)
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRanges(Vec<Span>);

impl KeyRanges {
    /// The union of these ranges, each a key and a range end as in requests. Those that etcd would not take are left out:
    /// in the data of old versions they may be found, and allow nothing there either.
    pub fn union<'a>(ranges: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> KeyRanges {
        let mut spans: Vec<Span> = ranges
            .into_iter()
            .filter(|(key, range_end)| is_valid(key, range_end))
            .map(|(key, range_end)| match Extent::of(key, range_end) {
                Extent::Key(key) => Span { start: Bytes::copy_from_slice(key), end: Some(behind(key)) },
                Extent::From(key) => Span { start: Bytes::copy_from_slice(key), end: None },
                Extent::Between(start, end) => {
                    Span { start: Bytes::copy_from_slice(start), end: Some(Bytes::copy_from_slice(end)) }
                }
            })
            .collect();
        spans.sort_by(|a, b| a.start.cmp(&b.start));
        let mut union: Vec<Span> = Vec::new();
        for span in spans {
            match union.last_mut() {
                Some(last) if last.reaches(Some(&span.start)) => {
                    if !last.reaches(span.end.as_deref()) {
                        last.end = span.end;
                    }
                }
                _ => union.push(span),
            }
        }
        KeyRanges(union)
    }

    /// The last span that begins at or before this key.
    fn at_or_before(&self, key: &[u8]) -> Option<&Span> {
        self.0.get(self.0.partition_point(|span| span.start.as_ref() <= key).checked_sub(1)?)
    }

    /// Whether this key is in the set.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.at_or_before(key).is_some_and(|span| span.end.as_ref().is_none_or(|end| key < end.as_ref()))
    }

    /// Whether all keys that a request with this key and range end is about are in the set. Of a range without any key in
    /// it, whose end is not behind its beginning, the beginning has to be, as in etcd.
    pub fn covers(&self, key: &[u8], range_end: &[u8]) -> bool {
        match Extent::of(key, range_end) {
            Extent::Key(key) => self.contains(key),
            Extent::From(key) => self.at_or_before(key).is_some_and(|span| span.end.is_none()),
            Extent::Between(start, end) if start < end => {
                self.at_or_before(start).is_some_and(|span| span.reaches(Some(end)))
            }
            Extent::Between(start, _) => self.contains(start),
        }
    }

    /// The key behind which `key`'s span has no more keys: all keys between the two are in the set. `None` when `key` is
    /// not in the set, `Some(None)` when all keys behind it are.
    pub(crate) fn end_at(&self, key: &[u8]) -> Option<Option<&Bytes>> {
        self.contains(key).then(|| self.at_or_before(key).and_then(|span| span.end.as_ref()))
    }
}

/// The first key behind this one.
fn behind(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    Bytes::from(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn union(ranges: &[(&str, &str)]) -> KeyRanges {
        KeyRanges::union(ranges.iter().map(|(key, end)| (key.as_bytes(), end.as_bytes())))
    }

    #[test]
    fn what_touches_is_one_span() {
        let set = union(&[("b", "e"), ("a", "c"), ("f", ""), ("f\0", "g")]);
        assert_eq!(set.0.len(), 2);
        assert!(set.covers(b"a", b"e") && set.covers(b"f", b"g") && set.covers(b"f", b""));
        assert!(!set.covers(b"a", b"f") && !set.covers(b"d", b"g") && !set.contains(b"e"));
    }

    #[test]
    fn an_open_end_is_covered_by_an_open_end_only() {
        let set = union(&[("b", "\0")]);
        assert!(set.covers(b"b", b"\0") && set.covers(b"c", b"\0") && set.covers(b"zz", b""));
        assert!(!set.covers(b"a", b"\0") && !set.contains(b"a"));
        assert!(!union(&[("b", "\u{7f}")]).covers(b"b", b"\0"));
    }

    #[test]
    fn one_key_is_no_prefix() {
        let set = union(&[("a", "")]);
        assert!(set.contains(b"a") && set.covers(b"a", b"a\0"));
        assert!(!set.contains(b"a\0") && !set.covers(b"a", b"b") && !set.covers(b"a", b"\0"));
    }

    #[test]
    fn ranges_that_etcd_would_not_take_allow_nothing() {
        assert_eq!(union(&[("", ""), ("", "\0"), ("c", "b"), ("c", "c")]), KeyRanges::default());
    }

    #[test]
    fn an_empty_range_has_to_begin_within_the_set() {
        let set = union(&[("b", "d"), ("f", "h")]);
        assert!(set.covers(b"c", b"b"));
        assert!(set.covers(b"c", b"a") && set.covers(b"g", b"e"));
        assert!(!set.covers(b"e", b"a") && !set.covers(b"d", b"c"));
    }

    /// Against the plain definition, over all ranges of an alphabet.
    #[test]
    fn it_is_the_union() {
        let keys: Vec<Vec<u8>> = (b'a'..=b'f').map(|letter| vec![letter]).collect();
        let mut random = testkit::Random::new(7);
        for _ in 0..2_000 {
            let mut one = |ends: &[&[u8]]| {
                let key = keys[random.below(keys.len() as u64) as usize].clone();
                let end = match random.below(4) {
                    0 => ends[random.below(ends.len() as u64) as usize].to_vec(),
                    _ => keys[random.below(keys.len() as u64) as usize].clone(),
                };
                (key, end)
            };
            let ranges: Vec<(Vec<u8>, Vec<u8>)> = (0..3).map(|_| one(&[b"", b"\0"])).collect();
            let set = KeyRanges::union(ranges.iter().map(|(key, end)| (key.as_slice(), end.as_slice())));
            let within = |key: &[u8], (start, end): &(Vec<u8>, Vec<u8>)| match end.as_slice() {
                [] => key == start,
                [0] => key >= start.as_slice(),
                end => key >= start.as_slice() && key < end,
            };
            for key in &keys {
                let wanted = ranges.iter().any(|range| within(key, range));
                assert_eq!(set.contains(key), wanted, "{key:?} in {ranges:?}");
            }
            for start in &keys {
                for end in keys.iter().filter(|end| *end > start) {
                    // Keys with another letter behind tell a span from its single keys.
                    let all = keys.iter().filter(|key| *key >= start && *key < end);
                    let wanted = all.flat_map(|key| [key.clone(), [key, &b"x"[..]].concat()]);
                    let wanted = wanted.into_iter().all(|key| ranges.iter().any(|range| within(&key, range)));
                    assert_eq!(set.covers(start, end), wanted, "{start:?} {end:?} in {ranges:?}");
                }
            }
        }
    }
}
