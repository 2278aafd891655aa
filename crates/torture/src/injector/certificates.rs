//! Injects faults of certificates: replaces, revokes or corrupts certificates, and replaces authorities.

use std::io;
use std::time::{Duration, Instant};

use api::Rpc;
use api::etcdserverpb as pb;
use client::Tls;
use prost::Message;

use super::Injector;
use crate::cluster::Cluster;
use crate::pki::{ClientCertificate, Pki};
use crate::security::{WORKER, count};

/// Time within which a running member must load TLS files that the injector has changed. Mainstay promises
/// two seconds; this limit is higher, because the machine may be busy.
const RELOAD_TIME_MAX: Duration = Duration::from_secs(20);
/// Time within which a member must close the connections of a revoked certificate, after it has read the
/// revocation list.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);
/// Interval between two checks of a condition that must become true.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Text that a running member logs when it has loaded changed TLS files: once if files for connections to
/// clients have changed, and once if files for connections to other members have changed.
const RELOADED: &str = "reloaded TLS files";
/// Text that a running member logs when it cannot use changed TLS files.
const KEPT: &str = "cannot use changed TLS files";

/// Sets of TLS files in which the injector changes some or all files. Each member has two sets, which it
/// reloads separately: `client.*` for connections to clients, and `peer.*` for connections to other members.
#[derive(Clone, Copy)]
enum Sides {
    /// `client.*` and `peer.*` of all members.
    Both,
    /// `client.*` of all members.
    Clients,
    /// `peer.*` of all members except `but`.
    Peers { but: usize },
}

