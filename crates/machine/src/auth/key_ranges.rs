//! Represents the set of keys that several permissions allow together, and looks up keys and ranges in it.

use bytes::Bytes;

use super::interval_tree::{Interval, IntervalTree};

/// Keys from `start` up to but not including `end`. Without an end, all keys from `start` on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    start: Bytes,
    end: Option<Bytes>,
}

impl Span {
    /// Returns true if the span contains all keys from its start up to `end`; `None` means no upper bound.
    fn reaches(&self, end: Option<&[u8]>) -> bool {
        match (&self.end, end) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(end)) => own.as_ref() >= end,
        }
    }
}

/// Meaning of a key and a range end in a request or a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent<'a> {
    /// One key, because the range end is empty.
    Key(&'a [u8]),
    /// All keys from the first up to but not including the second.
    Between(&'a [u8], &'a [u8]),
    /// All keys from this one on, because the range end is one zero byte.
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

/// Returns true if etcd accepts this range in a permission: the key is not empty, and the end is after the
/// key.
pub(crate) fn is_valid(key: &[u8], range_end: &[u8]) -> bool {
    !key.is_empty() && !matches!(Extent::of(key, range_end), Extent::Between(start, end) if start >= end)
}

/// A set of keys as sorted, disjoint spans, so that a look-up is one binary search. Spans that overlap or
/// touch are merged, so a range is allowed if several permissions together allow it.
///
/// ```text
/// [a, c)  [b, e)  f  [f\0, g)   become   [a, e)  [f, g)
/// ```
///
/// A range that contains no key, such as `[n, a)`, is looked up in a copy of etcd's interval tree. etcd's
/// result for such a range depends on the shape of that tree. The result here must be the same, because
/// otherwise, in a cluster where some members run etcd, a transaction with such a range would be applied by
/// some members and refused by others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRanges {
    spans: Vec<Span>,
    tree: IntervalTree,
}

impl KeyRanges {
    /// Returns the union of these ranges. Each is a key and a range end as in requests, in the order in which
    /// etcd inserts them. As in etcd, ranges that etcd does not accept in a permission allow nothing; data of
    /// old releases of etcd may contain such ranges.
    pub fn union<'a>(ranges: impl Iterator<Item = (&'a Bytes, &'a Bytes)> + Clone) -> KeyRanges {
        let tree = IntervalTree::of(ranges.clone().map(|(key, range_end)| {
            let end = match Extent::of(key, range_end) {
                Extent::Key(key) => behind(key),
                Extent::From(_) => Bytes::new(),
                Extent::Between(..) => range_end.clone(),
            };
            (key.clone(), end)
        }));
        let mut spans: Vec<Span> = ranges
            .filter(|(key, range_end)| is_valid(key, range_end))
            .map(|(key, range_end)| {
                let end = match Extent::of(key, range_end) {
                    Extent::Key(key) => Some(behind(key)),
                    Extent::From(_) => None,
                    Extent::Between(..) => Some(range_end.clone()),
                };
                Span { start: key.clone(), end }
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
        KeyRanges { spans: union, tree }
    }

    /// Returns the last span that starts at or before this key.
    fn at_or_before(&self, key: &[u8]) -> Option<&Span> {
        self.spans.get(self.spans.partition_point(|span| span.start.as_ref() <= key).checked_sub(1)?)
    }

    /// Returns true if this key is in the set.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.at_or_before(key).is_some_and(|span| span.end.as_ref().is_none_or(|end| key < end.as_ref()))
    }

    /// Returns true if all keys between a request's key and range end are in the set. If the end is not after
    /// the start, so that the range has no keys, returns the result of etcd's interval tree.
    pub fn covers(&self, key: &[u8], range_end: &[u8]) -> bool {
        match Extent::of(key, range_end) {
            Extent::Key(key) => self.contains(key),
            Extent::From(key) => self.at_or_before(key).is_some_and(|span| span.end.is_none()),
            Extent::Between(start, end) if start < end => {
                self.at_or_before(start).is_some_and(|span| span.reaches(Some(end)))
            }
            Extent::Between(begin, end) => self.tree.covers(Interval { begin, end }),
        }
    }

    /// Returns the end of the span that contains `key`; all keys from `key` up to that end are in the set.
    /// Returns `Some(None)` if the span has no end, and `None` if `key` is not in the set.
    pub(crate) fn end_at(&self, key: &[u8]) -> Option<Option<&Bytes>> {
        self.contains(key).then(|| self.at_or_before(key).and_then(|span| span.end.as_ref()))
    }
}

