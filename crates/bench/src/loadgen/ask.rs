//! Makes single calls before and after a load, such as a login or a status request.

use std::time::{Duration, Instant};

use api::Rpc;

use crate::loadgen::Error;
use crate::loadgen::calls::{Calls, Handler, Target};
use crate::loadgen::drive::outcome;
use crate::loadgen::status::Status;
use crate::loadgen::wire::{Fields, Message};

/// A client that makes one call at a time, over one connection.
pub struct Asker {
    calls: Calls,
    longest: Duration,
}

#[derive(Default)]
struct Answer {
    body: Vec<u8>,
    status: Option<Status>,
}

impl Handler for Answer {
    fn message(&mut self, _: &mut Calls, _: u64, body: &[u8]) {
        self.body = body.to_vec();
    }
    fn ended(&mut self, _: &mut Calls, _: u64, status: Status) {
        self.status = Some(status);
    }
    fn turned(&mut self, _: &mut Calls) {}
}

impl Asker {
    /// Connects to the server. Each call may take at most ten seconds.
    pub fn new(target: Target) -> Result<Self, Error> {
        let calls = Calls::open(target, 1).map_err(Error::Dial)?;
        Ok(Self { calls, longest: Duration::from_secs(10) })
    }

    /// Makes a call and returns the response message.
    pub fn ask(&mut self, method: Rpc, write: impl FnOnce(&mut Message)) -> Result<Vec<u8>, Error> {
        let mut message = Vec::new();
        write(&mut Message(&mut message));
        let mut answer = Answer::default();
        self.calls.call(0, method, &message, 0, true);
        let deadline = Instant::now() + self.longest;
        while answer.status.is_none() {
            if Instant::now() > deadline {
                return Err(Error::DeadlineExceeded);
            }
            self.calls.turn(Duration::from_millis(100), &mut answer).map_err(Error::Poll)?;
        }
        outcome(&answer.status.unwrap_or_default())?;
        Ok(answer.body)
    }

    /// Logs in as a user, and returns the auth token.
    pub fn authenticate(&mut self, name: &str, password: &str) -> Result<String, Error> {
        let answer = self.ask(Rpc::Authenticate, |message| {
            message.bytes(1, name.as_bytes()).bytes(2, password.as_bytes());
        })?;
        String::from_utf8(Fields(&answer).bytes(2).to_vec()).map_err(|_| Error::TokenNotText)
    }

    /// Requests the server's status. Returns its version and the size of its database in bytes.
    pub fn status(&mut self) -> Result<(String, u64), Error> {
        let answer = self.ask(Rpc::MaintenanceStatus, |_| ())?;
        let fields = Fields(&answer);
        Ok((String::from_utf8_lossy(fields.bytes(2)).into_owned(), fields.number(3)))
    }
}
