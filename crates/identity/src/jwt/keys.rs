//! Reads the keys of a signing method, and signs and verifies with them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::rand::SystemRandom;
use ring::rsa::KeyPair as RsaKeyPair;
use ring::signature::{
    self, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey, VerificationAlgorithm,
};
use ring::{agreement, digest, hmac};
use zeroize::Zeroizing;

use super::der::{self, Der, only_sequence};
use super::method::{Family, Method};
use super::pem::{self, Block};

/// Error returned when keys are refused. The messages of the first seven variants, up to
/// [`KeyError::WrongCurve`], are those of etcd and of the library it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The key that the configured signing method needs was not given: a secret, or a public or private key.
    Missing,
    /// The private key matches none of the public keys.
    Mismatch,
    /// The file has no PEM block.
    NotPem,
    /// The file has a private key, but not of the kind (RSA, ECDSA or Ed25519) that the configured signing
    /// method needs.
    WrongPrivate(Method),
    /// The file has a private key in the format PKCS#1 or SEC1, which does not hold keys of the kind that the
    /// configured signing method needs.
    WrongFormat(KeyFormat),
    /// The file has a public key, but not of the kind (RSA, ECDSA or Ed25519) that the configured signing
    /// method needs.
    WrongPublic(Method),
    /// The key is not on the elliptic curve of the configured signing method.
    WrongCurve(Method),
    /// The PEM block contains no private key, or one that cannot be decoded.
    BadPrivate,
    /// The PEM block contains no public key, or one that cannot be decoded.
    BadPublic,
    /// An RSA key has this number of bits, which is not supported. Public keys must have 2048 to 8192 bits,
    /// private keys 2048 to 4096.
    RsaBits(usize),
    /// An elliptic-curve private key does not include its public key.
    NoPublicPart,
    /// The file has more than [`PUBLIC_KEYS_MAX`] public keys.
    TooMany,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = |method: &Method| match method.family() {
            Family::Rsa | Family::RsaPss => "RSA",
            Family::Ecdsa => "ECDSA",
            Family::Ed25519 => "Ed25519",
            Family::Hmac => "HMAC",
        };
        match self {
            KeyError::Missing => f.write_str("auth: missing key data"),
            KeyError::Mismatch => f.write_str("auth: public and private keys don't match"),
            KeyError::NotPem => f.write_str("invalid key: Key must be a PEM encoded PKCS1 or PKCS8 key"),
            KeyError::WrongPrivate(method) => write!(f, "key is not a valid {} private key", kind(method)),
            KeyError::WrongFormat(format) => {
                let function = match format {
                    KeyFormat::Pkcs1 => "ParsePKCS1PrivateKey",
                    KeyFormat::Sec1 => "ParseECPrivateKey",
                };
                write!(f, "x509: failed to parse private key (use {function} instead for this key format)")
            }
            KeyError::WrongPublic(method) => write!(f, "key is not a valid {} public key", kind(method)),
            KeyError::WrongCurve(method) => write!(f, "key is invalid: it is not on the curve of {method}"),
            KeyError::BadPrivate => f.write_str("x509: failed to parse private key"),
            KeyError::BadPublic => f.write_str("x509: failed to parse public key"),
            KeyError::RsaBits(bits) => {
                write!(f, "RSA key has {bits} bits: 2048 to 8192 are supported, and up to 4096 for signing")
            }
            KeyError::TooMany => write!(f, "more than {PUBLIC_KEYS_MAX} public keys in one file"),
            KeyError::NoPublicPart => f.write_str(
                "the private key file lacks the public key: save the key again with its public key",
            ),
        }
    }
}

impl std::error::Error for KeyError {}

/// A format that only one kind of private key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFormat {
    /// PKCS#1, for RSA keys.
    Pkcs1,
    /// SEC1, for elliptic-curve keys.
    Sec1,
}

/// The keys of a signing method: the signing key, if there is a private key, and the keys that verify.
pub struct Keys {
    method: Method,
    signer: Option<Signer>,
    verifiers: Vec<Verifying>,
}

