//! Databases written by this crate are read again.

use std::collections::BTreeMap;
use std::io;

use mainstay_interchange::bolt::{Bolt, Checked, Cursor, Layout, Plan, Writer};
use mainstay_interchange::{Error, Source, WriteError};
use testkit::Random;

pub type Contents = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>;

pub fn plan(contents: &Contents) -> Plan {
    let mut layout = Layout::default();
    for (name, pairs) in contents {
        layout.bucket(name).expect("a name");
        for (key, value) in pairs {
            layout.pair(key, value.len()).expect("fits");
        }
    }
    layout.finish().expect("is measured")
}

pub fn write(contents: &Contents) -> Vec<u8> {
    let plan = plan(contents);
    let mut writer = Writer::new(Vec::new(), plan).expect("begins");
    for (name, pairs) in contents {
        writer.bucket(name).expect("a name");
        for (key, value) in pairs {
            let (a, b) = value.split_at(value.len() / 2);
            writer.pair(key, &[a, b]).expect("fits");
        }
    }
    let bytes = writer.finish().expect("is what was measured");
    assert_eq!(bytes.len() as u64, plan.size_bytes());
    bytes
}

pub fn read<S: Source>(bolt: &Bolt<S>) -> Result<Contents, Error> {
    fn bucket<S: Source>(mut cursor: Cursor<'_, S>) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
        let mut pairs = BTreeMap::new();
        while let Some(item) = cursor.step()? {
            if let Some((last, _)) = pairs.last_key_value() {
                assert!(item.key > Vec::as_slice(last), "keys ascend");
            }
            pairs.insert(item.key.to_vec(), item.value.to_vec());
        }
        Ok(pairs)
    }
    let mut contents = Contents::new();
    let mut root = bolt.root();
    while let Some(item) = root.step()? {
        if let Some(found) = item.bucket {
            contents.insert(item.key.to_vec(), bucket(bolt.walk(&found))?);
        }
    }
    Ok(contents)
}

/// Buckets of all kinds: empty, of one page, of several levels, with long keys and long values.
pub fn contents(seed: u64, keys: u64) -> Contents {
    let mut random = Random::new(seed);
    let mut contents = Contents::new();
    contents.insert(b"empty".to_vec(), BTreeMap::new());
    contents.insert(b"one".to_vec(), [(b"k".to_vec(), b"v".to_vec())].into());
    for (name, key_bound, value_bound) in
        [("narrow", 20, 30), ("long keys", 3000, 30), ("long values", 20, 9000), ("mixed", 300, 5000)]
    {
        let pairs = (0..keys).map(|_| {
            let key: Vec<u8> = (0..1 + random.below(key_bound)).map(|_| random.below(256) as u8).collect();
            let value = vec![random.below(256) as u8; random.below(value_bound) as usize];
            (key, value)
        });
        contents.insert(name.as_bytes().to_vec(), pairs.collect());
    }
    contents
}

#[test]
fn what_was_written_is_read() {
    for seed in 0..20 {
        let contents = contents(seed, [0, 1, 2, 3, 30, 300, 2000][seed as usize % 7]);
        let bytes = write(&contents);
        let bolt = Bolt::whole(bytes).expect("opens");
        let keys: usize = contents.values().map(BTreeMap::len).sum();
        let pages = bolt.meta().high_water;
        let checked = Checked { buckets: 6, keys: keys as u64, used_pages: pages, free_pages: 0 };
        assert_eq!(bolt.check().expect("is sound"), checked, "seed {seed}");
        assert!(read(&bolt).expect("is sound") == contents, "seed {seed}");
    }
}

#[test]
fn a_walk_may_begin_anywhere() {
    let contents = contents(3, 500);
    let bytes = write(&contents);
    let bolt = Bolt::whole(bytes.as_slice()).expect("opens");
    let mut random = Random::new(4);
    for (name, pairs) in &contents {
        let bucket = bolt.bucket(name).expect("is sound").expect("is there");
        for i in 0..300 {
            let key: Vec<u8> = match pairs.keys().nth(i) {
                Some(key) if i % 2 == 0 => key.clone(),
                _ => (0..1 + random.below(4)).map(|_| random.below(256) as u8).collect(),
            };
            let mut cursor = bolt.walk(&bucket);
            cursor.seek(&key).expect("is sound");
            let expected = pairs.range(key.clone()..).next().map(|(key, value)| (&key[..], &value[..]));
            let found = cursor.step().expect("is sound").map(|item| (item.key, item.value));
            assert!(found == expected, "{key:?} in {}", String::from_utf8_lossy(name));
        }
    }
    assert_eq!(bolt.bucket(b"nothing").expect("is sound"), None);
}

#[test]
fn leaves_are_full() {
    let pairs = (0u64..10_000).map(|i| (i.to_be_bytes().to_vec(), vec![0; 200]));
    let plan = plan(&[(b"key".to_vec(), pairs.collect())].into());
    // A pair takes 224 bytes, and 18 pairs fit a leaf; 169 children fit a branch.
    assert_eq!(plan, Plan { pages: 3 + 556 + 4 + 1 + 1, keys: 10_000, content_bytes: 2_080_000 });
}

