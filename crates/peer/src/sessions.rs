//! Checks whether the peers of open TLS connections are still trusted, and closes the connections of those
//! that are not: [`Sessions`].

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};

use tls::{ClientTls, Refusal, ServerTls, Session};

use crate::slots::ConnectionSlot;

/// All TLS connections of the peer thread.
#[derive(Default)]
pub(crate) struct Sessions {
    open: RefCell<Vec<Weak<TlsConnection>>>,
}

/// Tells which end of a connection this member is, with the settings that say whom it trusts at the other
/// end.
pub(crate) enum Side {
    /// This member has accepted the connection. Contains the connection's slot.
    Accepted(ServerTls, Rc<ConnectionSlot>),
    /// This member has opened the connection.
    Dialed(ClientTls),
}

/// One open TLS connection.
pub(crate) struct TlsConnection {
    side: Side,
    session: Session,
    /// Address or name of the other end, for the log.
    remote: String,
    ended: Cell<bool>,
    /// True once it was reported that the certificate has expired, which is reported only once.
    told_expired: Cell<bool>,
    /// Waker of the task that reads and writes the connection.
    waker: RefCell<Option<Waker>>,
}

impl TlsConnection {
    /// Checks that the connection may continue, and registers the task of `cx`, which is woken when the
    /// connection must end.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection must end now.
    pub(crate) fn check(&self, cx: &Context<'_>) -> io::Result<()> {
        if self.ended.get() {
            let text = "the peer's certificate is no longer valid";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Ok(())
    }

    fn still_valid(&self) -> Result<(), Refusal> {
        match &self.side {
            Side::Accepted(tls, _) => tls.still_valid(&self.session),
            Side::Dialed(tls) => tls.still_valid(&self.session),
        }
    }

    fn still_trusted(&self) -> Result<(), Refusal> {
        match &self.side {
            Side::Accepted(tls, _) => tls.still_trusted(&self.session),
            Side::Dialed(tls) => tls.still_trusted(&self.session),
        }
    }

    fn end(&self) {
        self.ended.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
        if let Side::Accepted(_, slot) = &self.side {
            slot.cut.notify_one();
        }
    }
}

/// Result of a check of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The connection was closed, because the peer's certificate was revoked or its authority is no longer
    /// trusted.
    Closed,
    /// The peer's certificates have expired but were not revoked: the connection stays open. Reported once.
    Expired,
}

impl Sessions {
    /// Adds a connection whose peer was admitted in the handshake, so that it is checked from now on.
    ///
    /// # Errors
    ///
    /// Returns a refusal if TLS files were replaced since the handshake, and the peer is no longer trusted.
    pub(crate) fn watch(
        &self,
        side: Side,
        session: Session,
        remote: String,
    ) -> Result<Rc<TlsConnection>, Refusal> {
        let watched = TlsConnection {
            side,
            session,
            remote,
            ended: Cell::new(false),
            told_expired: Cell::new(false),
            waker: RefCell::default(),
        };
        watched.still_trusted()?;
        let watched = Rc::new(watched);
        let mut open = self.open.borrow_mut();
        // Remove closed connections before the list must grow, so that its length stays proportional to the
        // number of open connections.
        if open.len() == open.capacity() {
            open.retain(|one| one.strong_count() > 0);
        }
        open.push(Rc::downgrade(&watched));
        Ok(watched)
    }

    /// Closes the connections whose peers are no longer trusted. Calls `say` for each finding, with the
    /// address or name of the peer and the reason.
    ///
    /// An expired certificate is reported, but does not close a connection. Otherwise healthy members would
    /// lose each other if all certificates of a cluster expired, or if one member's clock jumped.
    pub(crate) fn end_untrusted(&self, mut say: impl FnMut(Finding, &str, &Refusal)) {
        self.open.borrow_mut().retain(|one| match one.upgrade() {
            Some(one) if !one.ended.get() => {
                if let Err(refusal) = one.still_trusted() {
                    one.end();
                    say(Finding::Closed, &one.remote, &refusal);
                } else if !one.told_expired.get()
                    && let Err(refusal) = one.still_valid()
                {
                    one.told_expired.set(true);
                    say(Finding::Expired, &one.remote, &refusal);
                }
                true
            }
            Some(_) => true,
            None => false,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use testkit::TempDir;
    use testkit::certificates::rcgen::{SerialNumber, date_time_ymd};
    use testkit::certificates::{Clock, Folder, NOW, params};
    use tls::{Settings, Tls};

    use super::*;

    #[test]
    fn a_certificate_that_ends_keeps_its_connections_and_one_that_is_revoked_does_not() {
        let dir = TempDir::in_memory("peer-sessions");
        let folder = Folder::new(dir.path(), "ca");
        let crl = folder.revoke(&[&[1]]);
        let mut params = params("m");
        params.serial_number = Some(SerialNumber::from_slice(&[7]));
        params.not_after = date_time_ymd(2026, 6, 2);
        let leaf = folder.authority.issue(params);

        let clock = Clock::new();
        let settings =
            Settings { trusted_ca_file: Some(folder.ca.clone()), crl_file: Some(crl), ..Settings::default() };
        let (tls, mut reloader) = Tls::load(settings, clock.clone()).unwrap();
        let client = tls.client();
        let session = client.admit(Some(std::slice::from_ref(&leaf.der))).unwrap();
        let sessions = Sessions::default();
        let watch = || sessions.watch(Side::Dialed(client.clone()), session.clone(), "m".to_owned());
        let watched = watch().unwrap();
        let findings = || {
            let mut findings = Vec::new();
            sessions.end_untrusted(|finding, remote, _| findings.push((finding, remote.to_owned())));
            findings
        };
        assert_eq!(findings(), []);
        clock.set(NOW + 3 * 86_400);
        assert_eq!(findings(), [(Finding::Expired, "m".to_owned())]);
        assert!(!watched.ended.get() && findings().is_empty(), "it stays, and that is said once");

        folder.revoke(&[&[7]]);
        let later = SystemTime::now() + Duration::from_secs(60);
        while tls.generation() == 1 {
            reloader.poll(later);
        }
        // A peer that was admitted just before the files were replaced must not be watched as trusted.
        assert_eq!(watch().map(drop), Err(Refusal::Revoked { serial: "07".to_owned() }));
        assert_eq!(findings(), [(Finding::Closed, "m".to_owned())]);
        assert!(watched.ended.get());
    }
}