/// A key that verifies signatures.
struct Verifying {
    key: Verifier,
    /// Hash of the key, to compare it with another key.
    id: [u8; 32],
    /// 0 while the key is in use; incremented when the key is removed. Shared with the holder of each token
    /// that this key has verified, so that removing the key makes these tokens invalid.
    gone: Arc<AtomicU64>,
}

impl Verifying {
    fn new(key: Verifier, bytes: &[u8]) -> Verifying {
        let mut id = [0; 32];
        id.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
        Verifying { key, id, gone: Arc::default() }
    }
}

enum Signer {
    Rsa(RsaKeyPair),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Hmac(hmac::Key),
}

enum Verifier {
    Public(UnparsedPublicKey<Vec<u8>>),
    Hmac(hmac::Key),
}

/// Maximum number of public keys in a file. The number is limited because an invalid token is checked with
/// each key.
pub const PUBLIC_KEYS_MAX: usize = 16;

impl Keys {
    /// Reads key files: PEM with PKCS#1, SEC1, PKCS#8, SPKI or a certificate; for HMAC the private file is
    /// the secret itself.
    ///
    /// A public file may contain several keys, all of which verify; the private key must match one of them.
    /// (etcd uses the first key and ignores the rest.) To replace keys without invalidating tokens, use a
    /// file with both the old and the new key for a while.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub fn read(method: Method, public: Option<&[u8]>, private: Option<&[u8]>) -> Result<Keys, KeyError> {
        // As in etcd, an empty file counts as no file.
        let public = public.filter(|file| !file.is_empty());
        let private = private.filter(|file| !file.is_empty());
        if let Family::Hmac = method.family() {
            let secret = private.ok_or(KeyError::Missing)?;
            let key = hmac::Key::new(method.hmac(), secret);
            let signer = Some(Signer::Hmac(key.clone()));
            return Ok(Keys { method, signer, verifiers: vec![Verifying::new(Verifier::Hmac(key), secret)] });
        }
        let signer = private.map(|file| read_private(method, file)).transpose()?;
        let known = public.map(|file| read_public(method, file)).transpose()?;
        if let Some(signer) = &signer
            && !signer.works(method)
        {
            return Err(KeyError::BadPrivate);
        }
        let public = match (&signer, known) {
            (None, None) => return Err(KeyError::Missing),
            (None, Some(known)) => known,
            (Some(signer), None) => vec![signer.public()],
            (Some(signer), Some(known)) if known.contains(&signer.public()) => known,
            (Some(_), Some(_)) => return Err(KeyError::Mismatch),
        };
        let verifiers = public.into_iter().map(|key| {
            let PublicKey(bytes) = key;
            let id = bytes.clone();
            Verifying::new(Verifier::Public(UnparsedPublicKey::new(method.verification(), bytes)), &id)
        });
        Ok(Keys { method, signer, verifiers: verifiers.collect() })
    }

    /// Returns the signing method of the keys.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Returns true if there is a private key.
    pub fn can_sign(&self) -> bool {
        self.signer.is_some()
    }

    /// Returns the number of keys that verify.
    pub fn verifying(&self) -> usize {
        self.verifiers.len()
    }

    /// Signs a message. Returns `None` if there is no private key.
    pub(super) fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        self.signer.as_ref()?.sign(self.method, message)
    }

    /// Checks a signature with each key. If one of the keys has made the signature, returns a counter that
    /// stays 0 until that key is removed.
    pub(super) fn verify(&self, message: &[u8], signature: &[u8]) -> Option<&Arc<AtomicU64>> {
        let has_signed = |verifying: &&Verifying| match &verifying.key {
            Verifier::Hmac(key) => hmac::verify(key, message, signature).is_ok(),
            Verifier::Public(key) => key.verify(message, signature).is_ok(),
        };
        self.verifiers.iter().find(has_signed).map(|verifying| &verifying.gone)
    }

    fn find(&self, method: Method, id: &[u8; 32]) -> Option<&Verifying> {
        self.verifiers.iter().find(|key| self.method == method && key.id == *id)
    }

    /// Prepares these keys to replace `before`. Tokens verified by a key that is in both sets stay verified.
    pub(super) fn succeed(&mut self, before: &Keys) {
        for verifying in &mut self.verifiers {
            if let Some(same) = before.find(self.method, &verifying.id) {
                verifying.gone = Arc::clone(&same.gone);
            }
        }
    }

    /// Called after `after` has replaced these keys: invalidates all tokens that a removed key has verified.
    /// Returns true if a key was removed.
    pub(super) fn end(&self, after: &Keys) -> bool {
        let mut has_gone = false;
        for verifying in self.verifiers.iter().filter(|key| after.find(self.method, &key.id).is_none()) {
            verifying.gone.fetch_add(1, Ordering::AcqRel);
            has_gone = true;
        }
        has_gone
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("method", &self.method)
            .field("can_sign", &self.can_sign())
            .field("verifying", &self.verifying())
            .finish_non_exhaustive()
    }
}

