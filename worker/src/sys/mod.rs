//! The kernel calls for which nix has no safe function: the only `unsafe` of toolcell.
//!
//! ```text
//! clone    fork with placement; the vfork-like start of a tool
//! exec     strings for execve, laid out before the clone
//! fds      closing everything but a few descriptors
//! listen   sockets from the service manager
//! memory   what a process shares with its copies
//! packet   bytes and descriptors over a SEQPACKET socket
//! patience scheduling as batch work
//! peer     the groups of a socket's peer
//! probe    whether the calls that cells are built on can be had
//! process  waiting, signals, the end
//! resident giving back the pages of start-up code
//! ```
//!
//! Every process that uses `clone` or `exec` here is single-threaded: the spawner starts no thread, and its
//! children are copies of it.
#![allow(unsafe_code)]

pub(crate) mod clone;
pub(crate) mod exec;
pub(crate) mod fds;
mod listen;
pub(crate) mod memory;
mod packet;
pub(crate) mod patience;
mod peer;
mod probe;
pub(crate) mod process;
mod resident;

pub use listen::take_listen_fds;
pub use packet::{Packet, recv_packet, send_packet};
pub use peer::peer_groups;
pub use probe::{probe_clone3, probe_pidfd};
pub use process::pidfd_send_signal;
pub use resident::forget_start_up_code;
