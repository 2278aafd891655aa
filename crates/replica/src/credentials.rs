//! Authenticates clients by tokens and passwords. A few threads hash the passwords and sign tokens.
//!
//! Start reading at [`Credentials`]. The rules are in `identity`; this module provides the clock, threads and
//! randomness. The core reports changes of users and roles ([`Credentials::auth_changed`]); shards check
//! passwords and tokens. `machine::auth`, not this module, decides what a user may do.

mod floors;
mod recent;

use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use api::Status;
use api::error;
use identity::passwords::{
    Ask, Busy, Cost, Hashing, Outcome, Proof, Pushed, Shareable, Task, Ticket, Verified, WorkQueue,
};
use identity::simple;
use identity::{IssueError, Now, Refused, Secret, Session, TokenKind, Tokens};
use machine::auth::AuthChange;
use numbers::Index;
use stdx::client_network;
use tokio::sync::oneshot;

use clock::Clock;
use floors::Floors;
use recent::{Grounds, Recent};

/// Time for which a verified password is remembered after its last use. A client that authenticates for each
/// call sends the same password again, which then need not be hashed again.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Closure that fills a slice with random bytes.
type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// Work for the hashing threads.
#[derive(Debug)]
enum Job {
    /// Hash or check a password.
    Password(Task),
    /// Sign a token for a user at this auth revision.
    Sign { user: Box<str>, auth_revision: u64 },
    /// Verify the signature of a token.
    Verify(Secret),
}

impl Shareable for Job {
    fn is_shareable(&self) -> bool {
        match self {
            Job::Password(task) => task.is_shareable(),
            Job::Sign { .. } => false,
            Job::Verify(_) => true,
        }
    }
}

/// The result of a job.
#[derive(Clone)]
enum Done {
    Password(Outcome),
    Signed(Result<String, IssueError>),
    /// The signature was checked, and the token is remembered if it is valid.
    Verified,
}

/// Sender for the result of a job. It sends `None` if another job has displaced this job from the queue.
type Answer = oneshot::Sender<Option<Done>>;

type Jobs = WorkQueue<IpAddr, Answer, Job>;

struct Queue {
    work: Jobs,
    threads: usize,
    is_stopping: bool,
}

/// Checks and issues the tokens of one member's clients, and checks and hashes their passwords.
pub struct Credentials {
    tokens: Tokens,
    hashing: Hashing,
    verified: Verified,
    recent: Recent,
    floors: Floors,
    clock: Clock,
    random: Mutex<Random>,
    queue: Mutex<Queue>,
    arrived: Condvar,
    stopping: Condvar,
    /// Maximum number of hashing threads. If it is 0, the calling thread does the work, as in a simulation.
    threads_max: usize,
}

/// Options of a member that concern passwords and tokens.
#[derive(Clone, Debug)]
pub struct CredentialOptions {
    /// The kind of tokens.
    pub tokens: TokenKind,
    /// Time for which an unused simple token stays valid.
    pub token_ttl: Duration,
    /// The cost of hashing a new password.
    pub cost: Cost,
}

impl Default for CredentialOptions {
    fn default() -> CredentialOptions {
        CredentialOptions {
            tokens: TokenKind::Simple,
            token_ttl: simple::Settings::TTL_DEFAULT,
            cost: Cost::DEFAULT,
        }
    }
}

impl Credentials {
    /// Returns credentials without any token. `public` and `private` are the contents of the key files that
    /// the options name; `random` is the source of random bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the keys do not match the kind of tokens.
    pub fn new(
        options: &CredentialOptions,
        (public, private): (Option<&[u8]>, Option<&[u8]>),
        clock: Clock,
        mut random: Random,
        threads_max: usize,
    ) -> Result<Credentials, identity::jwt::KeyError> {
        let settings = simple::Settings { ttl: options.token_ttl, ..simple::Settings::default() };
        let tokens = Tokens::new(&options.tokens, settings, public, private, clock.now(), &mut random)?;
        Ok(Credentials::with(tokens, options.cost, clock, random, threads_max))
    }