impl Signer {
    /// Signs a message. Returns `None` if the library refuses.
    fn sign(&self, method: Method, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        let signature = match self {
            Signer::Hmac(key) => hmac::sign(key, message).as_ref().to_vec(),
            Signer::Ed25519(key) => key.sign(message).as_ref().to_vec(),
            Signer::Ecdsa(key) => key.sign(&random, message).ok()?.as_ref().to_vec(),
            Signer::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(method.rsa_padding()?, &random, message, &mut signature).ok()?;
                signature
            }
        };
        Some(signature)
    }

    /// Returns true if the public key verifies a signature of this key. The check is needed because the
    /// library accepts an RSA key whose numbers do not belong together, and signing would then fail for each
    /// token.
    fn works(&self, method: Method) -> bool {
        let message = b"a message that is no token";
        let Some(signature) = self.sign(method, message) else { return false };
        let PublicKey(public) = self.public();
        UnparsedPublicKey::new(method.verification(), public).verify(message, &signature).is_ok()
    }

    fn public(&self) -> PublicKey {
        match self {
            Signer::Rsa(key) => rsa_public(key.public().as_ref()).unwrap_or_else(|| PublicKey(Vec::new())),
            Signer::Ecdsa(key) => PublicKey(key.public_key().as_ref().to_vec()),
            Signer::Ed25519(key) => PublicKey(key.public_key().as_ref().to_vec()),
            Signer::Hmac(_) => PublicKey(Vec::new()),
        }
    }
}

/// A public key in the form that `ring` accepts: an RSAPublicKey in canonical DER, a curve point, or 32
/// bytes.
#[derive(Clone, PartialEq, Eq)]
struct PublicKey(Vec<u8>);

/// Object identifiers of key types and curves.
mod oid {
    pub const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
    pub const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    pub const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
    pub const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    pub const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
}

/// The algorithm of a key, as encoded in SPKI and PKCS#8.
struct Algorithm<'a> {
    kind: &'a [u8],
    /// Curve of an elliptic-curve key.
    curve: Option<&'a [u8]>,
}

fn read_algorithm<'a>(der: &mut Der<'a>) -> Option<Algorithm<'a>> {
    let mut algorithm = der.sequence()?;
    let kind = algorithm.take(der::OBJECT)?;
    Some(Algorithm { kind, curve: algorithm.take(der::OBJECT) })
}

fn curve_of(method: Method) -> &'static [u8] {
    if method == Method::Es384 { oid::P384 } else { oid::P256 }
}

fn read_public(method: Method, file: &[u8]) -> Result<Vec<PublicKey>, KeyError> {
    let blocks = pem::blocks(file);
    // OpenSSL writes a block with the name of the curve before an elliptic-curve key. It contains no key, so
    // it is skipped.
    let keys: Vec<&Block<'_>> = blocks.iter().filter(|block| block.label != "EC PARAMETERS").collect();
    match keys.len() {
        0 => Err(KeyError::NotPem),
        1..=PUBLIC_KEYS_MAX => keys.into_iter().map(|block| public_of(method, block)).collect(),
        _ => Err(KeyError::TooMany),
    }
}

