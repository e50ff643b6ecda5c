//! Newtypes for every name and number that travels.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::limits::{MAX_CALL_ID_BYTES, MAX_SESSION_NAME_BYTES, MAX_TOOL_NAME_BYTES};

/// Why a name or an id was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdError {
    /// The text is empty.
    #[error("{what} is empty")]
    Empty {
        /// What the text was meant to be.
        what: &'static str,
    },
    /// The text is longer than allowed.
    #[error("{what} has {bytes} bytes, at most {limit_bytes} are allowed")]
    TooLong {
        /// What the text was meant to be.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The bound.
        limit_bytes: usize,
    },
    /// A character is not allowed.
    #[error("{what} {text:?} has the character {character:?} at byte {at}; allowed are {allowed}")]
    Character {
        /// What the text was meant to be.
        what: &'static str,
        /// The whole text.
        text: String,
        /// The first character that is not allowed.
        character: char,
        /// Its byte offset.
        at: usize,
        /// The allowed characters, in words.
        allowed: &'static str,
    },
    /// Not a UUID.
    #[error("{text:?} is not a call's uid; expected 32 hexadecimal digits in the form of a UUID")]
    NotAUuid {
        /// The text.
        text: String,
    },
}

macro_rules! uuid_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                Uuid::parse_str(text).map(Self).map_err(|_| IdError::NotAUuid { text: text.to_owned() })
            }
        }
    };
}

uuid_newtype! {
    /// Our own name of one call: a UUIDv7, unique for ever. What commands mean by CALL.
    CallUid
}
uuid_newtype! {
    /// One batch: a UUIDv7.
    BatchId
}
uuid_newtype! {
    /// One session: a UUIDv7, new each time a session of a name is created.
    SessionId
}

/// The caller's name of a call: opaque, echoed, unique in its batch only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub String);

impl CallId {
    /// Checks the length; every character is allowed.
    ///
    /// # Errors
    /// [`IdError::Empty`] and [`IdError::TooLong`].
    pub fn check(&self) -> Result<(), IdError> {
        check_length("call_id", &self.0, MAX_CALL_ID_BYTES)
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for CallId {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// A session's name, chosen by the client; known together with the client's uid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionName(pub String);

impl SessionName {
    /// Checks length and characters (letters, digits, `.`, `_`, `:`, `@`, `-`).
    ///
    /// # Errors
    /// Any [`IdError`] but the UUID one.
    pub fn check(&self) -> Result<(), IdError> {
        check_length("session name", &self.0, MAX_SESSION_NAME_BYTES)?;
        check_characters("session name", &self.0, "letters, digits and ._:@-", |c| {
            c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '@' | '-')
        })
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for SessionName {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// Checks a tool's name: `[A-Za-z0-9_-]{1,64}`, which is what the providers of models accept.
///
/// # Errors
/// Any [`IdError`] but the UUID one.
pub fn check_tool_name(name: &str) -> Result<(), IdError> {
    check_length("tool name", name, MAX_TOOL_NAME_BYTES)?;
    check_characters("tool name", name, "letters, digits, _ and -", |c| {
        c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
    })
}

fn check_length(what: &'static str, text: &str, limit_bytes: usize) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty { what });
    }
    if text.len() > limit_bytes {
        return Err(IdError::TooLong { what, bytes: text.len(), limit_bytes });
    }
    Ok(())
}

fn check_characters(
    what: &'static str,
    text: &str,
    allowed: &'static str,
    is_allowed: impl Fn(char) -> bool,
) -> Result<(), IdError> {
    match text.char_indices().find(|(_, c)| !is_allowed(*c)) {
        None => Ok(()),
        Some((at, character)) => {
            Err(IdError::Character { what, text: text.to_owned(), character, at, allowed })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_name_says_where_and_what_is_allowed() {
        let error = check_tool_name("read file").expect_err("a blank is not allowed");
        assert_eq!(
            error.to_string(),
            "tool name \"read file\" has the character ' ' at byte 4; allowed are letters, digits, _ and -"
        );
        assert!(check_tool_name("").is_err());
        assert!(check_tool_name(&"a".repeat(65)).is_err());
        assert!(check_tool_name(&"a".repeat(64)).is_ok());
    }

    #[test]
    fn session_names_cannot_leave_a_directory() {
        assert!(SessionName::from("../etc").check().is_err());
        assert!(SessionName::from("agent-7@host:1.a_b").check().is_ok());
    }

    #[test]
    fn a_uid_reads_back_what_it_prints() {
        let uid = CallUid(Uuid::from_u128(7));
        assert_eq!(uid.to_string().parse::<CallUid>(), Ok(uid));
        assert!("7".parse::<CallUid>().is_err());
    }
}
