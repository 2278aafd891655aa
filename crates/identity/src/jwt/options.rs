//! Parses the options of `--auth-token` for JSON Web Tokens.

use std::fmt;

use super::method::{Method, Named};

/// The options of `jwt,…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtOptions {
    /// Value of `sign-method`.
    pub method: Method,
    /// Value of `pub-key`: path of the file with public keys, which the caller reads.
    pub public_file: Option<String>,
    /// Value of `priv-key`: path of the file with the private key or secret, which the caller reads.
    pub private_file: Option<String>,
    /// Value of `ttl` in nanoseconds; 5 minutes if not given. Durations in Go's format may be negative.
    pub ttl_ns: i64,
    /// Unknown options. etcd warns `unknown JWT options` and lists them in `keys`.
    pub unknown: Vec<String>,
}

/// Error returned when `--auth-token` is refused. Its message is the one with which etcd exits;
/// [`OptionError::logged`] returns the message that etcd logs before it exits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionError {
    /// An option is not of the form `name=value`, or is given twice. Contains the whole value of
    /// `--auth-token`.
    Malformed(String),
    /// The kind is neither `simple` nor `jwt`.
    UnknownKind(String),
    /// `ttl` is not a duration. Contains Go's error message.
    Ttl(String),
    /// A key file cannot be read. Contains the error message of the operating system, which the caller fills
    /// in.
    Unreadable(String),
    /// `sign-method` is missing or unknown.
    Method,
    /// `sign-method` is known but not supported: `none`, or `ES512`.
    UnsupportedMethod(&'static str),
}

impl OptionError {
    /// Returns the message that etcd logs, and its detail: the field `option`, `type` or `error`.
    pub fn logged(&self) -> (&'static str, &str) {
        match self {
            OptionError::Malformed(given) => ("invalid token option", given),
            OptionError::UnknownKind(kind) => ("unknown token type", kind),
            OptionError::Ttl(why) | OptionError::Unreadable(why) => ("problem loading JWT options", why),
            OptionError::Method => ("problem loading JWT options", "auth: invalid auth signature method"),
            OptionError::UnsupportedMethod(why) => ("problem loading JWT options", why),
        }
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OptionError::UnsupportedMethod(why) => why,
            _ => "auth: invalid auth options",
        })
    }
}

impl std::error::Error for OptionError {}

/// Options by name, in the order in which they were given.
pub(crate) type Given<'a> = Vec<(&'a str, &'a str)>;

/// Splits `kind,name=value,…`. As in etcd, repeated names are refused. To use several public keys, put them
/// into one file.
pub(crate) fn split(text: &str) -> Result<(&str, Given<'_>), OptionError> {
    let malformed = || OptionError::Malformed(text.to_owned());
    let mut parts = text.split(',');
    let kind = parts.next().unwrap_or_default();
    let mut options = Given::new();
    for part in parts {
        let (name, value) =
            part.split_once('=').filter(|(_, value)| !value.contains('=')).ok_or_else(malformed)?;
        if options.iter().any(|(known, _)| *known == name) {
            return Err(malformed());
        }
        options.push((name, value));
    }
    Ok((kind, options))
}

const FIVE_MINUTES_NS: i64 = 300_000_000_000;

impl JwtOptions {
    pub(crate) fn new(options: &[(&str, &str)]) -> Result<JwtOptions, OptionError> {
        // As in etcd, an empty value counts as not given.
        let value = |wanted: &str| {
            options.iter().find(|(name, value)| *name == wanted && !value.is_empty()).map(|(_, value)| *value)
        };
        let ttl_ns = match value("ttl") {
            Some(ttl) => stdx::go::parse_duration(ttl).map_err(|why| OptionError::Ttl(why.to_string()))?,
            None => FIVE_MINUTES_NS,
        };
        let method = match Named::find(value("sign-method").unwrap_or_default()) {
            Named::Method(method) => method,
            Named::Unknown => return Err(OptionError::Method),
            Named::Unsigned => {
                return Err(OptionError::UnsupportedMethod(
                    "unsupported signing method: *jwt.signingMethodNone",
                ));
            }
            Named::Es512 => {
                return Err(OptionError::UnsupportedMethod(
                    "unsupported signing method: ES512: use ES384 or another method",
                ));
            }
        };
        let known = ["sign-method", "pub-key", "priv-key", "ttl"];
        Ok(JwtOptions {
            method,
            public_file: value("pub-key").map(str::to_owned),
            private_file: value("priv-key").map(str::to_owned),
            ttl_ns,
            unknown: options
                .iter()
                .filter(|(name, _)| !known.contains(name))
                .map(|(name, _)| (*name).to_owned())
                .collect(),
        })
    }
}