    /// Returns credentials with simple tokens and with password hashes of the lowest cost, computed by the
    /// calling thread. For simulations and tests.
    pub fn simple(clock: Clock, mut random: Random) -> Credentials {
        let tokens = Tokens::Simple(Box::new(simple::Store::new(
            simple::Settings::default(),
            clock.now(),
            &mut random,
        )));
        Credentials::with(tokens, Cost::LOWEST, clock, random, 0)
    }

    fn with(tokens: Tokens, cost: Cost, clock: Clock, mut random: Random, threads_max: usize) -> Credentials {
        let now = clock.now();
        let work = Jobs::new(Jobs::ASKERS_MAX_DEFAULT, Jobs::ASKERS_PER_ADDRESS_MAX_DEFAULT);
        Credentials {
            tokens,
            hashing: Hashing::new(cost, &mut random),
            verified: Verified::new(REMEMBERED, Verified::ENTRIES_MAX_DEFAULT, now, &mut random),
            recent: Recent::new(),
            floors: Floors::default(),
            clock,
            random: Mutex::new(random),
            queue: Mutex::new(Queue { work, threads: 0, is_stopping: false }),
            arrived: Condvar::new(),
            stopping: Condvar::new(),
            threads_max,
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        let unix_seconds = i64::try_from(self.clock.unix_seconds()).unwrap_or(i64::MAX);
        Now { at: self.clock.now(), unix_seconds }
    }

    /// Handles an entry that changed users or roles, or authenticated a user; `auth_revision` is the auth
    /// revision after the entry. Must be called before a view with the entry is published, so that every
    /// member whose published view has the entry accepts the token that the entry creates.
    pub fn auth_changed(&self, change: &AuthChange, auth_revision: u64) {
        match change {
            AuthChange::Changed => {}
            AuthChange::Forget(user) => {
                if !planted::is(planted::Bug::TokenOutlivesUser) {
                    self.tokens.forget(user);
                }
                self.verified.forget(user);
                self.floors.raise(user, auth_revision);
            }
            AuthChange::Enabled => self.tokens.enable(),
            AuthChange::Disabled => {
                self.tokens.disable();
                self.verified.clear();
            }
            AuthChange::Authenticated { user, token_prefix, index } => {
                self.tokens.assign(user, token_prefix, *index, self.clock.now());
            }
        }
    }

    /// Handles a state that was loaded or received instead of being built from entries. `is_enabled` says
    /// whether authentication is on at this auth revision. All tokens become invalid, because this process
    /// will not see the entries that would have invalidated some of them.
    pub fn auth_restored(&self, is_enabled: bool, auth_revision: u64) {
        self.floors.raise_all(auth_revision);
        self.tokens.disable();
        self.verified.clear();
        if is_enabled {
            self.tokens.enable();
        }
    }

    /// Returns true if the user's password was changed, or the user deleted, after the auth revision in a
    /// JSON Web Token of this user. Such a token carries a valid signature until it expires, so this check is
    /// the only way to revoke it.
    pub fn is_outdated(&self, user: &str, auth_revision: u64) -> bool {
        self.floors.is_below(user, auth_revision)
    }

    /// Returns the session of this token. `applied` is the applied index that this member had published
    /// before the call.
    ///
    /// # Errors
    ///
    /// Returns an error for the reasons that [`Refused`] lists.
    pub fn session(&self, token: &[u8], applied: Index) -> Result<Session, Refused> {
        self.tokens.recall(token, applied, self.now())
    }

    /// Checks the signature of a token for which [`Credentials::session`] returned [`Refused::Unverified`].
    /// The caller then calls [`Credentials::session`] again.
    ///
    /// # Errors
    ///
    /// etcd's `too many requests` if too many checks wait, and `error::STOPPED` if the member is stopping.
    pub async fn verify(self: &Arc<Self>, address: IpAddr, token: &[u8]) -> Result<(), Status> {
        let proof = self.verified.of_token(token);
        self.run(address, proof, Job::Verify(Secret::new(token))).await.map(drop)
    }

    /// Returns a counter that increases when sessions become invalid because the key of their tokens was
    /// removed ([`Session::is_withdrawn`]).
    pub fn withdrawals(&self) -> u64 {
        self.tokens.withdrawals()
    }

    /// Replaces the keys for tokens with the contents of the files that the options name.
    ///
    /// # Errors
    ///
    /// Returns an error if the keys do not match the kind of tokens. In that case the current keys stay in
    /// use.
    pub fn replace_keys(
        &self,
        method: identity::jwt::Method,
        (public, private): (Option<&[u8]>, Option<&[u8]>),
    ) -> Result<(), identity::jwt::KeyError> {
        self.tokens.replace_keys(method, public, private).map(drop)
    }

    /// Extends the time for which a session is valid, and returns the user of the session. Returns `None` if
    /// the session does not belong to this token or the token is no longer valid.
    pub fn renew<'s>(&self, session: &'s Session, token: &[u8]) -> Option<&'s identity::Holder> {
        session.renew(token, self.now())
    }

    /// Returns a random prefix, the first part of a new simple token. The caller must propose it together
    /// with the user's name, so that all members know the token once they have applied the entry. Returns an
    /// empty string if this member issues no simple tokens.
    pub fn draw_prefix(&self) -> String {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        self.tokens.draw_prefix(&mut **random)
    }

    fn grounds(&self, auth_revision: u64) -> Grounds {
        Grounds { auth_revision, withdrawals: self.tokens.withdrawals() }
    }

    /// Returns a token that was recently issued to this user at this auth revision and is still valid. So a
    /// client that authenticates very often does not need a log entry or a signature each time. The caller
    /// must have checked the user's password. `applied` is the applied index that this member had published
    /// before the call.
    pub fn issued_lately(&self, user: &str, auth_revision: u64, applied: Index) -> Option<String> {
        let token = self.recent.get(user, self.grounds(auth_revision), self.clock.now())?;
        // A JSON Web Token that no client has presented yet counts as unverified. This process has signed it
        // under the same conditions, so an unverified signature is accepted here, but an expired token is
        // not.
        let is_valid = matches!(self.session(token.as_bytes(), applied), Ok(_) | Err(Refused::Unverified));
        is_valid.then_some(token)
    }

    /// Issues a token at this auth revision for a user who has authenticated. `number` is the number of a
    /// simple token ([`identity::simple::number`]).
    ///
    /// # Errors
    ///
    /// Returns an error if the token cannot be made, too many requests wait, or the member is stopping.
    pub async fn issue(
        self: &Arc<Self>,
        address: IpAddr,
        user: &str,
        prefix: &str,
        number: Index,
        auth_revision: u64,
    ) -> Result<String, Status> {
        // The conditions are read before the token is made. If a key is withdrawn in the meantime, the
        // conditions stored with the token no longer match, so the token is not issued again.
        let grounds = self.grounds(auth_revision);
        let issued = if matches!(self.tokens, Tokens::Jwt(_)) {
            let proof = self.verified.of_user(user);
            match self.run(address, proof, Job::Sign { user: user.into(), auth_revision }).await? {
                Done::Signed(signed) => signed,
                Done::Password(_) | Done::Verified => return Err(error::STOPPED),
            }
        } else {
            self.tokens.issue(user, prefix, number, auth_revision, self.now())
        };
        let token = issued.map_err(|why| Status::with(api::Code::Unknown, why.to_string()))?;
        self.recent.put(user, &token, grounds, self.clock.now());
        Ok(token)
    }

    /// Frees the memory of tokens and passwords that are no longer valid. Should be called about once a
    /// second.
    pub fn expire(&self) {
        let now = self.clock.now();
        self.tokens.expire(now);
        self.verified.expire(now);
        self.recent.expire(now);
    }

    /// Returns true if this is the user's password; `stored` is its hash, `None` if the user does not exist
    /// or has no password. The duration of the check does not reveal whether the user exists.
    ///
    /// # Errors
    ///
    /// etcd's `too many requests` if too many checks wait, and `error::STOPPED` if the member is stopping.
    pub async fn is_password(
        self: &Arc<Self>,
        address: IpAddr,
        user: &str,
        stored: Option<&[u8]>,
        password: &[u8],
    ) -> Result<bool, Status> {
        let Err(proof) = self.verified.recall(user, stored, password, self.clock.now()) else {
            return Ok(true);
        };
        let check = Job::Password(Task::check(stored, password));
        let is_right = matches!(self.run(address, proof, check).await?, Done::Password(Outcome::Right));
        if is_right {
            self.verified.remember(&proof, self.clock.now());
        }
        Ok(is_right)
    }

    /// Hashes a new password.
    ///
    /// # Errors
    ///
    /// Returns an error if the password is too long, too many requests wait, or the member is stopping.
    pub async fn hash(
        self: &Arc<Self>,
        address: IpAddr,
        user: &str,
        password: &[u8],
    ) -> Result<String, Status> {
        let task = Task::hash(password).map_err(|why| Status::with(api::Code::Unknown, why.to_string()))?;
        let proof = self.verified.of_user(user);
        match self.run(address, proof, Job::Password(task)).await? {
            Done::Password(Outcome::Hashed(hash)) => Ok(hash),
            _ => Err(error::STOPPED),
        }
    }

    fn do_job(&self, job: &Job) -> Done {
        match job {
            // The lock on the random source is held only while random bytes are drawn, not while the password
            // is hashed, so that hashing threads do not wait for each other.
            Job::Password(task) => Done::Password(task.run(&self.hashing, &mut |bytes: &mut [u8]| {
                let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
                random(bytes);
            })),
            Job::Sign { user, auth_revision } => {
                Done::Signed(self.tokens.issue(user, "", Index(0), *auth_revision, self.now()))
            }
            Job::Verify(token) => {
                drop(self.tokens.check(token.bytes(), Index(0), self.now()));
                Done::Verified
            }
        }
    }

    async fn run(self: &Arc<Self>, address: IpAddr, proof: Proof, task: Job) -> Result<Done, Status> {
        if self.threads_max == 0 {
            return Ok(self.do_job(&task));
        }
        let (asker, answer) = oneshot::channel();
        let address = client_network(address);
        let _place = {
            let mut queue = self.queue();
            if queue.is_stopping {
                return Err(error::STOPPED);
            }
            match queue.work.push(Ask { proof, task, address, asker }) {
                Err(Busy(_)) => return Err(error::TOO_MANY_REQUESTS),
                Ok(Pushed { displaced, new_work, ticket }) => {
                    if let Some(displaced) = displaced {
                        drop(displaced.send(None));
                    }
                    if new_work {
                        self.wake(&mut queue);
                    }
                    if queue.threads == 0 {
                        // No thread could be started to do the job, so the request is refused.
                        queue.work.give_up(ticket);
                        return Err(error::TOO_MANY_REQUESTS);
                    }
                    Place { credentials: self, ticket }
                }
            }
        };
        match answer.await {
            Ok(Some(done)) => Ok(done),
            Ok(None) => Err(error::TOO_MANY_REQUESTS),
            Err(_) => Err(error::STOPPED),
        }
    }

    /// Wakes a thread for new work, or starts one if all are busy.
    fn wake(self: &Arc<Self>, queue: &mut Queue) {
        self.arrived.notify_one();
        if queue.threads < self.threads_max && queue.work.waiting() > 0 {
            let own = Arc::clone(self);
            let started = thread::Builder::new().name("password".to_owned()).spawn(move || own.work());
            queue.threads += usize::from(started.is_ok());
        }
    }

    /// Runs the loop of a hashing thread, until the member stops.
    fn work(&self) {
        let mut queue = self.queue();
        loop {
            if queue.is_stopping {
                return;
            }
            let Some(work) = queue.work.take() else {
                queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            let done = self.do_job(&work.task);
            // The thread yields the processor, so that threads that serve calls do not have to wait for a
            // series of token jobs. Hashing already yields by itself.
            thread::yield_now();
            queue = self.queue();
            for asker in queue.work.finish(work) {
                // An error is ignored: it means that the call has ended and needs no result.
                drop(asker.send(Some(done.clone())));
            }
        }
    }

    /// Ends the threads. Calls that wait for a job get `error::STOPPED`.
    pub fn stop(&self) {
        let mut queue = self.queue();
        queue.is_stopping = true;
        queue.work = Jobs::new(1, 1);
        self.arrived.notify_all();
        self.stopping.notify_all();
    }

    /// Blocks for this time and returns true. Returns false earlier if the member stops.
    pub fn wait(&self, time: Duration) -> bool {
        let queue = self.queue();
        let waited = self.stopping.wait_timeout_while(queue, time, |queue| !queue.is_stopping);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_stopping
    }
}

