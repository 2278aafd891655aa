//! Answers `Maintenance.Downgrade`, which validates, begins or cancels a downgrade of the cluster. The leader
//! then carries the downgrade out (`consistency::monitor`).

use api::etcdserverpb::downgrade_request::DowngradeAction;
use api::etcdserverpb::{DowngradeRequest, DowngradeResponse, ResponseHeader};
use api::membershippb::DowngradeInfoSetRequest;
use api::{Status, error};
use bytes::Bytes;
use front::Answer;
use prost::Message as _;
use replica::cluster_version::{Minor, minor};
use replica::shared::Published;

use super::call::Call;
use super::{decode, whole};

/// Field number of `InternalRaftRequest`.
const DOWNGRADE_INFO_SET: u32 = 1302;

/// Answers a Downgrade.
pub(super) async fn downgrade(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let request: DowngradeRequest = decode(message)?;
    call.root()?;
    let Ok(action) = DowngradeAction::try_from(request.action) else { return Err(error::UNKNOWN_METHOD) };
    let target = match action {
        DowngradeAction::Cancel => None,
        DowngradeAction::Validate | DowngradeAction::Enable => Some(target_version(&request.version)?),
    };
    // The checks below must see every earlier downgrade request, so this member catches up first.
    let read = call.readable(false).await?;
    let state = call.services.state();
    call.gate(&state)?.admin()?;
    let is_under_way = state.members.downgrade_target.is_some();
    let cluster = cluster_version(&state)?;
    if let Some(target) = target {
        if cluster.before() != Some(target) {
            return Err(error::INVALID_DOWNGRADE_TARGET_VERSION);
        }
        if is_under_way {
            return Err(error::DOWNGRADE_IN_PROCESS);
        }
    }
    let set = match (action, target) {
        (DowngradeAction::Enable, Some(target)) => {
            DowngradeInfoSetRequest { enabled: true, ver: target.to_string() }
        }
        // As in etcd, it is no error to cancel when no downgrade is under way.
        (DowngradeAction::Cancel, _) if is_under_way => DowngradeInfoSetRequest::default(),
        _ => {
            call.reads(read);
            let header = call.services.header(state.view.snapshot().current_revision(), &state);
            return Ok(answer(header, cluster));
        }
    };
    drop(state);
    let message = set.encode_to_vec().into();
    let applied = call.propose(DOWNGRADE_INFO_SET, message, "Downgrade").await?;
    Ok(answer(applied.header, cluster_version(&call.services.state())?))
}

fn cluster_version(state: &Published) -> Result<Minor, Status> {
    minor(&state.members.cluster_version).ok_or(error::CLUSTER_VERSION_UNAVAILABLE)
}

/// Returns the response, which contains the version of the cluster.
fn answer(header: ResponseHeader, cluster: Minor) -> Answer {
    let version = format!("{}.{}", cluster.0, cluster.1);
    whole(&DowngradeResponse { header: Some(header), version })
}

/// Parses `X.Y` or a semantic version. Only the first two numbers are used.
fn target_version(text: &str) -> Result<Minor, Status> {
    semantic(text).or_else(|| semantic(&format!("{text}.0"))).ok_or(error::WRONG_DOWNGRADE_VERSION_FORMAT)
}

/// Parses a version as etcd's library for semantic versions does, which allows leading zeros.
fn semantic(text: &str) -> Option<Minor> {
    let (text, metadata) = text.split_once('+').unwrap_or((text, ""));
    let (numbers, release) = text.split_once('-').unwrap_or((text, ""));
    let named = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if !metadata.bytes().chain(release.bytes()).all(named) {
        return None;
    }
    let mut parts = numbers.splitn(3, '.').map(|part| {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        // As in etcd, a number that does not fit into a signed 64-bit integer is a syntax error.
        part.parse::<i64>().ok().filter(|_| is_number)
    });
    let (major, minor, _) = (parts.next()??, parts.next()??, parts.next()??);
    // A number above `u32::MAX` is valid syntax but no valid target. It may be replaced by `u32::MAX`,
    // because no version has that number either.
    Some(Minor(u32::try_from(major).unwrap_or(u32::MAX), u32::try_from(minor).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_versions_are_read_as_etcd_reads_them() {
        for text in ["3.6", "3.6.0", "3.6.5", "3.06", "3.6.0-rc.1", "3.6.0+x", "3.6.0-", "3.6-rc"] {
            let read = target_version(text);
            let expected =
                if text == "3.6-rc" { Err(error::WRONG_DOWNGRADE_VERSION_FORMAT) } else { Ok(Minor(3, 6)) };
            assert_eq!(read, expected, "{text}");
        }
        let wrong = ["", "x", "3", "3.x", "v3.6", " 3.6", "3.6.", "3.+6", "-3.6.0", "3.6.0.0", "3.6.0-!"];
        for text in wrong {
            assert_eq!(target_version(text), Err(error::WRONG_DOWNGRADE_VERSION_FORMAT), "{text:?}");
        }
        assert_eq!(target_version("3.99999999999"), Ok(Minor(3, u32::MAX)));
    }
}
