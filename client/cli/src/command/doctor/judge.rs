//! What the facts mean for cells: one check for each thing that a host may lack. No I/O.

use serde::Serialize;

use super::facts::Facts;

/// Below this, batches of many calls run out of descriptors.
const FEW_OPEN_FILES: u64 = 4096;

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is there.
    Ok,
    /// It is not, and something is worse for it.
    Missing,
    /// Good to know.
    Note,
}

/// One thing that a host may lack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// How it went.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What that means.
    pub why: Option<String>,
    /// How to get it.
    pub how: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: State::Ok, found: found.into(), why: None, how: None }
    }

    fn lacks(name: &'static str, state: State, found: impl Into<String>, why: &str, how: &str) -> Self {
        Self { name, state, found: found.into(), why: Some(why.to_owned()), how: Some(how.to_owned()) }
    }
}

/// Says what the facts mean.
pub fn judge(facts: &Facts) -> Vec<Check> {
    vec![
        kernel(facts),
        user(facts),
        system_call(
            "clone3",
            &facts.clone3,
            "cells are entered by the child itself, a little later and slower",
        ),
        system_call(
            "pidfd",
            &facts.pidfd,
            "no daemon can be started here: workers are known by their pidfds",
        ),
        cgroup_mount(facts),
        cgroup_delegated(facts),
        pid_namespace(facts),
        open_files(facts),
        processes(facts),
        core_pattern(facts),
    ]
}

