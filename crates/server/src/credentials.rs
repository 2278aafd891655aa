//! Prepares the tokens and passwords of a member according to its options: reads the key files that
//! `--auth-token` names, and reads them again when they change.

use std::error::Error;
use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io, thread};

use clock::Clock;
use config::Config;
use identity::jwt::{JwtOptions, KeyError, OptionError};
use identity::passwords::{COST_DEFAULT, COST_MAX, COST_MIN, Cost, InvalidCost};
use identity::{Secret, TokenKind};
use replica::credentials::{CredentialOptions, Credentials};
use telemetry::logging::{Logger, Value};

/// Error returned when a member cannot make tokens as its options require.
#[derive(Debug)]
pub enum CredentialError {
    /// The value of `--auth-token` is not valid.
    Option(OptionError),
    /// A key file cannot be read.
    File {
        /// Path of the file, as given in the option.
        path: String,
        /// Error of the operating system.
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

/// Interval at which the key files are read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of bytes of a key file that are read; every real key is shorter.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a file that `--auth-token` names.
fn read(path: &Option<String>) -> Result<Option<Secret>, CredentialError> {
    let Some(path) = path else { return Ok(None) };
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|error| CredentialError::File { path: path.clone(), error })?;
    Ok(Some(Secret::new(&bytes)))
}

/// The contents of the public key file and of the private key file.
#[derive(Clone, PartialEq)]
struct Contents {
    public: Option<Secret>,
    private: Option<Secret>,
}

impl Contents {
    fn read(options: &JwtOptions) -> Result<Contents, CredentialError> {
        Ok(Contents { public: read(&options.public_file)?, private: read(&options.private_file)? })
    }

    fn bytes(&self) -> (Option<&[u8]>, Option<&[u8]>) {
        (self.public.as_ref().map(Secret::bytes), self.private.as_ref().map(Secret::bytes))
    }
}

/// The key files of JSON Web Tokens, which are read every second while the member runs. A change takes effect
/// when two successive reads see the same contents, so that a half-written file is never used. If the new
/// files are not usable, the keys in use stay.
pub(crate) struct KeyFiles {
    options: JwtOptions,
    /// Contents in use.
    loaded: Contents,
    /// Changed contents seen by the last read, and not in use yet.
    candidate: Option<Contents>,
    /// Reason why the files seen last cannot be used.
    failed: Option<String>,
    /// Contents that [`Self::failed`] refers to; `None` if the files could not be read.
    failed_contents: Option<Contents>,
}

impl KeyFiles {
    /// Reads the files once, and applies a change that was seen twice.
    fn poll(&mut self, credentials: &Credentials, logger: &Logger) {
        let contents = match Contents::read(&self.options) {
            Ok(contents) => contents,
            Err(error) => return self.fail(None, error.to_string(), logger),
        };
        if contents == self.loaded {
            self.candidate = None;
            if self.failed.take().is_some() {
                self.failed_contents = None;
                logger.info("the key files of --auth-token match those in use again", &[]);
            }
        } else if self.candidate.as_ref() != Some(&contents) {
            self.candidate = Some(contents);
        } else if self.failed_contents.as_ref() != Some(&contents) {
            match credentials.replace_keys(self.options.method, contents.bytes()) {
                Ok(()) => {
                    logger.info(
                        "reloaded the key files of --auth-token; tokens signed with removed keys are refused from now on",
                        &[],
                    );
                    (self.failed, self.failed_contents) = (None, None);
                    self.loaded = contents;
                    self.candidate = None;
                }
                Err(error) => self.fail(Some(contents), error.to_string(), logger),
            }
        }
    }

    /// Logs why the files cannot be used; the same reason is logged only once.
    fn fail(&mut self, contents: Option<Contents>, why: String, logger: &Logger) {
        self.failed_contents = contents;
        if self.failed.as_ref() != Some(&why) {
            let fields = [("error", Value::Str(&why))];
            logger.error(
                "cannot use the changed key files of --auth-token; the keys loaded before stay in use",
                &fields,
            );
            self.failed = Some(why);
        }
    }

