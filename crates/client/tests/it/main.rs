//! Tests of the client against a small gRPC server that is part of the tests.

mod calls;
mod concurrency;
mod discovery;
mod lease;
mod preference;
mod server;
mod store;
mod tls;
mod users;
mod watcher;

use std::time::Duration;

/// Runs a test on a new runtime. Fails the test after 20 seconds.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), test).await.expect("in time") });
}
