//! Faults of users: authentication goes off and on.

use std::io;
use std::time::{Duration, Instant};

use super::Injector;
use crate::administrator::{Known, switch};

/// How long it may take until authentication is known to be on again.
const SWITCH_TIME_MAX: Duration = Duration::from_secs(30);
/// Between two attempts.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

impl Injector<'_> {
    /// Switches authentication off, and on again after a while. Clients go on: those without a token need none meanwhile, and those
    /// with one need another one behind it.
    pub(super) fn switch_authentication(&mut self, bar: usize) -> io::Result<()> {
        let at = self.any();
        let off = self.cluster.administer(at, &switch(false));
        let text = match off {
            Known::Done => "authentication is off",
            Known::Refused => "authentication stays on",
            Known::Unknown => "nobody knows whether authentication is off",
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
