//! `doctor migrate`: whether a cluster can be taken from etcd to Mainstay, or back, and which step is next.
//!
//! It is the doctor's look with a few more questions ([`survey`]), judged by some of its rules and by those of [`findings`].
//! The command is the same before the first step and after each: [`next_step()`] goes by which members run what.

mod command;
mod directory;
mod findings;
#[cfg(test)]
mod fixture;
mod look;
mod next_step;
mod settings;
mod survey;
mod verdict;

pub(crate) use command::PROGRAM;
pub use directory::{Directory, OldKeys};
pub use findings::{MIGRATION_RULES, MigrationRule};
pub use look::MigrationPlan;
pub use next_step::{NextStep, next_step};
pub use settings::Settings;
pub use survey::{Hashed, Hashes, Leases, Listed, Product, Survey, View};
pub use verdict::{Row, Verdict};
