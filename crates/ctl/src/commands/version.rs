//! `version`: shows the version of the tool and of its API.

use cli::{Command, Failure};

use super::{Run, UTILITY};
use crate::call::Call;

pub(super) const VERSION: Command<Run> = Command {
    name: "version",
    usage: "version",
    about: "Prints the version of etcdctl",
    example: "  etcdctl version",
    group: UTILITY,
    run: Some(Run::asking(|call| Box::pin(std::future::ready(version(call))))),
    ..Command::EMPTY
};

pub(super) fn version(call: &Call) -> Result<(), Failure> {
    let version = api::API_VERSION;
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    call.line(format!("etcdctl version: {version}\nAPI version: {minor}"))
}
