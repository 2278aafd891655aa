//! Defines the load of `authenticate`: repeated logins, like those of a client that does not reuse its token.

use crate::loadgen::drive::{Request, Step, Workload, done};
use crate::loadgen::status::Status;
use crate::loadgen::wire::Message;
use api::Rpc;

/// A workload in which each operation is a login.
pub struct Authenticate {
    /// Name of the user. If `users` is not 0, it is the common prefix of the users' names.
    pub name: String,
    /// Password of all users.
    pub password: String,
    /// Number of users, who log in one after the other. Each name is `name` followed by a number, counted
    /// from 0. If `users` is 0, there is one user, whose name is `name`.
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
    use crate::loadgen::wire::Fields;

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
