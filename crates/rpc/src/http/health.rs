//! Answers `/health`, and the probes `/livez` and `/readyz`, which also have a path for each single check.
//! Failures are logged with etcd's messages.

use std::fmt;

use ::http::header::CONTENT_TYPE;
use ::http::{Response, StatusCode};
use api::etcdserverpb::{AlarmType, RangeRequest};
use api::{Status, error};
use bytes::Bytes;
use machine::range;
use serde_json::Value;
use telemetry::logging::{self, Logger};

use super::{Asked, Confirmed, PLAIN, plain, reply};

/// One check of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
}

/// A probe path with its checks.
struct Endpoint {
    name: &'static str,
    checks: &'static [Check],
}

/// The probes, with their checks in the order in which they run and are listed. In etcd the order is random.
const ENDPOINTS: [Endpoint; 2] = [
    Endpoint { name: "livez", checks: &[Check::SerializableRead] },
    Endpoint {
        name: "readyz",
        checks: &[Check::DataCorruption, Check::SerializableRead, Check::LinearizableRead, Check::NonLearner],
    },
];

/// The checks that a path selects: all checks of an endpoint, or a single check.
pub(super) struct Probe {
    endpoint: &'static Endpoint,
    only: Option<Check>,
}

/// Returns the probe at a path such as `/readyz` or `/readyz/non_learner`.
pub(super) fn find(path: &str) -> Option<Probe> {
    let mut parts = path.strip_prefix('/')?.splitn(2, '/');
    let (name, check) = (parts.next()?, parts.next());
    let endpoint = ENDPOINTS.iter().find(|endpoint| endpoint.name == name)?;
    let only = match check {
        None => None,
        Some(check) => Some(*endpoint.checks.iter().find(|each| each.name() == check)?),
    };
    Some(Probe { endpoint, only })
}

/// Reason why a check fails; displayed as etcd's message.
enum Fault {
    /// The CORRUPT alarm is raised.
    Corrupt,
    /// The member is a learner.
    Learner,
    /// A read failed.
    Read(ReadFault),
}

/// Reason why the read of a health check fails.
enum ReadFault {
    /// The cluster did not confirm that the state is new enough.
    Unconfirmed(Status),
    /// The state cannot be read.
    Failed(range::Failure),
}

impl From<ReadFault> for Fault {
    fn from(fault: ReadFault) -> Fault {
        Fault::Read(fault)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Corrupt => write!(f, "alarm activated: {}", AlarmType::Corrupt.as_str_name()),
            Fault::Learner => f.write_str("not supported for learner"),
            Fault::Read(fault) => fault.fmt(f),
        }
    }
}

impl fmt::Display for ReadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadFault::Unconfirmed(status) => f.write_str(&status.message),
            ReadFault::Failed(failure) => f.write_str(&failure.clone().text()),
        }
    }
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Check::DataCorruption => "data_corruption",
            Check::SerializableRead => "serializable_read",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
        }
    }

    /// Runs the check.
    ///
    /// # Errors
    ///
    /// Returns the reason if the check fails.
    fn run(self, asked: &Asked<'_>) -> Result<(), Fault> {
        let state = asked.state;
        match self {
            Check::DataCorruption if state.alarms.any(AlarmType::Corrupt as i32) => Err(Fault::Corrupt),
            Check::SerializableRead => Ok(read(asked, true)?),
            Check::LinearizableRead => Ok(read(asked, false)?),
            Check::NonLearner if is_learner(asked) => Err(Fault::Learner),
            Check::DataCorruption | Check::NonLearner => Ok(()),
        }
    }
}

fn is_learner(asked: &Asked<'_>) -> bool {
    asked
        .state
        .members
        .by_id
        .get(&asked.shared.member.identity.member_id)
        .is_some_and(|member| member.is_learner)
}

/// Makes the read of a health check: the first key of the state, without its value.
fn read(asked: &Asked<'_>, serializable: bool) -> Result<(), ReadFault> {
    if !serializable && !asked.state.reads_local {
        match asked.confirmed {
            Some(Confirmed(confirmed)) => confirmed.clone().map_err(ReadFault::Unconfirmed)?,
            None => return Err(ReadFault::Unconfirmed(error::NO_LEADER)),
        }
    }
    let every_key = Bytes::from_static(b"\0");
    let request = RangeRequest { range_end: every_key, keys_only: true, limit: 1, ..RangeRequest::default() };
    match range::select(&asked.state.view.snapshot(), &request, asked.values) {
        Ok(_) => Ok(()),
        Err(failure) => Err(ReadFault::Failed(failure)),
    }
}

