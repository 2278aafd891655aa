//! `version`: prints the version of the tool, and the API version of etcd whose files it supports.

use cli::{Command, Failure};

use crate::Session;
use crate::session::Run;

pub(crate) const VERSION: Command<Run> = Command {
    name: "version",
    usage: "version",
    about: "Prints the version of etcdutl",
    run: Some(Run(run)),
    ..Command::EMPTY
};

fn run(session: &mut Session) -> Result<(), Failure> {
    let version = api::API_VERSION;
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    session.print(&format!("etcdutl version: {version}\nAPI version: {minor}\n"))
}
