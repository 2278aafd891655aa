//! etcd's two proxies: `gateway`, which forwards TCP connections, and `grpc-proxy`, which forwards calls.
//!
//! Structure: [`run_gateway`] and [`run_grpc_proxy`] are the subcommands with etcd's flags and texts. The
//! gateway does not interpret the data of a connection. The gRPC proxy is a [`front::Service`] that answers
//! each call by calls to the members.
//!
//! The proxies do not know how a member works, what its data directory contains, or who a user is. A client's
//! token is passed to the member unchanged, and the member decides.
//!
//! Invariants:
//! * No response to a client ever comes from a response to a client with another token.
//! * A call goes to a member at most once unless the client crate says that it may be repeated.
//! * Memory and connections per client are bounded (`docs/reference/resources.md`).
//! * A flag that is accepted has its effect; a flag without an effect is refused.
//! * A key that the proxy owns (`leasing/owned.rs`) is returned only as the members have it.
//!
//! Start reading with `gateway.rs` and `service.rs` (how each call is answered); `watches.rs` and
//! `leasing/owned.rs` decide without IO. Tests: beside the code; `tests/it`, against fronts of the tests and
//! raw sockets; `mainstay/tests/it/proxy.rs` and `proxy_layers.rs`, with the binary.

#![forbid(unsafe_code)]

mod background;
mod cache;
mod commands;
mod discovery;
mod gateway;
mod grpc_proxy;
mod hub;
mod leasing;
mod members;
mod metrics;
mod namespace;
mod options;
mod outbox;
mod pages;
mod renewals;
mod resolver;
mod service;
mod streams;
mod upstream;
mod watches;

use std::ffi::OsString;
use std::process::ExitCode;

use cli::{Invocation, Io, Matches, Program};
use telemetry::logging::Logger;

pub use commands::{GATEWAY, GRPC_PROXY};
pub use gateway::{Gateway, GatewayOptions, Remote};
pub use grpc_proxy::{GrpcProxy, StartError};
pub use options::{ListenOptions, MemberOptions, ProxyOptions};

/// Called once when the proxy serves; notifies the service manager.
pub type Ready<'a> = &'a dyn Fn(&Logger);

/// Runs `gateway` in this process, forever unless it cannot start. `args` are the arguments after the
/// subcommand's name.
pub fn run_gateway(args: &[OsString], ready: Ready<'_>) -> ExitCode {
    run(&GATEWAY, "gateway", args, |matches| gateway::command(matches, ready))
}

/// Runs `grpc-proxy` in this process, forever unless it cannot start. `args` are the arguments after the
/// subcommand's name.
pub fn run_grpc_proxy(args: &[OsString], ready: Ready<'_>) -> ExitCode {
    run(&GRPC_PROXY, "grpc-proxy", args, |matches| grpc_proxy::command(matches, ready))
}

/// Parses the arguments as cobra does, and runs the command. Prints its error to standard error.
fn run(
    program: &Program<()>,
    name: &str,
    args: &[OsString],
    command: impl FnOnce(&Matches) -> Result<(), String>,
) -> ExitCode {
    let io = Io::of_process();
    let words: Vec<OsString> = std::iter::once(name.into()).chain(args.iter().cloned()).collect();
    let matches = match program.parse(&words, []) {
        Ok(Invocation::Run(matches, ())) => matches,
        Ok(Invocation::Help(text)) => {
            io.out.notice(text);
            return ExitCode::SUCCESS;
        }
        Ok(Invocation::Group(matches)) => {
            io.out.notice(program.help(&matches.path));
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            // cobra prints the error and the usage, etcd's main prints the error again, without a newline.
            io.err.notice(format!("Error: {error}\n{}\n{error}", program.usage(&error.path)));
            return ExitCode::FAILURE;
        }
    };
    match command(&matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            io.err.notice(format!("{text}\n"));
            ExitCode::FAILURE
        }
    }
}
