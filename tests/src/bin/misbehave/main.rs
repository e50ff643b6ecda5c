//! One program with every bad habit a tool can have; the first word says which.
//!
//! It is called with its words as arguments or as one argument that is split at blanks, so that a tool manifest
//! needs one placeholder only. What it says goes to standard output; exit code 64 means that it was called
//! wrongly. Whatever forks or sleeps does so for a bounded time, so that a failing test cannot eat the machine.
//!
//! * [`endings`]: panics, crashes, exit codes.
//! * [`families`]: processes that hide, stay, fork and stop.
//! * [`floods`]: output of every kind.
//! * [`mirrors`]: prints what a tool can see of its own situation.
//! * [`raw`]: fork and crash themselves; the only unsafe lines.

mod endings;
mod families;
mod floods;
mod mirrors;
mod raw;

use std::io::Write as _;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// What a habit ends with: an exit code, or an error to print with exit code 70.
type Outcome = Result<u8, Box<dyn std::error::Error>>;

/// The words after the habit's name.
struct Words(std::vec::IntoIter<String>);

impl Words {
    fn text(&mut self) -> Result<String, String> {
        self.0.next().ok_or_else(|| "a word is missing".to_owned())
    }

    fn number<T: FromStr>(&mut self) -> Result<T, String> {
        let word = self.text()?;
        word.parse().map_err(|_| format!("{word:?} is not a number"))
    }

    fn number_or<T: FromStr>(&mut self, default: T) -> Result<T, String> {
        match self.0.next() {
            None => Ok(default),
            Some(word) => word.parse().map_err(|_| format!("{word:?} is not a number")),
        }
    }

    fn seconds(&mut self) -> Result<Duration, String> {
        Ok(Duration::from_secs_f64(self.number_or(30.0)?))
    }
}

/// Writes to standard output without the panic of `println!` on a closed pipe.
fn say(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn run(habit: &str, words: &mut Words) -> Option<Outcome> {
    Some(match habit {
        "ok" => endings::ok(words),
        "exit" => endings::exit(words),
        "say" => endings::say_both(words),
        "panic" => endings::panic(),
        "abort" => endings::abort(),
        "segv" => endings::segv(),
        "raise" => endings::raise(words),
        "sleep" => endings::sleep(words),
        "ignore-term" => endings::ignore_term(words),
        "touch-on-term" => endings::touch_on_term(words),
        "kill-group" => endings::kill_group(words),
        "kill-everything" => endings::kill_everything(),
        "stop-self" => endings::stop_self(),
        "touch" => endings::touch(words),
        "alloc" => endings::alloc(words),
        "write-file" => endings::write_file(words),
        "open-many" => endings::open_many(),
        "hidden-family" => families::hidden(words),
        "fork-run" => families::fork_run(words, false),
        "setsid-run" => families::fork_run(words, true),
        "daemonize" => families::daemonize(words),
        "tree" => families::tree(words),
        "leak-pipe" => families::leak_pipe(words),
        "spin" => families::spin(words),
        "parent-exits-on-term" => families::parent_exits_on_term(words),
        "flood" => floods::flood(words),
        "chars" => floods::chars(words),
        "all-bytes" => floods::all_bytes(words),
        "drip" => floods::drip(words),
        "last-moment" => floods::last_moment(words),
        "env" => mirrors::env(),
        "fds" => mirrors::fds(),
        "limits" => mirrors::limits(),
        "ids" => mirrors::ids(),
        "place" => mirrors::place(),
        "stdin" => mirrors::stdin(),
        "no-stdin" => mirrors::no_stdin(),
        "peek" => mirrors::peek(words),
        "relay" => mirrors::relay(words),
        _ => return None,
    })
}

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if let [one] = &words[..] {
        words = one.split_ascii_whitespace().map(str::to_owned).collect();
    }
    let habit = if words.is_empty() { String::new() } else { words.remove(0) };
    match run(&habit, &mut Words(words.into_iter())) {
        Some(Ok(code)) => ExitCode::from(code),
        Some(Err(error)) => {
            let _ = writeln!(std::io::stderr(), "misbehave {habit}: {error}");
            ExitCode::from(70)
        }
        None => {
            let _ = writeln!(std::io::stderr(), "misbehave: there is no habit {habit:?}");
            ExitCode::from(64)
        }
    }
}
