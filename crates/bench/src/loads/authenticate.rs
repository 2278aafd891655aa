//! `authenticate`: names and passwords, again and again; what a client without token reuse does to a server.

use api::Rpc;
use loadgen::drive::{Request, Step, Workload, done};
use loadgen::status::Status;
use loadgen::wire::Message;

/// Logs in with each operation.
pub struct Authenticate {
    /// The name, or what the names of many users begin with.
    pub name: String,
    /// The password of all of them.
    pub password: String,
    /// How many users log in in turn, with a number from 0 behind their names; 0 for one user of that name.
    pub users: u64,
}

impl Workload for Authenticate {
    type Client = ();

    fn begin(&mut self, (): &mut (), number: u64, request: &mut Request) -> Step {
        request.method = Rpc::Authenticate;
        let name = match number.checked_rem(self.users) {
            None => self.name.clone(),
            Some(user) => format!("{}{user}", self.name),
        };
        Message(&mut request.message).bytes(1, name.as_bytes()).bytes(2, self.password.as_bytes());
        Step::Call
    }

    fn answered(&mut self, (): &mut (), status: &Status, _: &mut Request) -> Step {
        done(status)
    }
}

#[cfg(test)]
mod tests {
    use loadgen::wire::Fields;

    use super::*;

    #[test]
    fn users_log_in_in_turn() {
        let named = |users, number| {
            let mut load = Authenticate { name: "user".to_owned(), password: "p".to_owned(), users };
            let mut request = Request { method: Rpc::KvRange, message: Vec::new(), keep: false };
            load.begin(&mut (), number, &mut request);
            assert_eq!(Fields(&request.message).bytes(2), b"p");
            String::from_utf8_lossy(Fields(&request.message).bytes(1)).into_owned()
        };
        assert_eq!([0, 1, 2].map(|number| named(2, number)), ["user0", "user1", "user0"]);
        assert_eq!(named(0, 5), "user");
    }
}
