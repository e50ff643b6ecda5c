//! Stop, walk, kill: how a tree of descendants is killed where neither a cgroup nor a PID namespace holds it.
//!
//! One look at the process table is never enough: a process may fork while it is taken. So each process found is
//! stopped first, and a stopped one cannot fork; the walk goes on until a round finds nothing new, then all are
//! killed. What still slipped through is our own child after that (we are its subreaper) and is found by the
//! caller's next round; only "no child is left" is proof. This is called `weak` in results because a process that
//! was handed over to somebody else, or made by a service on request, is not a descendant and is not found.

use std::os::fd::OwnedFd;

use nix::libc;
use toolcell_protocol::call::Leftover;

use super::process;
use crate::sys::pidfd_send_signal;
use crate::sys::process::pidfd_open;

/// Rounds of stopping; each finds the children that the last one's processes had forked before they stopped.
const MAX_ROUNDS: usize = 32;

/// Descendants handled at a time, so that their pidfds fit. The caller repeats until none is left.
const MAX_VICTIMS: usize = 256;

/// Parses `/proc/PID/task/TID/children`.
fn parse_children(text: &str) -> impl Iterator<Item = i32> + '_ {
    text.split_ascii_whitespace().filter_map(|number| number.parse().ok())
}

/// The children of a process, zombies included.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return found };
    for task in tasks.flatten() {
        match std::fs::read_to_string(task.path().join("children")) {
            Ok(text) => found.extend(parse_children(&text)),
            // The thread has just ended, or the kernel was built without these files.
            Err(_) if task.path().join("stat").exists() => return children_by_parent(pid),
            Err(_) => {}
        }
    }
    found
}

/// The same by looking at everybody's parent.
fn children_by_parent(parent: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|&pid| process::stat(pid).is_some_and(|stat| stat.parent == parent)).collect()
}

/// All living descendants of a process.
pub(crate) fn descendants(root: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in children(parent) {
            parents.push(child);
            found.push(child);
        }
    }
    found.retain(|&pid| process::stat(pid).is_some_and(|stat| !stat.is_dead()));
    found
}

/// Stops and kills the descendants of `me` (not through the children that `spare` names), and adds those not yet
/// in `found` to it. Reaps nothing.
pub(crate) fn stop_and_kill(me: i32, spare: &dyn Fn(i32) -> bool, found: &mut Vec<Leftover>) {
    let mut victims: Vec<(i32, OwnedFd)> = Vec::new();
    for _ in 0..MAX_ROUNDS {
        let before = victims.len();
        let parents: Vec<i32> = std::iter::once(me).chain(victims.iter().map(|(pid, _)| *pid)).collect();
        for parent in parents {
            for child in children(parent) {
                let known = victims.iter().any(|(pid, _)| *pid == child);
                if known || (parent == me && spare(child)) || victims.len() >= MAX_VICTIMS {
                    continue;
                }
                stop(child, parent, &mut victims, found);
            }
        }
        if victims.len() == before {
            break;
        }
    }
    for (_, pidfd) in &victims {
        let _ = pidfd_send_signal(pidfd, libc::SIGKILL);
    }
}

fn stop(child: i32, parent: i32, victims: &mut Vec<(i32, OwnedFd)>, found: &mut Vec<Leftover>) {
    let Ok(pidfd) = pidfd_open(child) else { return };
    // Asked after the pidfd was made: if the number had meanwhile gone to a stranger, its parent is another, and
    // if the process has ended since, the pidfd reaches nobody.
    match process::stat(child) {
        Some(stat) if stat.parent == parent && !stat.is_dead() => {}
        _ => return,
    }
    if pidfd_send_signal(&pidfd, libc::SIGSTOP).is_err() {
        return;
    }
    if let Some(leftover) = process::leftover(child)
        && !found.iter().any(|known| known.pid == child)
    {
        found.push(leftover);
    }
    victims.push((child, pidfd));
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_children_file_is_a_list_of_numbers() {
        assert_eq!(parse_children("12 345 6 ").collect::<Vec<_>>(), [12, 345, 6]);
        assert_eq!(parse_children("").count(), 0);
        assert_eq!(parse_children("x 7\n").collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn both_ways_to_find_children_agree() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = i32::try_from(child.id()).expect("a pid");
        let me = nix::unistd::getpid().as_raw();
        assert!(children(me).contains(&pid));
        assert!(children_by_parent(me).contains(&pid));
        assert!(descendants(me).contains(&pid));
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert!(!children(me).contains(&pid));
    }

    #[test]
    fn a_spared_child_lives_and_the_others_with_their_children_die() {
        let spared = Command::new("sleep").arg("60").spawn().expect("sleep");
        let mut doomed = Command::new("sh").args(["-c", "sleep 60 & sleep 60"]).spawn().expect("sh");
        let me = nix::unistd::getpid().as_raw();
        let (spared_pid, doomed_pid) = (spared.id().cast_signed(), doomed.id().cast_signed());
        let sleeps = |pid: &i32| process::leftover(*pid).is_some_and(|process| process.comm == "sleep");
        let grandchildren = loop {
            let found = descendants(doomed_pid);
            if found.iter().filter(|pid| sleeps(pid)).count() == 2 {
                break found;
            }
            std::thread::yield_now();
        };
        // Other tests of this process have children too: everything but the doomed one is spared.
        let mut found = Vec::new();
        stop_and_kill(me, &|pid| pid != doomed_pid, &mut found);
        assert!(!doomed.wait().expect("reaped").success());
        for pid in grandchildren {
            assert!(
                found.iter().any(|leftover| leftover.pid == pid && leftover.comm == "sleep"),
                "{found:?}"
            );
            while process::stat(pid).is_some_and(|stat| !stat.is_dead()) {
                std::thread::yield_now();
            }
        }
        assert!(process::stat(spared_pid).is_some_and(|stat| !stat.is_dead()));
        let mut spared = spared;
        spared.kill().expect("killed");
        spared.wait().expect("reaped");
    }
}