#[test]
fn large_values_do_not_leave_pages_half_empty() {
    for len in [1_000usize, 1_400, 2_000, 2_100, 4_000, 4_200, 5_000, 9_000, 30_000, 100_000] {
        let pairs: Vec<_> = (0u64..500).map(|i| (i.to_be_bytes().to_vec(), vec![i as u8; len])).collect();
        let bytes = 500 * (len as u64 + 24);
        let plan = plan(&[(b"key".to_vec(), pairs.into_iter().collect())].into());
        let size = plan.size_bytes();
        assert!(size < bytes * 6 / 5 + 10 * 4096, "values of {len} bytes: {size} for {bytes}");
    }
}

#[test]
fn the_writer_refuses_what_is_wrong() {
    let plan = plan(&contents(1, 3));
    let fresh = || {
        let mut writer = Writer::new(Vec::new(), plan).expect("begins");
        writer.bucket(b"b").expect("a name");
        writer
    };
    let refused = |result: Result<(), WriteError>| matches!(result, Err(WriteError::Refused(_)));
    assert!(refused(Writer::new(Vec::new(), plan).expect("begins").pair(b"k", &[])));
    assert!(refused(fresh().bucket(b"b")));
    assert!(refused(fresh().bucket(b"")));
    assert!(refused(fresh().pair(b"", &[])));
    assert!(refused(fresh().pair(&[0; 32_769], &[])));
    let mut writer = fresh();
    writer.pair(b"k", &[]).expect("fits");
    assert!(refused(writer.pair(b"k", &[])));
    assert!(refused(fresh().pair(b"k", &[]).and_then(|()| fresh().pair(b"", &[]))));
    assert!(matches!(fresh().finish(), Err(WriteError::Differs(_))));
    let mut writer = fresh();
    let all: Result<Vec<()>, _> =
        (0..10_000u32).map(|i| writer.pair(&i.to_be_bytes(), &[&[0; 100]])).collect();
    assert!(matches!(all, Err(WriteError::Differs(_))));
}

/// A server can take the written bytes at any time, and never has to hold more than a page and one value.
#[test]
fn a_database_comes_page_by_page() {
    let pairs: BTreeMap<_, _> = (0u64..5000)
        .map(|i| (i.to_be_bytes().to_vec(), vec![1; if i % 500 == 0 { 50_000 } else { 90 }]))
        .collect();
    let contents: Contents = [(b"key".to_vec(), pairs)].into();
    let mut writer = Writer::new(Vec::new(), plan(&contents)).expect("begins");
    let mut taken = Vec::new();
    writer.bucket(b"key").expect("a name");
    for (key, value) in &contents[&b"key"[..]] {
        writer.pair(key, &[value]).expect("fits");
        let ready = std::mem::take(writer.output());
        // At most the first three pages, or a leaf, and a branch.
        assert!(ready.len() <= 53_248 + 2 * 4096 && ready.len() % 4096 == 0, "{}", ready.len());
        taken.extend(ready);
    }
    taken.extend(writer.finish().expect("is what was measured"));
    assert!(taken == write(&contents));
}

/// A file that consists of `begin` and a hole.
struct Sparse {
    begin: Vec<u8>,
    len: u64,
}

impl Source for Sparse {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let there = self.begin.get(offset as usize..).unwrap_or_default();
        let (from_there, hole) = buf.split_at_mut(buf.len().min(there.len()));
        from_there.copy_from_slice(&there[..from_there.len()]);
        hole.fill(0);
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len)
    }
}

/// A small database in a file of 16 GiB, whose pages claim `more` overflow pages, with other flags if given.
fn overflowing(more: u32, flags: Option<u16>) -> Bolt<Sparse> {
    let mut begin = write(&[(b"key".to_vec(), [(b"k".to_vec(), b"v".to_vec())].into())].into());
    let pages: u64 = 1 << 22;
    for page in begin.chunks_mut(4096).take(2) {
        page[16 + 40..16 + 48].copy_from_slice(&pages.to_le_bytes());
        let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        let checksum = page[16..72].iter().fold(0xcbf2_9ce4_8422_2325, fold);
        page[72..80].copy_from_slice(&checksum.to_le_bytes());
    }
    for page in begin.chunks_mut(4096).skip(2) {
        page[12..16].copy_from_slice(&more.to_le_bytes());
        if let Some(flags) = flags {
            page[8..10].copy_from_slice(&flags.to_le_bytes());
        }
    }
    Bolt::whole(Sparse { begin, len: pages * 4096 }).expect("opens")
}

#[test]
fn a_page_that_takes_most_of_a_large_file_is_not_read() {
    let bolt = overflowing(1 << 21, None);
    let refused = bolt.bucket(b"key").expect_err("is too large").to_string();
    assert!(refused.contains("2097153 x 4096 bytes, and at most 1074790400 are read"), "{refused}");
    assert!(bolt.check().is_err_and(|error| error.to_string().contains("at most 1074790400 are read")));
}

#[test]
fn pages_that_a_walk_keeps_are_not_large() {
    // A branch; a walk may hold as many of them as the tree is deep.
    let refused = overflowing(256, Some(1)).bucket(b"key").expect_err("is too large").to_string();
    assert!(refused.contains("257 x 4096 bytes, and at most 1048576 are read"), "{refused}");
    // A leaf with buckets, each of which may be entered by another walk.
    let refused = overflowing(256, None).bucket(b"key").expect_err("is too large").to_string();
    assert!(refused.contains("a page with buckets is longer than such pages can be"), "{refused}");
}
