//! A worker's end of its socket: frames in, frames out, without ever waiting inside a send.
//!
//! What goes out waits in three parts that leave with one call: `head` (frames, and the beginning of an
//! `Output` frame), `payload` (that frame's bytes, still in the buffer into which they were read from the pipe),
//! `trailer` (frames after it). So a short tool's Started, Output and Finished are one packet of work for the
//! daemon, and a flood is never copied.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, sendmsg};
use toolcell_protocol::call::{Blob, Stream};
use toolcell_protocol::codec::{self, CodecError};
use toolcell_protocol::frame::FrameBuffer;
use toolcell_protocol::limits::MAX_CHUNK_BYTES;
use toolcell_protocol::worker_api::{FromWorker, ToWorker};

/// Size of the buffer until a read fills it: most tools say little, and each page used is a page to copy.
const FIRST_BUFFER_BYTES: usize = 1024;

/// How much larger it gets when a read has filled it.
const BUFFER_GROWTH: usize = 16;

/// Below this a payload is copied into the head: cheaper than a third piece, and the buffer is free at once.
const COPY_BELOW_BYTES: usize = 4096;

/// How a flush went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Everything is out.
    All,
    /// The socket is full.
    Blocked,
    /// The daemon is gone.
    Gone,
}

/// What a look at the socket found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// Bytes arrived.
    Some,
    /// Nothing yet.
    Nothing,
    /// The daemon is gone.
    Gone,
}

/// A worker's end of its socket.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    inbox: FrameBuffer,
    head: Vec<u8>,
    /// Bytes of `buffer` that are the payload.
    payload: usize,
    trailer: Vec<u8>,
    /// Bytes of the three parts that are out already.
    sent: usize,
    next_chunk: u64,
    buffer: Vec<u8>,
}

