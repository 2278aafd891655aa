//! Implements the command `txn-put`: measures transactions of puts.

use cli::{Command, Failure, Flag};

use super::Run;
use crate::given::{KEY_SPACE_SIZE, RUN_FLAGS, natural, positive, rate, size, total};
use crate::loads::write::{Keys, TxnPut};
use crate::session::Session;

const KEY_SIZE: Flag<i64> = Flag::int("key-size", "8", "Key size of txn put");
const RATE: Flag<i64> = rate("Maximum txns per second (0 is no limit)");
const TOTAL: Flag<i64> = total("Total number of txn requests");
const TXN_OPS: Flag<i64> = Flag::int("txn-ops", "1", "Number of puts per txn");
const VAL_SIZE: Flag<i64> = Flag::int("val-size", "8", "Value size of txn put");

pub(super) const TXN_PUT: Command<Run> = Command {
    name: "txn-put",
    usage: "txn-put",
    about: "Benchmark txn-put",
    flags: &[KEY_SIZE.row(), KEY_SPACE_SIZE.row(), RATE.row(), TOTAL.row(), TXN_OPS.row(), VAL_SIZE.row()],
    shared_flags: RUN_FLAGS,
    example: "  bench --clients 100 txn-put --txn-ops 10 --key-space-size 1000",
    run: Some(Run::of(txn_put)),
    ..Command::EMPTY
};

fn txn_put(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let space = positive(matches, KEY_SPACE_SIZE)?;
    let operations = natural(matches, TXN_OPS)?;
    if operations > space {
        return Err(Failure::error(format!(
            "expected --txn-ops no larger than --key-space-size, got txn-ops({operations}) key-space-size({space})"
        )));
    }
    let (key, value) = (size(matches, KEY_SIZE)?, size(matches, VAL_SIZE)?);
    session.unary(&["txn-put"], "%s\n", TOTAL, |seed| {
        Ok(TxnPut::new(Keys::new(key, space).map_err(Failure::error)?, value, operations, seed))
    })
}
