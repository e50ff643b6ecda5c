//! Output: too much, in pieces, at the last moment.

use std::io::{ErrorKind, Write};
use std::thread;
use std::time::Duration;

use toolcell_tests::pattern;

use crate::{Outcome, Words, say};

/// A reader that went away is how a flood may end; it says so with the code a shell would give.
fn on_broken_pipe(written: std::io::Result<()>) -> Outcome {
    match written {
        Ok(()) => Ok(0),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(141),
        Err(error) => Err(error.into()),
    }
}

/// `flood BYTES [out|err|both]`: the pattern of `toolcell_tests::pattern`; `both` writes it to each.
pub fn flood(words: &mut Words) -> Outcome {
    let bytes: u64 = words.number()?;
    let target = words.text().unwrap_or_else(|_| "out".to_owned());
    // Unlocked and unbuffered on purpose: each write is one system call.
    let mut out = std::fs::File::from(nix::unistd::dup(std::io::stdout())?);
    let mut err = std::fs::File::from(nix::unistd::dup(std::io::stderr())?);
    let mut buffer = vec![0_u8; 64 * 1024];
    let mut write_all = || {
        let mut at = 0;
        while at < bytes {
            let take = usize::try_from((bytes - at).min(buffer.len() as u64)).unwrap_or(buffer.len());
            pattern::fill(at, &mut buffer[..take]);
            if target != "err" {
                out.write_all(&buffer[..take])?;
            }
            if target != "out" {
                err.write_all(&buffer[..take])?;
            }
            at += take as u64;
        }
        Ok(())
    };
    on_broken_pipe(write_all())
}

/// `chars COUNT`: three-byte characters, one byte per write.
pub fn chars(words: &mut Words) -> Outcome {
    let count: u32 = words.number()?;
    let mut out = std::fs::File::from(nix::unistd::dup(std::io::stdout())?);
    for _ in 0..count {
        for byte in "€".as_bytes() {
            out.write_all(&[*byte])?;
        }
    }
    Ok(0)
}

/// `all-bytes TIMES`: 0x00 to 0xff, again and again.
pub fn all_bytes(words: &mut Words) -> Outcome {
    let times: u32 = words.number()?;
    let all: Vec<u8> = (0..=255).collect();
    let mut out = std::fs::File::from(nix::unistd::dup(std::io::stdout())?);
    for _ in 0..times {
        out.write_all(&all)?;
    }
    Ok(0)
}

/// `drip LINES MILLISECONDS`: a line, a pause, and so on.
pub fn drip(words: &mut Words) -> Outcome {
    let lines: u32 = words.number()?;
    let pause = Duration::from_millis(words.number()?);
    for line in 0..lines {
        say(&format!("line {line}\n"))?;
        thread::sleep(pause);
    }
    Ok(0)
}

/// `last-moment BYTES [CODE]`: everything in one write, then gone.
pub fn last_moment(words: &mut Words) -> Outcome {
    let bytes: usize = words.number()?;
    let code = words.number_or(0)?;
    let mut out = std::fs::File::from(nix::unistd::dup(std::io::stdout())?);
    out.write_all(&pattern::bytes(0, bytes))?;
    Ok(code)
}
