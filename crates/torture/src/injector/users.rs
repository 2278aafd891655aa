//! Injects the fault `auth-off`: disables authentication, and enables it again after a while.

use std::io;
use std::time::{Duration, Instant};

use super::Injector;
use crate::administrator::{Known, switch};

/// Time within which authentication must be enabled again.
const SWITCH_TIME_MAX: Duration = Duration::from_secs(30);
/// Delay between two attempts to enable authentication.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

impl Injector<'_> {
    /// Disables authentication, and enables it again after a while. Meanwhile, clients continue to send
    /// requests. They need no token while authentication is disabled, and a new token afterwards.
    pub(super) fn switch_authentication(&mut self, bar: usize) -> io::Result<()> {
        let at = self.any();
        let off = self.cluster.administer(at, &switch(false));
        let text = match off {
            Known::Done => "authentication is off",
            Known::Refused => "authentication stays on",
            Known::Unknown => "it is unknown whether authentication is off",
        };
        self.tell(bar, &[at], text);
        self.last();
        let deadline = Instant::now() + SWITCH_TIME_MAX;
        loop {
            let at = self.any();
            if self.cluster.administer(at, &switch(true)) == Known::Done {
                self.tell(bar, &[at], "authentication is on");
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::Error::other("authentication cannot be switched on again"));
            }
            self.cluster.look();
            std::thread::sleep(AGAIN_AFTER);
        }
    }
}
