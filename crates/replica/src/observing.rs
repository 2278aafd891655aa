//! Defines the registration that an observer sends to its feeder ([`ObserverCard`]), and the state of each
//! observer as its feeder reports it ([`ObserverStanding`]).

use std::time::Duration;

use consensus::ProgressState;
use numbers::{Index, MemberId};
use serde_json::{Value, json};

use crate::cluster_version::{Minor, minor};

/// Path of an observer's registration (POST) on the peer URLs of its feeder.
pub const OBSERVERS: &str = "/mainstay/observers";
/// Time after which an observer that has not renewed its registration is no longer fed.
pub const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which an observer renews its registration.
pub const REGISTRATION_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of observers that a member or an observer feeds.
pub const OBSERVERS_MAX: usize = 64;
/// Longest registration in bytes.
pub const CARD_BYTES_MAX: usize = 16 << 10;
/// Maximum number of URLs of each kind, and of bytes of a text in a registration.
const URLS_MAX: usize = 16;
const TEXT_BYTES_MAX: usize = 1024;

/// What an observer says about itself when it registers with its feeder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObserverCard {
    /// Id of the observer; chosen at random when its data directory is new.
    pub id: u64,
    /// Human-readable name.
    pub name: String,
    /// URLs at which its feeder reaches it; at least one.
    pub peer_urls: Vec<String>,
    /// URLs at which it serves clients.
    pub client_urls: Vec<String>,
    /// Name of its zone; empty if it has none.
    pub zone: String,
    /// Release of Mainstay that it runs.
    pub release: String,
    /// Release of etcd whose API it offers; `None` if it does not say.
    pub api_version: Option<Minor>,
    /// Random number that differs between two starts of the observer.
    pub start: u64,
}

impl ObserverCard {
    /// Returns the card as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "id": format!("{:x}", self.id),
            "name": self.name,
            "peerURLs": self.peer_urls,
            "clientURLs": self.client_urls,
            "zone": self.zone,
            "release": self.release,
            "apiVersion": self.api_version.map(|version| version.to_string()).unwrap_or_default(),
            "start": format!("{:x}", self.start),
        })
    }

    /// Reads a card.
    ///
    /// # Errors
    ///
    /// Returns a message that says what is wrong with it.
    pub fn from_json(body: &[u8]) -> Result<ObserverCard, String> {
        let value: Value = serde_json::from_slice(body).map_err(|error| format!("not JSON: {error}"))?;
        let text = |name: &str| match value.get(name) {
            None => Ok(String::new()),
            Some(Value::String(text)) if text.len() <= TEXT_BYTES_MAX => Ok(text.clone()),
            Some(_) => Err(format!("{name:?} is not a text of at most {TEXT_BYTES_MAX} bytes")),
        };
        let urls = |name: &str| -> Result<Vec<String>, String> {
            let list = match value.get(name) {
                None => return Ok(Vec::new()),
                Some(Value::Array(list)) if list.len() <= URLS_MAX => list,
                Some(_) => return Err(format!("{name:?} is not a list of at most {URLS_MAX} URLs")),
            };
            let url = |url: &Value| match url {
                Value::String(url) if url.len() <= TEXT_BYTES_MAX => Ok(url.clone()),
                _ => Err(format!("{name:?} contains something that is no URL")),
            };
            list.iter().map(url).collect()
        };
        let card = ObserverCard {
            id: u64::from_str_radix(&text("id")?, 16).unwrap_or(0),
            name: text("name")?,
            peer_urls: urls("peerURLs")?,
            client_urls: urls("clientURLs")?,
            zone: text("zone")?,
            release: text("release")?,
            api_version: minor(&text("apiVersion")?),
            start: u64::from_str_radix(&text("start")?, 16).unwrap_or(0),
        };
        if card.id == 0 {
            return Err("\"id\" is not a hexadecimal number other than 0".to_owned());
        }
        if card.peer_urls.is_empty() {
            return Err("\"peerURLs\" is empty: the feeder could not reach the observer".to_owned());
        }
        Ok(card)
    }
}

/// State of an observer, as its feeder reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserverStanding {
    /// Name, URLs and versions of the observer, from its registration.
    pub card: ObserverCard,
    /// Index of the newest entry that is known to be on the observer's disk.
    pub matched: Index,
    /// Number of entries that the feeder has applied and the observer has not acknowledged.
    pub lag_entries: u64,
    /// False if the observer has not answered for two election timeouts.
    pub is_active: bool,
    /// The mode in which it is fed.
    pub state: ProgressState,
}

impl ObserverStanding {
    /// Returns the name of the mode in which the observer is fed.
    pub fn state(&self) -> &'static str {
        match self.state {
            ProgressState::Probe => "probe",
            ProgressState::Replicate => "replicate",
            ProgressState::Snapshot { .. } => "snapshot",
        }
    }
}

/// A feeder's answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Id of the feeder.
    pub feeder: MemberId,
    /// Id of the node that feeds the feeder itself; [`MemberId::NONE`] if the feeder is a member.
    pub fed_by: MemberId,
    /// Interval of the feeder's heartbeats.
    pub heartbeat_interval: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_survives_its_json_and_bad_ones_are_refused_with_the_reason() {
        let card = ObserverCard {
            id: 0xab,
            name: "reader".to_owned(),
            peer_urls: vec!["http://10.0.0.9:2380".to_owned()],
            client_urls: vec!["http://10.0.0.9:2379".to_owned()],
            zone: "b".to_owned(),
            release: "1.0.0".to_owned(),
            api_version: Some(Minor(3, 7)),
            start: 9,
        };
        assert_eq!(ObserverCard::from_json(card.to_json().to_string().as_bytes()), Ok(card.clone()));
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        for (bad, reason) in [
            ("{".to_owned(), "not JSON"),
            (json!({ "id": "0", "peerURLs": ["u"] }).to_string(), "hexadecimal"),
            (json!({ "id": "zz", "peerURLs": ["u"] }).to_string(), "hexadecimal"),
            (json!({ "id": "a" }).to_string(), "\"peerURLs\" is empty"),
            (json!({ "id": "a", "peerURLs": "u" }).to_string(), "not a list"),
            (json!({ "id": "a", "peerURLs": [7] }).to_string(), "no URL"),
            (json!({ "id": "a", "peerURLs": vec!["u"; URLS_MAX + 1] }).to_string(), "not a list"),
            (json!({ "id": "a", "peerURLs": ["u"], "name": long }).to_string(), "\"name\""),
        ] {
            let refused = ObserverCard::from_json(bad.as_bytes()).expect_err(&bad);
            assert!(refused.contains(reason), "{refused}");
        }
    }
}
