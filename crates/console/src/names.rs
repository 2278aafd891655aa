//! Look-ups of names: [`Names`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::sync::watch;
use tokio::task::spawn_local;

/// The addresses of a name, each with the scope that it may have, or why there are none: an error that all who asked can have.
type Found = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

/// The look-ups that are under way. Those who want the addresses of one name at the same time share one look-up: a name that nobody knows
/// takes long, and threads for it are few. A look-up goes on when nobody waits for it any more; its outcome is not kept for later.
#[derive(Default)]
pub(crate) struct Names {
    under_way: RefCell<BTreeMap<String, watch::Receiver<Option<Found>>>>,
}

impl Names {
    /// The addresses of this name, in the order in which `look_up` returns them. It is called unless a look-up of the name is under way.
    ///
    /// # Errors
    /// The name has none, or they cannot be asked for.
    pub(crate) async fn find<F>(
        self: &Rc<Names>,
        name: &str,
        look_up: impl FnOnce() -> F,
    ) -> io::Result<Vec<SocketAddr>>
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>> + 'static,
    {
        let known = self.under_way.borrow().get(name).cloned();
        let mut told = known.unwrap_or_else(|| self.start(name.to_owned(), look_up()));
        let found = told.wait_for(Option::is_some).await.map_err(io::Error::other)?.clone();
        found.unwrap_or_else(|| Ok(Vec::new())).map_err(|(kind, text)| io::Error::new(kind, text))
    }

    fn start(
        self: &Rc<Names>,
        name: String,
        look_up: impl Future<Output = io::Result<Vec<SocketAddr>>> + 'static,
    ) -> watch::Receiver<Option<Found>> {
        let (tell, told) = watch::channel(None);
        self.under_way.borrow_mut().insert(name.clone(), told.clone());
        let names = Rc::clone(self);
        spawn_local(async move {
            let found = look_up.await.map_err(|error| (error.kind(), error.to_string()));
            names.under_way.borrow_mut().remove(&name);
            tell.send_replace(Some(found));
        });
        told
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
            // An address of a link is none without its scope.
            let address =
                SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1), 0, 0, 3));
            let (names, count) = (Rc::new(Names::default()), Rc::new(Cell::new(0)));
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
            // Another name is not held up.
            assert_eq!(ask("b").await.unwrap().unwrap(), [address]);
            assert_eq!(count.get(), 2);
            // One leaves, and the others have the outcome, an error as well.
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
            // What was found is not kept.
            assert_eq!(ask("a").await.unwrap().unwrap(), [address]);
            assert_eq!(count.get(), 3);
            assert!(names.under_way.borrow().is_empty());
        });
    }
}
