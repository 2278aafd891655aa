//! Computes range ends as etcd's Go client does.

/// Range end that means "all keys from the first one on": a single zero byte, which the API defines as no
/// end.
pub const OPEN_END: &[u8] = b"\0";

/// Returns the end of the range of all keys with this prefix; [`OPEN_END`] if the prefix is empty or has only
/// 0xff bytes.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    match prefix.iter().rposition(|byte| *byte < 0xff) {
        None => OPEN_END.to_vec(),
        Some(at) => {
            let mut end = prefix[..=at].to_vec();
            end[at] += 1;
            end
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_behind_its_last_key() {
        assert_eq!(prefix_end(b"a"), b"b");
        assert_eq!(prefix_end(b"a\xff\xff"), b"b");
        assert_eq!(prefix_end(b"\xff"), OPEN_END);
        assert_eq!(prefix_end(b""), OPEN_END);
    }
}
