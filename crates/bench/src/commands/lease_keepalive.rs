//! Implements the command `lease-keepalive`: measures the renewal of leases.

use cli::{Command, Failure, Flag};

use super::Run;
use crate::given::{RUN_FLAGS, rate, total};
use crate::loads::lease;
use crate::session::Session;

const TOTAL: Flag<i64> = total("Total number of lease keepalive requests");
const RATE: Flag<i64> = rate("Maximum keepalives per second (0 is no limit)");

pub(super) const LEASE_KEEPALIVE: Command<Run> = Command {
    name: "lease-keepalive",
    usage: "lease-keepalive",
    about: "Benchmark lease keepalive",
    flags: &[TOTAL.row(), RATE.row()],
    shared_flags: RUN_FLAGS,
    example: "  bench --clients 10 lease-keepalive --total 10000",
    run: Some(Run::of(lease_keepalive)),
    ..Command::EMPTY
};

fn lease_keepalive(session: &Session) -> Result<(), Failure> {
    session.unary(&["lease-keepalive"], "%s", TOTAL, |_| Ok(lease::KeepAlive))
}
