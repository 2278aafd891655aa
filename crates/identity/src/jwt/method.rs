//! Defines the signing methods of JSON Web Tokens.

use std::fmt;

/// The method by which tokens are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// RSASSA-PSS with SHA-256, and a salt as long as the hash.
    Ps256,
    /// RSASSA-PSS with SHA-384, and a salt as long as the hash.
    Ps384,
    /// RSASSA-PSS with SHA-512, and a salt as long as the hash.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
}

/// A group of methods that use the same keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Rsa,
    RsaPss,
    Ecdsa,
    Ed25519,
    Hmac,
}

/// Meaning of a method's name, for the names that etcd's library knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Method(Method),
    /// `ES512`, whose curve is not supported.
    Es512,
    /// `none`, which means no signature.
    Unsigned,
    Unknown,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 12] = [
        Method::Rs256,
        Method::Rs384,
        Method::Rs512,
        Method::Ps256,
        Method::Ps384,
        Method::Ps512,
        Method::Es256,
        Method::Es384,
        Method::EdDsa,
        Method::Hs256,
        Method::Hs384,
        Method::Hs512,
    ];

    /// Returns the method's name in tokens and options.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Rs256 => "RS256",
            Method::Rs384 => "RS384",
            Method::Rs512 => "RS512",
            Method::Ps256 => "PS256",
            Method::Ps384 => "PS384",
            Method::Ps512 => "PS512",
            Method::Es256 => "ES256",
            Method::Es384 => "ES384",
            Method::EdDsa => "EdDSA",
            Method::Hs256 => "HS256",
            Method::Hs384 => "HS384",
            Method::Hs512 => "HS512",
        }
    }

    pub(super) const fn family(self) -> Family {
        match self {
            Method::Rs256 | Method::Rs384 | Method::Rs512 => Family::Rsa,
            Method::Ps256 | Method::Ps384 | Method::Ps512 => Family::RsaPss,
            Method::Es256 | Method::Es384 => Family::Ecdsa,
            Method::EdDsa => Family::Ed25519,
            Method::Hs256 | Method::Hs384 | Method::Hs512 => Family::Hmac,
        }
    }
}

impl Named {
    pub fn find(name: &str) -> Named {
        match (name, Method::ALL.into_iter().find(|method| method.name() == name)) {
            (_, Some(method)) => Named::Method(method),
            ("ES512", None) => Named::Es512,
            ("none", None) => Named::Unsigned,
            _ => Named::Unknown,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