/// Decodes the public key in a PEM block: SPKI, a certificate or an RSAPublicKey. The label of the block is
/// ignored.
fn public_of(method: Method, block: &Block<'_>) -> Result<PublicKey, KeyError> {
    let spki = only_sequence(&block.bytes).and_then(read_spki).or_else(|| spki_of_certificate(&block.bytes));
    let Some((algorithm, key)) = spki else {
        return match method.family() {
            Family::Rsa | Family::RsaPss => {
                checked_rsa(rsa_public(&block.bytes).ok_or(KeyError::BadPublic)?, RSA_VERIFYING_BITS_MAX)
            }
            _ => Err(KeyError::BadPublic),
        };
    };
    match method.family() {
        Family::Rsa | Family::RsaPss if algorithm.kind == oid::RSA => {
            checked_rsa(rsa_public(key).ok_or(KeyError::BadPublic)?, RSA_VERIFYING_BITS_MAX)
        }
        Family::Ecdsa if algorithm.kind == oid::EC => {
            if algorithm.curve != Some(curve_of(method)) {
                return Err(KeyError::WrongCurve(method));
            }
            if !is_point(method, key) {
                return Err(KeyError::BadPublic);
            }
            Ok(PublicKey(key.to_vec()))
        }
        Family::Ed25519 if algorithm.kind == oid::ED25519 => {
            if key.len() == 32 {
                Ok(PublicKey(key.to_vec()))
            } else {
                Err(KeyError::BadPublic)
            }
        }
        _ => Err(KeyError::WrongPublic(method)),
    }
}

/// Decodes `SubjectPublicKeyInfo`: algorithm and key.
fn read_spki(mut spki: Der<'_>) -> Option<(Algorithm<'_>, &[u8])> {
    let algorithm = read_algorithm(&mut spki)?;
    let key = spki.bits()?;
    spki.is_empty().then_some((algorithm, key))
}

/// Decodes the key in a certificate. As in etcd, issuer and validity are not checked.
fn spki_of_certificate(bytes: &[u8]) -> Option<(Algorithm<'_>, &[u8])> {
    let mut certificate = only_sequence(bytes)?.sequence()?;
    if certificate.peek() == Some(0xa0) {
        certificate.any()?; // version
    }
    certificate.take(der::INTEGER)?; // serial number
    certificate.sequence()?; // algorithm of the signature
    certificate.sequence()?; // issuer
    certificate.sequence()?; // validity
    certificate.sequence()?; // subject
    read_spki(certificate.sequence()?)
}

const RSA_BITS_MIN: usize = 2048;
const RSA_VERIFYING_BITS_MAX: usize = 8192;

/// Decodes an RSAPublicKey and encodes it again in strict DER, so that equal keys have equal bytes.
fn rsa_public(bytes: &[u8]) -> Option<PublicKey> {
    let mut key = only_sequence(bytes)?;
    let (modulus, exponent) = (key.unsigned()?, key.unsigned()?);
    if !key.is_empty() || modulus.is_empty() || exponent.is_empty() {
        return None;
    }
    let numbers = [integer(modulus), integer(exponent)].concat();
    Some(PublicKey(element(der::SEQUENCE, &numbers)))
}

fn integer(digits: &[u8]) -> Vec<u8> {
    let sign: &[u8] = if digits.first().is_some_and(|first| first & 0x80 != 0) { &[0] } else { &[] };
    element(der::INTEGER, &[sign, digits].concat())
}

fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
    let len = contents.len().to_be_bytes();
    let zeros = len.iter().take_while(|byte| **byte == 0).count();
    let digits = &len[zeros..];
    let mut element = vec![tag];
    match contents.len() {
        short @ 0..=0x7f => element.push(short as u8),
        _ => {
            element.push(0x80 | digits.len() as u8);
            element.extend_from_slice(digits);
        }
    }
    element.extend_from_slice(contents);
    element
}

