//! Prints what a tool can see of its own situation.

use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixStream;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, getegid, geteuid, getgid, getgroups, getpgid, getpid, getppid, getsid, getuid};

use crate::{Outcome, Words, say};

pub fn env() -> Outcome {
    for (name, value) in std::env::vars_os() {
        say(&format!("{}={}\n", name.display(), value.display()))?;
    }
    Ok(0)
}

/// Each descriptor and what it is; the one used for reading the directory is left out.
pub fn fds() -> Outcome {
    let mut open: Vec<(u32, String)> = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // The directory's own descriptor is in the list and gone when the link is read.
        if let Ok(target) = fs::read_link(entry.path())
            && !target.starts_with("/proc/")
        {
            open.push((entry.file_name().to_string_lossy().parse()?, target.display().to_string()));
        }
    }
    open.sort();
    for (fd, target) in open {
        say(&format!("{fd} {target}\n"))?;
    }
    Ok(0)
}

pub fn limits() -> Outcome {
    let all = [
        ("cpu", Resource::RLIMIT_CPU),
        ("fsize", Resource::RLIMIT_FSIZE),
        ("nofile", Resource::RLIMIT_NOFILE),
        ("core", Resource::RLIMIT_CORE),
        ("stack", Resource::RLIMIT_STACK),
        ("memlock", Resource::RLIMIT_MEMLOCK),
        ("as", Resource::RLIMIT_AS),
        ("nproc", Resource::RLIMIT_NPROC),
    ];
    for (name, resource) in all {
        let (soft, hard) = getrlimit(resource)?;
        say(&format!("{name} {soft} {hard}\n"))?;
    }
    Ok(0)
}

pub fn ids() -> Outcome {
    let mut groups: Vec<u32> = getgroups()?.into_iter().map(nix::unistd::Gid::as_raw).collect();
    groups.sort_unstable();
    say(&format!("uid {} {}\ngid {} {}\ngroups {groups:?}\n", getuid(), geteuid(), getgid(), getegid()))?;
    for line in fs::read_to_string("/proc/self/status")?.lines() {
        if line.starts_with("Cap") || line.starts_with("NoNewPrivs") {
            say(&format!("{line}\n"))?;
        }
    }
    Ok(0)
}

/// Where it is: working directory, mask, process numbers, controlling terminal, control group.
pub fn place() -> Outcome {
    let mask = umask(Mode::empty());
    say(&format!("cwd {}\numask {:o}\n", std::env::current_dir()?.display(), mask.bits()))?;
    say(&format!("pid {}\nppid {}\n", getpid(), getppid()))?;
    say(&format!("session leader {}\n", getsid(None)? == getpid()))?;
    say(&format!("group leader {}\n", getpgid(Some(Pid::from_raw(0)))? == getpid()))?;
    say(&format!("terminal {}\n", fs::File::open("/dev/tty").is_ok()))?;
    say(&fs::read_to_string("/proc/self/cgroup")?)?;
    Ok(0)
}

/// Copies standard input to standard output.
pub fn stdin() -> Outcome {
    let mut all = Vec::new();
    let bytes = std::io::stdin().read_to_end(&mut all)?;
    say(&format!("{bytes} bytes\n"))?;
    std::io::Write::write_all(&mut std::io::stdout(), &all)?;
    Ok(0)
}

/// Exits without reading standard input.
pub fn no_stdin() -> Outcome {
    say("not reading\n")?;
    Ok(3)
}

/// `peek PID`: tries to look into another process.
pub fn peek(words: &mut Words) -> Outcome {
    let pid: i32 = words.number()?;
    for file in ["environ", "mem", "maps"] {
        let seen = fs::File::open(format!("/proc/{pid}/{file}")).and_then(|mut file| file.read(&mut [0; 1]));
        say(&format!(
            "{file} {}\n",
            match seen {
                Ok(_) => "readable".to_owned(),
                Err(error) => error.kind().to_string(),
            }
        ))?;
    }
    Ok(0)
}

/// `relay SOCKET`: connects as whoever it runs as, and copies between that connection and standard input, which
/// is a socket too. Not a habit: with it the tests connect as other users.
pub fn relay(words: &mut Words) -> Outcome {
    let near = UnixStream::from(nix::unistd::dup(std::io::stdin())?);
    let far = UnixStream::connect(words.text()?)?;
    let (mut near_reads, mut far_writes) = (near.try_clone()?, far.try_clone()?);
    let (mut near, mut far) = (near, far);
    let forward = std::thread::spawn(move || {
        let copied = std::io::copy(&mut near_reads, &mut far_writes);
        let _ = far_writes.shutdown(std::net::Shutdown::Write);
        copied
    });
    let backward = std::io::copy(&mut far, &mut near);
    let _ = near.shutdown(std::net::Shutdown::Both);
    let _ = forward.join();
    backward?;
    Ok(0)
}
