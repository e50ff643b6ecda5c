//! From a configuration to a running daemon, in the order that matters:
//!
//! 1. tools are read, containment is chosen (and a dead daemon's cells are removed);
//! 2. the spawner is started: before any thread, before our own limits are raised, while we are small;
//! 3. the runtime, the socket, the loop.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Group, Uid, User};
use thiserror::Error;
use tokio::sync::mpsc;
use toolcell_protocol::worker_api::Identity as RunIdentity;

use crate::config::Config;
use crate::core::Core;
use crate::core::admission::{NOBODY, Surroundings};
use crate::core::machine::Settings;
use crate::core::queue::RunLimits;
use crate::dispatcher::{Dispatcher, Event, Identity};
use crate::server::connection::Greeting;
use crate::server::listener::{self, Bound, Doorkeeper, ListenError};
use crate::supervisor::Supervisor;
use crate::supervisor::cells::{Cells, CellsError};
use crate::supervisor::spawner::{self, SpawnerError};
use crate::supervisor::spool_dir::{SpoolDir, SpoolError};
use crate::tools::ToolSet;
use crate::tools::load::load;

/// Events that may wait for the loop; senders wait beyond that.
const EVENT_QUEUE: usize = 1024;

/// Why the daemon cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Its containment cannot be had.
    #[error(transparent)]
    Cells(#[from] CellsError),
    /// No spawner.
    #[error(transparent)]
    Spawner(#[from] SpawnerError),
    /// No socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The directory of spool files cannot be used.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// A directory cannot be made.
    #[error("cannot make the directory {path}: {source}; make it, or set TMPDIR elsewhere")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no place for the socket.
    #[error("there is no place for the socket: XDG_RUNTIME_DIR is not set; set server.socket")]
    NoSocketPath,
    /// The runtime cannot be made.
    #[error("cannot set the runtime up: {0}")]
    Runtime(#[source] io::Error),
}

/// Where spool files go when nothing is configured. With an inherited socket there may be no conventional place; then
/// it is a directory of the host's for such things.
fn beside_the_socket(config: &Config) -> PathBuf {
    let beside = socket_path(config).ok().and_then(|socket| Some(socket.parent()?.join("spool")));
    beside.unwrap_or_else(|| std::env::temp_dir().join(format!("toolcell-spool-{}", Uid::effective())))
}

/// Everything that is done before there is a runtime.
#[derive(Debug)]
pub struct Prepared {
    config: Config,
    tools: Arc<ToolSet>,
    broken_manifests: Vec<String>,
    cells: Arc<Cells>,
    spawner: spawner::Started,
    spool: Option<SpoolDir>,
    embedded: bool,
}

/// The socket's path: the configured one, else the conventional one for this user.
///
/// # Errors
/// [`StartError::NoSocketPath`].
pub fn socket_path(config: &Config) -> Result<PathBuf, StartError> {
    if let Some(path) = &config.server.socket {
        return Ok(path.clone());
    }
    if Uid::effective().is_root() {
        return Ok(PathBuf::from("/run/toolcell/toolcell.sock"));
    }
    std::env::var_os("XDG_RUNTIME_DIR")
        .filter(|dir| !dir.is_empty())
        .map(|dir| Path::new(&dir).join("toolcell/toolcell.sock"))
        .ok_or(StartError::NoSocketPath)
}

impl Prepared {
    /// Steps 1 and 2. Call it before there is any thread.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn new(config: Config, embedded: bool) -> Result<Self, StartError> {
        let search_path = std::env::var_os("PATH").unwrap_or_default();
        let loaded = load(&config.tools_dirs, &search_path);
        let broken_manifests: Vec<String> = loaded.broken.iter().map(|broken| broken.to_string()).collect();
        for broken in &broken_manifests {
            tracing::error!("{broken}");
        }
        for missing in &loaded.missing {
            tracing::warn!(path = %missing.display(), "a directory of manifests does not exist");
        }
        for replaced in &loaded.overrides {
            tracing::info!(tool = replaced.name, by = %replaced.by, replaced = %replaced.replaced, "a tool is overridden");
        }
        for warning in &loaded.warnings {
            tracing::warn!(path = %warning.path.display(), "{}", warning.message);
        }
        // A daemon in a command is alone with its files: what a configured directory holds is another daemon's.
        let private = if embedded { Some(private_directory()?) } else { None };
        let spool = match (&private, &config.output.spool_dir) {
            _ if config.output.spool_bytes == 0 => None,
            (Some(dir), _) => Some(SpoolDir::of_our_own(dir.clone())),
            (None, Some(dir)) => Some(SpoolDir::take(dir.clone())?),
            (None, None) => Some(SpoolDir::take(beside_the_socket(&config))?),
        };
        let cells = Arc::new(Cells::choose(config.cells.containment, private)?);
        let spawner = spawner::start()?;
        raise_nofile();
        Ok(Self { config, tools: Arc::new(loaded.tools), broken_manifests, cells, spawner, spool, embedded })
    }

    /// The tools that were loaded.
    #[must_use]
    pub fn tools(&self) -> &Arc<ToolSet> {
        &self.tools
    }

    /// Step 3: serves until it is told to stop. `bound`: the socket, if there is one. `events`: the loop's queue.
    /// `ready` is called when everything that a client needs is there.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn serve(
        self,
        bound: Option<Bound>,
        queue: Queue,
        with_signals: bool,
        ready: impl FnOnce(),
    ) -> Result<(), StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(16)
            .thread_keep_alive(Duration::from_secs(1))
            .build()
            .map_err(StartError::Runtime)?;
        runtime.block_on(self.serve_within(bound, queue, with_signals, ready))
    }

    async fn serve_within(
        self,
        bound: Option<Bound>,
        queue: Queue,
        with_signals: bool,
        ready: impl FnOnce(),
    ) -> Result<(), StartError> {
        let Queue { sender, receiver } = queue;
        let around = self.surroundings();
        let Self { config, tools, broken_manifests, cells, spawner, embedded, spool } = self;
        let root = Uid::effective().is_root();
        let doorkeeper = Arc::new(Doorkeeper::new(
            &config.server.admin_group,
            root,
            config.server.max_connections,
            config.server.max_connections_per_uid,
        ));
        let identity = Identity {
            daemon: concat!("toolcelld ", env!("CARGO_PKG_VERSION")).to_owned(),
            epoch: epoch(),
            embedded,
            broken_manifests,
        };
        let greeting = Arc::new(Greeting {
            daemon: identity.daemon.clone(),
            epoch: identity.epoch,
            handshake_timeout: Duration::from_millis(config.server.handshake_timeout_ms),
            max_pending_requests: config.server.max_pending_requests,
            max_queued_messages: config.server.max_queued_messages,
        });
        let supervisor = Supervisor::new(
            sender.clone(),
            Arc::clone(&cells),
            spawner,
            config.cells.idle_workers,
            config.cells.idle_builtin_workers,
            config.output.kept_bytes,
        )?;
        if with_signals {
            crate::signals::forward(sender.clone()).map_err(StartError::Runtime)?;
        }
        let ids = Arc::new(AtomicU64::new(0));
        let mut socket_file = None;
        if let Some(Bound { listener, path }) = bound {
            socket_file = path;
            let listener = tokio::net::UnixListener::from_std(listener).map_err(StartError::Runtime)?;
            tokio::spawn(listener::accept_all(
                listener,
                Arc::clone(&doorkeeper),
                Arc::clone(&greeting),
                sender.clone(),
                Arc::clone(&ids),
            ));
        }
        let core = Core::new(settings(&config), around, tools);
        let dispatcher = Dispatcher::new(core, supervisor, Arc::clone(&doorkeeper), cells, identity);
        toolcell_worker::sys::forget_start_up_code();
        ready();
        let adopt = |fd: OwnedFd| {
            let stream = std::os::unix::net::UnixStream::from(fd);
            let adopted =
                stream.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(stream));
            match adopted {
                Ok(stream) => listener::welcome(stream, &doorkeeper, &greeting, &sender, &ids),
                Err(error) => tracing::error!(%error, "cannot take a connection in"),
            }
        };
        dispatcher.run(receiver, adopt).await;
        if let Some(path) = &socket_file {
            Bound::remove(path);
        }
        // Nobody can ask for a call of this daemon any more.
        drop(spool);
        Ok(())
    }

    fn surroundings(&self) -> Surroundings {
        let root = Uid::effective().is_root();
        Surroundings {
            root,
            embedded: self.embedded,
            daemon_env: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
            env_inherit: self.config.cells.env_inherit.clone(),
            containment: self.cells.containment(),
            spool_dir: self.spool.as_ref().map(|spool| spool.path().to_string_lossy().into_owned()),
            spool_bytes: self.config.output.spool_bytes,
            inline_bytes: self.config.output.inline_bytes,
            tail_bytes: self.config.output.tail_bytes,
            for_model_bytes: self.config.output.for_model_bytes,
            max_timeout_ms: self.config.limits.max_timeout_ms,
            run_as: if root { resolve_run_as(&self.tools) } else { Vec::new() },
        }
    }
}

