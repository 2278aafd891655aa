//! Whether a client's certificate is for the address that the client comes from, by etcd's rules for peers.

use std::net::IpAddr;

use crate::certificate::Certificate;
use crate::host_name;
use crate::refusal::Refusal;
use crate::settings::quoted;

/// Most names of a certificate that are looked up. etcd has no bound.
const MAX_LOOK_UPS: usize = 16;
/// Most answers to one question that are looked at.
const MAX_ANSWERS: usize = 64;

/// The answer, or what has to be looked up for it.
///
/// The rules: a certificate without names and addresses is for any address. With addresses one of them must be the client's.
/// Failing that, one of its names must be among those that the client's address has (`*.` stands for any beginning), or
/// the client's address among those of one of its names.
#[derive(Debug)]
pub enum AddressCheck {
    /// The certificate is for the address.
    Passed,
    /// The certificate is not for the address; the connection is to be closed.
    Refused(Refusal),
    /// Names have to be looked up, which takes time: not on a thread that serves others.
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

/// What is to be looked up in the names of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The names of an address.
    Names(IpAddr),
    /// The addresses of a name.
    Addresses(String),
}

/// A check that waits for look-ups. The caller asks [`LookUp::question`] and gives the answer until there is none any more
/// (by a thread of its own: [`LookUp::resolve`]), then takes the outcome. At most 17 questions are asked.
#[derive(Debug)]
pub struct LookUp {
    remote: IpAddr,
    shown: Vec<String>,
    names: Vec<String>,
    /// Wildcards without their `*`.
    endings: Vec<String>,
    reverse_is_open: bool,
    /// Names whose addresses are not asked for yet, the next one last.
    to_ask: Vec<String>,
    has_matched: bool,
    error: Option<String>,
}

impl LookUp {
    /// The next question; `None` if the outcome is known.
    pub fn question(&self) -> Option<Question> {
        if self.has_matched {
            None
        } else if self.reverse_is_open {
            Some(Question::Names(self.remote))
        } else {
            self.to_ask.last().cloned().map(Question::Addresses)
        }
    }

    /// Takes the answer to [`Self::question`]: names, or addresses as texts, or why there is none.
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

    /// The outcome, once there is no question any more.
    ///
    /// # Errors
    /// The certificate is not for the address, or the questions were not all answered.
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

    /// Asks all questions and takes the outcome. It waits for the resolver: call it on a thread for such work.
    ///
    /// # Errors
    /// As [`Self::outcome`].
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

/// Looks up names. Its methods may wait.
pub trait Resolver {
    /// The names of an address.
    ///
    /// # Errors
    /// Why there are none, for the log.
    fn names(&self, address: IpAddr) -> Result<Vec<String>, String>;

    /// The addresses of a name.
    ///
    /// # Errors
    /// Why there are none, for the log.
    fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, String>;
}