/// Returns the first key after this one in byte order.
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
        let ranges: Vec<(Bytes, Bytes)> =
            ranges.iter().map(|(key, end)| (own(key.as_bytes()), own(end.as_bytes()))).collect();
        KeyRanges::union(ranges.iter().map(|(key, end)| (key, end)))
    }

    fn own(bytes: &[u8]) -> Bytes {
        Bytes::copy_from_slice(bytes)
    }

    #[test]
    fn what_touches_is_one_span() {
        let set = union(&[("b", "e"), ("a", "c"), ("f", ""), ("f\0", "g")]);
        assert_eq!(set.spans.len(), 2);
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
        let set = union(&[("", ""), ("", "\0"), ("c", "b"), ("c", "c")]);
        assert!(set.spans.is_empty());
        let keys = ["a", "b", "c", "d"].map(str::as_bytes);
        for (key, end) in keys.into_iter().flat_map(|key| keys.map(|end| (key, end))) {
            assert!(
                !set.contains(key) && !set.covers(key, b"\0") && !set.covers(key, end),
                "{key:?} {end:?}"
            );
        }
    }

    /// Results of etcd's tree (3.5.21 to 3.7.3) for ranges without keys; `[c, a)` is written as `ca`. Each
    /// line has the permissions in insertion order (`ce` is [c, e), `c` is one key, `c*` is all keys from c
    /// on), and after the colon the ranges over a to h that are allowed.
    const OF_ETCD: &str = include_str!("backward_ranges.txt");

    #[test]
    fn ranges_without_keys_are_allowed_where_etcd_allows_them() {
        let (mut allowed, mut refused) = (0, 0);
        for line in OF_ETCD.lines() {
            let (permissions, wanted) = line.split_once(':').unwrap();
            let permissions: Vec<(&str, &str)> = permissions
                .split(' ')
                .map(|permission| (&permission[..1], permission[1..].trim_start_matches('*')))
                .zip(permissions.split(' '))
                .map(|((key, end), given)| (key, if given.ends_with('*') { "\0" } else { end }))
                .collect();
            let set = union(&permissions);
            for (start, end) in (b'a'..=b'h').flat_map(|start| (b'a'..=start).map(move |end| (start, end))) {
                let asked = String::from_utf8(vec![start, end]).unwrap();
                let is_allowed = wanted.split(' ').any(|range| range == asked);
                assert_eq!(set.covers(&[start], &[end]), is_allowed, "{asked} in {line}");
                // Every range that is allowed starts at a key of the set. The converse does not hold.
                assert!(set.contains(&[start]) || !is_allowed, "{asked} in {line}");
                allowed += usize::from(is_allowed);
                refused += usize::from(set.contains(&[start]) && !is_allowed);
            }
        }
        assert!(allowed > 500 && refused > 50, "{allowed} {refused}");
    }

    /// etcd also uses its tree for ranges with keys, so for these ranges both structures must agree.
    #[test]
    fn the_tree_and_the_spans_agree_on_ranges_with_keys() {
        let mut random = testkit::Random::new(89);
        let mut key = || own(&[b'a' + random.below(12) as u8]);
        for _ in 0..500 {
            let mut ranges: Vec<(Bytes, Bytes)> = (0..20).map(|_| (key(), key())).collect();
            ranges.push((key(), Bytes::new()));
            let set = KeyRanges::union(ranges.iter().map(|(key, end)| (key, end)));
            for (begin, end) in
                (b'a'..=b'l').flat_map(|begin| (begin + 1..=b'm').map(move |end| (begin, end)))
            {
                let asked = Interval { begin: &[begin], end: &[end] };
                assert_eq!(
                    set.tree.covers(asked),
                    set.covers(&[begin], &[end]),
                    "{begin} {end} in {ranges:?}"
                );
            }
        }
    }

    /// Compares the set with its plain definition, for all ranges over a small alphabet.
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
            let owned: Vec<(Bytes, Bytes)> = ranges.iter().map(|(key, end)| (own(key), own(end))).collect();
            let set = KeyRanges::union(owned.iter().map(|(key, end)| (key, end)));
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
                    // Keys with another letter appended distinguish a span from its single keys.
                    let all = keys.iter().filter(|key| *key >= start && *key < end);
                    let wanted = all.flat_map(|key| [key.clone(), [key, &b"x"[..]].concat()]);
                    let wanted = wanted.into_iter().all(|key| ranges.iter().any(|range| within(&key, range)));
                    assert_eq!(set.covers(start, end), wanted, "{start:?} {end:?} in {ranges:?}");
                }
            }
        }
    }
}
