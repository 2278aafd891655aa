//! Implements `Debug` for messages that contain passwords, password hashes or tokens, so that no secret gets
//! into a log: the output shows only whether the secret is empty. `cargo xtask proto` generates no `Debug`
//! for these messages.

use std::fmt;

use crate::authpb::User;
use crate::etcdserverpb::{
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest, AuthenticateResponse,
    InternalAuthenticateRequest,
};

/// Placeholder for a secret in the output of `Debug`.
struct Hidden {
    is_empty: bool,
}

impl Hidden {
    fn of(secret: impl AsRef<[u8]>) -> Hidden {
        Hidden { is_empty: secret.as_ref().is_empty() }
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty { "none" } else { ".." })
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let User { name, password, roles, options } = self;
        f.debug_struct("User")
            .field("name", name)
            .field("password", &Hidden::of(password))
            .field("roles", roles)
            .field("options", options)
            .finish()
    }
}

impl fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AuthenticateRequest { name, password } = self;
        f.debug_struct("AuthenticateRequest")
            .field("name", name)
            .field("password", &Hidden::of(password))
            .finish()
    }
}

impl fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AuthenticateResponse { header, token } = self;
        f.debug_struct("AuthenticateResponse")
            .field("header", header)
            .field("token", &Hidden::of(token))
            .finish()
    }
}

impl fmt::Debug for AuthUserAddRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AuthUserAddRequest { name, password, options, hashed_password } = self;
        f.debug_struct("AuthUserAddRequest")
            .field("name", name)
            .field("password", &Hidden::of(password))
            .field("options", options)
            .field("hashed_password", &Hidden::of(hashed_password))
            .finish()
    }
}

impl fmt::Debug for AuthUserChangePasswordRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AuthUserChangePasswordRequest { name, password, hashed_password } = self;
        f.debug_struct("AuthUserChangePasswordRequest")
            .field("name", name)
            .field("password", &Hidden::of(password))
            .field("hashed_password", &Hidden::of(hashed_password))
            .finish()
    }
}

impl fmt::Debug for InternalAuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InternalAuthenticateRequest { name, password, simple_token } = self;
        f.debug_struct("InternalAuthenticateRequest")
            .field("name", name)
            .field("password", &Hidden::of(password))
            .field("simple_token", &Hidden::of(simple_token))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::InternalRaftRequest;

    const PLANTED: &str = "pl4nted";

    #[test]
    fn no_secret_is_in_the_output_of_debug() {
        let secret = || PLANTED.to_owned();
        let add = AuthUserAddRequest {
            password: secret(),
            hashed_password: secret(),
            ..AuthUserAddRequest::default()
        };
        let change = AuthUserChangePasswordRequest {
            password: secret(),
            hashed_password: secret(),
            ..AuthUserChangePasswordRequest::default()
        };
        let internal = InternalAuthenticateRequest {
            name: "bob".to_owned(),
            password: secret(),
            simple_token: secret(),
        };
        let entry = InternalRaftRequest {
            auth_user_add: Some(add.clone()),
            auth_user_change_password: Some(change.clone()),
            authenticate: Some(internal.clone()),
            ..InternalRaftRequest::default()
        };
        let all: [&dyn fmt::Debug; 7] = [
            &User { password: PLANTED.into(), ..User::default() },
            &AuthenticateRequest { name: "bob".to_owned(), password: secret() },
            &AuthenticateResponse { token: secret(), ..AuthenticateResponse::default() },
            &add,
            &change,
            &internal,
            &entry,
        ];
        for message in all {
            for text in [format!("{message:?}"), format!("{message:#?}")] {
                assert!(!text.contains(PLANTED), "{text}");
                assert!(text.contains(".."), "that there is one is told: {text}");
            }
        }
        assert!(format!("{:?}", AuthenticateRequest::default()).contains("password: none"));
    }
}
