//! `member`: who belongs to the cluster.

use api::etcdserverpb as pb;
use cli::go::quote;

use super::get::serializable;
use crate::call::{Call, utf8};
use crate::failure::Failure;
use crate::numbers;
use crate::peer_urls;
use crate::printer::{Answer, Format};
use client::Client;

const NO_PEER_URLS: &str = "member peer urls not provided";

pub(super) async fn add(call: &Call) -> Result<(), Failure> {
    let name = match call.args() {
        [] => return Err(Failure::bad_args("member name not provided")),
        [name] => utf8(name)?,
        many => return Err(Failure::bad_args(too_many(many))),
    };
    let urls = call.matches.text("peer-urls");
    if urls.is_empty() {
        return Err(Failure::bad_args(NO_PEER_URLS));
    }
    let request = pb::MemberAddRequest { peer_urls: split(urls), is_learner: call.matches.flag("learner") };
    let connection = call.connect().await?;
    peer_urls::check(&request.peer_urls).map_err(Failure::error)?;
    let answer: pb::MemberAddResponse =
        call.limited(connection.call("/etcdserverpb.Cluster/MemberAdd", &request)).await?;
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

/// The environment that the new member is to be started with.
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
    let answer = call.limited(connection.call("/etcdserverpb.Cluster/MemberRemove", &request)).await?;
    call.show(&Answer::MemberRemove(id, &answer))
}

pub(super) async fn update(call: &Call) -> Result<(), Failure> {
    let id = member_id(call)?;
    let urls = call.matches.text("peer-urls");
    if urls.is_empty() {
        return Err(Failure::bad_args(NO_PEER_URLS));
    }
    let request = pb::MemberUpdateRequest { id, peer_urls: split(urls) };
    let connection = call.connect().await?;
    peer_urls::check(&request.peer_urls).map_err(Failure::error)?;
    let answer = call.limited(connection.call("/etcdserverpb.Cluster/MemberUpdate", &request)).await?;
    call.show(&Answer::MemberUpdate(id, &answer))
}

pub(super) async fn promote(call: &Call) -> Result<(), Failure> {
    let id = member_id(call)?;
    let connection = call.connect().await?;
    let request = pb::MemberPromoteRequest { id };
    let answer = call.limited(connection.call("/etcdserverpb.Cluster/MemberPromote", &request)).await?;
    call.show(&Answer::MemberPromote(id, &answer))
}

pub(super) async fn list(call: &Call) -> Result<(), Failure> {
    let linearizable = !serializable(&call.matches)?;
    let connection = call.connect().await?;
    let answer = call.limited(members(&connection, linearizable)).await?;
    call.show(&Answer::MemberList(&answer))
}

/// Asks for the members.
pub(super) async fn members(
    connection: &Client,
    linearizable: bool,
) -> Result<pb::MemberListResponse, api::Status> {
    connection.call("/etcdserverpb.Cluster/MemberList", &pb::MemberListRequest { linearizable }).await
}
