//! A look at a few keys and their sizes that costs the cluster next to nothing.

use api::Rpc;
use api::etcdserverpb::{RangeRequest, RangeResponse};
use client::{Client, shown};

use crate::evidence::{Sample, Unseen};

/// Requests made, at most.
const REQUESTS_MAX: usize = 12;
/// Bytes read, at most, in all but the last answer.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Number of the largest keys that are remembered.
const LARGEST_MAX: usize = 20;
/// Above this many keys even a short page costs etcd a walk over its whole index, because it counts what is behind.
pub(crate) const KEYS_MAX: f64 = 1e6;

/// Looks at up to `keys_max` keys in few small, serializable ranges, going from one directory (what is before the last `/`
/// of a key) to the next, since keys of one directory are alike.
pub(crate) async fn sample(client: &Client, keys_max: usize) -> Result<Sample, Unseen> {
    let mut sample = Sample::default();
    let mut from: Vec<u8> = vec![0];
    let mut bytes = 0;
    // A single value first: they may all be large.
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
        // About a quarter of what may still be read, were all values as large as the largest here.
        page = ((BYTES_MAX.saturating_sub(bytes)) / 4 / largest_here.max(64))
            .clamp(1, keys_max.div_ceil(4).max(1));
    }
    Ok(sample)
}

/// The first key behind the directory of this one.
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