impl Probe {
    /// Runs the checks that are not excluded. `exclude` applies only to an endpoint as a whole; a check that
    /// is requested by its own path always runs.
    pub(super) fn answer(&self, asked: &Asked<'_>, path: &str) -> Response<Bytes> {
        let excluded = |check: &Check| asked.query.all("exclude").any(|name| name == check.name().as_bytes());
        self.log_unknown(asked);
        let checks: Vec<Check> = match self.only {
            Some(check) => vec![check],
            None => self.endpoint.checks.iter().copied().filter(|check| !excluded(check)).collect(),
        };
        let mut report = String::new();
        let mut healthy = true;
        for check in checks {
            let (name, outcome) = (check.name(), check.run(asked));
            asked.shared.diagnostics.metrics.health.check(self.endpoint.name, name).record(outcome.is_ok());
            match outcome {
                Ok(()) => report.push_str(&format!("[+]{name} ok\n")),
                Err(why) => {
                    healthy = false;
                    report.push_str(&format!("[-]{name} failed: {why}\n"));
                }
            }
        }
        if !healthy {
            asked.logger.error(
                "Health check error",
                &[
                    ("path", logging::Value::Str(path)),
                    ("reason", logging::Value::Str(&report)),
                    ("status-code", logging::Value::Uint(503)),
                ],
            );
            // After a failure, the whole report is sent, even without `verbose`. As in etcd, it ends with a
            // blank line.
            report.push('\n');
            return plain(StatusCode::SERVICE_UNAVAILABLE, report);
        }
        asked.logger.debug(
            "Health check OK",
            &[
                ("path", logging::Value::Str(path)),
                ("reason", logging::Value::Str(&report)),
                ("status-code", logging::Value::Uint(200)),
            ],
        );
        if !asked.query.has("verbose") {
            report.clear();
        }
        report.push_str("ok\n");
        plain(StatusCode::OK, report)
    }

    /// Logs a warning for excluded checks that the endpoint does not have. They are not an error, because
    /// another version may have them.
    fn log_unknown(&self, asked: &Asked<'_>) {
        let is_known = |name: &[u8]| self.endpoint.checks.iter().any(|check| check.name().as_bytes() == name);
        let mut unknown: Vec<&[u8]> = match self.only {
            None => asked.query.all("exclude").filter(|name| !name.is_empty() && !is_known(name)).collect(),
            Some(_) => return,
        };
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.is_empty() {
            return;
        }
        let quoted: Vec<String> =
            unknown.iter().map(|name| format!("{:?}", String::from_utf8_lossy(name))).collect();
        let quoted = quoted.join(",");
        let fields = [("missing-health-checks", logging::Value::Str(&quoted))];
        asked.logger.warn_of_strangers("some health checks cannot be excluded", &fields);
    }
}

/// Answers `/health`: checks the alarms, then for a leader, then a read. With `serializable=true` the leader
/// is not checked and the read is local.
pub(super) fn health(asked: &Asked<'_>) -> Response<Bytes> {
    let wrong = why_unhealthy(asked);
    let metrics = &asked.shared.diagnostics.metrics.health;
    let reason = Value::from(wrong.as_deref().unwrap_or_default());
    let mut body = format!(r#"{{"health":"{}","reason":{reason}}}"#, wrong.is_none());
    if wrong.is_some() {
        metrics.failures.inc();
        let fields = [("output", logging::Value::Str(&body)), ("status-code", logging::Value::Uint(503))];
        asked.logger.warn("/health error", &fields);
        body.push('\n');
        return plain(StatusCode::SERVICE_UNAVAILABLE, body);
    }
    metrics.successes.inc();
    asked.logger.debug("/health OK", &[("status-code", logging::Value::Uint(200))]);
    reply(StatusCode::OK, &[(CONTENT_TYPE, PLAIN)], body.into())
}

fn why_unhealthy(asked: &Asked<'_>) -> Option<String> {
    for raised in asked.state.alarms.list(0, 0) {
        let name = raised.alarm().as_str_name();
        let alarm = format!("memberID:{} alarm:{name}", raised.member_id);
        if asked.query.all("exclude").any(|excluded| excluded == name.as_bytes()) {
            asked.logger.debug("/health excluded alarm", &[("alarm", logging::Value::Str(&alarm))]);
            continue;
        }
        let fields = [("alarm", logging::Value::Str(&alarm))];
        asked.logger.warn("serving /health false due to an alarm", &fields);
        let known = matches!(raised.alarm(), AlarmType::Nospace | AlarmType::Corrupt);
        return Some(format!("ALARM {}", if known { name } else { "UNKNOWN" }));
    }
    let serializable = asked.query.first("serializable") == Some(b"true");
    if !serializable && asked.state.leader == 0 {
        asked.logger.warn("serving /health false; no leader", &[]);
        return Some("RAFT NO LEADER".to_owned());
    }
    match read(asked, serializable) {
        Ok(()) => {
            asked.logger.debug("serving /health true", &[]);
            None
        }
        Err(why) => {
            let fields = [("error", logging::Value::Display(&why))];
            asked.logger.warn("serving /health false; Range fails", &fields);
            Some(format!("RANGE ERROR:{why}"))
        }
    }
}

/// Logs a health request whose method is not GET: for the probe at `path`, or for `/health` if `path` is
/// `None`.
pub(super) fn log_method(logger: &Logger, path: Option<&str>) {
    let status = ("status-code", logging::Value::Uint(405));
    match path {
        None => logger.warn_of_strangers("/health error", &[status]),
        Some(path) => {
            logger.warn_of_strangers("Health request error", &[("path", logging::Value::Str(path)), status]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_checks() {
        for endpoint in &ENDPOINTS {
            let found = find(&format!("/{}", endpoint.name)).map(|probe| probe.only);
            assert_eq!(found, Some(None));
            for check in endpoint.checks {
                let found = find(&format!("/{}/{}", endpoint.name, check.name())).map(|probe| probe.only);
                assert_eq!(found, Some(Some(*check)));
            }
        }
        for path in ["", "/", "livez", "/livez/", "/livez/non_learner", "/readyz/x", "/readyz/non_learner/"] {
            assert!(find(path).is_none(), "{path}");
        }
    }
}
