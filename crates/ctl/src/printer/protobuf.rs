//! `--write-out=protobuf`: prints the encoded response without a newline.

use api::etcdserverpb as pb;
use prost::Message;

use super::Answer;

/// Prints the response. Returns false if this format cannot show it.
///
/// For lease grants, renewals, times to live and lists, only the header is printed. etcdctl 3.5 to 3.7 do
/// this, because the Go client converts these responses to its own structs, in which only the header is a
/// protobuf message. Programs that parse the output may rely on it.
pub(super) fn print(out: &mut Vec<u8>, answer: &Answer<'_>) -> bool {
    match *answer {
        Answer::Get(r) => write(out, r),
        Answer::Put(r) => write(out, r),
        Answer::Del(r) => write(out, r),
        Answer::Txn(r) => write(out, r),
        Answer::Watch(batch) => {
            let message = pb::WatchResponse {
                header: batch.header,
                events: batch.events.clone(),
                compact_revision: batch.compact_revision,
                canceled: batch.canceled,
                created: batch.created,
                ..Default::default()
            };
            write(out, &message)
        }
        Answer::Grant(r) => header(out, r.header.as_ref()),
        Answer::Revoke(_, r) => write(out, r),
        Answer::KeepAlive(r) => header(out, r.header.as_ref()),
        Answer::TimeToLive(r, _) => header(out, r.header.as_ref()),
        Answer::Leases(r) => header(out, r.header.as_ref()),
        Answer::MemberAdd(r) => write(out, r),
        Answer::MemberRemove(_, r) => write(out, r),
        Answer::MemberUpdate(_, r) => write(out, r),
        Answer::MemberPromote(_, r) => write(out, r),
        Answer::MemberList(r) => write(out, r),
        Answer::MoveLeader(_, _, r) => write(out, r),
        Answer::DowngradeValidate(r) | Answer::DowngradeEnable(r) | Answer::DowngradeCancel(r) => {
            write(out, r)
        }
        Answer::Alarm(r) => write(out, r),
        Answer::RoleAdd(_, r) => write(out, r),
        Answer::RoleGet(_, r) => write(out, r),
        Answer::RoleDelete(_, r) => write(out, r),
        Answer::RoleList(r) => write(out, r),
        Answer::RoleGrantPermission(_, r) => write(out, r),
        Answer::RoleRevokePermission { answer, .. } => write(out, answer),
        Answer::UserAdd(_, r) => write(out, r),
        Answer::UserGet(_, r) => write(out, r),
        Answer::UserList(r) => write(out, r),
        Answer::UserChangePassword(r) => write(out, r),
        Answer::UserGrantRole(_, _, r) => write(out, r),
        Answer::UserRevokeRole(_, _, r) => write(out, r),
        Answer::UserDelete(_, r) => write(out, r),
        Answer::AuthStatus(r) => write(out, r),
        Answer::EndpointHealth(_)
        | Answer::EndpointStatus(_)
        | Answer::EndpointHashKv(_)
        | Answer::Observers(_)
        | Answer::Autopilot(_) => return false,
    }
    true
}

fn write(out: &mut Vec<u8>, message: &impl Message) {
    out.extend_from_slice(&message.encode_to_vec());
}

fn header(out: &mut Vec<u8>, header: Option<&pb::ResponseHeader>) {
    if let Some(header) = header {
        write(out, header);
    }
}
