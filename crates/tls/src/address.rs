//! Checks that a client's certificate matches the address from which the client connects, by the rules that
//! etcd has for other members.

use std::net::IpAddr;

use crate::certificate::Certificate;
use crate::host_name;
use crate::refusal::Refusal;
use crate::settings::quoted;

/// Maximum number of names of a certificate whose addresses are looked up; further names are ignored. etcd
/// has no limit.
const MAX_LOOK_UPS: usize = 16;
/// Maximum number of names or addresses that are examined in the answer to one look-up; further ones are
/// ignored.
const MAX_ANSWERS: usize = 64;

/// Result of [`crate::ServerTls::check_address`], or the name look-ups that are needed for the result.
///
/// A certificate matches if it contains neither names nor addresses, or if it contains the client's address.
/// It also matches if it contains one of the names to which the client's address resolves (`*.` stands for
/// any prefix), or a name that resolves to the client's address.
#[derive(Debug)]
pub enum AddressCheck {
    /// The certificate matches the address.
    Passed,
    /// The certificate does not match the address; the connection must be closed.
    Refused(Refusal),
    /// The result depends on name look-ups. They may take long, so they must not run on a thread that serves
    /// other connections.
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

/// One name look-up that a check needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Asks for the names of this address.
    Names(IpAddr),
    /// Asks for the addresses of this name.
    Addresses(String),
}

/// Check of an address that needs name look-ups, at most 17. The caller performs each look-up that
/// [`LookUp::question`] returns and passes the result to [`LookUp::answer`]. When there is no further
/// question, [`LookUp::outcome`] returns the result of the check. On a thread that may block,
/// [`LookUp::resolve`] does all of this.
#[derive(Debug)]
pub struct LookUp {
    remote: IpAddr,
    shown: Vec<String>,
    names: Vec<String>,
    /// Wildcard names of the certificate, without their `*`.
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

    /// Processes the result of the look-up that [`Self::question`] returned: names, addresses in text form,
    /// or the error of the look-up.
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

    /// Returns the result of the check. To be called when [`Self::question`] returns `None`.
    ///
    /// # Errors
    /// Returns a refusal if the certificate does not match the address, possibly because look-ups have
    /// failed.
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

    /// Performs all look-ups with `resolver` and returns the result of the check. Blocks while the resolver
    /// blocks.
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

/// Looks up names and addresses. The methods may block.
pub trait Resolver {
    /// Returns the names of an address.
    ///
    /// # Errors
    /// Returns a message for the log if no name is found.
    fn names(&self, address: IpAddr) -> Result<Vec<String>, String>;

    /// Returns the addresses of a name.
    ///
    /// # Errors
    /// Returns a message for the log if no address is found.
    fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, String>;
}
