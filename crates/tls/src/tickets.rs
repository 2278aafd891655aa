//! Encrypts the session tickets of listeners. A ticket holds the state of a TLS session, with the certificates
//! of its client. The client keeps it, and resumes the session with it at a later connection.
//!
//! [`Tickets`] holds a few secrets. The members of a cluster may have the same secrets, so that a client
//! resumes at another member: the leader makes them and *offers* them ([`Tickets::offer`]), and the others
//! *adopt* them ([`Tickets::adopt`]). This crate does not send them; the caller must send them only over
//! connections on which both ends are authenticated.
//!
//! A ticket is encrypted with a key that is derived from a secret and from the policy for clients: the trusted
//! authorities, the revocation list and the allowed names. So a ticket that was made under another policy is
//! not accepted, wherever and whenever it was made, and its client does a whole handshake. This is not what
//! keeps out a client that the new policy refuses: [`crate::ServerTls::admit`] checks the certificates of a
//! resumed session, too. It lets in, without a failed attempt, a client that has another certificate now.
//!
//! A ticket also names the certificate of the listener that made it. A member that has replaced this certificate
//! does not accept the ticket, so that clients see the new certificate. The members of a cluster may have
//! different certificates, so those of others are accepted.
//!
//! The life of a secret, in the example of one that is made at 0:00 (times are those of the leader):
//!
//! | time | what happens |
//! |---|---|
//! | 0:00 | The leader makes the secret and offers it. It still encrypts with the one before, which all members know. |
//! | 0:02 | All members that have adopted it encrypt with it (`ANNOUNCED`). |
//! | 12:00 | The leader makes the next secret ([`ROTATED`]). |
//! | 24:00 | It is forgotten; tickets that were made with it are not accepted any more ([`ACCEPTED`]). |
//!
//! Format of a ticket: the name of the key (16 bytes), a random nonce (12 bytes), the hash of the listener's
//! certificate (32 bytes) and the session, both encrypted, and the authentication tag (16 bytes) of AES-256-GCM,
//! which also covers the name. With random nonces, a key may
//! encrypt 2^32 messages: 99,000 tickets a second for twelve hours.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use crate::trust::Fingerprint;

/// Age at which a secret is replaced with a new one.
pub const ROTATED: Duration = Duration::from_secs(12 * 3600);
/// Age at which a secret is forgotten.
pub const ACCEPTED: Duration = Duration::from_secs(24 * 3600);
/// Age from which on a secret encrypts, if there is an older one that still may.
const ANNOUNCED: Duration = Duration::from_secs(120);
/// Time after [`ROTATED`] at which a member makes a secret of its own, if it gets none from the leader.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Maximum number of secrets. In a quiet cluster there are two or three.
const SECRETS_MAX: usize = 8;
/// Maximum length of a ticket in bytes. A ticket contains at most [`crate::MAX_CHAIN_BYTES`] of certificates.
const TICKET_BYTES_MAX: usize = 64 * 1024 - 1;

const NAME_BYTES: usize = 16;
const CERTIFICATE_BYTES: usize = size_of::<Fingerprint>();
const SECRET_BYTES: usize = 32;
/// First byte of an offer.
const OFFER_VERSION: u8 = 1;
/// Bytes of one secret in an offer: its age in seconds, and the secret.
const OFFERED_BYTES: usize = 4 + SECRET_BYTES;
/// Maximum length of an offer in bytes.
pub const OFFER_BYTES_MAX: usize = 1 + SECRETS_MAX * OFFERED_BYTES;

/// Maximum number of replaced certificates that are remembered. With more, the oldest is forgotten, so that its
/// tickets are accepted again until their secret is forgotten.
const REPLACED_MAX: usize = 64;

/// Label of the derived keys. Must change with the encoding of sessions, which is that of rustls 0.23, because
/// members of different versions may share secrets.
const LABEL: &[u8] = b"mainstay TLS session ticket 1, rustls 0.23";

