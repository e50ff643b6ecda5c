//! Looks at this host. Everything here may be missing, and then is `None` or the reason.

use std::fs::read_to_string;

use toolcell_worker::cgroup;
use toolcell_worker::sys::{probe_clone3, probe_pidfd};

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// `/proc/sys/kernel/osrelease`.
    pub kernel: Option<String>,
    /// Whether `clone3` can be called, or why not.
    pub clone3: Result<(), String>,
    /// Whether pidfds can be had, or why not.
    pub pidfd: Result<(), String>,
    /// Where cgroup v2 is mounted.
    pub cgroup_mount: Option<String>,
    /// Whether groups can be made in our own group (and where that is), or why not.
    pub cgroup_delegated: Result<String, String>,
    /// Controllers in our own group.
    pub cgroup_controllers: Option<String>,
    /// Whether a tool can be given a PID namespace of its own, or why not.
    pub pid_namespace: Result<(), String>,
    /// `/proc/sys/user/max_user_namespaces`.
    pub max_user_namespaces: Option<u64>,
    /// `/proc/sys/kernel/unprivileged_userns_clone` (Debian).
    pub unprivileged_userns_clone: Option<u64>,
    /// `/proc/sys/kernel/apparmor_restrict_unprivileged_userns` (Ubuntu).
    pub apparmor_restrict_userns: Option<u64>,
    /// Effective uid.
    pub uid: Option<u32>,
    /// `Seccomp` of `/proc/self/status`: 2 is a filter.
    pub seccomp: Option<u64>,
    /// Soft and hard limit of open files.
    pub open_files: Option<(String, String)>,
    /// Soft and hard limit of processes.
    pub processes: Option<(String, String)>,
    /// `/proc/sys/kernel/core_pattern`.
    pub core_pattern: Option<String>,
}

impl Facts {
    /// Looks.
    pub fn gather() -> Self {
        let status = read_to_string("/proc/self/status").unwrap_or_default();
        let limits = read_to_string("/proc/self/limits").unwrap_or_default();
        let mountinfo = read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = cgroup::own_directory();
        let controllers =
            own.as_ref().ok().and_then(|own| read_to_string(own.join("cgroup.controllers")).ok());
        Self {
            kernel: line("/proc/sys/kernel/osrelease"),
            clone3: probe_clone3().map_err(|error| error.to_string()),
            pidfd: probe_pidfd().map_err(|error| error.to_string()),
            cgroup_mount: mount_of_cgroup2(&mountinfo),
            cgroup_delegated: delegated(),
            cgroup_controllers: controllers.map(|text| text.trim().to_owned()),
            pid_namespace: toolcell_worker::probe_pid_namespace(),
            max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
            unprivileged_userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restrict_userns: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            uid: field(&status, "Uid:").and_then(|uids| uids.split_whitespace().nth(1)?.parse().ok()),
            seccomp: field(&status, "Seccomp:").and_then(|mode| mode.trim().parse().ok()),
            open_files: limit(&limits, "Max open files"),
            processes: limit(&limits, "Max processes"),
            core_pattern: line("/proc/sys/kernel/core_pattern"),
        }
    }
}

/// Makes a group in our own one, as a daemon would, and removes it.
fn delegated() -> Result<String, String> {
    let own = cgroup::own_directory().map_err(|error| error.to_string())?;
    let probe = own.join(format!("toolcell-doctor-{}", std::process::id()));
    cgroup::create(&probe).map_err(|error| error.to_string())?;
    let can_kill = probe.join("cgroup.kill").exists();
    // A group that nothing ever was in can be removed at once; one that stays is empty and harmless.
    let _ = cgroup::remove(&probe);
    if can_kill {
        Ok(own.display().to_string())
    } else {
        Err("groups have no cgroup.kill (it came with Linux 5.14)".to_owned())
    }
}

fn line(path: &str) -> Option<String> {
    read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

fn number(path: &str) -> Option<u64> {
    line(path)?.parse().ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

/// Soft and hard limit of a line of `/proc/self/limits`.
fn limit(limits: &str, name: &str) -> Option<(String, String)> {
    let mut values = field(limits, name)?.split_whitespace();
    Some((values.next()?.to_owned(), values.next()?.to_owned()))
}

fn mount_of_cgroup2(mountinfo: &str) -> Option<String> {
    let mount = mountinfo.lines().find(|line| line.contains(" - cgroup2 "))?;
    mount.split(' ').nth(4).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max processes             30123                unlimited            processes\n";
        let expected = Some(("30123".to_owned(), "unlimited".to_owned()));
        assert_eq!(limit(limits, "Max processes"), expected);
        assert_eq!(limit(limits, "Max open files"), None);
        assert_eq!(field("Name:\tx\nUid:\t0\t7\t0\t0\n", "Uid:"), Some("\t0\t7\t0\t0"));
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_of_cgroup2(mounts).as_deref(), Some("/sys/fs/cgroup/unified"));
    }
}
