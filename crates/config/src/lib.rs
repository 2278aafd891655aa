//! Parses and checks the options of a member. Parser, environment variables, help text and documentation are
//! all derived from one table of flags.
//!
//! Input is the arguments and the environment, or the file of `--config-file`. Output is a [`Config`], or a
//! [`Refusal`] with etcd's message and exit code. The crate reads no other files, and uses no sockets or
//! clocks.
//!
//! Invariants: no option is accepted and silently ignored ([`flag::Status`]); a [`Config`] has passed every
//! check that is possible without access to the machine. The crate does not know what a member does with an
//! option.
//!
//! Start reading with `table.rs` (the flags), [`Config`], [`parse`] and `validation.rs` (checks across
//! flags). Tests: beside the code, and `tests/it/options.rs`, which also compares `docs/flags.md`.

#![forbid(unsafe_code)]

mod bootstrap;
mod config;
mod config_file;
mod discovery;
pub mod feature_gate;
pub mod flag;
mod help;
mod parser;
mod refusal;
mod settings;
pub mod table;
mod tls_options;
pub use api::url;
mod validation;
mod yaml;

pub use api::API_VERSION;
pub use bootstrap::{Bootstrap, BootstrapError, InitialMember};
pub use config::{
    AuditLogOptions, AuthOptions, AutoCompaction, AutopilotMode, AutopilotSettings, CheckOptions,
    ClientOptions, ClusterOptions, CompactionOptions, Config, InitialClusterState, LimitOptions,
    ListenOptions, ObservabilityOptions, ObserverOptions, RaftOptions, StorageOptions, TracingOptions,
    ValueCompression,
};
pub use discovery::{Discovery, DiscoveryService};
pub use feature_gate::FeatureGates;
pub use help::{commit, flag_help, flags_page, set_commit, usage, version_text};
pub use parser::parse;
pub use refusal::Refusal;
pub use telemetry::logging::{Entry, Format, Level, LogOutput, LogSettings};
pub use telemetry::metrics::MetricsDetail;
pub use tls_options::TlsOptions;
pub use url::Url;

/// The action that the command line requests.
#[derive(Clone, Debug)]
pub enum Invocation {
    /// Run a member.
    Serve(Box<Parsed>),
    /// Print [`usage`] on stderr and [`flag_help`] on stdout, and exit with 0.
    Help,
    /// Print [`version_text`] on stdout, and exit with 0.
    Version,
}

/// A valid configuration, and messages for the operator that are logged once the log is open.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The configuration.
    pub config: Config,
    /// Entries to be logged as warnings.
    pub warnings: Vec<Entry>,
    /// Entries to be logged at the info level.
    pub notices: Vec<Entry>,
}