fn checked_rsa(key: PublicKey, bits_max: usize) -> Result<PublicKey, KeyError> {
    let mut numbers = only_sequence(&key.0).ok_or(KeyError::BadPublic)?;
    let modulus = numbers.unsigned().ok_or(KeyError::BadPublic)?;
    let bits = modulus.first().map_or(0, |first| modulus.len() * 8 - first.leading_zeros() as usize);
    if (RSA_BITS_MIN..=bits_max).contains(&bits) { Ok(key) } else { Err(KeyError::RsaBits(bits)) }
}

/// Returns true if the bytes are an uncompressed point of the method's curve. The check tries a key agreement
/// with the point.
fn is_point(method: Method, bytes: &[u8]) -> bool {
    let curve = if method == Method::Es384 { &agreement::ECDH_P384 } else { &agreement::ECDH_P256 };
    let Ok(own) = agreement::EphemeralPrivateKey::generate(curve, &SystemRandom::new()) else {
        return false;
    };
    agreement::agree_ephemeral(own, &agreement::UnparsedPublicKey::new(curve, bytes), |_| ()).is_ok()
}

/// A private key without its outer encoding.
enum Private<'a> {
    /// The complete encoding of an RSAPrivateKey.
    Rsa(&'a [u8]),
    /// The fields of an ECPrivateKey.
    Ec { curve: Option<&'a [u8]>, scalar: &'a [u8], point: Option<&'a [u8]> },
    /// The OCTET STRING element with the 32 bytes of an Ed25519 key.
    Ed25519(&'a [u8]),
    /// A key of another type.
    Other,
}

fn read_private(method: Method, file: &[u8]) -> Result<Signer, KeyError> {
    let blocks = pem::blocks(file);
    let block = blocks.iter().find(|block| block.label != "EC PARAMETERS").ok_or(KeyError::NotPem)?;
    let (format, key) = private_of(&block.bytes).ok_or(KeyError::BadPrivate)?;
    match (method.family(), key) {
        (Family::Rsa | Family::RsaPss, Private::Rsa(key)) => read_rsa(key).map(Signer::Rsa),
        (Family::Ecdsa, Private::Ec { curve, scalar, point }) => {
            if curve != Some(curve_of(method)) {
                return Err(KeyError::WrongCurve(method));
            }
            let point = point.ok_or(KeyError::NoPublicPart)?;
            let size = if method == Method::Es384 { 48 } else { 32 };
            let scalar = Zeroizing::new(fixed(scalar, size).ok_or(KeyError::BadPrivate)?);
            let signing = if method == Method::Es384 {
                &signature::ECDSA_P384_SHA384_FIXED_SIGNING
            } else {
                &signature::ECDSA_P256_SHA256_FIXED_SIGNING
            };
            EcdsaKeyPair::from_private_key_and_public_key(signing, &scalar, point, &SystemRandom::new())
                .map(Signer::Ecdsa)
                .map_err(|_| KeyError::BadPrivate)
        }
        (Family::Ed25519, Private::Ed25519(seed)) => {
            Ed25519KeyPair::from_seed_unchecked(seed).map(Signer::Ed25519).map_err(|_| KeyError::BadPrivate)
        }
        _ => Err(format.map_or(KeyError::WrongPrivate(method), KeyError::WrongFormat)),
    }
}

fn read_rsa(key: &[u8]) -> Result<RsaKeyPair, KeyError> {
    RsaKeyPair::from_der(key).map_err(|_| {
        // The key size is the most frequent reason for a refusal, and has its own error.
        let mut numbers = only_sequence(key);
        let modulus = numbers.as_mut().and_then(|numbers| {
            numbers.unsigned()?;
            numbers.unsigned()
        });
        let bits = modulus.and_then(|n| Some(n.len() * 8 - n.first()?.leading_zeros() as usize));
        match bits {
            Some(bits) if !(RSA_BITS_MIN..=4096).contains(&bits) => KeyError::RsaBits(bits),
            _ => KeyError::BadPrivate,
        }
    })
}

/// Returns the digits with exactly `size` bytes, by removing or adding leading zeros.
fn fixed(digits: &[u8], size: usize) -> Option<Vec<u8>> {
    let zeros = digits.iter().take_while(|digit| **digit == 0).count();
    let digits = &digits[zeros..];
    let mut fixed = vec![0; size.checked_sub(digits.len())?];
    fixed.extend_from_slice(digits);
    Some(fixed)
}

/// Decodes the private key in a PEM block, given the decoded bytes of the block: PKCS#1, SEC1 or PKCS#8. The
/// returned format is `None` for PKCS#8.
fn private_of(bytes: &[u8]) -> Option<(Option<KeyFormat>, Private<'_>)> {
    let mut key = only_sequence(bytes)?;
    let version = key.unsigned()?;
    match key.peek()? {
        // PKCS#1: the modulus follows the version.
        der::INTEGER => Some((Some(KeyFormat::Pkcs1), Private::Rsa(bytes))),
        // SEC1: the version, which is 1, is followed by the private scalar.
        der::OCTET_STRING if version == [1] => Some((Some(KeyFormat::Sec1), read_sec1(key, None)?)),
        // PKCS#8: the algorithm follows the version.
        der::SEQUENCE => {
            let algorithm = read_algorithm(&mut key)?;
            let inner = key.take(der::OCTET_STRING)?;
            let key = match algorithm.kind {
                kind if kind == oid::RSA => Private::Rsa(inner),
                kind if kind == oid::EC => {
                    let mut sec1 = only_sequence(inner)?;
                    sec1.unsigned()?;
                    read_sec1(sec1, algorithm.curve)?
                }
                kind if kind == oid::ED25519 => Private::Ed25519(Der::new(inner).take(der::OCTET_STRING)?),
                _ => Private::Other,
            };
            Some((None, key))
        }
        _ => None,
    }
}

/// Decodes the fields of an ECPrivateKey that follow its version.
fn read_sec1<'a>(mut key: Der<'a>, known_curve: Option<&'a [u8]>) -> Option<Private<'a>> {
    let scalar = key.take(der::OCTET_STRING)?;
    let mut curve = known_curve;
    if let Some(parameters) = key.take(0xa0) {
        curve = curve.or(Der::new(parameters).take(der::OBJECT));
    }
    let point = key.take(0xa1).and_then(|point| Der::new(point).bits());
    Some(Private::Ec { curve, scalar, point })
}

impl Method {
    fn verification(self) -> &'static dyn VerificationAlgorithm {
        match self {
            Method::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Method::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Method::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Method::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            Method::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
            Method::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
            Method::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
            Method::Es384 => &signature::ECDSA_P384_SHA384_FIXED,
            // The HMAC methods have no public keys, so this function is never called for them.
            Method::EdDsa | Method::Hs256 | Method::Hs384 | Method::Hs512 => &signature::ED25519,
        }
    }

    fn rsa_padding(self) -> Option<&'static dyn signature::RsaEncoding> {
        match self {
            Method::Rs256 => Some(&signature::RSA_PKCS1_SHA256),
            Method::Rs384 => Some(&signature::RSA_PKCS1_SHA384),
            Method::Rs512 => Some(&signature::RSA_PKCS1_SHA512),
            Method::Ps256 => Some(&signature::RSA_PSS_SHA256),
            Method::Ps384 => Some(&signature::RSA_PSS_SHA384),
            Method::Ps512 => Some(&signature::RSA_PSS_SHA512),
            _ => None,
        }
    }

    fn hmac(self) -> hmac::Algorithm {
        match self {
            Method::Hs384 => hmac::HMAC_SHA384,
            Method::Hs512 => hmac::HMAC_SHA512,
            _ => hmac::HMAC_SHA256,
        }
    }
}
