//! Faults of certificates: replaced, revoked, broken; by the authorities that were there, or by new ones.

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

/// How long a member may take to use files that changed; it says two seconds.
const RELOAD_TIME_MAX: Duration = Duration::from_secs(20);
/// How long a connection may live on after its certificate was revoked and the files were read.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);
/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What a member's log says of each side when it uses changed files.
const RELOADED: &str = "reloaded TLS files";
/// The same when it cannot.
const KEPT: &str = "cannot use changed TLS files";

/// What members are to do with changed files.
#[derive(Clone, Copy)]
enum Sides {
    Both,
    Clients,
    /// The other members', of all but one member.
    Peers {
        but: usize,
    },
}

impl Injector<'_> {
    fn pki(&self) -> io::Result<&Pki> {
        self.cluster.security().pki.as_ref().ok_or_else(|| io::Error::other("there are no certificates"))
    }

    /// Changes files of all members, one after the other; now and then one is killed meanwhile. Returns when all use them.
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
            // It starts with the new files.
            self.chronicle.detail(bar, &[at], &format!("m{at} killed meanwhile"));
            self.cluster.kill(at)?;
            self.wait(Duration::from_millis(300));
            self.cluster.start(at)?;
            // It has loaded them before others are written: of files that it finds at its start it never says that it uses them.
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

    /// Waits until a member has said something so often.
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

    /// New clients see the certificates that members have to show by now.
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

    /// Nobody gets in with this certificate, at any member.
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

    /// New certificates of the same authorities for all members; clients have new ones, too.
    pub(super) fn rotate_leaves(&mut self, bar: usize) -> io::Result<()> {
        let all = self.all();
        self.tell(bar, &all, "all members and clients get new certificates");
        self.change(bar, Sides::Both, Pki::write_leaves)?;
        self.pki()?.renew_clients();
        self.look_at_shown()
    }

    /// New authorities: trusted beside the old ones at first, then they issue, then the old ones are trusted no longer.
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
        // It trusts nobody new, so only its own certificate is in question where members show new ones: skip both.
        let stranger = old.load_trusting_anyone()?;
        self.look_at_refused("a certificate of an authority that is not trusted any longer", &stranger)?;
        self.look_at_shown()
    }

    /// A certificate that a client uses is revoked.
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
        // With a session of before, and without.
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

    /// The certificates of a member are revoked, whichever its connections were made with: the others do not take new ones until
    /// it has another certificate.
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
        // It connects again and again, and is told why that is in vain.
        let hex = format!("{serial:x}");
        let words = format!("certificate serial {:0>len$} revoked", hex, len = hex.len().next_multiple_of(2));
        let deadline = Instant::now() + RELOAD_TIME_MAX;
        let says = |cluster: &Cluster| {
            others.iter().zip(&logged).any(|(other, from)| cluster.has_said(*other, *from, &words))
        };
        while !says(self.cluster) {
            if Instant::now() > deadline {
                let text = format!("nobody refuses m{at}, whose certificate {serial} is revoked");
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
        // It has the list of the others, too.
        let from = self.cluster.log_bytes(at);
        self.pki()?.write_trust(at)?;
        self.wait_for_words(at, from, RELOADED, 1)?;
        self.pki()?.renew_clients();
        self.look_at_shown()
    }

    /// A file of a member is garbled, and put right after a while. Meanwhile nothing changes for anybody.
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
        // An empty list of revocations is none at all, and no authority is no reason to trust others.
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

    /// At the end: none of the certificates that were revoked is let in.
    pub fn look_at_revoked(&mut self) -> io::Result<()> {
        for revoked in std::mem::take(&mut self.revoked) {
            let words = format!("the revoked certificate {}, at the end", revoked.serial);
            self.look_at_refused(&words, &revoked.load()?)?;
        }
        Ok(())
    }
}

/// What is asked to see whether a client is let in.
pub(crate) fn question() -> (Rpc, bytes::Bytes) {
    let request = pb::RangeRequest { key: "none".into(), serializable: true, ..pb::RangeRequest::default() };
    (Rpc::KvRange, request.encode_to_vec().into())
}

/// Certificates that were revoked in a run.
pub type Revoked = Vec<ClientCertificate>;