/// The place of a call in the queue of jobs. Dropping it, when the call ends or is cancelled, takes the call
/// out of the queue.
struct Place<'c> {
    credentials: &'c Credentials,
    ticket: Ticket,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        drop(self.credentials.queue().work.give_up(self.ticket));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use super::*;

    fn credentials(threads_max: usize) -> Arc<Credentials> {
        let options =
            CredentialOptions { cost: Cost::new(4).expect("is allowed"), ..CredentialOptions::default() };
        let mut random = stdx::Random::new(7);
        let random =
            Box::new(move |bytes: &mut [u8]| bytes.iter_mut().for_each(|b| *b = random.below(256) as u8));
        let made = Credentials::new(&options, (None, None), Clock::real(), random, threads_max);
        Arc::new(made.expect("simple tokens need no keys"))
    }

    /// A client that owns an IPv6 network counts as one address.
    #[test]
    fn the_addresses_of_a_network_have_the_places_of_one() {
        let options =
            CredentialOptions { cost: Cost::new(14).expect("is allowed"), ..CredentialOptions::default() };
        let random = Box::new(identity::system_entropy());
        let made = Credentials::new(&options, (None, None), Clock::real(), random, 1);
        let credentials = Arc::new(made.expect("simple tokens need no keys"));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let (mut waiting, mut refused) = (Vec::new(), 0);
        for number in 0..Jobs::ASKERS_PER_ADDRESS_MAX_DEFAULT as u128 + 100 {
            let address = IpAddr::from(std::net::Ipv6Addr::from_bits((0x2001_0db8 << 96) + number));
            let credentials = &credentials;
            let mut asking = Box::pin(async move {
                credentials.is_password(address, &number.to_string(), None, b"guess").await
            });
            match asking.as_mut().poll(&mut context) {
                std::task::Poll::Ready(answer) => {
                    refused += u32::from(answer == Err(error::TOO_MANY_REQUESTS));
                }
                std::task::Poll::Pending => waiting.push(asking),
            }
        }
        // Some of the requests may have been answered in the meantime.
        assert!(refused >= 50, "{refused} of {} were refused", waiting.len());
        drop(waiting);
        credentials.stop();
    }

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn passwords_are_hashed_and_checked_by_threads_and_without() {
        for threads in [0, 2] {
            let credentials = credentials(threads);
            testkit::block_on(Duration::from_secs(10), async {
                let hash = credentials.hash(ADDRESS, "bob", b"secret").await.expect("is hashed");
                let stored = Some(hash.as_bytes());
                for _ in 0..2 {
                    assert_eq!(credentials.is_password(ADDRESS, "bob", stored, b"secret").await, Ok(true));
                    assert_eq!(credentials.is_password(ADDRESS, "bob", stored, b"wrong").await, Ok(false));
                    assert_eq!(credentials.is_password(ADDRESS, "eve", None, b"secret").await, Ok(false));
                }
                credentials.stop();
                if threads > 0 {
                    let late = credentials.is_password(ADDRESS, "bob", stored, b"other").await;
                    assert_eq!(late, Err(error::STOPPED));
                }
            });
        }
    }

    #[test]
    fn a_token_lives_from_its_entry_until_its_user_is_forgotten() {
        let credentials = credentials(0);
        credentials.auth_changed(&AuthChange::Enabled, 3);
        let prefix = credentials.draw_prefix();
        let issued = credentials.issue(ADDRESS, "bob", &prefix, Index(9), 3);
        let token = testkit::block_on(Duration::from_secs(10), issued).expect("is issued");
        let token = token.as_bytes();
        assert!(matches!(credentials.session(token, Index(8)), Err(Refused::NotYet(_))));
        let authenticated = AuthChange::Authenticated {
            user: "bob".into(),
            token_prefix: prefix.as_str().into(),
            index: Index(9),
        };
        credentials.auth_changed(&authenticated, 3);
        let session = credentials.session(token, Index(9)).expect("is known");
        assert_eq!(credentials.renew(&session, token).map(|holder| &**holder.user()), Some("bob"));
        credentials.auth_restored(true, 3);
        assert!(
            credentials.renew(&session, token).is_none(),
            "what voided it may be in the state that was received"
        );
        credentials.auth_changed(&authenticated, 3);
        let session = credentials.session(token, Index(9)).expect("is known");
        credentials.auth_changed(&AuthChange::Forget("bob".into()), 4);
        assert!(credentials.renew(&session, token).is_none());
        assert!(matches!(credentials.session(token, Index(10)), Err(Refused::Invalid)));
    }

    #[test]
    fn signatures_are_made_and_looked_at_by_threads_and_only_once() {
        for threads in [0, 2] {
            let tokens = TokenKind::parse("jwt,sign-method=HS256,priv-key=x").expect("is right");
            let options = CredentialOptions { tokens, ..CredentialOptions::default() };
            let keys = (None, Some(&b"a secret"[..]));
            let random = Box::new(identity::system_entropy());
            let made = Credentials::new(&options, keys, Clock::real(), random, threads);
            let credentials = Arc::new(made.expect("the key fits"));
            testkit::block_on(Duration::from_secs(10), async {
                let issued = credentials.issue(ADDRESS, "bob", "", Index(1), 7).await;
                let token = issued.expect("is signed");
                let session = |token: &[u8]| credentials.session(token, Index(1)).map(drop);
                assert_eq!(session(token.as_bytes()), Err(Refused::Unverified));
                credentials.verify(ADDRESS, token.as_bytes()).await.expect("there is a place");
                assert_eq!(session(token.as_bytes()), Ok(()));
                // A forged token is never accepted, however often it is checked.
                let forged = token.replace('.', ".x").replacen(".x", ".", 1);
                for _ in 0..2 {
                    assert_eq!(session(forged.as_bytes()), Err(Refused::Unverified));
                    credentials.verify(ADDRESS, forged.as_bytes()).await.expect("there is a place");
                }
                // Errors that do not depend on the signature are returned without checking it.
                let expired = "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjF9.AAAA";
                for wrong in ["", "a.b", expired] {
                    assert!(matches!(session(wrong.as_bytes()), Err(Refused::Jwt(_))), "{wrong}");
                }
            });
            assert_eq!(credentials.queue().threads > 0, threads > 0);
            credentials.stop();
        }
    }

    #[test]
    fn a_token_that_has_expired_is_not_issued_again() {
        for (ttl, is_issued_again) in [("2s", true), ("1s", false)] {
            let kind = format!("jwt,sign-method=HS256,priv-key=x,ttl={ttl}");
            let tokens = TokenKind::parse(&kind).expect("is right");
            let options = CredentialOptions { tokens, ..CredentialOptions::default() };
            let keys = (None, Some(&b"a secret"[..]));
            let random = Box::new(identity::system_entropy());
            // Tokens contain whole seconds, and the current second is nearly over.
            let wall = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_980);
            let hand = clock::HandClock::new(Instant::now(), wall);
            let made = Credentials::new(&options, keys, Clock::by_hand(&hand), random, 0);
            let credentials = Arc::new(made.expect("the key fits"));
            testkit::block_on(Duration::from_secs(10), async {
                let issued = credentials.issue(ADDRESS, "bob", "", Index(1), 7).await.expect("is signed");
                hand.advance(Duration::from_millis(50));
                let again = credentials.issued_lately("bob", 7, Index(1));
                assert_eq!(again, is_issued_again.then_some(issued), "{ttl}");
                assert_eq!(credentials.issued_lately("bob", 8, Index(1)), None);
            });
        }
    }
}