impl Channel {
    /// Starts small.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            inbox: FrameBuffer::new(),
            head: Vec::with_capacity(512),
            payload: 0,
            trailer: Vec::new(),
            sent: 0,
            next_chunk: 0,
            buffer: vec![0; FIRST_BUFFER_BYTES],
        }
    }

    /// Reads what has arrived; waits for it if `wait`.
    pub(crate) fn receive(&mut self, wait: bool) -> Received {
        // While a payload waits the buffer is taken, and what comes then is a short command.
        let mut small = [0_u8; 256];
        let piece = if self.payload == 0 { &mut self.buffer[..] } else { &mut small[..] };
        let flags = if wait { MsgFlags::empty() } else { MsgFlags::MSG_DONTWAIT };
        loop {
            match recv(self.socket.as_raw_fd(), piece, flags) {
                Ok(0) => return Received::Gone,
                Ok(count) => {
                    self.inbox.extend(&piece[..count]);
                    self.grow_if_full(count);
                    return Received::Some;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Received::Nothing,
                Err(_) => return Received::Gone,
            }
        }
    }

    fn grow_if_full(&mut self, count: usize) {
        if self.payload == 0 && count == self.buffer.len() && count < MAX_CHUNK_BYTES {
            self.buffer = vec![0; (count * BUFFER_GROWTH).min(MAX_CHUNK_BYTES)];
        }
    }

    /// The next whole message, if it has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<ToWorker>, CodecError> {
        match self.inbox.next_frame() {
            Ok(Some(body)) => codec::decode(body).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Queues a message.
    pub(crate) fn queue(&mut self, message: &FromWorker) {
        let part = if self.payload == 0 { &mut self.head } else { &mut self.trailer };
        // Fails only above 16 MiB, which no message of ours reaches; without its last frame the daemon reports
        // a failed worker.
        let _ = codec::encode_frame(message, part);
    }

    /// Where the next read from a pipe goes. Must not be asked for while a payload waits there.
    pub(crate) fn buffer(&mut self) -> &mut [u8] {
        debug_assert_eq!(self.payload, 0, "the payload would be overwritten");
        &mut self.buffer
    }

    /// What was read there.
    pub(crate) fn read_bytes(&self, count: usize) -> &[u8] {
        &self.buffer[..count]
    }

    /// Queues the first bytes of the buffer, of which a read brought `read`, as the next chunk of output.
    pub(crate) fn queue_chunk(&mut self, stream: Stream, count: usize, read: usize) {
        debug_assert_eq!(self.payload, 0, "the payload would be overwritten");
        if count > 0 {
            start_output_frame(self.next_chunk, stream, count, &mut self.head);
            self.next_chunk += 1;
        }
        if count <= COPY_BELOW_BYTES {
            self.head.extend_from_slice(&self.buffer[..count]);
        } else {
            self.payload = count;
        }
        self.grow_if_full(read);
    }

    /// Queues output that is not in the buffer, in chunks.
    pub(crate) fn queue_output(&mut self, stream: Stream, bytes: &[u8]) {
        for chunk in bytes.chunks(MAX_CHUNK_BYTES) {
            let part = if self.payload == 0 { &mut self.head } else { &mut self.trailer };
            start_output_frame(self.next_chunk, stream, chunk.len(), part);
            part.extend_from_slice(chunk);
            self.next_chunk += 1;
        }
    }

    /// Whether anything waits to leave.
    pub(crate) const fn has_pending(&self) -> bool {
        !self.head.is_empty()
    }

    /// Whether so much waits that nothing more should be read.
    pub(crate) const fn is_full(&self) -> bool {
        self.payload > 0 || self.head.len() > 4 * COPY_BELOW_BYTES
    }

    /// Sends what waits, as far as the socket takes it.
    pub(crate) fn flush(&mut self) -> Flushed {
        loop {
            let total = self.head.len() + self.payload + self.trailer.len();
            if self.sent == total {
                self.head.clear();
                self.payload = 0;
                self.trailer.clear();
                self.sent = 0;
                return Flushed::All;
            }
            let mut pieces = [
                IoSlice::new(&self.head),
                IoSlice::new(&self.buffer[..self.payload]),
                IoSlice::new(&self.trailer),
            ];
            let mut rest = &mut pieces[..];
            IoSlice::advance_slices(&mut rest, self.sent);
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match sendmsg::<()>(self.socket.as_raw_fd(), rest, &[], flags, None) {
                Ok(count) => self.sent += count,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN | Errno::ENOBUFS) => return Flushed::Blocked,
                Err(_) => return Flushed::Gone,
            }
        }
    }

    /// Sends everything, waiting as long as it takes. False when the daemon is gone.
    pub(crate) fn flush_all(&mut self) -> io::Result<bool> {
        use nix::poll::{PollFd, PollFlags, ppoll};

        loop {
            match self.flush() {
                Flushed::All => return Ok(true),
                Flushed::Gone => return Ok(false),
                Flushed::Blocked => {
                    let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
                    ppoll(&mut fds, None, None).map(drop).or_else(crate::clock::not_interrupted)?;
                }
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Writes the frame of an `Output` up to its payload, which has `count` bytes and follows.
fn start_output_frame(seq: u64, stream: Stream, count: usize, out: &mut Vec<u8>) {
    let empty = FromWorker::Output { seq, stream, bytes: Blob(Vec::new()) };
    // Fails only for a payload above 16 MiB; a chunk has a quarter of one at most.
    let _ = codec::encode_frame_head(&empty, count, out);
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_full_socket_blocks_nothing_and_loses_nothing() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let mut channel = Channel::new(ours.into());
        channel.queue(&FromWorker::Hello { version: 1 });
        // A read that fills the buffer makes room for larger ones.
        assert_eq!(channel.buffer().len(), FIRST_BUFFER_BYTES);
        channel.queue_chunk(Stream::Stdout, 0, FIRST_BUFFER_BYTES);
        let grown = channel.buffer().len();
        assert_eq!(grown, FIRST_BUFFER_BYTES * BUFFER_GROWTH);
        channel.queue_chunk(Stream::Stdout, 0, grown);
        assert_eq!(channel.buffer().len(), MAX_CHUNK_BYTES);
        channel.buffer().fill(5);
        channel.queue_chunk(Stream::Stdout, MAX_CHUNK_BYTES, MAX_CHUNK_BYTES);
        channel.queue(&FromWorker::Spooled { total_bytes: 1, spool_bytes: 2 });
        assert!(channel.is_full());
        let mut got = Vec::new();
        let mut inbox = FrameBuffer::new();
        let mut theirs = theirs;
        let mut blocked = 0;
        while got.len() < 3 {
            if channel.has_pending() && channel.flush() == Flushed::Blocked {
                blocked += 1;
            }
            let mut piece = vec![0; 50_000];
            let count = io::Read::read(&mut theirs, &mut piece).expect("bytes");
            inbox.extend(&piece[..count]);
            while let Some(body) = inbox.next_frame().expect("good frames") {
                got.push(codec::decode::<FromWorker>(body).expect("a message"));
            }
        }
        assert!(blocked > 0, "256 KiB fit the socket at once");
        let chunk = Blob(vec![5; MAX_CHUNK_BYTES]);
        assert_eq!(got[1], FromWorker::Output { seq: 0, stream: Stream::Stdout, bytes: chunk });
        assert_eq!(got[2], FromWorker::Spooled { total_bytes: 1, spool_bytes: 2 });
        drop(theirs);
        channel.queue(&FromWorker::Hello { version: 1 });
        assert_eq!(channel.flush(), Flushed::Gone);
        assert_eq!(channel.receive(false), Received::Gone);
    }
}
