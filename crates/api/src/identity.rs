//! Computes the ids of members and clusters as etcd does, so that members of Mainstay and etcd that are
//! started with the same flags form the same cluster.

use sha1::{Digest, Sha1};

/// Returns the id of a member named in an initial cluster: the first eight bytes, big-endian, of the SHA-1 of
/// its peer URLs, sorted and concatenated, followed by the cluster token.
pub fn initial_member_id(peer_urls: &[impl AsRef<str>], cluster_token: &str) -> u64 {
    member_id(peer_urls, cluster_token)
}

/// Returns the id of a member that is added to a running cluster. It is computed like [`initial_member_id`],
/// with the time of the addition, in seconds since 1970 as decimal text, in place of the token. The member
/// that proposes the addition must compute the id from its clock and put it into the entry: the members that
/// apply the entry have different clocks, but must use the same id.
pub fn added_member_id(peer_urls: &[impl AsRef<str>], unix_seconds: i64) -> u64 {
    member_id(peer_urls, &unix_seconds.to_string())
}

fn member_id(peer_urls: &[impl AsRef<str>], suffix: &str) -> u64 {
    let mut urls: Vec<&str> = peer_urls.iter().map(AsRef::as_ref).collect();
    urls.sort_unstable();
    let mut hash = Sha1::new();
    for url in urls {
        hash.update(url.as_bytes());
    }
    hash.update(suffix.as_bytes());
    first_eight_bytes(hash)
}

/// Returns the id of a cluster: the first eight bytes, big-endian, of the SHA-1 of the sorted ids of its
/// initial members, each as eight bytes, big-endian.
pub fn cluster_id(member_ids: &[u64]) -> u64 {
    let mut ids = member_ids.to_vec();
    ids.sort_unstable();
    let mut hash = Sha1::new();
    for id in ids {
        hash.update(id.to_be_bytes());
    }
    first_eight_bytes(hash)
}

fn first_eight_bytes(hash: Sha1) -> u64 {
    let digest: [u8; 20] = hash.finalize().into();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_member_has_the_id_every_etcd_user_has_seen() {
        let id = initial_member_id(&["http://localhost:2380"], "etcd-cluster");
        assert_eq!(id, 0x8e9e_05c5_2164_694d);
        assert_eq!(id, 10_276_657_743_932_975_437);
        assert_eq!(cluster_id(&[id]), 0xcdf8_1819_4e3a_8c32);
        assert_eq!(cluster_id(&[id]), 14_841_639_068_965_178_418);
    }

    #[test]
    fn order_does_not_matter_and_everything_else_does() {
        let id = initial_member_id(&["http://b:1", "http://a:1"], "t");
        assert_eq!(id, initial_member_id(&["http://a:1", "http://b:1"], "t"));
        assert_ne!(id, initial_member_id(&["http://a:1", "http://b:1"], "u"));
        assert_eq!(initial_member_id(&["http://a:1"], "17"), added_member_id(&["http://a:1"], 17));
        assert_eq!(cluster_id(&[1, 2]), cluster_id(&[2, 1]));
        assert_ne!(cluster_id(&[1, 2]), cluster_id(&[1, 3]));
    }
}
