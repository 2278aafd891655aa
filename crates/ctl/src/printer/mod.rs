//! Prints responses in the five formats of `--write-out`: converts a response to bytes for standard output
//! and standard error.

mod fields;
pub(crate) mod json;
mod protobuf;
mod rows;
mod simple;
mod table;

use api::etcdserverpb as pb;
use api::mvccpb::Event;

use cli::Failure;

/// An output format, named as in `--write-out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the flag's own values")]
pub enum Format {
    Simple,
    Fields,
    Json,
    Protobuf,
    Table,
}

impl Format {
    /// Returns the format with this name.
    pub fn named(name: &str) -> Option<Format> {
        Some(match name {
            "simple" => Format::Simple,
            "fields" => Format::Fields,
            "json" => Format::Json,
            "protobuf" => Format::Protobuf,
            "table" => Format::Table,
            _ => return None,
        })
    }

    /// Returns the name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Format::Simple => "simple",
            Format::Fields => "fields",
            Format::Json => "json",
            Format::Protobuf => "protobuf",
            Format::Table => "table",
        }
    }
}

/// A batch of watch events with the fields of `WatchResponse` in etcd's Go client, which the JSON format
/// prints.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names are the message's own")]
pub struct WatchBatch {
    pub header: Option<pb::ResponseHeader>,
    pub events: Vec<Event>,
    pub compact_revision: i64,
    pub canceled: bool,
    pub created: bool,
    pub cancel_reason: String,
}

/// Result of `endpoint health` for one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointHealth {
    /// The endpoint as it was given.
    pub endpoint: String,
    /// True if the endpoint is healthy.
    pub health: bool,
    /// Duration of the read in Go's notation; empty if no read was tried.
    pub took: String,
    /// Reason why the endpoint is not healthy; empty if it is healthy.
    pub error: String,
}

/// An observer, and the node that feeds it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObserverRow {
    /// Id of the feeder.
    pub fed_by: u64,
    /// State of the observer, as its feeder reports it.
    pub observer: pb::ObserverStatus,
}

/// The autopilot of a member.
#[derive(Clone, Debug, PartialEq)]
pub struct AutopilotNode {
    /// Id of the member.
    pub id: u64,
    /// Name of the member.
    pub name: String,
    /// State of its autopilot, as the member reports it.
    pub status: pb::AutopilotStatus,
}

