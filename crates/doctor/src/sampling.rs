//! Reads a small sample of keys to find large values, at very low cost for the cluster.

use api::Rpc;
use api::etcdserverpb::{RangeRequest, RangeResponse};
use client::{Client, shown};

use crate::evidence::{Sample, Unseen};

/// Maximum number of range requests for one sample.
const REQUESTS_MAX: usize = 12;
/// Number of bytes of values after which no further range is requested.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Number of keys that the sample lists, those with the largest values.
const LARGEST_MAX: usize = 20;
/// Number of keys above which no sample is taken: to count the keys of a range, etcd walks the index of all
/// of them, even if it returns only a few.
pub(crate) const KEYS_MAX: f64 = 1e6;

/// Samples up to `keys_max` keys with a few small, serializable range requests. After each page, skips the
/// rest of the last key's directory (everything up to the last `/`), because keys in one directory tend to be
/// similar.
pub(crate) async fn sample(client: &Client, keys_max: usize) -> Result<Sample, Unseen> {
    let mut sample = Sample::default();
    let mut from: Vec<u8> = vec![0];
    let mut bytes = 0;
    // Request only one key at first, because the size of the values is not known yet.
    let mut page = 1;
    for _ in 0..REQUESTS_MAX {
        if sample.keys >= keys_max || bytes >= BYTES_MAX {
            break;
        }
        let limit = page.min(keys_max - sample.keys);
        let request = RangeRequest {
            key: from.clone().into(),
            range_end: vec![0].into(),
            limit: limit as i64,
            serializable: true,
            ..RangeRequest::default()
        };
        let answer: RangeResponse =
            client.call(Rpc::KvRange, &request).await.map_err(|status| shown(&status))?;
        let Some(last) = answer.kvs.last() else { break };
        let mut largest_here = 0;
        for kv in &answer.kvs {
            largest_here = largest_here.max(kv.value.len());
            bytes += kv.value.len();
            sample.largest.push((shortened(&kv.key), kv.value.len() as f64));
        }
        sample.keys += answer.kvs.len();
        sample.largest.sort_by(|a, b| b.1.total_cmp(&a.1));
        sample.largest.truncate(LARGEST_MAX);
        from = match directory(&last.key) {
            Some(end) if answer.kvs.len() == limit && limit > 1 => end,
            _ => [&last.key[..], &[0]].concat(),
        };
        if !answer.more {
            break;
        }
        // Choose the size of the next page so that it takes at most a quarter of the remaining bytes if none
        // of its values is larger than the largest of this page.
        page = ((BYTES_MAX.saturating_sub(bytes)) / 4 / largest_here.max(64))
            .clamp(1, keys_max.div_ceil(4).max(1));
    }
    Ok(sample)
}

/// Returns the first possible key after all keys in the directory of this key; `None` if the key contains no
/// `/`.
fn directory(key: &[u8]) -> Option<Vec<u8>> {
    let slash = key.iter().rposition(|byte| *byte == b'/')?;
    let mut end = key[..=slash].to_vec();
    end[slash] = b'/' + 1;
    Some(end)
}

fn shortened(key: &[u8]) -> String {
    const LENGTH_MAX: usize = 80;
    match key.get(..LENGTH_MAX) {
        Some(head) if key.len() > LENGTH_MAX => format!("{}…", cli::go::quote(head)),
        _ => cli::go::quote(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_directory() {
        assert_eq!(directory(b"/registry/pods/a").as_deref(), Some(&b"/registry/pods0"[..]));
        assert_eq!(directory(b"plain"), None);
    }
}