/// The loop's queue, made before the runtime so that others can hold its sender.
#[derive(Debug)]
pub struct Queue {
    /// For everybody who has events.
    pub sender: mpsc::Sender<Event>,
    receiver: mpsc::Receiver<Event>,
}

impl Queue {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        let (sender, receiver) = mpsc::channel(EVENT_QUEUE);
        Self { sender, receiver }
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

const fn settings(config: &Config) -> Settings {
    let limits = &config.limits;
    Settings {
        run: RunLimits {
            total: limits.max_running,
            per_uid: limits.max_running_per_uid,
            per_session: limits.max_running_per_session,
        },
        max_sessions_per_uid: limits.max_sessions_per_uid,
        max_queued_per_uid: limits.max_queued_per_uid,
        kept_calls_per_session: limits.kept_calls_per_session,
        session_linger_ms: limits.session_linger_ms,
        drain_ms: limits.drain_ms,
    }
}

/// Milliseconds since 1970 at the start: no two starts share it.
fn epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A directory that only we can enter, and that the spawner removes at the end.
fn private_directory() -> Result<PathBuf, StartError> {
    let name = format!("toolcell-{}-{}", std::process::id(), uuid::Uuid::now_v7().simple());
    let path = std::env::temp_dir().join(name);
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&path)
        .map_err(|source| StartError::Directory { path: path.clone(), source })?;
    Ok(path)
}

