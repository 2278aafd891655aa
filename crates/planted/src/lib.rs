//! Bugs that are planted on purpose, to show that the simulator finds them.
//!
//! What it is: one switch. A place that could go wrong asks [`is`] whether it has to, for one run of the simulator.
//! Without the feature `armed`, which only the simulator's own builds turn on, the answer is a constant `false` and the
//! wrong code is not in the program.
//!
//! What it does not know: what the bugs do; that is written where they are planted.
//!
//! Tests: `cargo test -p mainstay-sim --features planted`.

use std::sync::atomic::{AtomicU8, Ordering};

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $bug:ident = $name:literal;)+) => {
        /// A bug that can be planted. Its documentation says what goes wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Bug { $($(#[doc = $doc])+ $bug),+ }

        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$bug),+];

            /// Its name on a command line.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$bug => $name),+ }
            }

            /// What goes wrong, in a sentence.
            pub fn about(self) -> &'static str {
                match self { $(Bug::$bug => concat!($($doc),+).trim_ascii()),+ }
            }
        }
    };
}

bugs! {
    /// The log reports a batch as durable before it has synced it.
    AckBeforeSync = "ack-before-sync";
}

/// The bug that is planted now, counted from 1; 0 for none.
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Plants a bug in this process, or none.
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8 + 1), Ordering::SeqCst);
}

/// Whether the place that asks has to go wrong.
#[inline(always)]
pub fn is(bug: Bug) -> bool {
    cfg!(feature = "armed") && PLANTED.load(Ordering::Relaxed) == bug as u8 + 1
}
