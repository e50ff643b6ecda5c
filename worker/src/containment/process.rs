//! What `/proc` says about one process.

use toolcell_protocol::call::Leftover;

/// The fields of `/proc/PID/stat` that we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    /// `Z` and `X` are dead.
    pub(crate) state: u8,
    /// The parent.
    pub(crate) parent: i32,
    /// CPU time of itself and of its reaped descendants, in clock ticks.
    pub(crate) cpu_ticks: u64,
}

impl Stat {
    /// It has ended; only its parent has not looked yet.
    pub(crate) const fn is_dead(self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Parses `/proc/PID/stat`. The name may hold blanks and parentheses, so the last `)` counts.
pub(crate) fn parse_stat(text: &[u8]) -> Option<Stat> {
    let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = std::str::from_utf8(text.get(after_name..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<i64>().ok();
    // Counted from the state, which is field 3 of proc(5): utime 14, stime 15, cutime 16, cstime 17.
    let ticks =
        [11, 12, 13, 14].into_iter().map(|at| number(at).map(i64::unsigned_abs)).sum::<Option<u64>>()?;
    Some(Stat {
        state: *fields.first()?.as_bytes().first()?,
        parent: i32::try_from(number(1)?).ok()?,
        cpu_ticks: ticks,
    })
}

/// Looks at a process; `None` if there is none.
pub(crate) fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Number and name of a process that lives; `None` if it does not.
pub(crate) fn leftover(pid: i32) -> Option<Leftover> {
    if stat(pid)?.is_dead() {
        return None;
    }
    let comm = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let comm = String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned();
    Some(Leftover { pid, comm })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let line = b"4242 (a ) Z 1 (b) S 17 4242 4242 0 -1 4194560 113 0 0 0 5 6 70 800 20 0 1 0 12345 0 0";
        assert_eq!(parse_stat(line), Some(Stat { state: b'S', parent: 17, cpu_ticks: 881 }));
    }

    #[test]
    fn a_cut_off_line_is_nothing() {
        assert_eq!(parse_stat(b""), None);
        assert_eq!(parse_stat(b"1 (x) S"), None);
        assert_eq!(parse_stat(b"1 x S 1 1"), None);
        assert_eq!(parse_stat(b"1 (x)"), None);
    }

    #[test]
    fn we_find_ourselves_alive() {
        let me = nix::unistd::getpid().as_raw();
        let own = stat(me).expect("we exist");
        assert!(!own.is_dead());
        assert_eq!(own.parent, nix::unistd::getppid().as_raw());
        assert_eq!(leftover(me).expect("we live").pid, me);
        assert_eq!(leftover(i32::MAX), None);
    }
}
