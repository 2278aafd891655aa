//! Looks up the addresses of host names, each name only once at a time: [`NameLookUps`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::sync::watch;
use tokio::task::spawn_local;

/// The addresses of a name, each with its IPv6 scope if it has one, or the reason why there are none. The
/// type can be cloned, because several callers may wait for the same result.
type LookUpResult = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

/// Look-ups in progress. Callers that need the same name at the same time share one look-up, because a name
/// that no server answers for takes long, and there are few threads for look-ups. A look-up continues even if
/// its callers no longer wait. Results are not cached.
#[derive(Default)]
pub(crate) struct NameLookUps {
    in_flight: RefCell<BTreeMap<String, watch::Receiver<Option<LookUpResult>>>>,
}

impl NameLookUps {
    /// Returns the addresses of this name, in the order in which `look_up` returns them. Calls `look_up` only
    /// if the name is not being looked up already.
    ///
    /// # Errors
    /// Returns an error if the name has no addresses, or the look-up has failed.
    pub(crate) async fn find<F>(
        self: &Rc<NameLookUps>,
        name: &str,
        look_up: impl FnOnce() -> F,
    ) -> io::Result<Vec<SocketAddr>>
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>> + 'static,
    {
        let known = self.in_flight.borrow().get(name).cloned();
        let mut results = known.unwrap_or_else(|| self.start(name.to_owned(), look_up()));
        let found = results.wait_for(Option::is_some).await.map_err(io::Error::other)?.clone();
        found.unwrap_or_else(|| Ok(Vec::new())).map_err(|(kind, text)| io::Error::new(kind, text))
    }

    fn start(
        self: &Rc<NameLookUps>,
        name: String,
        look_up: impl Future<Output = io::Result<Vec<SocketAddr>>> + 'static,
    ) -> watch::Receiver<Option<LookUpResult>> {
        let (sender, results) = watch::channel(None);
        self.in_flight.borrow_mut().insert(name.clone(), results.clone());
        let names = Rc::clone(self);
        spawn_local(async move {
            let found = look_up.await.map_err(|error| (error.kind(), error.to_string()));
            names.in_flight.borrow_mut().remove(&name);
            sender.send_replace(Some(found));
        });
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::Cell;
    use std::net::{Ipv6Addr, SocketAddrV6};

    use tokio::sync::oneshot;
    use tokio::task::LocalSet;

    #[test]
    fn those_who_want_a_name_at_the_same_time_share_its_look_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            // Use an address with a scope, without which a link-local address is useless.
            let address =
                SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1), 0, 0, 3));
            let (names, count) = (Rc::new(NameLookUps::default()), Rc::new(Cell::new(0)));
            let (end, ended) = oneshot::channel::<io::Result<Vec<SocketAddr>>>();
            let ended = Rc::new(RefCell::new(Some(ended)));
            let ask = |name: &'static str| {
                let (names, count, ended) = (Rc::clone(&names), Rc::clone(&count), Rc::clone(&ended));
                spawn_local(async move {
                    let look_up = || {
                        count.set(count.get() + 1);
                        let ended = ended.borrow_mut().take();
                        async move {
                            match ended {
                                Some(ended) => ended.await.unwrap(),
                                None => Ok(vec![address]),
                            }
                        }
                    };
                    names.find(name, look_up).await
                })
            };
            let waiting = ["a", "a", "a"].map(ask);
            // Another name does not wait for the look-up of "a".
            assert_eq!(ask("b").await.unwrap().unwrap(), [address]);
            assert_eq!(count.get(), 2);
            // One caller stops waiting. The others still get the result, here an error.
            let [first, second, third] = waiting;
            first.abort();
            end.send(Err(io::Error::new(io::ErrorKind::NotFound, "no such name"))).unwrap();
            for each in [second, third] {
                let error = each.await.unwrap().unwrap_err();
                assert_eq!(
                    (error.kind(), error.to_string().as_str()),
                    (io::ErrorKind::NotFound, "no such name")
                );
            }
            assert_eq!(count.get(), 2);
            // The next caller starts another look-up, because results are not cached.
            assert_eq!(ask("a").await.unwrap().unwrap(), [address]);
            assert_eq!(count.get(), 3);
            assert!(names.in_flight.borrow().is_empty());
        });
    }
}
