//! Waiting for whatever comes next: a command, a child's end, output, the clock.

use std::os::fd::AsFd;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};

use super::{Phase, Supervision};

/// What a wait found.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Ready {
    pub(super) socket: bool,
    pub(super) children: bool,
    pub(super) init: bool,
    pub(super) pipes: [bool; 2],
}

impl Supervision {
    pub(super) fn wait(&self) -> Result<Ready, Errno> {
        let pending = self.channel.has_pending() && self.hold_until.is_none();
        let socket_events = if pending { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
        let children = PollFd::new(self.children.as_fd(), PollFlags::POLLIN);
        let mut fds = [
            PollFd::new(self.channel.as_fd(), socket_events),
            children.clone(),
            children.clone(),
            children.clone(),
            children,
        ];
        let mut count = 2;
        let mut add = |fd| {
            fds[count] = PollFd::new(fd, PollFlags::POLLIN);
            count += 1;
            count - 1
        };
        let init = self.tree.control().filter(|_| self.tree.status().is_none()).map(&mut add);
        let reads = self.hold_until.is_none() || self.phase != Phase::Running;
        let pipes = [0, 1].map(|at: usize| {
            let fd = self.pipes[at].fd.as_ref().filter(|_| reads && !self.channel.is_full());
            fd.map(|fd| add(fd.as_fd()))
        });
        let timeout = self.next_timer().map(crate::clock::until);
        match ppoll(&mut fds[..count], timeout, None) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Ready::default()),
            Err(error) => return Err(error),
        }
        let ready = |at: usize| fds[at].revents().is_some_and(|events| !events.is_empty());
        // Room to write alone is no reason to read the socket.
        let only_room = fds[0].revents() == Some(PollFlags::POLLOUT);
        Ok(Ready {
            socket: ready(0) && !only_room,
            children: ready(1),
            init: init.is_some_and(ready),
            pipes: pipes.map(|at| at.is_some_and(ready)),
        })
    }

    fn next_timer(&self) -> Option<Instant> {
        let progress = (self.output.has_progress() && !self.channel.is_full()).then_some(self.next_progress);
        let cpu = self.cpu.as_ref().filter(|_| self.phase == Phase::Running).map(|cpu| cpu.next_look);
        let phase = match self.phase {
            // While the socket is full nothing can be read, however late it is.
            Phase::Draining(until) | Phase::LastReading(until) => {
                Some(until).filter(|_| !self.channel.is_full())
            }
            Phase::Running | Phase::Leaving => None,
        };
        [self.hold_until, progress, cpu, phase].into_iter().flatten().min()
    }
}
