//! Ways to end, or not to end when told to.

use std::fs::File;
use std::io::Write as _;
use std::thread;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, Uid};

use crate::{Outcome, Words, raw, say};

/// `ok [TEXT]`
pub fn ok(words: &mut Words) -> Outcome {
    let text = words.text().unwrap_or_else(|_| "ok".to_owned());
    say(&format!("{text}\n"))?;
    Ok(0)
}

/// `exit CODE`
pub fn exit(words: &mut Words) -> Outcome {
    Ok(words.number()?)
}

/// `say OUT ERR CODE`: a line on each output.
pub fn say_both(words: &mut Words) -> Outcome {
    let (out, err) = (words.text()?, words.text()?);
    say(&format!("{out}\n"))?;
    writeln!(std::io::stderr(), "{err}")?;
    Ok(words.number_or(0)?)
}

pub fn panic() -> Outcome {
    panic!("this tool panics on purpose");
}

pub fn abort() -> Outcome {
    std::process::abort();
}

pub fn segv() -> Outcome {
    raw::wild_write();
    Ok(1)
}

/// `raise NUMBER`
pub fn raise(words: &mut Words) -> Outcome {
    let signal = Signal::try_from(words.number::<i32>()?)?;
    nix::sys::signal::raise(signal)?;
    Ok(1)
}

/// `sleep [SECONDS]`
pub fn sleep(words: &mut Words) -> Outcome {
    say("sleeping\n")?;
    thread::sleep(words.seconds()?);
    Ok(0)
}

/// `ignore-term [SECONDS]`
pub fn ignore_term(words: &mut Words) -> Outcome {
    raw::ignore(Signal::SIGTERM)?;
    say("ignoring\n")?;
    thread::sleep(words.seconds()?);
    Ok(0)
}

/// `touch-on-term PATH [MILLISECONDS]`: waits for TERM, then takes its time, writes the file and exits with 0.
pub fn touch_on_term(words: &mut Words) -> Outcome {
    let path = words.text()?;
    let pause = std::time::Duration::from_millis(words.number_or(200)?);
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.thread_block()?;
    say("waiting\n")?;
    set.wait()?;
    thread::sleep(pause);
    File::create(path)?.write_all(b"cleaned up\n")?;
    Ok(0)
}

/// `kill-group NUMBER`: a signal to its own process group.
pub fn kill_group(words: &mut Words) -> Outcome {
    let signal = Signal::try_from(words.number::<i32>()?)?;
    say("signalling my group\n")?;
    kill(Pid::from_raw(0), signal)?;
    thread::sleep(words.seconds()?);
    Ok(1)
}

/// SIGKILL to everything it may signal. Never as root: that would take the machine along.
pub fn kill_everything() -> Outcome {
    if Uid::effective().is_root() {
        say("refused: I am root\n")?;
        return Ok(9);
    }
    kill(Pid::from_raw(-1), Signal::SIGKILL)?;
    say("killed everything I may kill\n")?;
    Ok(0)
}

pub fn stop_self() -> Outcome {
    say("stopping\n")?;
    nix::sys::signal::raise(Signal::SIGSTOP)?;
    say("going on\n")?;
    Ok(0)
}

/// `touch PATH`
pub fn touch(words: &mut Words) -> Outcome {
    File::create(words.text()?)?;
    Ok(0)
}

/// `alloc MEBIBYTES [SECONDS]`: takes and touches memory, then keeps it.
pub fn alloc(words: &mut Words) -> Outcome {
    let mebibytes: usize = words.number()?;
    let mut taken = vec![0_u8; mebibytes << 20];
    for page in taken.chunks_mut(4096) {
        page[0] = 1;
    }
    say("taken\n")?;
    thread::sleep(words.seconds()?);
    Ok(std::hint::black_box(taken)[0] - 1)
}

/// `write-file PATH BYTES`
pub fn write_file(words: &mut Words) -> Outcome {
    let mut file = File::create(words.text()?)?;
    let mut left: usize = words.number()?;
    let block = [b'x'; 65_536];
    while left > 0 {
        let take = left.min(block.len());
        file.write_all(&block[..take])?;
        left -= take;
    }
    say("written\n")?;
    Ok(0)
}

/// Opens files until it is refused, and says how many it had at the end.
pub fn open_many() -> Outcome {
    let mut files = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(error) => {
                say(&format!("{} files, then {error}\n", files.len()))?;
                return Ok(0);
            }
        }
    }
}