/// Secret from which keys for tickets are derived.
#[derive(Clone)]
struct Secret {
    bytes: Arc<Zeroizing<[u8; SECRET_BYTES]>>,
    made: SystemTime,
    /// True if tickets may be encrypted with it, because the leader has it, too. Otherwise it only decrypts.
    encrypts: bool,
}

impl Secret {
    fn draw(now: SystemTime) -> Option<Secret> {
        let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
        SystemRandom::new().fill(&mut *bytes).ok()?;
        Some(Secret { bytes: Arc::new(bytes), made: now, encrypts: true })
    }

    fn age(&self, now: SystemTime) -> Duration {
        now.duration_since(self.made).unwrap_or_default()
    }

    fn is(&self, other: &Secret) -> bool {
        // Takes the same time wherever they differ.
        let differences = self.bytes.iter().zip(other.bytes.iter()).map(|(own, other)| own ^ other);
        differences.fold(0, |all, bits| all | bits) == 0
    }
}

/// The secrets of a member for the tickets of one kind of listener. Clones share them.
#[derive(Clone)]
pub struct Tickets {
    shared: Arc<Shared>,
}

struct Shared {
    /// The secrets, newest first; changed by one thread, and then published in `published`.
    secrets: Mutex<Vec<Secret>>,
    published: ArcSwap<Ring>,
    /// Hashes of the certificates that the listeners do not present any more, oldest first.
    replaced: ArcSwap<Vec<Fingerprint>>,
    /// True if the secrets are those of another member, which replaces them.
    follows: AtomicBool,
}

/// Secrets as ticketers use them.
struct Ring {
    secrets: Vec<Secret>,
    /// Index of the secret that encrypts.
    encrypts: Option<usize>,
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

/// An offer of another member is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedOffer;

impl Tickets {
    /// Creates a first secret. If the system gives no random numbers, no tickets are made until it does.
    pub(crate) fn new(now: SystemTime) -> Tickets {
        let secrets: Vec<Secret> = Secret::draw(now).into_iter().collect();
        let published = ArcSwap::from_pointee(Ring::of(&secrets, now));
        let (secrets, follows) = (Mutex::new(secrets), AtomicBool::new(false));
        Tickets { shared: Arc::new(Shared { secrets, published, replaced: ArcSwap::default(), follows }) }
    }

    /// Forgets old secrets, and makes a new one if it is time and no other member does. Must be called about
    /// once a second, or at least once a minute.
    pub fn tick(&self, now: SystemTime) {
        let rotated = if self.shared.follows.load(Relaxed) { ROTATED + PATIENCE } else { ROTATED };
        self.change(now, |secrets| {
            let newest = secrets.iter().find(|secret| secret.encrypts);
            if newest.is_none_or(|newest| newest.age(now) >= rotated)
                && let Some(drawn) = Secret::draw(now)
            {
                secrets.insert(0, drawn);
            }
        });
    }

    /// Makes this member the one that replaces the secrets, because it leads or shares them with nobody.
    pub fn lead(&self) {
        self.shared.follows.store(false, Relaxed);
    }

    /// Returns the secrets for the other members. The bytes are secret.
    pub fn offer(&self, now: SystemTime) -> Vec<u8> {
        let mut offer = vec![OFFER_VERSION];
        for secret in self.lock().iter().filter(|secret| secret.encrypts) {
            let age = u32::try_from(secret.age(now).as_secs()).unwrap_or(u32::MAX);
            offer.extend(age.to_be_bytes());
            offer.extend(&**secret.bytes);
        }
        offer
    }

    /// Adopts the secrets that the leader offers. From now on tickets are encrypted with them. The secrets
    /// that were in use before still decrypt until they are forgotten.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if the offer is malformed or contains no secret.
    pub fn adopt(&self, offer: &[u8], now: SystemTime) -> Result<(), MalformedOffer> {
        let offered = parse(offer, now).ok_or(MalformedOffer)?;
        self.shared.follows.store(true, Relaxed);
        self.change(now, |secrets| {
            let others = secrets.drain(..).filter(|secret| !offered.iter().any(|offered| offered.is(secret)));
            let others: Vec<Secret> = others.map(|secret| Secret { encrypts: false, ..secret }).collect();
            *secrets = offered;
            secrets.extend(others);
        });
        Ok(())
    }

