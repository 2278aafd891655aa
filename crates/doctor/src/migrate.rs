//! Implements `doctor migrate`, which checks whether the next step of a migration from etcd to Mainstay, or
//! back, is safe, and prints the commands for it.
//!
//! The command collects the same evidence as `doctor` and some more ([`survey`]). Some of the doctor's rules
//! and the rules in [`findings`] judge it. The same command line works before the first step and after each
//! step, because [`next_step()`] depends only on which members run which product.

mod command;
mod directory;
mod findings;
#[cfg(test)]
pub(crate) mod fixture;
mod look;
mod next_step;
mod settings;
mod survey;
mod verdict;

pub(crate) use command::{PROGRAM, WINDOW};
pub use directory::{Directory, OldKeys};
pub use findings::{MIGRATION_RULES, MigrationRule};
pub use look::MigrationPlan;
pub use next_step::{NextStep, next_step};
pub(crate) use next_step::{is_leader, successor, word};
pub use settings::Settings;
pub use survey::{Hashed, Hashes, Leases, Listed, Product, Survey, View};
pub(crate) use verdict::SHARED_RULES;
pub use verdict::{Row, Verdict};
