//! The daemon that a command talks to: one that is reached, or one of our own for as long as the command runs.

use std::path::{Path, PathBuf};

use toolcell_client::address::{SOCKET_VARIABLE, Search};
use toolcell_client::protocol::client_api::{OnDisconnect, SessionOpen, SessionRef};
use toolcell_client::protocol::id::SessionName;
use toolcell_client::{Client, ClientError, Options, Session};
use toolcell_daemon::config::Config;
use toolcell_daemon::embedded::{self, Embedded};
use toolcell_daemon::start::StartError;

use crate::args::Common;
use crate::console::Console;
use crate::error::CliError;
use crate::input;

/// Read by an embedded daemon, as by toolcelld, when no other file is named.
pub const DEFAULT_CONFIG: &str = "/etc/toolcell/toolcelld.toml";

/// A daemon to talk to.
#[derive(Debug)]
pub struct Backend {
    /// The connection. Fields are dropped in this order: the connection goes before the daemon ends.
    pub client: Client,
    embedded: Option<Embedded>,
}

/// What the options say about the daemon.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// The one behind the first of these sockets; with `or_own`, else one of our own.
    Reach { search: Search, or_own: bool },
    /// One of our own.
    Own,
}

impl Backend {
    /// Reaches a daemon, or starts one. Must come before this process has threads.
    pub async fn open(common: &Common, console: &mut Console) -> Result<Self, CliError> {
        match wanted(common, Search::from_environment())? {
            Wanted::Own => Self::own(common, console).await,
            Wanted::Reach { search, or_own } => match connect(&search).await {
                Err(ClientError::Connect { tried, .. }) if or_own => {
                    for one in tried.iter().filter(|one| one.kind == std::io::ErrorKind::PermissionDenied) {
                        console.note(&format!("{one}; going on with a daemon of our own"));
                    }
                    Self::own(common, console).await
                }
                outcome => Ok(Self { client: outcome?, embedded: None }),
            },
        }
    }

    /// Reaches a daemon that is there: for commands about calls that others have started.
    pub async fn reach(common: &Common) -> Result<Self, CliError> {
        match wanted(common, Search::from_environment())? {
            Wanted::Own => Err(CliError::Usage(
                "this command is about the calls of a running daemon; leave --no-daemon, --tools and --config away"
                    .to_owned(),
            )),
            Wanted::Reach { search, .. } => Ok(Self { client: connect(&search).await?, embedded: None }),
        }
    }

    /// Starts a daemon of our own.
    pub async fn own(common: &Common, console: &mut Console) -> Result<Self, CliError> {
        let embedded = embedded::start(configuration(common)?).map_err(|error| match error {
            StartError::Cells(_) | StartError::NoSocketPath => CliError::Configuration(error.to_string()),
            _ => CliError::Embedded(error.to_string()),
        })?;
        let stream = embedded.connect().map_err(|error| CliError::Embedded(error.to_string()))?;
        let client = Client::from_std_stream_with(stream, options()).await?;
        for broken in client.server_status().await?.broken_manifests {
            console.note(&broken);
        }
        Ok(Self { client, embedded: Some(embedded) })
    }

    /// Whether it ends with this command.
    pub const fn is_own(&self) -> bool {
        self.embedded.is_some()
    }

    /// The session that the options name, or one that ends with this command.
    pub async fn session(&self, common: &Common) -> Result<Session, CliError> {
        let (name, on_disconnect) = match &common.session {
            // A named one is there to be used again; its calls are killed by name, not by our going away.
            Some(name) => (name.clone(), OnDisconnect::Linger),
            None => (fresh_name(), OnDisconnect::Abort),
        };
        let open = SessionOpen {
            name: checked(&name)?,
            agent: None,
            cwd: input::working_dir(common.cwd.as_deref())?,
            env: input::environment(&common.env)?,
            on_disconnect,
        };
        Ok(self.client.session_open(open).await?)
    }
}

/// The session that `--session` names, for requests that look at one.
pub fn session_ref(common: &Common) -> Result<Option<SessionRef>, CliError> {
    let named = common.session.as_ref().map(|name| checked(name)).transpose()?;
    Ok(named.map(|name| SessionRef { uid: None, name }))
}

fn checked(name: &str) -> Result<SessionName, CliError> {
    let name = SessionName::from(name);
    name.check().map_err(|error| CliError::Usage(format!("--session: {error}")))?;
    Ok(name)
}

