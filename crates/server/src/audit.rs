//! Starts and stops the audit log of a member, according to its options.

use std::sync::Arc;

use config::AuditLogOptions;
use replica::shared::Shared;
use telemetry::audit::{AuditLog, Settings};
use telemetry::logging::Logger;

use crate::error::StartError;

/// Opens the audit log if the options name one. Must be called before clients are served.
pub(crate) fn start(
    shared: &Shared,
    options: Option<AuditLogOptions>,
    logger: &Arc<Logger>,
) -> Result<(), StartError> {
    let Some(AuditLogOptions { path, file_bytes_max, files_max, reads }) = options else { return Ok(()) };
    let settings = Settings { path, file_bytes_max, files_max };
    let metrics = shared.diagnostics.metrics.audit.clone();
    match AuditLog::start(&settings, shared.member.clock.clone(), Arc::clone(logger), metrics) {
        // `set` cannot fail: the audit log is set only once.
        Ok(log) => drop(shared.diagnostics.audit.set((Arc::new(log), reads))),
        Err(error) => return Err(StartError::AuditLog { path: settings.path, error }),
    }
    Ok(())
}

/// Callback for each refused TLS handshake.
type Rejections = Arc<dyn Fn(&front::Rejection) + Send + Sync>;

/// Returns a callback that writes refused TLS handshakes to the audit log, and then calls `others`.
pub(crate) fn rejections(shared: &Shared, others: Rejections) -> Rejections {
    let Some((log, _)) = shared.diagnostics.audit.get() else { return others };
    let (log, clock) = (Arc::clone(log), shared.member.clock.clone());
    Arc::new(move |rejected| {
        // Port probes close the connection without a handshake. Nothing is refused then, so nothing is
        // written.
        if !rejected.is_end_of_file {
            let (remote, error) = (rejected.remote, &rejected.error);
            rpc::audit::handshake_refused(&log, remote, error, rejected.not_reported, clock.wall());
        }
        others(rejected);
    })
}

/// Writes the remaining lines and stops the audit log. Must be called when no client is served any more.
pub(crate) fn stop(shared: &Shared) {
    if let Some((log, _)) = shared.diagnostics.audit.get() {
        log.stop();
    }
}
