//! The client against a small gRPC server of its own.

mod calls;
mod concurrency;
mod discovery;
mod lease;
mod server;
mod store;
mod tls;
mod users;
mod watcher;
mod zones;

use std::time::Duration;

/// Runs a test on a runtime of its own, and fails it if it takes too long.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), test).await.expect("in time") });
}
