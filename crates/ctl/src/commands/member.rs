//! `member`: lists and changes the members of the cluster.

use api::Rpc;
use api::etcdserverpb as pb;
use api::url::check_peer_url;
use cli::go::quote;
use cli::{Command, Failure, Flag};
use client::Client;

use super::get::{CONSISTENCY, serializable};
use super::{MAINTENANCE, Run};
use crate::call::{Call, utf8};
use crate::numbers;
use crate::printer::{Answer, Format};

const ADD_PEER_URLS: Flag<String> =
    Flag::text("peer-urls", "", "comma separated peer URLs for the new member.");
const LEARNER: Flag<bool> = Flag::bool("learner", "indicates if the new member is raft learner");
const WITNESS: Flag<bool> = Flag::bool(
    "witness",
    "adds a witness, a vote without keys, started with mainstay witness; only members of Mainstay know this",
);
const UPDATE_PEER_URLS: Flag<String> =
    Flag::text("peer-urls", "", "comma separated peer URLs for the updated member.");

pub(super) const MEMBER: Command<Run> = Command {
    name: "member",
    usage: "member <subcommand>",
    about: "Membership related commands. Use `etcdctl member --help` to see subcommands",
    long: "Membership related commands",
    example: "  etcdctl member list -w table",
    subcommands: &[
        Command {
            name: "add",
            usage: "add <memberName> [options]",
            about: "Adds a member into the cluster",
            example: "  # As a learner first, so that it catches up before it votes\n  \
                      etcdctl member add m4 --peer-urls=https://10.0.0.4:2380 --learner",
            flags: &[ADD_PEER_URLS.row(), LEARNER.row(), WITNESS.row()],
            run: Some(Run::asking(|call| Box::pin(add(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "Lists all members in the cluster",
            long: "When --write-out is set to simple, this command prints out comma-separated member lists for each \
                   endpoint.\nThe items in the lists are ID, Status, Name, Peer Addrs, Client Addrs, Is Learner.\n",
            example: "  etcdctl member list -w table",
            flags: &[CONSISTENCY.row()],
            run: Some(Run::asking(|call| Box::pin(list(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "promote",
            usage: "promote <memberID>",
            about: "Promotes a non-voting member in the cluster",
            long: "Promotes a non-voting learner member to a voting one in the cluster.\n",
            example: "  etcdctl member promote 9fbd8925a5a7ae4c",
            run: Some(Run::asking(|call| Box::pin(promote(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "remove",
            usage: "remove <memberID>",
            about: "Removes a member from the cluster",
            example: "  etcdctl member remove 9fbd8925a5a7ae4c",
            run: Some(Run::asking(|call| Box::pin(remove(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "update",
            usage: "update <memberID> [options]",
            about: "Updates a member in the cluster",
            example: "  etcdctl member update 9fbd8925a5a7ae4c --peer-urls=https://10.0.0.5:2380",
            flags: &[UPDATE_PEER_URLS.row()],
            run: Some(Run::asking(|call| Box::pin(update(call)))),
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    ..Command::EMPTY
};

const NO_PEER_URLS: &str = "member peer urls not provided";

pub(super) async fn add(call: &Call) -> Result<(), Failure> {
    let name = match call.args() {
        [] => return Err(Failure::bad_args("member name not provided")),
        [name] => utf8(name)?,
        many => return Err(Failure::bad_args(too_many(many))),
    };
    let urls = call.matches.get(ADD_PEER_URLS);
    if urls.is_empty() {
        return Err(Failure::bad_args(NO_PEER_URLS));
    }
    let is_witness = call.matches.get(WITNESS);
    if is_witness && call.matches.get(LEARNER) {
        return Err(Failure::bad_args(
            "a witness has a vote, so it cannot be a learner: give --witness or --learner",
        ));
    }
    // A server that knows no witnesses adds a learner instead, which has no vote and can be removed again.
    let is_learner = is_witness || call.matches.get(LEARNER);
    let request = pb::MemberAddRequest { peer_urls: split(urls), is_learner, is_witness };
    let connection = call.connect().await?;
    check_peer_urls(&request.peer_urls)?;
    let answer: pb::MemberAddResponse =
        call.limited(connection.call(Rpc::ClusterMemberAdd, &request)).await?;
    if let Some(member) = answer.member.as_ref().filter(|member| is_witness && !member.is_witness) {
        let remove = pb::MemberRemoveRequest { id: member.id };
        let removed: Result<pb::MemberRemoveResponse, _> =
            call.limited(connection.call(Rpc::ClusterMemberRemove, &remove)).await;
        let what = if removed.is_ok() { "was removed again" } else { "could not be removed again" };
        return Err(Failure::error(format!(
            "this member of the cluster knows no witnesses: it has added {:x} as a learner, which {what}",
            member.id
        )));
    }
    call.show(&Answer::MemberAdd(&answer))?;
    if call.printer().format == Format::Simple {
        call.write(start_of_new_member(&answer, &name, urls).as_bytes())?;
    }
    Ok(())
}

fn too_many(arguments: &[Vec<u8>]) -> String {
    let mut text = "too many arguments".to_owned();
    for argument in arguments {
        let argument = String::from_utf8_lossy(argument);
        if argument.to_lowercase().starts_with("http") {
            text.push_str(", did you mean --peer-urls=");
            text.push_str(&argument);
        }
    }
    text
}

/// Returns the lines with the environment variables with which the user has to start the new member.
fn start_of_new_member(answer: &pb::MemberAddResponse, name: &str, urls: &str) -> String {
    let new_id = answer.member.as_ref().map_or(0, |m| m.id);
    let cluster: Vec<String> = answer
        .members
        .iter()
        .flat_map(|member| {
            let name = if member.id == new_id { name } else { &member.name };
            member.peer_urls.iter().map(move |url| format!("{name}={url}"))
        })
        .collect();
    format!(
        "\nETCD_NAME={}\nETCD_INITIAL_CLUSTER={}\nETCD_INITIAL_ADVERTISE_PEER_URLS={}\n\
         ETCD_INITIAL_CLUSTER_STATE=\"existing\"\n",
        quote(name.as_bytes()),
        quote(cluster.join(",").as_bytes()),
        quote(urls.as_bytes())
    )
}

/// Returns an error for URLs that etcd's Go client refuses to send.
fn check_peer_urls(urls: &[String]) -> Result<(), Failure> {
    urls.iter().try_for_each(|url| check_peer_url(url, |text| cli::go::quote(text))).map_err(Failure::error)
}

fn split(urls: &str) -> Vec<String> {
    urls.split(',').map(str::to_owned).collect()
}

fn member_id(call: &Call) -> Result<u64, Failure> {
    let [id] = call.args() else { return Err(Failure::bad_args("member ID is not provided")) };
    numbers::unsigned(id, 16)
        .map_err(|error| Failure::bad_args(format!("bad member ID arg ({error}), expecting ID in Hex")))
}

pub(super) async fn remove(call: &Call) -> Result<(), Failure> {
    let id = member_id(call)?;
    let connection = call.connect().await?;
    let request = pb::MemberRemoveRequest { id };
    let answer = call.limited(connection.call(Rpc::ClusterMemberRemove, &request)).await?;
    call.show(&Answer::MemberRemove(id, &answer))
}

pub(super) async fn update(call: &Call) -> Result<(), Failure> {
    let id = member_id(call)?;
    let urls = call.matches.get(UPDATE_PEER_URLS);
    if urls.is_empty() {
        return Err(Failure::bad_args(NO_PEER_URLS));
    }
    let request = pb::MemberUpdateRequest { id, peer_urls: split(urls) };
    let connection = call.connect().await?;
    check_peer_urls(&request.peer_urls)?;
    let answer = call.limited(connection.call(Rpc::ClusterMemberUpdate, &request)).await?;
    call.show(&Answer::MemberUpdate(id, &answer))
}

pub(super) async fn promote(call: &Call) -> Result<(), Failure> {
    let id = member_id(call)?;
    let connection = call.connect().await?;
    let request = pb::MemberPromoteRequest { id };
    let answer = call.limited(connection.call(Rpc::ClusterMemberPromote, &request)).await?;
    call.show(&Answer::MemberPromote(id, &answer))
}

pub(super) async fn list(call: &Call) -> Result<(), Failure> {
    let linearizable = !serializable(&call.matches)?;
    let connection = call.connect().await?;
    let answer = call.limited(members(&connection, linearizable)).await?;
    call.show(&Answer::MemberList(&answer))
}

/// Requests the list of members.
pub(super) async fn members(
    connection: &Client,
    linearizable: bool,
) -> Result<pb::MemberListResponse, api::Status> {
    connection.call(Rpc::ClusterMemberList, &pb::MemberListRequest { linearizable }).await
}