fn kernel(facts: &Facts) -> Check {
    const NAME: &str = "kernel";
    let Some(release) = &facts.kernel else {
        return Check::lacks(
            NAME,
            State::Missing,
            "unknown",
            "/proc is not mounted or hidden",
            "mount /proc",
        );
    };
    let why = match version(release) {
        None => return Check::ok(NAME, release),
        Some(version) if version >= (5, 14) => return Check::ok(NAME, release),
        Some(version) if version >= (5, 9) => {
            "cgroup.kill came with 5.14; process trees are held less firmly"
        }
        Some(version) if version >= (5, 3) => "CLONE_INTO_CGROUP, close_range and cgroup.kill came later",
        Some(_) => "pidfds came with 5.3, and without them no daemon can run",
    };
    Check::lacks(NAME, State::Missing, release, why, "use Linux 5.14 or newer")
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn user(facts: &Facts) -> Check {
    match facts.uid {
        Some(0) => Check::ok("user", "root: calls of other users run as these users"),
        Some(uid) => Check {
            state: State::Note,
            ..Check::ok("user", format!("uid {uid}: serves this user only, with what it may do"))
        },
        None => Check { state: State::Note, ..Check::ok("user", "unknown") },
    }
}

fn system_call(name: &'static str, answer: &Result<(), String>, why: &str) -> Check {
    match answer {
        Ok(()) => Check::ok(name, "answers"),
        Err(error) => Check::lacks(
            name,
            State::Missing,
            error,
            why,
            "use Linux 5.3 or newer; in a container, let its seccomp profile pass the call",
        ),
    }
}

fn cgroup_mount(facts: &Facts) -> Check {
    const NAME: &str = "cgroup v2";
    match &facts.cgroup_mount {
        Some(path) => Check::ok(NAME, format!("mounted at {path}")),
        None => Check::lacks(
            NAME,
            State::Missing,
            "not mounted",
            "process trees are held together by PID namespaces, or by walking them; memory and process numbers of \
             a whole tree have no limit",
            "boot with systemd.unified_cgroup_hierarchy=1, or, as root, mount -t cgroup2 cgroup2 /sys/fs/cgroup",
        ),
    }
}

fn cgroup_delegated(facts: &Facts) -> Check {
    const NAME: &str = "own cgroups";
    match &facts.cgroup_delegated {
        Ok(path) => {
            let controllers = match facts.cgroup_controllers.as_deref() {
                None | Some("") => "no controllers, so no limits of memory and processes by cgroup",
                Some(controllers) => controllers,
            };
            Check::ok(NAME, format!("{path} ({controllers})"))
        }
        Err(error) => Check::lacks(
            NAME,
            State::Missing,
            error,
            "no call can have a cgroup of its own, the surest way to kill all that it has started",
            "run the daemon as a service with Delegate=yes, or this command under \
             systemd-run --user --scope -p Delegate=yes",
        ),
    }
}

fn pid_namespace(facts: &Facts) -> Check {
    const NAME: &str = "PID namespaces";
    let Err(error) = &facts.pid_namespace else { return Check::ok(NAME, "can be made for a call") };
    let how = if facts.max_user_namespaces == Some(0) {
        "sysctl user.max_user_namespaces=10000"
    } else if facts.unprivileged_userns_clone == Some(0) {
        "sysctl kernel.unprivileged_userns_clone=1"
    } else if facts.apparmor_restrict_userns == Some(1) {
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that allows userns"
    } else if facts.seccomp == Some(2) {
        "a seccomp filter is in force; in a container, let it pass clone with namespaces"
    } else {
        "run the daemon as root, or on a kernel with user namespaces"
    };
    Check::lacks(
        NAME,
        State::Missing,
        error,
        "without a cgroup, trees are held by walking them (weak), which a hostile tool can outrun for a moment",
        how,
    )
}

fn open_files(facts: &Facts) -> Check {
    const NAME: &str = "open files";
    let Some((soft, hard)) = &facts.open_files else {
        return Check { state: State::Note, ..Check::ok(NAME, "unknown") };
    };
    let found = format!("{soft} (may be raised to {hard})");
    match hard.parse::<u64>() {
        Ok(hard) if hard < FEW_OPEN_FILES => Check::lacks(
            NAME,
            State::Note,
            found,
            "each running call takes about six descriptors of the daemon",
            "ulimit -Hn 65536, or LimitNOFILE=65536 in the unit",
        ),
        _ => Check::ok(NAME, found),
    }
}

fn processes(facts: &Facts) -> Check {
    let found = match &facts.processes {
        Some((soft, hard)) => format!("{soft} of this user (may be raised to {hard})"),
        None => return Check { state: State::Note, ..Check::ok("processes", "unknown") },
    };
    Check::ok("processes", found)
}

fn core_pattern(facts: &Facts) -> Check {
    const NAME: &str = "core dumps";
    match facts.core_pattern.as_deref() {
        Some(pattern) if pattern.starts_with('|') => Check::lacks(
            NAME,
            State::Note,
            pattern,
            "the kernel hands crashes to this program whatever a cell's core limit is; its memory may be stored, \
             and the end of a crashed call waits for it",
            "accept it, or as root: sysctl kernel.core_pattern=core",
        ),
        Some(pattern) => {
            Check::ok(NAME, format!("{pattern}; a cell's core limit holds (0 unless a manifest says more)"))
        }
        None => Check { state: State::Note, ..Check::ok(NAME, "unknown") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Facts {
        Facts {
            kernel: Some("6.1.0-25-amd64".to_owned()),
            clone3: Ok(()),
            pidfd: Ok(()),
            cgroup_mount: Some("/sys/fs/cgroup".to_owned()),
            cgroup_delegated: Ok("/sys/fs/cgroup/user.slice".to_owned()),
            cgroup_controllers: Some("memory pids".to_owned()),
            pid_namespace: Ok(()),
            max_user_namespaces: Some(10_000),
            unprivileged_userns_clone: None,
            apparmor_restrict_userns: None,
            uid: Some(0),
            seccomp: Some(0),
            open_files: Some(("1024".to_owned(), "524288".to_owned())),
            processes: Some(("3000".to_owned(), "3000".to_owned())),
            core_pattern: Some("core".to_owned()),
        }
    }

    fn check(facts: &Facts, name: &str) -> Check {
        judge(facts).into_iter().find(|check| check.name == name).expect(name)
    }

    #[test]
    fn a_host_that_has_everything_lacks_nothing() {
        assert!(judge(&good()).iter().all(|check| check.state == State::Ok), "{:?}", judge(&good()));
    }

    #[test]
    fn everything_missing_says_why_and_how() {
        let refused = || Err("Operation not permitted".to_owned());
        let bare = Facts {
            kernel: Some("4.19.0".to_owned()),
            clone3: refused(),
            pidfd: refused(),
            cgroup_mount: None,
            cgroup_delegated: Err("cannot make".to_owned()),
            cgroup_controllers: None,
            pid_namespace: refused(),
            open_files: Some(("256".to_owned(), "1024".to_owned())),
            core_pattern: Some("|/usr/lib/systemd/systemd-coredump %P".to_owned()),
            ..good()
        };
        for check in judge(&bare) {
            if !matches!(check.name, "user" | "processes") {
                assert_ne!(check.state, State::Ok, "{}", check.name);
                assert!(check.why.is_some() && check.how.is_some(), "{check:?}");
            }
        }
    }

    #[test]
    fn the_advice_for_namespaces_is_that_of_the_setting_in_the_way() {
        let refused = Facts { pid_namespace: Err("EPERM".to_owned()), ..good() };
        for (facts, how) in [
            (Facts { max_user_namespaces: Some(0), ..refused.clone() }, "max_user_namespaces"),
            (Facts { unprivileged_userns_clone: Some(0), ..refused.clone() }, "unprivileged_userns_clone"),
            (Facts { apparmor_restrict_userns: Some(1), ..refused.clone() }, "apparmor"),
            (Facts { seccomp: Some(2), ..refused.clone() }, "seccomp"),
            (refused.clone(), "as root"),
        ] {
            let check = check(&facts, "PID namespaces");
            assert!(check.how.as_deref().is_some_and(|text| text.contains(how)), "{check:?}");
        }
    }

    #[test]
    fn kernel_releases_of_distributions_are_read() {
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("5.10.0-8-amd64"), Some((5, 10)));
        assert_eq!(version("next"), None);
        let old = Facts { kernel: Some("5.10.0-8-amd64".to_owned()), ..good() };
        assert_eq!(check(&old, "kernel").state, State::Missing);
    }
}
