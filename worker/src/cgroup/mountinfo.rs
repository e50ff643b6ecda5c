//! Where the version 2 tree is mounted, and where this process is in it.

use std::path::{Path, PathBuf};

/// The mount of the version 2 tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Which directory of the tree is mounted.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
}

impl Mount {
    /// The directory of a group that the kernel names like this; `None` when the mount does not show it.
    #[must_use]
    pub fn directory_of(&self, own: &str) -> Option<PathBuf> {
        let below = Path::new(own).strip_prefix(&self.root).ok()?;
        // "/../x" is how a group outside the namespace is named.
        let inside = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        inside.then(|| if below.as_os_str().is_empty() { self.point.clone() } else { self.point.join(below) })
    }
}

/// Finds the version 2 mount in the text of `/proc/self/mountinfo`; the last one wins, as it hides the others.
#[must_use]
pub fn find_mount(mountinfo: &str) -> Option<Mount> {
    mountinfo.lines().rev().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        if after.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = before.split(' ').skip(3);
        let root = unescape(fields.next()?);
        let point = unescape(fields.next()?);
        Some(Mount { root: root.into(), point: point.into() })
    })
}

/// Our group's name, from the text of `/proc/self/cgroup`.
#[must_use]
pub fn own_path(cgroup: &str) -> Option<String> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The kernel writes blank, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        if let Some(byte) = octal {
            bytes.push(byte);
            rest = &tail[3..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "22 1 0:20 / / rw - ext4 /dev/sda rw\n\
        30 22 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
        42 31 0:39 / /sys/fs/cgroup/x rw,relatime - cgroup cgroup rw,memory\n";

    #[test]
    fn both_layouts_are_found_and_version_1_alone_is_not() {
        assert_eq!(find_mount(UNIFIED).expect("found").point, Path::new("/sys/fs/cgroup"));
        assert_eq!(find_mount(HYBRID).expect("found").point, Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(find_mount("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"), None);
        assert_eq!(find_mount(""), None);
        assert_eq!(find_mount("junk\n - cgroup2 x\n1 2 - cgroup2"), None);
    }

    #[test]
    fn a_mount_point_with_a_blank_and_a_mount_of_a_part_of_the_tree_are_understood() {
        let text = "41 31 0:38 /app\\0401 /mnt/c\\040g rw shared:1 master:2 - cgroup2 none rw\n";
        let mount = find_mount(text).expect("found");
        assert_eq!(mount, Mount { root: "/app 1".into(), point: "/mnt/c g".into() });
        assert_eq!(mount.directory_of("/app 1/cell"), Some("/mnt/c g/cell".into()));
        assert_eq!(mount.directory_of("/app 1"), Some("/mnt/c g".into()));
        assert_eq!(mount.directory_of("/other"), None);
        assert_eq!(mount.directory_of("/app 1/../x"), None);
    }

    #[test]
    fn our_own_group_is_the_line_without_controllers() {
        let text = "9:name=systemd:/\n4:memory:/a\n0::/user.slice/x.scope\n";
        assert_eq!(own_path(text).as_deref(), Some("/user.slice/x.scope"));
        assert_eq!(own_path("9:name=systemd:/\n"), None);
    }
}
