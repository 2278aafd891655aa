//! Checks a client's certificate against the address that the client connects from, by etcd's rules for
//! peers.

use std::net::IpAddr;

use crate::certificate::Certificate;
use crate::host_name;
use crate::refusal::Refusal;
use crate::settings::quoted;

/// Maximum number of names of a certificate that are looked up. etcd has no limit.
const MAX_LOOK_UPS: usize = 16;
/// Maximum number of results of one question that are examined.
const MAX_ANSWERS: usize = 64;

/// Result of an address check, or the look-ups that it needs.
///
/// A certificate without names and addresses passes for every address. A certificate passes if the client's
/// address is one of its addresses. It also passes if one of its names is among the names of the client's
/// address (`*.` matches any prefix), or if the client's address is among the addresses of one of its names.
#[derive(Debug)]
pub enum AddressCheck {
    /// The certificate matches the address.
    Passed,
    /// The certificate does not match the address; the connection must be closed.
    Refused(Refusal),
    /// Names must be looked up, which may take long and must not block a thread that serves other
    /// connections.
    Ask(LookUp),
}

impl AddressCheck {
    pub(crate) fn begin(certificate: &Certificate<'_>, remote: IpAddr) -> AddressCheck {
        let remote = remote.to_canonical();
        if !certificate.ip_addresses.is_empty() {
            match host_name::verify(certificate, &remote.to_string()) {
                Ok(()) => return AddressCheck::Passed,
                Err(problem) if certificate.dns_names.is_empty() => {
                    return AddressCheck::Refused(Refusal::WrongAddress(problem));
                }
                Err(_) => {}
            }
        }
        if certificate.dns_names.is_empty() {
            return AddressCheck::Passed;
        }
        let listed: Vec<String> = certificate.dns_names.iter().map(|name| (*name).to_owned()).collect();
        let (wildcards, mut names): (Vec<String>, Vec<String>) =
            listed.iter().cloned().partition(|name| name.starts_with("*."));
        let endings = wildcards.iter().filter_map(|name| name.strip_prefix('*')).map(str::to_owned).collect();
        let shown = if listed.len() > 100 { vec![format!("{} names", listed.len())] } else { listed };
        let all_names = names.clone();
        names.truncate(MAX_LOOK_UPS);
        names.reverse();
        AddressCheck::Ask(LookUp {
            remote,
            shown,
            names: all_names,
            endings,
            reverse_is_open: true,
            to_ask: names,
            has_matched: false,
            error: None,
        })
    }
}

/// Question for a name look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Asks for the names of an address.
    Names(IpAddr),
    /// Asks for the addresses of a name.
    Addresses(String),
}

/// Check that needs look-ups. The caller takes each [`LookUp::question`] and passes its answer to
/// [`LookUp::answer`] until there is no question left ([`LookUp::resolve`] does this for a blocking thread),
/// then takes the outcome. At most 17 questions are asked.
#[derive(Debug)]
pub struct LookUp {
    remote: IpAddr,
    shown: Vec<String>,
    names: Vec<String>,
    /// Suffixes of wildcard names, without their `*`.
    endings: Vec<String>,
    reverse_is_open: bool,
    /// Names whose addresses are still to be looked up, in reverse order: the last element is looked up next.
    to_ask: Vec<String>,
    has_matched: bool,
    error: Option<String>,
}

impl LookUp {
    /// Returns the next question; `None` if the outcome is known.
    pub fn question(&self) -> Option<Question> {
        if self.has_matched {
            None
        } else if self.reverse_is_open {
            Some(Question::Names(self.remote))
        } else {
            self.to_ask.last().cloned().map(Question::Addresses)
        }
    }

    /// Takes the answer to [`Self::question`]: names, or addresses as texts, or the error of the look-up.
    pub fn answer(&mut self, answer: Result<Vec<String>, String>) {
        let answer = answer.unwrap_or_else(|error| {
            self.error = Some(error);
            Vec::new()
        });
        let mut answers = answer.iter().take(MAX_ANSWERS);
        if self.reverse_is_open {
            self.reverse_is_open = false;
            self.has_matched = answers.any(|name| {
                let name = name.strip_suffix('.').unwrap_or(name);
                self.names.iter().any(|listed| listed == name)
                    || self.endings.iter().any(|ending| name.ends_with(ending.as_str()))
            });
        } else if self.to_ask.pop().is_some() {
            self.has_matched = answers
                .filter_map(|address| address.parse::<IpAddr>().ok())
                .any(|address| address.to_canonical() == self.remote);
        }
    }

    /// Returns the outcome; to be called when no question is left.
    ///
    /// # Errors
    /// Returns a refusal if the certificate does not match the address, or if look-ups failed.
    pub fn outcome(self) -> Result<(), Refusal> {
        if self.has_matched {
            return Ok(());
        }
        let why = self.error.map(|error| format!(" ({error})")).unwrap_or_default();
        Err(Refusal::WrongAddress(format!(
            "tls: \"{}\" does not match any of DNSNames {}{why}",
            self.remote,
            quoted(&self.shown)
        )))
    }

    /// Asks all questions and returns the outcome. Blocks while the resolver does.
    ///
    /// # Errors
    /// Returns the errors of [`Self::outcome`].
    pub fn resolve(mut self, resolver: &dyn Resolver) -> Result<(), Refusal> {
        while let Some(question) = self.question() {
            let answer = match &question {
                Question::Names(address) => resolver.names(*address),
                Question::Addresses(name) => resolver
                    .addresses(name)
                    .map(|addresses| addresses.iter().map(IpAddr::to_string).collect()),
            };
            self.answer(answer);
        }
        self.outcome()
    }
}

/// Resolver for names and addresses. Its methods may block.
pub trait Resolver {
    /// Returns the names of an address.
    ///
    /// # Errors
    /// Returns a text for the log if no name is found.
    fn names(&self, address: IpAddr) -> Result<Vec<String>, String>;

    /// Returns the addresses of a name.
    ///
    /// # Errors
    /// Returns a text for the log if no address is found.
    fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, String>;
}
