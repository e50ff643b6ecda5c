//! Who is at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;

/// The supplementary groups that a socket's peer had when it connected (`SO_PEERGROUPS`).
///
/// # Errors
/// Those of `getsockopt`: `ENOPROTOOPT` before Linux 4.13.
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let socket = socket.as_fd().as_raw_fd();
    let mut groups: Vec<libc::gid_t> = vec![0; 32];
    loop {
        let mut size = libc::socklen_t::try_from(groups.len() * size_of::<libc::gid_t>())
            .map_err(|_| io::Error::from_raw_os_error(libc::ERANGE))?;
        // SAFETY: `groups` has room for `size` bytes, and both pointers are valid for the call.
        let result = unsafe {
            libc::getsockopt(
                socket,
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut size,
            )
        };
        let count = size as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // With ERANGE the kernel says how much it wants.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_of_a_socketpair_has_our_own_groups() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        let mut groups = peer_groups(&ours).expect("groups");
        let mut expected: Vec<u32> =
            nix::unistd::getgroups().expect("getgroups").iter().map(|gid| gid.as_raw()).collect();
        groups.sort_unstable();
        expected.sort_unstable();
        assert_eq!(groups, expected);
    }
}