fn fresh_name() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("cli-{}-{:x}", std::process::id(), now.as_nanos())
}

fn options() -> Options {
    Options { client: concat!("toolcell/", env!("CARGO_PKG_VERSION")).to_owned(), ..Options::default() }
}

async fn connect(search: &Search) -> Result<Client, ClientError> {
    Client::connect_with(search, options()).await
}

/// The sockets that the options and the environment name, for `doctor`.
pub fn search(common: &Common) -> Search {
    common.socket.as_ref().map_or_else(Search::from_environment, Search::only)
}

fn wanted(common: &Common, from_environment: Search) -> Result<Wanted, CliError> {
    if let Some(path) = &common.socket {
        return Ok(Wanted::Reach { search: Search::only(path), or_own: false });
    }
    if common.no_daemon {
        return Ok(Wanted::Own);
    }
    let for_own = !common.tools_dirs.is_empty() || common.config.is_some();
    match (for_own, from_environment.explicit) {
        (true, true) => Err(CliError::Usage(format!(
            "--tools and --config are for a daemon of our own, and {SOCKET_VARIABLE} names another one; add \
             --no-daemon, or configure that one"
        ))),
        (true, false) => Ok(Wanted::Own),
        (false, explicit) => Ok(Wanted::Reach { search: from_environment, or_own: !explicit }),
    }
}

fn configuration(common: &Common) -> Result<Config, CliError> {
    let default = Path::new(DEFAULT_CONFIG);
    let file: Option<PathBuf> =
        common.config.clone().or_else(|| default.exists().then(|| default.to_owned()));
    let mut config = match &file {
        Some(path) => Config::read(path).map_err(|error| CliError::Configuration(error.to_string()))?,
        None => Config::default(),
    };
    for dir in &common.tools_dirs {
        if !dir.is_dir() {
            return Err(CliError::Configuration(format!("--tools {}: no such directory", dir.display())));
        }
        config.tools_dirs.push(dir.clone());
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default_search() -> Search {
        Search { paths: vec![PathBuf::from("/run/a")], explicit: false }
    }

    #[test]
    fn a_named_socket_is_never_replaced_by_a_daemon_of_our_own() {
        let flag = Common { socket: Some(PathBuf::from("/s")), ..Common::default() };
        let reach = Wanted::Reach { search: Search::only("/s"), or_own: false };
        assert_eq!(wanted(&flag, default_search()).expect("good"), reach);
        assert_eq!(wanted(&Common::default(), Search::only("/s")).expect("good"), reach);
    }

    #[test]
    fn without_a_name_one_of_our_own_is_the_last_resort() {
        let reach = Wanted::Reach { search: default_search(), or_own: true };
        assert_eq!(wanted(&Common::default(), default_search()).expect("good"), reach);
    }

    #[test]
    fn tools_and_configuration_mean_a_daemon_of_our_own() {
        let tools = Common { tools_dirs: vec![PathBuf::from("d")], ..Common::default() };
        assert_eq!(wanted(&tools, default_search()).expect("good"), Wanted::Own);
        assert!(matches!(wanted(&tools, Search::only("/s")), Err(CliError::Usage(_))));
        let both = Common { no_daemon: true, ..tools };
        assert_eq!(wanted(&both, Search::only("/s")).expect("good"), Wanted::Own);
    }

    #[test]
    fn a_wrong_configuration_is_told_before_anything_starts() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("t.toml");
        std::fs::write(&file, "[limits]\nmax_runing = 3\n").expect("written");
        let common = Common { config: Some(file), ..Common::default() };
        let error = configuration(&common).expect_err("misspelt");
        assert_eq!(error.exit_code(true), 78);
        assert!(error.to_string().contains("max_runing"), "{error}");
        let common = Common { tools_dirs: vec![directory.path().join("missing")], ..Common::default() };
        assert_eq!(configuration(&common).expect_err("missing").exit_code(true), 78);
    }

    #[test]
    fn session_names_are_fresh_and_allowed() {
        assert_ne!(fresh_name(), fresh_name());
        assert!(checked(&fresh_name()).is_ok());
        let error = checked("a/b").expect_err("a slash");
        assert!(error.to_string().contains("--session"), "{error}");
    }
}
