//! The bare baselines: what the same work costs without toolcell, in as few system calls as it can be done.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::fcntl::OFlag;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, posix_spawn};
use nix::sys::wait::waitpid;
use nix::unistd::pipe2;

/// Spawns a program with both outputs captured, reads them to their ends and waits: `posix_spawn`, `read`, `wait`.
pub fn spawn_capture_wait(program: &Path, output: &mut Vec<u8>) -> io::Result<()> {
    output.clear();
    let (out_read, out_write) = pipe2(OFlag::O_CLOEXEC)?;
    let (err_read, err_write) = pipe2(OFlag::O_CLOEXEC)?;
    let mut actions = PosixSpawnFileActions::init()?;
    actions.add_dup2(out_write.as_raw_fd(), 1)?;
    actions.add_dup2(err_write.as_raw_fd(), 2)?;
    let attributes = PosixSpawnAttr::init()?;
    let path = CString::new(program.as_os_str().as_encoded_bytes())?;
    let environment = [c"PATH=/usr/bin:/bin"];
    let pid = posix_spawn(program, &actions, &attributes, &[path.as_c_str()], &environment)?;
    drop((out_write, err_write));
    File::from(out_read).read_to_end(output)?;
    File::from(err_read).read_to_end(output)?;
    waitpid(pid, None)?;
    Ok(())
}

/// One relay of the streaming baseline: read, write, nothing else.
pub fn relay(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0_u8; 256 * 1024];
    loop {
        let got = from.read(&mut buffer)?;
        if got == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..got])?;
    }
}

/// The same number of hops as a streamed call has: program → pipe → relay → socketpair → relay → socket → us.
pub fn stream(program: &str, args: &[&str]) -> io::Result<u64> {
    let mut producer = Command::new(program).args(args).stdout(Stdio::piped()).spawn()?;
    let pipe: OwnedFd = producer.stdout.take().expect("piped").into();
    let (first_out, second_in) = UnixStream::pair()?;
    let (second_out, mut ours) = UnixStream::pair()?;
    let mut first = spawn_relay(pipe, first_out.into())?;
    let mut second = spawn_relay(second_in.into(), second_out.into())?;
    let mut buffer = vec![0_u8; 256 * 1024];
    let mut total = 0;
    loop {
        let got = ours.read(&mut buffer)?;
        if got == 0 {
            break;
        }
        total += got as u64;
    }
    for child in [&mut producer, &mut first, &mut second] {
        child.wait()?;
    }
    Ok(total)
}

fn spawn_relay(from: OwnedFd, to: OwnedFd) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg(RELAY_ARGUMENT)
        .stdin(Stdio::from(from))
        .stdout(Stdio::from(to))
        .spawn()
}

/// The argument that makes this program a relay.
pub const RELAY_ARGUMENT: &str = "--relay";
