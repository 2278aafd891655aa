//! Limits the number of forwarded requests: [`RequestPermits`]. No client address can use up the whole limit.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use http::StatusCode;

use crate::limits::Limits;
use crate::refusal::Refusal;

/// The permits for all requests that are being forwarded.
#[derive(Debug)]
pub(crate) struct RequestPermits {
    max: usize,
    per_address: usize,
    /// For each permit that is in use, the address of the client; `None` for a client of a Unix socket.
    of: RefCell<Vec<Option<IpAddr>>>,
}

/// The permit for one forwarded request. It is given back on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Rc<RequestPermits>,
    of: Option<IpAddr>,
}

impl RequestPermits {
    pub(crate) fn new(limits: &Limits) -> Rc<RequestPermits> {
        let (max, per_address) = (limits.forwarded_max, limits.forwarded_per_address);
        Rc::new(RequestPermits { max, per_address, of: RefCell::default() })
    }

    /// Takes a permit for a request to members, for a browser at this address.
    ///
    /// # Errors
    /// Returns a refusal if all permits are in use, or this address already has its maximum number.
    pub(crate) fn permit(self: &Rc<RequestPermits>, address: Option<IpAddr>) -> Result<Permit, Refusal> {
        let text = "the console has too many requests in progress: close some of its pages";
        self.take(address).ok_or_else(|| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text))
    }

    /// Takes a permit; `None` if all permits are in use, or this address already has its maximum number.
    fn take(self: &Rc<RequestPermits>, of: Option<IpAddr>) -> Option<Permit> {
        let mut all = self.of.borrow_mut();
        let own = all.iter().filter(|other| **other == of).count();
        if all.len() >= self.max || own >= self.per_address {
            return None;
        }
        all.push(of);
        Some(Permit { permits: Rc::clone(self), of })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut all = self.permits.of.borrow_mut();
        if let Some(own) = all.iter().position(|other| *other == self.of) {
            all.swap_remove(own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share() {
        let limits = Limits { forwarded_max: 3, forwarded_per_address: 2, ..Limits::default() };
        let requests = RequestPermits::new(&limits);
        let address = |last| Some(IpAddr::from([10, 0, 0, last]));
        let first = requests.take(address(1)).unwrap();
        let second = requests.take(address(1)).unwrap();
        assert!(requests.take(address(1)).is_none());
        let other = requests.take(address(2)).unwrap();
        assert!(requests.take(address(2)).is_none() && requests.take(None).is_none(), "all are taken");
        drop(first);
        let third = requests.take(address(1)).unwrap();
        drop((second, other, third));
        assert!(requests.of.borrow().is_empty());
    }
}
