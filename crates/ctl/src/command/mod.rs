//! The commands, one file per family.

mod alarm;
mod auth;
mod compaction;
mod defrag;
mod del;
mod downgrade;
mod elect;
mod endpoint;
mod get;
mod lease;
mod lock;
mod member;
mod mirror;
mod move_leader;
mod put;
mod role;
mod snapshot;
mod txn;
mod user;
mod version;
mod watch;
mod watch_arguments;

mod check_datascale;
mod check_perf;

pub(crate) use endpoint::STATUS;
pub(crate) use get::RANGE;

use crate::call::Call;
use crate::failure::Failure;

/// Runs the command with this path below the program's name.
///
/// # Errors
/// What goes wrong, with its exit code.
pub(crate) async fn run(path: &[&str], call: &Call) -> Result<(), Failure> {
    match path {
        ["get"] => get::get(call).await,
        ["put"] => put::put(call).await,
        ["del"] => del::del(call).await,
        ["txn"] => txn::txn(call).await,
        ["compaction"] => compaction::compaction(call).await,
        ["watch"] => watch::watch(call).await,
        ["lease", "grant"] => lease::grant(call).await,
        ["lease", "revoke"] => lease::revoke(call).await,
        ["lease", "timetolive"] => lease::time_to_live(call).await,
        ["lease", "list"] => lease::list(call).await,
        ["lease", "keep-alive"] => lease::keep_alive(call).await,
        ["member", "add"] => member::add(call).await,
        ["member", "remove"] => member::remove(call).await,
        ["member", "update"] => member::update(call).await,
        ["member", "promote"] => member::promote(call).await,
        ["member", "list"] => member::list(call).await,
        ["endpoint", "health"] => endpoint::health(call).await,
        ["endpoint", "status"] => endpoint::status(call).await,
        ["endpoint", "hashkv"] => endpoint::hashkv(call).await,
        ["alarm", "list"] => alarm::list(call).await,
        ["alarm", "disarm"] => alarm::disarm(call).await,
        ["defrag"] => defrag::defrag(call).await,
        ["snapshot", "save"] => snapshot::save(call).await,
        ["move-leader"] => move_leader::move_leader(call).await,
        ["downgrade", "validate"] => downgrade::validate(call).await,
        ["downgrade", "enable"] => downgrade::enable(call).await,
        ["downgrade", "cancel"] => downgrade::cancel(call).await,
        ["lock"] => lock::lock(call).await,
        ["elect"] => elect::elect(call).await,
        ["auth", "enable"] => auth::enable(call).await,
        ["auth", "disable"] => auth::disable(call).await,
        ["auth", "status"] => auth::status(call).await,
        ["user", "add"] => user::add(call).await,
        ["user", "delete"] => user::delete(call).await,
        ["user", "get"] => user::get(call).await,
        ["user", "list"] => user::list(call).await,
        ["user", "passwd"] => user::passwd(call).await,
        ["user", "grant-role"] => user::grant_role(call).await,
        ["user", "revoke-role"] => user::revoke_role(call).await,
        ["role", "add"] => role::add(call).await,
        ["role", "delete"] => role::delete(call).await,
        ["role", "get"] => role::get(call).await,
        ["role", "list"] => role::list(call).await,
        ["role", "grant-permission"] => role::grant_permission(call).await,
        ["role", "revoke-permission"] => role::revoke_permission(call).await,
        ["make-mirror"] => mirror::make_mirror(call).await,
        ["check", "perf"] => check_perf::check(call).await,
        ["check", "datascale"] => check_datascale::check(call).await,
        ["version"] => version::version(call),
        path => unreachable!("{path:?} is in the table of commands, but nothing runs it"),
    }
}
