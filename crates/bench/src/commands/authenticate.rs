//! `authenticate`: logins.

use cli::{Command, Failure, Flag};

use super::Run;
use crate::given::{RUN_FLAGS, USER, credentials, rate};
use crate::loads::authenticate;
use crate::session::Session;

const TOTAL: Flag<i64> = Flag::int("total", "100", "Total number of logins");
const RATE: Flag<i64> = rate("Maximum logins per second (0 is no limit)");

pub(super) const AUTHENTICATE: Command<Run> = Command {
    name: "authenticate",
    usage: "authenticate",
    about: "Benchmark logins of --user",
    flags: &[TOTAL.row(), RATE.row()],
    shared_flags: RUN_FLAGS,
    example: "  bench --user root:secret --conns 200 --clients 200 authenticate",
    run: Some(Run::of(authenticate)),
    ..Command::EMPTY
};

fn authenticate(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let user = matches.get(USER);
    if user.is_empty() {
        return Err(Failure::usage("authenticate needs --user name:password"));
    }
    let (name, password) = credentials(user, &session.io)?;
    session.unary(&["authenticate"], "%s", TOTAL, |_| Ok(authenticate::authenticate(&name, &password)))
}