/// All responses and results that the tool can print. A variant has additional values if the output shows
/// more than the response contains, such as the endpoint that was queried.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "each is the answer of the command of its name")]
pub enum Answer<'a> {
    Get(&'a pb::RangeResponse),
    Put(&'a pb::PutResponse),
    Del(&'a pb::DeleteRangeResponse),
    Txn(&'a pb::TxnResponse),
    Watch(&'a WatchBatch),
    Grant(&'a pb::LeaseGrantResponse),
    Revoke(i64, &'a pb::LeaseRevokeResponse),
    KeepAlive(&'a pb::LeaseKeepAliveResponse),
    TimeToLive(&'a pb::LeaseTimeToLiveResponse, bool),
    Leases(&'a pb::LeaseLeasesResponse),
    MemberAdd(&'a pb::MemberAddResponse),
    MemberRemove(u64, &'a pb::MemberRemoveResponse),
    MemberUpdate(u64, &'a pb::MemberUpdateResponse),
    MemberPromote(u64, &'a pb::MemberPromoteResponse),
    MemberList(&'a pb::MemberListResponse),
    EndpointHealth(&'a [EndpointHealth]),
    EndpointStatus(&'a [(String, pb::StatusResponse)]),
    EndpointHashKv(&'a [(String, pb::HashKvResponse)]),
    Observers(&'a [ObserverRow]),
    Autopilot(&'a [AutopilotNode]),
    MoveLeader(u64, u64, &'a pb::MoveLeaderResponse),
    DowngradeValidate(&'a pb::DowngradeResponse),
    DowngradeEnable(&'a pb::DowngradeResponse),
    DowngradeCancel(&'a pb::DowngradeResponse),
    Alarm(&'a pb::AlarmResponse),
    RoleAdd(&'a str, &'a pb::AuthRoleAddResponse),
    RoleGet(&'a str, &'a pb::AuthRoleGetResponse),
    RoleDelete(&'a str, &'a pb::AuthRoleDeleteResponse),
    RoleList(&'a pb::AuthRoleListResponse),
    RoleGrantPermission(&'a str, &'a pb::AuthRoleGrantPermissionResponse),
    RoleRevokePermission {
        role: &'a str,
        key: &'a [u8],
        end: &'a [u8],
        answer: &'a pb::AuthRoleRevokePermissionResponse,
    },
    UserAdd(&'a str, &'a pb::AuthUserAddResponse),
    UserGet(&'a str, &'a pb::AuthUserGetResponse),
    UserList(&'a pb::AuthUserListResponse),
    UserChangePassword(&'a pb::AuthUserChangePasswordResponse),
    UserGrantRole(&'a str, &'a str, &'a pb::AuthUserGrantRoleResponse),
    UserRevokeRole(&'a str, &'a str, &'a pb::AuthUserRevokeRoleResponse),
    UserDelete(&'a str, &'a pb::AuthUserDeleteResponse),
    AuthStatus(&'a pb::AuthStatusResponse),
}

/// The output that a printer returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Bytes for standard output.
    pub out: Vec<u8>,
    /// Bytes for standard error.
    pub err: Vec<u8>,
}

/// Appends formatted text to a `Vec<u8>`.
macro_rules! put {
    ($out:expr, $($format:tt)*) => {{
        use std::io::Write as _;
        write!($out, $($format)*).expect("memory takes every write")
    }};
}
pub(crate) use put;

/// A format and its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Printer {
    /// Output format.
    pub format: Format,
    /// `--hex`: print keys, values and ids in hexadecimal, if the format supports this.
    pub hex: bool,
    /// `--print-value-only` of `get`: print only values.
    pub value_only: bool,
}

impl Printer {
    /// Prints one response.
    ///
    /// # Errors
    /// Returns an error with exit code 4 if the format cannot show this response.
    pub fn page(&self, answer: &Answer<'_>) -> Result<Page, Failure> {
        let mut page = Page::default();
        let shown = match self.format {
            Format::Simple => {
                simple::print(&mut page, self, answer);
                true
            }
            Format::Fields => fields::print(&mut page.out, self.hex, answer),
            Format::Json => {
                json::print(&mut page.out, self.hex, answer);
                true
            }
            Format::Protobuf => protobuf::print(&mut page.out, answer),
            Format::Table => table::print(&mut page.out, answer),
        };
        if shown {
            Ok(page)
        } else {
            Err(Failure::bad_feature(format!("{} not supported as output format", self.format.name())))
        }
    }
}

/// Returns bytes as hexadecimal escapes, such as `\x61\x62` for `ab`.
pub(crate) fn hex_escaped(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len() * 4);
    for byte in bytes {
        put!(text, "\\x{byte:02x}");
    }
    text
}

/// Returns the name of an enumeration value, or its number if it has no name, as Go's `String` does.
pub(crate) fn event_type(number: i32) -> String {
    match number {
        0 => "PUT".to_owned(),
        1 => "DELETE".to_owned(),
        other => other.to_string(),
    }
}

pub(crate) fn alarm_type(number: i32) -> String {
    match number {
        0 => "NONE".to_owned(),
        1 => "NOSPACE".to_owned(),
        2 => "CORRUPT".to_owned(),
        other => other.to_string(),
    }
}

pub(crate) fn permission_type(number: i32) -> String {
    match number {
        0 => "READ".to_owned(),
        1 => "WRITE".to_owned(),
        2 => "READWRITE".to_owned(),
        other => other.to_string(),
    }
}