    /// Starts the thread that polls the files until the member stops.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread cannot be started.
    pub fn watch(mut self, credentials: &Arc<Credentials>, logger: &Arc<Logger>) -> io::Result<()> {
        let (credentials, logger) = (Arc::clone(credentials), Arc::clone(logger));
        thread::Builder::new().name("token-keys".to_owned()).spawn(move || {
            while credentials.wait(POLL_INTERVAL) {
                self.poll(&credentials, &logger);
            }
        })?;
        Ok(())
    }
}

/// Prepares tokens and passwords; `threads` threads hash passwords and sign tokens. If key files are
/// returned, the caller has to start [`KeyFiles::watch`].
pub(crate) fn credentials(
    config: &Config,
    logger: &Logger,
    threads: usize,
) -> Result<(Credentials, Option<KeyFiles>), CredentialError> {
    let tokens = TokenKind::parse(&config.auth.token).map_err(|error| {
        let (message, detail) = error.logged();
        logger.error(message, &[("error", Value::Str(detail))]);
        CredentialError::Option(error)
    })?;
    let cost = Cost::new(config.auth.bcrypt_cost).unwrap_or_else(|InvalidCost { given }| {
        let fields = [
            ("min-cost", Value::Uint(u64::from(COST_MIN))),
            ("max-cost", Value::Uint(u64::from(COST_MAX))),
            ("default-cost", Value::Uint(u64::from(COST_DEFAULT))),
            ("given-cost", Value::Uint(given)),
        ];
        logger.warn(InvalidCost::WARNING, &fields);
        Cost::DEFAULT
    });
    let files = match &tokens {
        TokenKind::Jwt(options) => {
            if !options.unknown.is_empty() {
                let unknown = options.unknown.join(",");
                logger.warn("unknown JWT options", &[("keys", Value::Str(&unknown))]);
            }
            Some(KeyFiles {
                loaded: Contents::read(options)?,
                options: options.clone(),
                candidate: None,
                failed: None,
                failed_contents: None,
            })
        }
        TokenKind::None | TokenKind::Simple => None,
    };
    let options = CredentialOptions { tokens, token_ttl: config.auth.token_ttl, cost };
    let random = Box::new(identity::system_entropy());
    let keys = files.as_ref().map(|files| files.loaded.bytes()).unwrap_or_default();
    let made = Credentials::new(&options, keys, Clock::real(), random, threads);
    Ok((made.map_err(CredentialError::Key)?, files))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{IpAddr, Ipv4Addr};

    use machine::auth::AuthChange;
    use numbers::Index;
    use telemetry::logging::{Format, Level};

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Log output that is kept in memory.
    #[derive(Clone, Default)]
    struct Told(Arc<std::sync::Mutex<Vec<u8>>>);

    impl io::Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("is whole").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Told {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock().expect("is whole"))).expect("is text")
        }
    }

    #[test]
    fn changed_key_files_are_used_and_those_that_cannot_be_are_not() {
        let dir = testkit::TempDir::new("token-keys");
        let (public, private) = (dir.path().join("public"), dir.path().join("private"));
        fs::write(&private, "first secret").expect("is written");
        let option = format!("jwt,sign-method=HS256,priv-key={}", private.display());
        let TokenKind::Jwt(mut options) = TokenKind::parse(&option).expect("is right") else {
            panic!("is jwt")
        };
        let told = Told::default();
        let logger = Logger::to(Level::Info, Format::Json, vec![Box::new(told.clone())]);
        let config_options =
            CredentialOptions { tokens: TokenKind::Jwt(options.clone()), ..CredentialOptions::default() };
        let loaded = Contents::read(&options).expect("is there");
        let random = Box::new(identity::system_entropy());
        let made = Credentials::new(&config_options, loaded.bytes(), Clock::real(), random, 0);
        let credentials = Arc::new(made.expect("the key fits"));
        credentials.auth_changed(&AuthChange::Enabled, 3);
        let token = || {
            let issued = credentials.issue(ADDRESS, "bob", "", Index(1), 7);
            testkit::block_on(Duration::from_secs(10), issued).expect("is signed")
        };
        let is_valid = |token: &str| {
            let verified = credentials.verify(ADDRESS, token.as_bytes());
            testkit::block_on(Duration::from_secs(10), verified).expect("there is room");
            credentials.session(token.as_bytes(), Index(1)).is_ok()
        };
        let mut files = KeyFiles {
            options: options.clone(),
            loaded,
            candidate: None,
            failed: None,
            failed_contents: None,
        };
        let first = token();
        assert!(is_valid(&first));
        // Files that cannot be used: a deleted file, and an empty file.
        fs::remove_file(&private).expect("is removed");
        (0..3).for_each(|_| files.poll(&credentials, &logger));
        assert_eq!(told.take().matches("stay in use").count(), 1, "it is said once");
        fs::write(&private, "").expect("is written");
        (0..4).for_each(|_| files.poll(&credentials, &logger));
        assert_eq!(told.take().matches("missing key data").count(), 1);
        assert!(is_valid(&first));
        fs::write(&private, "first secret").expect("is written");
        files.poll(&credentials, &logger);
        assert!(told.take().contains("match those in use again"));
        // A different key takes effect at the second read.
        fs::write(&private, "second secret").expect("is written");
        files.poll(&credentials, &logger);
        assert!(is_valid(&first) && told.take().is_empty());
        files.poll(&credentials, &logger);
        let text = told.take();
        assert!(text.contains("reloaded") && !text.contains("secret"), "{text}");
        assert!(!is_valid(&first));
        assert!(is_valid(&token()));
        // A file that the options do not name is never read.
        options.public_file = Some(public.display().to_string());
        assert!(Contents::read(&options).is_err());
    }

    #[test]
    fn the_thread_that_looks_at_key_files_ends_with_the_member() {
        let credentials = Arc::new(Credentials::simple(Clock::real(), Box::new(identity::system_entropy())));
        assert!(credentials.wait(Duration::ZERO));
        let waiting = Arc::clone(&credentials);
        let thread = thread::spawn(move || waiting.wait(Duration::from_secs(3600)));
        credentials.stop();
        assert!(!thread.join().expect("ends"), "it is told so");
    }
}
