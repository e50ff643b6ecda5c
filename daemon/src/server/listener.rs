//! The socket: bound by ourselves or inherited from the service manager, and who may connect to it.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Group, Uid, User};
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use toolcell_worker::sys::peer_groups;

use super::connection::{self, Greeting};
use crate::core::event::{ConnId, Peer};
use crate::dispatcher::Event;

/// Why the daemon cannot listen.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The socket's directory cannot be made.
    #[error("cannot make the socket's directory {path}: {source}; make it, or set server.socket elsewhere")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another daemon answers there.
    #[error("a daemon answers at {path} already; stop it, or set server.socket elsewhere")]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// Something that is not a socket is there.
    #[error("{path} exists and is not a socket; remove it, or set server.socket elsewhere")]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// Binding failed.
    #[error("cannot bind {path}: {source}")]
    Bind {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The service manager handed over something that cannot be used.
    #[error("the inherited socket cannot be used: {0}")]
    Inherited(#[source] io::Error),
}

/// A socket that listens, and the path to remove at the end if it is ours.
#[derive(Debug)]
pub struct Bound {
    /// The socket.
    pub listener: std::os::unix::net::UnixListener,
    /// Where it was bound, with the inode that says whether it is still ours.
    pub path: Option<(PathBuf, u64)>,
}

impl Bound {
    /// Binds a path. The mode is set by the mask before the socket exists, so it is never wider for a moment.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(path: &Path, mode: u32) -> Result<Self, ListenError> {
        if let Some(directory) = path.parent()
            && !directory.exists()
        {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(if mode & 0o077 == 0 { 0o700 } else { 0o755 })
                .create(directory)
                .map_err(|source| ListenError::Directory { path: directory.to_owned(), source })?;
        }
        remove_dead_socket(path)?;
        let old = umask(Mode::from_bits_truncate(0o777 & !mode));
        let bound = std::os::unix::net::UnixListener::bind(path);
        umask(old);
        let bind_error = |source| ListenError::Bind { path: path.to_owned(), source };
        let listener = bound.map_err(bind_error)?;
        listener.set_nonblocking(true).map_err(bind_error)?;
        let inode = std::fs::symlink_metadata(path).map_err(bind_error)?.ino();
        Ok(Self { listener, path: Some((path.to_owned(), inode)) })
    }

    /// The socket that the service manager handed over, if there is one.
    ///
    /// # Errors
    /// [`ListenError::Inherited`].
    pub fn inherited() -> Result<Option<Self>, ListenError> {
        let mut fds = toolcell_worker::sys::take_listen_fds().into_iter();
        let Some(fd) = fds.next() else { return Ok(None) };
        if fds.next().is_some() {
            return Err(ListenError::Inherited(io::Error::other("more than one socket; one is expected")));
        }
        let listener = std::os::unix::net::UnixListener::from(fd);
        listener.local_addr().map_err(ListenError::Inherited)?;
        listener.set_nonblocking(true).map_err(ListenError::Inherited)?;
        Ok(Some(Self { listener, path: None }))
    }

    /// Removes the socket's file, if it is still the one that was bound.
    pub fn remove(path: &(PathBuf, u64)) {
        let (path, inode) = path;
        if std::fs::symlink_metadata(path).is_ok_and(|now| now.ino() == *inode) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A socket file whose daemon is dead is in the way; one whose daemon lives is not ours to remove.
fn remove_dead_socket(path: &Path) -> Result<(), ListenError> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|source| ListenError::Bind { path: path.to_owned(), source })
        }
        _ => Err(ListenError::InUse { path: path.to_owned() }),
    }
}

/// Who may do what, and how many at once.
#[derive(Debug)]
pub struct Doorkeeper {
    admin_group: Option<Gid>,
    serve_others: bool,
    max_connections: usize,
    max_per_uid: usize,
    open: Mutex<HashMap<u32, usize>>,
}

