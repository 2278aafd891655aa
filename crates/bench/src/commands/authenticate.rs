//! Implements the command `authenticate`: measures logins.

use cli::{Command, Failure, Flag};

use super::Run;
use crate::given::{RUN_FLAGS, USER, credentials, rate};
use crate::loads::authenticate::Authenticate;
use crate::session::Session;

const TOTAL: Flag<i64> = Flag::int("total", "100", "Total number of logins");
const USERS: Flag<i64> = Flag::int(
    "users",
    "0",
    "Number of users that log in in turn, all with the password in --user. Their names are the name in --user followed by 0, 1, ...; 0 means only the user in --user itself",
);
const RATE: Flag<i64> = rate("Maximum logins per second (0 is no limit)");

pub(super) const AUTHENTICATE: Command<Run> = Command {
    name: "authenticate",
    usage: "authenticate",
    about: "Benchmark logins of --user",
    flags: &[TOTAL.row(), USERS.row(), RATE.row()],
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
    let users =
        u64::try_from(matches.get(USERS)).map_err(|_| Failure::usage("--users must not be negative"))?;
    session.unary(&["authenticate"], "%s", TOTAL, |_| {
        let (name, password) = (name.clone(), password.clone());
        Ok(Authenticate { name, password, users })
    })
}
