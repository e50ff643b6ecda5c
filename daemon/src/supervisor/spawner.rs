//! The spawner process: starting it, speaking with it, ending it.
//!
//! It is started by plain `std::process::Command`, without `pre_exec`, so that the daemon's size never matters;
//! its end of a SEQPACKET socketpair is its standard input.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::mpsc;
use toolcell_protocol::codec::{self, CodecError};
use toolcell_protocol::version::WORKER_PROTOCOL;
use toolcell_protocol::worker_api::{FromSpawner, SpawnerSetup, ToSpawner};
use toolcell_worker::sys::{recv_packet, send_packet};

use super::SpawnerEvent;
use super::cells::Cells;
use crate::dispatcher::Event;

/// How long a spawner may take to clean up when the daemon ends: its own deadline for workers, and a margin.
const SHUT_DOWN_DEADLINE: Duration = Duration::from_secs(8);

/// Why there is no spawner.
#[derive(Debug, Error)]
pub enum SpawnerError {
    /// It could not be started.
    #[error("cannot start the spawner (this binary again, from /proc/self/exe): {0}")]
    Start(#[source] io::Error),
    /// Its socket cannot be used.
    #[error("cannot use the spawner's socket: {0}")]
    Socket(#[source] io::Error),
    /// A message has no encoding.
    #[error("cannot speak to the spawner: {0}")]
    Message(#[from] CodecError),
}

/// A spawner that runs and has not been spoken to.
#[derive(Debug)]
pub struct Started {
    child: Child,
    socket: OwnedFd,
}

/// Starts a spawner. Needs no runtime, so that the first one can be started before there is one.
///
/// # Errors
/// [`SpawnerError::Start`].
pub fn start() -> Result<Started, SpawnerError> {
    let (socket, theirs) = toolcell_worker::spawner_socketpair().map_err(SpawnerError::Start)?;
    let child = match std::env::var_os("TW") {
        Some(p) => toolcell_worker::spawner_command_of(std::path::Path::new(&p), theirs),
        None => toolcell_worker::spawner_command(theirs),
    }
    .spawn()
    .map_err(SpawnerError::Start)?;
    Ok(Started { child, socket })
}

/// A spawner in use.
#[derive(Debug)]
pub struct Spawner {
    child: Child,
    /// A SEQPACKET socket; tokio has no type for these, and its datagram type does what is needed.
    socket: Arc<UnixDatagram>,
    reader: tokio::task::JoinHandle<()>,
}

impl Spawner {
    /// Says hello and begins to read what it sends.
    ///
    /// # Errors
    /// [`SpawnerError`].
    pub fn adopt(
        started: Started,
        cells: &Cells,
        events: mpsc::Sender<Event>,
        generation: u64,
    ) -> Result<Self, SpawnerError> {
        let Started { child, socket } = started;
        let socket = std::os::unix::net::UnixDatagram::from(socket);
        socket.set_nonblocking(true).map_err(SpawnerError::Socket)?;
        let socket = Arc::new(UnixDatagram::from_std(socket).map_err(SpawnerError::Socket)?);
        let setup = SpawnerSetup {
            version: WORKER_PROTOCOL,
            cgroup_base: cells.cgroup_base().map(|base| base.to_string_lossy().into_owned()),
            remove_at_exit: cells.remove_at_exit().map(|dir| dir.to_string_lossy().into_owned()),
        };
        send(&socket, &ToSpawner::Hello(setup))?;
        let reader = tokio::spawn(read_all(Arc::clone(&socket), events, generation));
        Ok(Self { child, socket, reader })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(0)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`SpawnerError`]; the caller keeps so few messages in flight that "full" is an error too.
    pub fn send(&self, message: &ToSpawner) -> Result<(), SpawnerError> {
        send(&self.socket, message)
    }

    /// Closes the socket, which tells it to clean up, and waits for its end.
    pub async fn shut_down(self) {
        let Self { mut child, socket, reader } = self;
        reader.abort();
        // The reader holds the socket too, until it is really gone.
        let _ = reader.await;
        drop(socket);
        let deadline = tokio::time::Instant::now() + SHUT_DOWN_DEADLINE;
        loop {
            match child.try_wait() {
                Ok(Some(_)) | Err(_) => return,
                Ok(None) if tokio::time::Instant::now() >= deadline => break,
                Ok(None) => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
        tracing::error!(pid = child.id(), "the spawner did not end in time and is killed");
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Makes sure that a spawner whose socket is broken is gone, and reaps it.
    pub fn abandon(self) {
        let Self { mut child, reader, .. } = self;
        reader.abort();
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn send(socket: &UnixDatagram, message: &ToSpawner) -> Result<(), SpawnerError> {
    let bytes = codec::encode(message)?;
    send_packet(socket, &bytes, &[]).map_err(SpawnerError::Socket)
}

async fn read_all(socket: Arc<UnixDatagram>, events: mpsc::Sender<Event>, generation: u64) {
    let reason = loop {
        if let Err(error) = socket.readable().await {
            break error.to_string();
        }
        let packet = match socket.try_io(Interest::READABLE, || recv_packet(&*socket)) {
            Ok(Some(packet)) => packet,
            Ok(None) => break "end-of-file".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => break error.to_string(),
        };
        let message: FromSpawner = match codec::decode(&packet.bytes) {
            Ok(message) => message,
            Err(error) => break error.to_string(),
        };
        if let FromSpawner::Hello { version, .. } = message
            && version != WORKER_PROTOCOL
        {
            break format!("it speaks version {version}, this build {WORKER_PROTOCOL}");
        }
        let event = SpawnerEvent::Message(message, packet.fds);
        if events.send(Event::Spawner { generation, event }).await.is_err() {
            return;
        }
    };
    let event = SpawnerEvent::Gone { reason };
    let _ = events.send(Event::Spawner { generation, event }).await;
}