impl Doorkeeper {
    /// `serve_others`: the daemon is root, and runs calls as whoever connects.
    #[must_use]
    pub fn new(admin_group: &str, serve_others: bool, max_connections: usize, max_per_uid: usize) -> Self {
        let admin_group = Group::from_name(admin_group).ok().flatten().map(|group| group.gid);
        Self { admin_group, serve_others, max_connections, max_per_uid, open: Mutex::new(HashMap::new()) }
    }

    /// Connections open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.open().values().sum()
    }

    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<u32, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, uid: u32) -> bool {
        let mut open = self.open();
        let total: usize = open.values().sum();
        let of_uid = open.entry(uid).or_default();
        if total >= self.max_connections || *of_uid >= self.max_per_uid {
            return false;
        }
        *of_uid += 1;
        true
    }

    fn leave(&self, uid: u32) {
        let mut open = self.open();
        if let Some(of_uid) = open.get_mut(&uid) {
            *of_uid = of_uid.saturating_sub(1);
            if *of_uid == 0 {
                open.remove(&uid);
            }
        }
    }

    /// Who is at the other end, as the kernel says; `None` if this daemon does not serve them.
    async fn identify(&self, stream: &UnixStream) -> io::Result<Option<Peer>> {
        let credentials = stream.peer_cred()?;
        let (uid, gid) = (credentials.uid(), credentials.gid());
        let groups = peer_groups(stream).unwrap_or_default();
        if !self.serve_others && uid != 0 && uid != Uid::effective().as_raw() {
            return Ok(None);
        }
        let admin = uid == 0
            || self
                .admin_group
                .is_some_and(|admin| gid == admin.as_raw() || groups.contains(&admin.as_raw()));
        let home_env = if self.serve_others && uid != 0 {
            // The user database may be on the network.
            tokio::task::spawn_blocking(move || home_env(uid)).await.unwrap_or_default()
        } else {
            Vec::new()
        };
        Ok(Some(Peer { uid, gid, groups, admin, home_env }))
    }
}

fn home_env(uid: u32) -> Vec<(String, String)> {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let (name, home, shell) = match &user {
        Some(user) => (user.name.clone(), text(&user.dir), text(&user.shell)),
        None => (uid.to_string(), "/".to_owned(), "/bin/sh".to_owned()),
    };
    [("HOME", home), ("USER", name.clone()), ("LOGNAME", name), ("SHELL", shell)]
        .map(|(key, value)| (key.to_owned(), value))
        .to_vec()
}

/// Accepts connections for ever.
pub async fn accept_all(
    listener: UnixListener,
    doorkeeper: Arc<Doorkeeper>,
    greeting: Arc<Greeting>,
    events: mpsc::Sender<Event>,
    ids: Arc<std::sync::atomic::AtomicU64>,
) {
    let mut complained = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                complained = false;
                welcome(stream, &doorkeeper, &greeting, &events, &ids);
            }
            Err(error) => {
                // Out of descriptors or memory: the queue of the socket holds the others meanwhile.
                if !std::mem::replace(&mut complained, true) {
                    tracing::error!(%error, "cannot accept connections; trying on");
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves one connection in a task of its own, if its peer may come in.
pub fn welcome(
    stream: UnixStream,
    doorkeeper: &Arc<Doorkeeper>,
    greeting: &Arc<Greeting>,
    events: &mpsc::Sender<Event>,
    ids: &std::sync::atomic::AtomicU64,
) {
    let conn = ConnId(ids.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1);
    let Ok(uid) = stream.peer_cred().map(|credentials| credentials.uid()) else { return };
    if !doorkeeper.enter(uid) {
        tracing::debug!(uid, "a connection was closed: too many are open");
        return;
    }
    let (doorkeeper, greeting, events) = (Arc::clone(doorkeeper), Arc::clone(greeting), events.clone());
    tokio::spawn(async move {
        match doorkeeper.identify(&stream).await {
            Ok(Some(peer)) => connection::serve(conn, stream, Arc::new(peer), greeting, events).await,
            Ok(None) => tracing::info!(uid, "a connection was closed: this daemon serves its own user only"),
            Err(error) => tracing::info!(uid, %error, "a connection was closed: its peer is not known"),
        }
        doorkeeper.leave(uid);
    });
}