/// Each call takes a few descriptors here. The spawner was started before this, so tools keep the limit that
/// the daemon was started with.
fn raise_nofile() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, soft, hard, "cannot raise the limit of open files");
    }
}

fn resolve_run_as(tools: &ToolSet) -> Vec<(String, RunIdentity)> {
    let mut resolved = Vec::new();
    for tool in tools.iter() {
        let Some(run_as) = &tool.run_as else { continue };
        let user = match run_as.user.parse::<u32>() {
            Ok(uid) => User::from_uid(Uid::from_raw(uid)),
            Err(_) => User::from_name(&run_as.user),
        };
        let Ok(Some(user)) = user else {
            tracing::error!(
                tool = tool.name,
                user = run_as.user,
                "run_as names no user; its calls are refused"
            );
            resolved.push((tool.name.clone(), NOBODY));
            continue;
        };
        let gid = match &run_as.group {
            None => Some(user.gid),
            Some(group) => match group.parse::<u32>() {
                Ok(gid) => Some(Gid::from_raw(gid)),
                Err(_) => Group::from_name(group).ok().flatten().map(|group| group.gid),
            },
        };
        let Some(gid) = gid else {
            tracing::error!(tool = tool.name, "run_as names no group; its calls run as nobody");
            resolved.push((tool.name.clone(), NOBODY));
            continue;
        };
        resolved.push((
            tool.name.clone(),
            RunIdentity { uid: user.uid.as_raw(), gid: gid.as_raw(), groups: Vec::new() },
        ));
    }
    resolved
}
