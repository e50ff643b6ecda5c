//! Where a daemon is looked for.
//!
//! 1. `$TOOLCELL_SOCKET`: somebody named it, so it is the only one; unreachable is an error, never a reason to
//!    go on.
//! 2. `$XDG_RUNTIME_DIR/toolcell/toolcell.sock`: the user's daemon.
//! 3. `/run/toolcell/toolcell.sock`: the host's daemon.
//!
//! The search ends at the first socket that takes a connection. What answers there and fails the handshake is
//! an error, too: a daemon that hangs must not silently be replaced by another one.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{ClientError, Tried};

/// Names the one socket to use.
pub const SOCKET_VARIABLE: &str = "TOOLCELL_SOCKET";

/// The socket of the host's daemon.
pub const SYSTEM_SOCKET: &str = "/run/toolcell/toolcell.sock";

/// The sockets to try, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// In order.
    pub paths: Vec<PathBuf>,
    /// Somebody named the only one.
    pub explicit: bool,
}

impl Search {
    /// The search that this process's environment asks for.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// The search for given variables. An empty variable counts as unset, and a relative `XDG_RUNTIME_DIR` is
    /// ignored, as its specification wants.
    #[must_use]
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(path) = set(SOCKET_VARIABLE) {
            return Self::only(path);
        }
        let user = set("XDG_RUNTIME_DIR")
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join("toolcell/toolcell.sock"));
        Self { paths: user.into_iter().chain([PathBuf::from(SYSTEM_SOCKET)]).collect(), explicit: false }
    }

    /// This socket and no other.
    #[must_use]
    pub fn only(path: impl AsRef<Path>) -> Self {
        Self { paths: vec![path.as_ref().to_owned()], explicit: true }
    }

    pub(crate) fn failed(&self, tried: Vec<Tried>) -> ClientError {
        ClientError::Connect { tried, explicit: self.explicit }
    }
}

pub(crate) fn tried(path: &Path, error: &io::Error) -> Tried {
    Tried { path: path.to_owned(), reason: error.to_string(), kind: error.kind() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(variables: &[(&str, &str)]) -> Search {
        Search::from_variables(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn a_named_socket_is_the_only_one() {
        let found = search(&[("TOOLCELL_SOCKET", "/tmp/x.sock"), ("XDG_RUNTIME_DIR", "/run/user/7")]);
        assert_eq!(found, Search::only("/tmp/x.sock"));
        assert!(found.explicit);
    }

    #[test]
    fn the_users_daemon_comes_before_the_hosts() {
        let found = search(&[("XDG_RUNTIME_DIR", "/run/user/7")]);
        assert_eq!(
            found.paths,
            [PathBuf::from("/run/user/7/toolcell/toolcell.sock"), PathBuf::from(SYSTEM_SOCKET)]
        );
        assert!(!found.explicit);
    }

    #[test]
    fn empty_and_relative_variables_are_ignored() {
        let found = search(&[("TOOLCELL_SOCKET", ""), ("XDG_RUNTIME_DIR", "run")]);
        assert_eq!(found.paths, [PathBuf::from(SYSTEM_SOCKET)]);
    }
}
