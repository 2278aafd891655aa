//! The tokens and passwords of a member, as its options have them: reads the key files that `--auth-token` names.

use std::error::Error;
use std::{fmt, fs, io};

use clock::Clock;
use config::Config;
use identity::TokenKind;
use identity::jwt::{KeyError, OptionError};
use identity::passwords::{COST_DEFAULT, COST_MAX, COST_MIN, Cost, InvalidCost};
use replica::credentials::{CredentialOptions, Credentials};
use telemetry::logging::{Logger, Value};

/// Why a member cannot make tokens as its options say.
#[derive(Debug)]
pub enum CredentialError {
    /// `--auth-token` cannot be understood.
    Option(OptionError),
    /// A key file cannot be read.
    File {
        /// The file, as given.
        path: String,
        /// The answer of the operating system.
        error: io::Error,
    },
    /// A key cannot be used.
    Key(KeyError),
}

impl fmt::Display for CredentialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CredentialError::Option(error) => error.fmt(f),
            CredentialError::File { path, error } => {
                write!(f, "cannot read {path}, named by --auth-token: {error}")
            }
            CredentialError::Key(error) => error.fmt(f),
        }
    }
}

impl Error for CredentialError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            CredentialError::Option(error) => Some(error),
            CredentialError::File { error, .. } => Some(error),
            CredentialError::Key(error) => Some(error),
        }
    }
}

/// Prepares tokens and passwords. `threads` hash passwords.
pub(crate) fn credentials(
    config: &Config,
    logger: &Logger,
    threads: usize,
) -> Result<Credentials, CredentialError> {
    let tokens = TokenKind::parse(&config.auth_token).map_err(|error| {
        let (message, detail) = error.logged();
        logger.error(message, &[("error", Value::Str(detail))]);
        CredentialError::Option(error)
    })?;
    let cost = Cost::new(config.bcrypt_cost).unwrap_or_else(|InvalidCost { given }| {
        let fields = [
            ("min-cost", Value::Uint(u64::from(COST_MIN))),
            ("max-cost", Value::Uint(u64::from(COST_MAX))),
            ("default-cost", Value::Uint(u64::from(COST_DEFAULT))),
            ("given-cost", Value::Uint(given)),
        ];
        logger.warn(InvalidCost::WARNING, &fields);
        Cost::DEFAULT
    });
    let read = |path: &Option<String>| {
        let file = |path: &String| {
            fs::read(path).map_err(|error| CredentialError::File { path: path.clone(), error })
        };
        path.as_ref().map(file).transpose()
    };
    let (public, private) = match &tokens {
        TokenKind::Jwt(options) => {
            if !options.unknown.is_empty() {
                let unknown = options.unknown.join(",");
                logger.warn("unknown JWT options", &[("keys", Value::Str(&unknown))]);
            }
            (read(&options.public_file)?, read(&options.private_file)?)
        }
        TokenKind::None | TokenKind::Simple => (None, None),
    };
    let options = CredentialOptions { tokens, token_ttl: config.auth_token_ttl, cost };
    let random = Box::new(identity::system_entropy());
    let keys = (public.as_deref(), private.as_deref());
    Credentials::new(&options, keys, Clock::real(), random, threads).map_err(CredentialError::Key)
}