impl Injector<'_> {
    fn pki(&self) -> io::Result<&Pki> {
        self.cluster.security().pki.as_ref().ok_or_else(|| io::Error::other("there are no certificates"))
    }

    /// Calls `write` for one member after the other, and waits until each of them has loaded its changed TLS
    /// files. `write` must change files of every set that `sides` names, and of no other set. Sometimes kills
    /// a member meanwhile.
    fn change(
        &mut self,
        bar: usize,
        sides: Sides,
        write: impl Fn(&Pki, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut all = self.all();
        if let Sides::Peers { but } = sides {
            all.retain(|at| *at != but);
        }
        self.rng.shuffle(&mut all);
        let mut waits = Vec::new();
        for at in all {
            let logged = self.cluster.log_bytes(at);
            write(self.pki()?, at)?;
            waits.push((at, logged));
            if self.rng.percent(30) {
                let time = Duration::from_millis(self.rng.between(0, 2500));
                self.wait(time);
            }
        }
        let killed = self.rng.percent(25).then(|| self.leader_or_any());
        if let Some(at) = killed {
            // The member that is killed loads the new files when it starts again.
            self.chronicle.detail(bar, &[at], &format!("m{at} killed meanwhile"));
            self.cluster.kill(at)?;
            self.wait(Duration::from_millis(300));
            self.cluster.start(at)?;
            // Wait until the member has loaded its files. It does not log a reload for files that it loads at
            // its start. So if it started while the next files are written, the next wait would count a wrong
            // number of reloads.
            self.cluster.wait_until_it_listens(at)?;
        }
        for (at, logged) in waits.into_iter().filter(|(at, _)| Some(*at) != killed) {
            let times = match sides {
                Sides::Both => 2,
                Sides::Clients | Sides::Peers { .. } => 1,
            };
            self.wait_for_words(at, logged, RELOADED, times)?;
            count(&self.cluster.security().figures.reloads);
        }
        Ok(())
    }

    /// Waits until a member's output after byte `from` contains these words at least `times` times.
    fn wait_for_words(&self, at: usize, from: u64, words: &str, times: usize) -> io::Result<()> {
        let deadline = Instant::now() + RELOAD_TIME_MAX;
        while self.cluster.times_said(at, from, words) < times {
            if Instant::now() > deadline {
                let seconds = RELOAD_TIME_MAX.as_secs();
                return Err(io::Error::other(format!("m{at} does not say {words:?} within {seconds} s")));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Checks that all members present their current certificates to new clients.
    fn look_at_shown(&mut self) -> io::Result<()> {
        self.cluster.recover()?;
        for at in self.all() {
            let deadline = Instant::now() + RELOAD_TIME_MAX;
            loop {
                let wanted = self.pki()?.shown(at);
                let tls = self.pki()?.issue_client(WORKER)?.load()?;
                let shown = self.cluster.certificate_of(at, &tls);
                if shown.as_ref().is_ok_and(|shown| *shown == wanted) {
                    break;
                }
                if Instant::now() > deadline {
                    let text = match shown {
                        Ok(_) => "it shows another certificate than the one in its files".to_owned(),
                        Err(error) => error.to_string(),
                    };
                    self.chronicle.trouble("certificate not taken over", format!("m{at}: {text}"));
                    break;
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }

    /// Checks that no member accepts a client with these TLS settings, and records a violation for each that
    /// does.
    fn look_at_refused(&mut self, what: &str, tls: &Tls) -> io::Result<()> {
        self.cluster.recover()?;
        for at in self.all() {
            count(&self.cluster.security().figures.intrusions);
            if self.cluster.lets_in(at, tls) {
                let text = format!("m{at} let in a client with {what}");
                self.chronicle.trouble("intruder", text);
            }
        }
        Ok(())
    }

    /// Replaces the certificates of all members and clients; the authorities stay the same.
    pub(super) fn rotate_leaves(&mut self, bar: usize) -> io::Result<()> {
        let all = self.all();
        self.tell(bar, &all, "all members and clients get new certificates");
        self.change(bar, Sides::Both, Pki::write_leaves)?;
        self.pki()?.renew_clients();
        self.look_at_shown()
    }

    /// Replaces the authorities, in three steps: members trust the new ones in addition; the new ones issue
    /// all certificates; members no longer trust the old ones.
    pub(super) fn rotate_authorities(&mut self, bar: usize) -> io::Result<()> {
        let all = self.all();
        self.tell(bar, &all, "new authorities beside the old ones");
        let old = self.pki()?.issue_client(WORKER)?;
        self.pki()?.add_authorities()?;
        self.change(bar, Sides::Both, Pki::write_trust)?;
        self.pki()?.renew_clients();
        self.tell(bar, &all, "the new ones issue");
        self.pki()?.issue_by_newest();
        self.change(bar, Sides::Both, Pki::write_leaves)?;
        self.pki()?.renew_clients();
        self.look_at_shown()?;
        self.tell(bar, &all, "the old ones are not trusted any longer");
        self.pki()?.drop_old_authorities();
        self.change(bar, Sides::Both, Pki::write_trust)?;
        self.pki()?.renew_clients();
        // This client trusts only the old authorities, so it would reject the members' new certificates, and
        // the members would not get to check its own. Let it accept any certificate.
        let stranger = old.load_trusting_anyone()?;
        self.look_at_refused("a certificate of an authority that is not trusted any longer", &stranger)?;
        self.look_at_shown()
    }

    /// Revokes a client's certificate, and checks that members refuse it, even on connections that were
    /// opened before.
    pub(super) fn revoke_certificate(&mut self, bar: usize) -> io::Result<()> {
        let all = self.all();
        let revoked = self.pki()?.issue_client(WORKER)?;
        let tls = revoked.load()?;
        let mut held = Vec::new();
        for at in self.all() {
            match self.cluster.hold(at, &tls) {
                Ok(channel) => held.push((at, channel)),
                Err(status) => self.chronicle.detail(bar, &[at], &format!("not let in before: {status}")),
            }
        }
        self.tell(bar, &all, &format!("a client's certificate, number {}, is revoked", revoked.serial));
        self.pki()?.revoke(revoked.serial);
        self.change(bar, Sides::Clients, Pki::write_trust)?;
        self.cluster.recover()?;
        // Test the revoked certificate twice: the client must be refused when it resumes a TLS session from
        // before the revocation, and when it makes a full handshake.
        self.look_at_refused("a revoked certificate and an earlier session", &tls)?;
        self.look_at_refused("a revoked certificate", &revoked.load()?)?;
        let deadline = Instant::now() + CLOSE_TIME_MAX;
        for (at, channel) in held {
            while self.cluster.answers(&channel) {
                if Instant::now() > deadline {
                    let text = format!("m{at} still answers over a connection whose certificate is revoked");
                    self.chronicle.trouble("intruder", text);
                    break;
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        if !self.rng.percent(50) {
            self.revoked.push(revoked);
            return Ok(());
        }
        self.tell(bar, &all, &format!("number {} is not revoked any longer", revoked.serial));
        self.pki()?.pardon(revoked.serial);
        self.change(bar, Sides::Clients, Pki::write_trust)?;
        self.cluster.recover()?;
        for at in self.all() {
            let deadline = Instant::now() + RELOAD_TIME_MAX;
            while !self.cluster.lets_in(at, &revoked.load()?) {
                if Instant::now() > deadline {
                    let text =
                        format!("m{at} does not let in a client whose certificate is not revoked any longer");
                    self.chronicle.trouble("kept out", text);
                    break;
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }

    /// Revokes all certificates that a member's open connections to other members may use. The other members
    /// must refuse new connections from it until it has another certificate.
    pub(super) fn revoke_member(&mut self, bar: usize) -> io::Result<()> {
        let at = self.leader_or_any();
        let others: Vec<usize> = self.all().into_iter().filter(|other| *other != at).collect();
        let serial = self.pki()?.revoke_member(at);
        self.tell(bar, &[at], &format!("the certificate of m{at}, number {serial}, is revoked"));
        let logged: Vec<u64> = others.iter().map(|other| self.cluster.log_bytes(*other)).collect();
        self.change(bar, Sides::Peers { but: at }, Pki::write_trust)?;
        if others.is_empty() {
            return Ok(());
        }
        // The revoked member tries again and again to connect. Each time, the others log why they refuse it.
        let hex = format!("{serial:x}");
        let words = format!("certificate serial {:0>len$} revoked", hex, len = hex.len().next_multiple_of(2));
        let deadline = Instant::now() + RELOAD_TIME_MAX;
        let says = |cluster: &Cluster| {
            others.iter().zip(&logged).any(|(other, from)| cluster.has_said(*other, *from, &words))
        };
        while !says(self.cluster) {
            if Instant::now() > deadline {
                let text = format!("no member refuses m{at}, although its certificate {serial} is revoked");
                self.chronicle.trouble("intruder", text);
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.last();
        self.tell(bar, &[at], &format!("m{at} has a new certificate"));
        let from = self.cluster.log_bytes(at);
        self.pki()?.write_leaves(at)?;
        self.wait_for_words(at, from, RELOADED, 2)?;
        // Also update the revocation list that this member itself reads.
        let from = self.cluster.log_bytes(at);
        self.pki()?.write_trust(at)?;
        self.wait_for_words(at, from, RELOADED, 1)?;
        self.pki()?.renew_clients();
        self.look_at_shown()
    }

    /// Corrupts a file of a member, and restores it after a while. Meanwhile, the file must have no effect on
    /// any connection.
    pub(super) fn break_pem(&mut self, bar: usize) -> io::Result<()> {
        let at = self.any();
        let files = [
            "client.crt",
            "client.key",
            "client.ca",
            "client.crl",
            "peer.crt",
            "peer.key",
            "peer.ca",
            "peer.crl",
        ];
        let name = files.get(self.rng.index(files.len())).copied().unwrap_or("client.crt");
        let path = self.pki()?.file(at, name);
        let good = std::fs::read(&path)?;
        let (bad, how) = match self.rng.below(3) {
            0 => (good.get(..good.len() / 2).unwrap_or_default().to_vec(), "cut in half"),
            1 => (b"-----BEGIN CERTIFICATE-----\nnothing of the kind\n-----END".to_vec(), "garbled"),
            _ => (Vec::new(), "empty"),
        };
        // Even an empty file must have no effect. An empty revocation list is invalid, and an empty file of
        // authorities must not change whom the member trusts.
        self.tell(bar, &[at], &format!("{name} of m{at} is {how}"));
        let logged = self.cluster.log_bytes(at);
        std::fs::write(&path, bad)?;
        let said = self.wait_for_words(at, logged, KEPT, 1);
        let looked = self.look_at_shown();
        self.last();
        let looked_again = self.look_at_shown();
        std::fs::write(&path, good)?;
        said.and(looked).and(looked_again)
    }

    /// Checks at the end of the run that members still refuse all revoked certificates.
    pub fn look_at_revoked(&mut self) -> io::Result<()> {
        for revoked in std::mem::take(&mut self.revoked) {
            let words = format!("the revoked certificate {}, at the end", revoked.serial);
            self.look_at_refused(&words, &revoked.load()?)?;
        }
        Ok(())
    }
}

/// Returns the call with which the program tests whether a client is accepted.
pub(crate) fn question() -> (Rpc, bytes::Bytes) {
    let request = pb::RangeRequest { key: "none".into(), serializable: true, ..pb::RangeRequest::default() };
    (Rpc::KvRange, request.encode_to_vec().into())
}

/// Client certificates that were revoked during the run.
pub type Revoked = Vec<ClientCertificate>;
