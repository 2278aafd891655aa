//! Implements the command `responder`: runs a server that answers every request immediately, without doing
//! any work.

use std::sync::atomic::AtomicBool;

use crate::loadgen::responder::{self, Responder};
use cli::{Command, Failure, Flag};

use super::Run;
use crate::given;
use crate::given::size;
use crate::session::Session;
use crate::{Error, tls};

const LISTEN: Flag<String> =
    Flag::text("listen", "127.0.0.1:0", "`HOST:PORT` to listen on; port 0 is any free one, and is printed");
const VAL_SIZE: Flag<i64> = Flag::int("val-size", "1024", "Size of the value that a range answers with");
const SERVER_CERT: Flag<String> = Flag::text("server-cert", "", "certificate for TLS");
const SERVER_KEY: Flag<String> = Flag::text("server-key", "", "key of --server-cert");

pub(super) const RESPONDER: Command<Run> = Command {
    name: "responder",
    usage: "responder",
    about: "Answer every request immediately, without doing any work",
    flags: &[LISTEN.row(), VAL_SIZE.row(), SERVER_CERT.row(), SERVER_KEY.row()],
    example: "  bench responder --listen 127.0.0.1:12379",
    run: Some(Run::of(responder).without(&[
        given::CACERT.row(),
        given::CERT.row(),
        given::CLIENTS.row(),
        given::CONNS.row(),
        given::CSV.row(),
        given::DIAL_TIMEOUT.row(),
        given::ENDPOINTS.row(),
        given::HTML.row(),
        given::INSECURE_SKIP_TLS_VERIFY.row(),
        given::JSON.row(),
        given::KEY.row(),
        given::PID.row(),
        given::PRECISE.row(),
        given::REPORT_PERFDASH.row(),
        given::SAMPLE.row(),
        given::USER.row(),
    ])),
    ..Command::EMPTY
};

fn responder(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let (cert, key) = (matches.get(SERVER_CERT), matches.get(SERVER_KEY));
    if cert.is_empty() != key.is_empty() {
        return Err(Failure::usage("--server-cert and --server-key must be given together"));
    }
    let options = responder::Options {
        value_bytes: size(matches, VAL_SIZE)?,
        tls: if cert.is_empty() { None } else { Some(tls::server(cert, key).map_err(Failure::error)?) },
        ..responder::Options::default()
    };
    let listen = matches.get(LISTEN);
    let mut responder = Responder::bind(listen, options).map_err(Error::at(listen))?;
    let address = responder.address().map_err(Failure::error)?;
    session.say(&format!("{address}\n"))?;
    responder.run(&AtomicBool::new(false)).map_err(Failure::error)
}