    /// Makes tickets invalid that listeners with the certificate `old` have made, and those valid again that
    /// listeners with the certificate `new` have made. Both are hashes of certificates. Only one thread may call
    /// this method.
    pub(crate) fn replace_certificate(&self, old: Fingerprint, new: Fingerprint) {
        let before = self.shared.replaced.load();
        let others = before.iter().filter(|hash| **hash != new && **hash != old).copied();
        let mut replaced: Vec<Fingerprint> = others.collect();
        if old != new {
            replaced.push(old);
        }
        let surplus = replaced.len().saturating_sub(REPLACED_MAX);
        replaced.drain(..surplus);
        self.shared.replaced.store(Arc::new(replaced));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Secret>> {
        self.shared.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the secrets, forgets those that are too old or too many, and publishes them.
    fn change(&self, now: SystemTime, change: impl FnOnce(&mut Vec<Secret>)) {
        let mut secrets = self.lock();
        // If the clock was set back, secrets age from the time that it shows now. Otherwise they would live as
        // long as it takes the clock to arrive again at the time at which they were made.
        secrets.iter_mut().for_each(|secret| secret.made = secret.made.min(now));
        change(&mut secrets);
        secrets.retain(|secret| secret.age(now) < ACCEPTED);
        secrets.sort_by_key(|secret| secret.age(now));
        secrets.truncate(SECRETS_MAX);
        let ring = Ring::of(&secrets, now);
        let before = self.shared.published.load();
        if !ring.is_same(&before) {
            self.shared.published.store(Arc::new(ring));
        }
    }

    /// Returns the encryption of tickets for a policy, at listeners that present the certificate with this hash.
    pub(crate) fn ticketer(&self, policy: Fingerprint, certificate: Fingerprint) -> Arc<dyn ProducesTickets> {
        let ring = self.shared.published.load_full();
        let keys = ArcSwap::from_pointee(Keys::derive(ring, &policy));
        Arc::new(Ticketer { shared: self.shared.clone(), policy, certificate, keys })
    }
}

impl Ring {
    fn of(secrets: &[Secret], now: SystemTime) -> Ring {
        let may = || secrets.iter().enumerate().filter(|(_, secret)| secret.encrypts);
        // The newest one that has been announced for long enough, or else the oldest, which most members know.
        let announced = may().find(|(_, secret)| secret.age(now) >= ANNOUNCED);
        let encrypts = announced.or_else(|| may().next_back()).map(|(index, _)| index);
        Ring { secrets: secrets.to_vec(), encrypts }
    }

    fn is_same(&self, other: &Ring) -> bool {
        let same = |(one, other): (&Secret, &Secret)| Arc::ptr_eq(&one.bytes, &other.bytes);
        self.encrypts == other.encrypts
            && self.secrets.len() == other.secrets.len()
            && self.secrets.iter().zip(&other.secrets).all(same)
    }
}

/// Reads an offer; `None` if it is malformed or contains no secret.
fn parse(offer: &[u8], now: SystemTime) -> Option<Vec<Secret>> {
    let (OFFER_VERSION, rest) = offer.split_first().map(|(version, rest)| (*version, rest))? else {
        return None;
    };
    let (all, rest) = rest.as_chunks::<OFFERED_BYTES>();
    if all.is_empty() || all.len() > SECRETS_MAX || !rest.is_empty() {
        return None;
    }
    let secret = |bytes: &[u8; OFFERED_BYTES]| {
        let (age, bytes) = bytes.split_first_chunk::<4>()?;
        let made = now.checked_sub(Duration::from_secs(u32::from_be_bytes(*age).into()))?;
        let bytes = Zeroizing::new(<[u8; SECRET_BYTES]>::try_from(bytes).ok()?);
        Some(Secret { bytes: Arc::new(bytes), made, encrypts: true })
    };
    all.iter().map(secret).collect()
}

/// Encrypts the tickets of listeners with one policy.
struct Ticketer {
    shared: Arc<Shared>,
    policy: Fingerprint,
    /// Hash of the certificate that the listeners present.
    certificate: Fingerprint,
    /// Keys derived from the newest ring that was used.
    keys: ArcSwap<Keys>,
}

/// Keys derived from the secrets of a ring, in its order.
struct Keys {
    ring: Arc<Ring>,
    derived: Vec<Key>,
}

struct Key {
    name: [u8; NAME_BYTES],
    key: LessSafeKey,
}

struct NameLength;

impl KeyType for NameLength {
    fn len(&self) -> usize {
        NAME_BYTES
    }
}

impl Keys {
    fn derive(ring: Arc<Ring>, policy: &Fingerprint) -> Keys {
        let key = |secret: &Secret| {
            let extracted = Salt::new(HKDF_SHA256, LABEL).extract(&**secret.bytes);
            let (for_key, for_name) = ([&b"key"[..], policy], [&b"name"[..], policy]);
            let mut name = [0; NAME_BYTES];
            // Neither fails: both lengths are far below the limit of HKDF.
            let key = extracted.expand(&for_key, &AES_256_GCM).map(UnboundKey::from);
            let named = extracted.expand(&for_name, NameLength).and_then(|output| output.fill(&mut name));
            named.expect("HKDF gives 16 bytes");
            Key { name, key: LessSafeKey::new(key.expect("HKDF gives 32 bytes")) }
        };
        Keys { derived: ring.secrets.iter().map(key).collect(), ring }
    }
}

impl Ticketer {
    /// Returns the keys for the secrets of now.
    fn keys(&self) -> Arc<Keys> {
        let keys = self.keys.load_full();
        let ring = self.shared.published.load();
        if Arc::ptr_eq(&keys.ring, &ring) {
            return keys;
        }
        // Several threads may do so at the same time, with the same result.
        let keys = Arc::new(Keys::derive(ring.clone(), &self.policy));
        self.keys.store(keys.clone());
        keys
    }
}

impl fmt::Debug for Ticketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticketer").finish_non_exhaustive()
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        // A ticket is accepted for this time at least: it may have been made just before its secret was
        // replaced.
        u32::try_from((ACCEPTED - ROTATED - PATIENCE).as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let keys = self.keys();
        let Key { name, key } = keys.ring.encrypts.and_then(|index| keys.derived.get(index))?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let tag_bytes = AES_256_GCM.tag_len();
        let mut ticket =
            Vec::with_capacity(NAME_BYTES + NONCE_LEN + CERTIFICATE_BYTES + plain.len() + tag_bytes);
        ticket.extend(name);
        ticket.extend(nonce);
        ticket.extend(self.certificate);
        ticket.extend(plain);
        let (head, body) = ticket.split_at_mut(NAME_BYTES + NONCE_LEN);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(&head[..NAME_BYTES]), body).ok()?;
        ticket.extend(tag.as_ref());
        (ticket.len() <= TICKET_BYTES_MAX).then_some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        if ticket.len() > TICKET_BYTES_MAX {
            return None;
        }
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE_LEN>()?;
        let keys = self.keys();
        // The name is no secret, so it may be compared in any way.
        let key = keys.derived.iter().find(|key| key.name == *name)?;
        let mut body = rest.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plain = key.key.open_in_place(nonce, Aad::from(&name[..]), &mut body).ok()?;
        let (certificate, session) = plain.split_first_chunk::<CERTIFICATE_BYTES>()?;
        if self.shared.replaced.load().contains(certificate) {
            return None;
        }
        Some(session.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn at(hours: u64, seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs((1_000_000 + hours) * 3600 + seconds)
    }

    fn of(tickets: &Tickets) -> Arc<dyn ProducesTickets> {
        tickets.ticketer([7; 32], [1; 32])
    }

    /// Returns true if `to` accepts the tickets that `from` makes.
    fn passes(from: &Tickets, to: &Tickets) -> bool {
        let ticket = of(from).encrypt(b"a session").expect("a ticket is made");
        of(to).decrypt(&ticket).is_some_and(|plain| plain == b"a session")
    }

    fn secrets(tickets: &Tickets) -> usize {
        tickets.lock().len()
    }

    #[test]
    fn a_ticket_is_opened_by_its_secret_and_policy_only() {
        let (tickets, other) = (Tickets::new(at(0, 0)), Tickets::new(at(0, 0)));
        let ticket = of(&tickets).encrypt(b"a session").expect("a ticket is made");
        assert_eq!(ticket.len(), 16 + 12 + 32 + 9 + 16);
        assert_eq!(of(&tickets).decrypt(&ticket).as_deref(), Some(&b"a session"[..]));
        assert_eq!(tickets.ticketer([8; 32], [1; 32]).decrypt(&ticket), None, "another policy");
        assert_eq!(of(&other).decrypt(&ticket), None, "another secret");
        assert_ne!(
            of(&tickets).encrypt(b"a session").expect("a ticket is made"),
            ticket,
            "nonces are random"
        );
        assert_eq!(of(&tickets).encrypt(&[0; 1 << 16]), None, "no ticket that the protocol cannot carry");
    }

    #[test]
    fn no_change_of_a_ticket_is_accepted() {
        let tickets = Tickets::new(at(0, 0));
        let ticketer = of(&tickets);
        let ticket = ticketer.encrypt(b"a session").expect("a ticket is made");
        for index in 0..ticket.len() {
            for bit in 0..8 {
                let mut changed = ticket.clone();
                changed[index] ^= 1 << bit;
                assert_eq!(ticketer.decrypt(&changed), None, "byte {index}, bit {bit}");
            }
            assert_eq!(ticketer.decrypt(&ticket[..index]), None, "cut at {index}");
        }
        let mut long = ticket.clone();
        long.resize(TICKET_BYTES_MAX + 1, 0);
        assert_eq!(ticketer.decrypt(&long), None);
    }

    #[test]
    fn a_secret_is_replaced_after_twelve_hours_and_forgotten_after_twenty_four() {
        let tickets = Tickets::new(at(0, 0));
        let ticketer = of(&tickets);
        let first = ticketer.encrypt(b"1").expect("a ticket is made");
        tickets.tick(at(11, 3599));
        assert_eq!(secrets(&tickets), 1);
        tickets.tick(at(12, 0));
        assert_eq!(secrets(&tickets), 2);
        let before = ticketer.encrypt(b"2").expect("a ticket is made");
        assert_eq!(before[..16], first[..16], "the new secret is not used before all members can know it");
        tickets.tick(at(12, 120));
        let second = ticketer.encrypt(b"3").expect("a ticket is made");
        assert_ne!(second[..16], first[..16]);
        tickets.tick(at(23, 3599));
        assert_eq!(ticketer.decrypt(&first).as_deref(), Some(&b"1"[..]));
        tickets.tick(at(24, 0));
        assert_eq!(ticketer.decrypt(&first), None);
        assert_eq!(ticketer.decrypt(&second).as_deref(), Some(&b"3"[..]));
        assert!(ticketer.lifetime() <= 12 * 3600);
    }

    #[test]
    fn members_that_adopt_the_secrets_of_a_leader_accept_each_others_tickets() {
        let [leader, one, other] = [(); 3].map(|()| Tickets::new(at(0, 0)));
        let earlier = of(&one).encrypt(b"earlier").expect("a ticket is made");
        assert!(!passes(&leader, &one) && !passes(&one, &other));
        for follower in [&one, &other] {
            assert_eq!(follower.adopt(&leader.offer(at(1, 0)), at(1, 0)), Ok(()));
        }
        assert!(passes(&leader, &one) && passes(&one, &leader) && passes(&one, &other));
        assert_eq!(of(&one).decrypt(&earlier).as_deref(), Some(&b"earlier"[..]), "its own are still good");
        // A follower does not make a secret, unless the leader has made none for an hour.
        one.tick(at(12, 3599));
        assert!(passes(&one, &leader));
        one.tick(at(13, 121));
        one.tick(at(13, 242));
        assert!(!passes(&one, &leader));
        // When it follows a leader again, only the leader's count.
        leader.tick(at(13, 242));
        one.adopt(&leader.offer(at(13, 250)), at(13, 250)).expect("a good offer");
        assert!(passes(&one, &leader) && passes(&leader, &one));
        // The follower becomes the leader: the others keep what they have.
        one.lead();
        other.adopt(&one.offer(at(13, 260)), at(13, 260)).expect("a good offer");
        assert!(passes(&other, &one) && passes(&leader, &other) && passes(&other, &leader));
    }

    #[test]
    fn the_offers_of_many_leaders_are_bounded() {
        let tickets = Tickets::new(at(0, 0));
        for second in 0..100 {
            let leader = Tickets::new(at(0, second));
            tickets.adopt(&leader.offer(at(0, second)), at(0, second)).expect("a good offer");
            assert!(secrets(&tickets) <= SECRETS_MAX && passes(&tickets, &leader));
        }
        assert!(tickets.offer(at(0, 100)).len() <= OFFER_BYTES_MAX);
    }

    #[test]
    fn a_malformed_offer_changes_nothing() {
        let (tickets, leader) = (Tickets::new(at(0, 0)), Tickets::new(at(0, 0)));
        let good = leader.offer(at(0, 0));
        let mut version = good.clone();
        version[0] = 2;
        let many = [&[OFFER_VERSION][..], &good[1..].repeat(SECRETS_MAX + 1)].concat();
        for bad in
            [&[][..], &[OFFER_VERSION], &good[..good.len() - 1], &[&good[..], &[0]].concat(), &version, &many]
        {
            assert_eq!(tickets.adopt(bad, at(0, 0)), Err(MalformedOffer), "{} bytes", bad.len());
        }
        assert!(!passes(&tickets, &leader) && passes(&tickets, &tickets));
        // An offer of secrets that are too old leaves the member with its own.
        let mut old = good;
        old[1..5].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(tickets.adopt(&old, at(0, 0)), Ok(()));
        tickets.tick(at(0, 1));
        assert!(passes(&tickets, &tickets) && !passes(&tickets, &leader));
    }

    #[test]
    fn a_clock_that_is_set_back_lets_no_secret_live_longer() {
        let tickets = Tickets::new(at(5000, 0));
        let ticket = of(&tickets).encrypt(b"1").expect("a ticket is made");
        tickets.tick(at(0, 0));
        assert!(of(&tickets).decrypt(&ticket).is_some());
        tickets.tick(at(24, 0));
        assert_eq!(of(&tickets).decrypt(&ticket), None);
    }

    #[test]
    fn tickets_of_a_replaced_certificate_are_refused_by_who_replaced_it() {
        let [one, other] = [(); 2].map(|()| Tickets::new(at(0, 0)));
        other.adopt(&one.offer(at(0, 0)), at(0, 0)).expect("a good offer");
        let by = |tickets: &Tickets, certificate: u8| tickets.ticketer([7; 32], [certificate; 32]);
        let old = by(&one, 1).encrypt(b"old").expect("a ticket is made");
        let different = by(&other, 3).encrypt(b"different").expect("a ticket is made");
        one.replace_certificate([1; 32], [2; 32]);
        assert_eq!(by(&one, 2).decrypt(&old), None);
        assert!(by(&other, 3).decrypt(&old).is_some(), "another member has not replaced it");
        assert!(by(&one, 2).decrypt(&different).is_some(), "another member has another certificate");
        one.replace_certificate([2; 32], [1; 32]);
        assert!(by(&one, 1).decrypt(&old).is_some(), "it is presented again");
        for number in 2..=100 {
            one.replace_certificate([number - 1; 32], [number; 32]);
        }
        assert_eq!(one.shared.replaced.load().len(), REPLACED_MAX);
        // Files change, but not the certificate.
        one.replace_certificate([100; 32], [100; 32]);
        assert!(!one.shared.replaced.load().contains(&[100; 32]));
    }

    #[test]
    fn no_secret_is_shown() {
        let tickets = Tickets::new(at(0, 0));
        assert_eq!(format!("{tickets:?} {:?}", of(&tickets)), "Tickets { .. } Ticketer { .. }");
    }
}
