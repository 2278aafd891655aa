//! etcd's two proxies: `gateway`, which forwards TCP connections, and `grpc-proxy`, which forwards calls.
//!
//! Structure: [`run_gateway`] and [`run_grpc_proxy`] run the two subcommands, with etcd's flags and messages.
//! The gateway does not interpret the data of a connection. The gRPC proxy is a [`front::Service`] (a service
//! behind Mainstay's gRPC server) that makes calls to members in order to answer a client's call.
//!
//! The proxies do not know how a member works, what its data directory contains, or who a user is. They pass
//! a client's token to the member unchanged, and the member decides.
//!
//! Invariants:
//! * A member's response to one client is reused for another client only if the two clients have the same
//!   credentials.
//! * A call goes to a member at most once unless the client crate says that it may be repeated.
//! * Memory and connections per client are bounded (`docs/reference/resources.md`).
//! * Every accepted flag has an effect; a flag without an effect is refused.
//! * Reads of keys that the proxy owns (`leasing/owned.rs`) always return the members' current value.
//!
//! Start reading with `gateway.rs` and `service.rs` (how each call is answered); `watches.rs` and
//! `leasing/owned.rs` contain the decisions, without IO. Tests: beside the code; `tests/it`, against servers
//! of the tests and raw sockets; `mainstay/tests/it/proxy.rs` and `proxy_layers.rs`, with the binary.

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
mod probes;
mod proximity;
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
pub use probes::ZoneOptions;

/// Function that the proxy calls once, as soon as clients can connect. It tells the service manager that the
/// process is ready.
pub type Ready<'a> = &'a dyn Fn(&Logger);

/// Runs `gateway` in this process. `args` are the arguments after the subcommand's name. Returns only if the
/// gateway cannot start, or after it has printed the requested help.
pub fn run_gateway(args: &[OsString], ready: Ready<'_>) -> ExitCode {
    run(&GATEWAY, "gateway", args, |matches| gateway::command(matches, ready))
}

/// Runs `grpc-proxy` in this process. `args` are the arguments after the subcommand's name. Returns only if
/// the proxy cannot start, or after it has printed the requested help.
pub fn run_grpc_proxy(args: &[OsString], ready: Ready<'_>) -> ExitCode {
    run(&GRPC_PROXY, "grpc-proxy", args, |matches| grpc_proxy::command(matches, ready))
}

/// Parses the arguments as cobra (etcd's library for command lines) does, and runs the command. Prints an
/// error to standard error.
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
            // The output is etcd's: cobra prints the error and the usage, and then etcd's `main` prints the
            // error again, without a newline.
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
