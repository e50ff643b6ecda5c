//! Bytes and descriptors over a SEQPACKET socket: one call, one packet.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Largest packet on the spawner's socket; its messages are far smaller.
const MAX_PACKET_BYTES: usize = 64 * 1024;

/// Descriptors that one packet may bring; more is an error.
const MAX_PACKET_FDS: usize = 4;

/// What one receive brought.
#[derive(Debug)]
pub struct Packet {
    /// The packet.
    pub bytes: Vec<u8>,
    /// The descriptors that came with it, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// Receives one packet; `None` when the peer has closed. Blocks or not as the socket is set.
///
/// # Errors
/// Those of `recvmsg`; a packet that is too long or brings too many descriptors is
/// [`io::ErrorKind::InvalidData`], after which the peer is not to be trusted any more.
pub fn recv_packet(socket: impl AsFd) -> io::Result<Option<Packet>> {
    let socket = socket.as_fd().as_raw_fd();
    // Small first: a packet is a few dozen bytes, and the spawner must not touch pages that it does not need.
    let mut bytes = vec![0_u8; 1024];
    loop {
        let peeked =
            match nix::sys::socket::recv(socket, &mut bytes, MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC) {
                Err(Errno::EINTR) => continue,
                // The peer has closed without reading all that we sent.
                Err(Errno::ECONNRESET) => return Ok(None),
                other => other?,
            };
        // Nobody sends empty packets.
        if peeked == 0 {
            return Ok(None);
        }
        if peeked > MAX_PACKET_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the packet is too long"));
        }
        bytes.resize(peeked, 0);
        break;
    }
    let mut control = nix::cmsg_space!([RawFd; MAX_PACKET_FDS]);
    let (length, fds, truncated) = loop {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let received =
            match recvmsg::<()>(socket, &mut pieces, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC) {
                Err(Errno::EINTR) => continue,
                Err(Errno::ECONNRESET) => return Ok(None),
                other => other?,
            };
        let truncated = received.flags.intersects(MsgFlags::MSG_CTRUNC | MsgFlags::MSG_TRUNC);
        let mut fds = Vec::new();
        if let Ok(messages) = received.cmsgs() {
            for message in messages {
                if let ControlMessageOwned::ScmRights(numbers) = message {
                    for number in numbers {
                        // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
                        fds.push(unsafe { OwnedFd::from_raw_fd(number) });
                    }
                }
            }
        }
        break (received.bytes, fds, truncated);
    };
    if truncated {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the packet was cut off"));
    }
    bytes.truncate(length);
    Ok(Some(Packet { bytes, fds }))
}

/// Sends one packet with descriptors. Blocks or not as the socket is set.
///
/// # Errors
/// Those of `sendmsg`; a peer that is gone is [`io::ErrorKind::BrokenPipe`], never a signal.
pub fn send_packet(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control: &[ControlMessage<'_>] = if numbers.is_empty() { &[] } else { &rights };
    let socket = socket.as_fd().as_raw_fd();
    loop {
        match sendmsg::<()>(socket, &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .expect("a socketpair")
    }

    #[test]
    fn a_packet_brings_its_bytes_and_working_close_on_exec_descriptors() {
        let (ours, theirs) = pair();
        let (reading, writing) = io::pipe().expect("a pipe");
        send_packet(&ours, b"hello", &[reading.as_fd()]).expect("sent");
        drop(reading);
        let mut packet = recv_packet(&theirs).expect("received").expect("not the end");
        assert_eq!(packet.bytes, b"hello");
        let fd = packet.fds.pop().expect("one descriptor");
        let flags = nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_GETFD).expect("flags");
        assert_eq!(flags & nix::libc::FD_CLOEXEC, nix::libc::FD_CLOEXEC);
        io::Write::write_all(&mut &writing, b"through").expect("written");
        drop(writing);
        let mut text = String::new();
        std::fs::File::from(fd).read_to_string(&mut text).expect("read");
        assert_eq!(text, "through");
        drop(ours);
        assert!(recv_packet(&theirs).expect("a clean end").is_none());
    }

    #[test]
    fn long_packets_arrive_whole_and_too_long_ones_are_refused() {
        let (ours, theirs) = pair();
        let long = vec![7_u8; 20_000];
        send_packet(&ours, &long, &[]).expect("sent");
        assert_eq!(recv_packet(&theirs).expect("received").expect("not the end").bytes, long);
        send_packet(&ours, &vec![7_u8; MAX_PACKET_BYTES + 1], &[]).expect("sent");
        assert_eq!(recv_packet(&theirs).expect_err("too long").kind(), io::ErrorKind::InvalidData);
    }
}
