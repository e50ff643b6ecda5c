//! What the kernel says about processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

/// The variable by which the processes of one test are found.
pub const MARKER: &str = "TOOLCELL_TEST_MARKER";

/// A process that cannot be confused with a later one of the same number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
}

/// One line of the process table.
#[derive(Debug, Clone)]
pub struct Process {
    /// Which.
    pub id: ProcessId,
    /// Its parent.
    pub parent: i32,
    /// Its name.
    pub comm: String,
    /// One letter, as in `ps`.
    pub state: char,
    /// User and system time, in clock ticks.
    pub cpu_ticks: u64,
}

fn parse_stat(text: &str) -> Option<Process> {
    // The name is in parentheses and may hold anything, also parentheses and blanks.
    let (pid, rest) = text.split_once(" (")?;
    let (comm, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        id: ProcessId { pid: pid.parse().ok()?, started: fields.get(19)?.parse().ok()? },
        parent: fields.get(1)?.parse().ok()?,
        comm: comm.to_owned(),
        state: fields.first()?.chars().next()?,
        cpu_ticks: fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?,
    })
}

/// One process, if it is there.
#[must_use]
pub fn process(pid: i32) -> Option<Process> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The whole process table.
#[must_use]
pub fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(process)
        .collect()
}

/// Children, their children, and so on; not the process itself.
#[must_use]
pub fn descendants(pid: i32) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in processes() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut open = vec![pid];
    while let Some(parent) = open.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            open.push(child.id.pid);
            found.push(child);
        }
    }
    found
}

/// Those of these processes that are still there (a zombie is).
#[must_use]
pub fn still_there(ids: &BTreeSet<ProcessId>) -> Vec<Process> {
    ids.iter().filter_map(|id| process(id.pid).filter(|process| process.id == *id)).collect()
}

/// Processes with this value of [`MARKER`] in their environment. A zombie has no environment any more; those
/// are found by their parents.
#[must_use]
pub fn processes_with_marker(marker: &str) -> Vec<Process> {
    let wanted = format!("{MARKER}={marker}");
    processes()
        .into_iter()
        .filter(|process| {
            fs::read(format!("/proc/{}/environ", process.id.pid))
                .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()))
        })
        .collect()
}

/// Open descriptors: their numbers and what they are.
#[must_use]
pub fn open_files(pid: i32) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let mut open: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, fs::read_link(entry.path()).ok()?))
        })
        .collect();
    open.sort();
    open
}

fn kib_of(file: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Resident size.
#[must_use]
pub fn resident_kib(pid: i32) -> Option<u64> {
    kib_of(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// Largest resident size so far.
#[must_use]
pub fn peak_resident_kib(pid: i32) -> Option<u64> {
    kib_of(&format!("/proc/{pid}/status"), "VmHWM:")
}

/// Memory that is this process's alone.
#[must_use]
pub fn private_kib(pid: i32) -> Option<u64> {
    let rollup = format!("/proc/{pid}/smaps_rollup");
    Some(kib_of(&rollup, "Private_Clean:")? + kib_of(&rollup, "Private_Dirty:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_blanks_is_read_whole() {
        let line = "7 (a) (b c) R 3 7 7 0 -1 4 1 0 0 0 5 6 0 0 20 0 1 0 99 0 0";
        let process = parse_stat(line).expect("a line of stat");
        assert_eq!((process.id.pid, process.id.started, process.parent), (7, 99, 3));
        assert_eq!((process.comm.as_str(), process.state, process.cpu_ticks), ("a) (b c", 'R', 11));
    }

    #[test]
    fn this_process_is_in_the_table_and_has_files_and_memory() {
        let own = i32::try_from(std::process::id()).expect("a pid fits");
        assert!(processes().iter().any(|process| process.id.pid == own));
        assert!(open_files(own).len() >= 3);
        assert!(resident_kib(own) > Some(100));
    }
}
