//! As whom and with which containment a test runs, and what this host cannot do.
//!
//! A test that is meant for every setting runs in all that the host offers; what is left out is printed.

use std::fmt;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use nix::unistd::Uid;
use toolcell_protocol::call::Containment;

use crate::cgroups;

/// An ordinary user that every system has and that owns nothing.
pub const NOBODY: u32 = 65_534;

/// Another user, without a name.
pub const SOMEBODY: u32 = 12_345;

/// As whom the daemon runs, and how it holds trees together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The daemon's user; `None` is the user of the test.
    pub uid: Option<u32>,
    /// How trees are held.
    pub containment: Containment,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uid = self.daemon_uid();
        write!(
            f,
            "{} as {}",
            self.containment.name(),
            if uid == 0 { "root".into() } else { format!("uid {uid}") }
        )
    }
}

impl Setting {
    /// With this containment as the user of the test.
    #[must_use]
    pub const fn own(containment: Containment) -> Self {
        Self { uid: None, containment }
    }

    /// As whom the daemon runs.
    #[must_use]
    pub fn daemon_uid(&self) -> u32 {
        self.uid.unwrap_or_else(|| Uid::effective().as_raw())
    }

    /// What is missing on this host for it, if anything is.
    #[must_use]
    pub fn lacks(&self) -> Option<&'static str> {
        if self.uid.is_some_and(|uid| uid != Uid::effective().as_raw()) && !is_root() {
            return Some("root, to run as another user");
        }
        match self.containment {
            Containment::Weak => None,
            Containment::Cgroup if self.daemon_uid() != Uid::effective().as_raw() => {
                Some("a control group delegated to that user")
            }
            Containment::Cgroup => (!has_cgroups()).then_some("a writable cgroup v2 tree"),
            Containment::PidNamespace => {
                (!has_pid_namespaces(self.daemon_uid())).then_some("PID namespaces for that user")
            }
        }
    }
}

/// Whether the tests run as root.
#[must_use]
pub fn is_root() -> bool {
    Uid::effective().is_root()
}

fn has_cgroups() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(cgroups::usable)
}

fn has_pid_namespaces(uid: u32) -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"]);
    if uid != Uid::effective().as_raw() {
        unshare.uid(uid).gid(uid);
    }
    unshare.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    unshare.status().is_ok_and(|status| status.success())
}

/// The settings for tests that must hold everywhere: root (or whoever runs the tests) with each containment, and
/// an ordinary user with those that need no privilege.
const EVERYWHERE: [Setting; 5] = [
    Setting::own(Containment::Cgroup),
    Setting::own(Containment::PidNamespace),
    Setting::own(Containment::Weak),
    Setting { uid: Some(NOBODY), containment: Containment::PidNamespace },
    Setting { uid: Some(NOBODY), containment: Containment::Weak },
];

/// Runs a test in every setting that the host offers and prints those that it does not.
///
/// # Panics
/// When not even one setting is possible.
pub fn everywhere(test: impl Fn(Setting)) {
    in_settings(&EVERYWHERE, test);
}

/// The same in the three settings that differ most: control groups and weak as oneself, weak as an ordinary user.
///
/// # Panics
/// When not even one setting is possible.
pub fn in_main_settings(test: impl Fn(Setting)) {
    in_settings(&[EVERYWHERE[0], EVERYWHERE[2], EVERYWHERE[4]], test);
}

fn in_settings(settings: &[Setting], test: impl Fn(Setting)) {
    let mut ran = 0;
    for setting in settings {
        match setting.lacks() {
            None => {
                // Seen only when the test fails.
                eprintln_setting(setting);
                test(*setting);
                ran += 1;
            }
            Some(what) => skipped(&format!("{setting} needs {what}")),
        }
    }
    assert!(ran > 0, "no setting is possible here");
}

#[expect(clippy::print_stderr, reason = "the test runner shows it when the test fails")]
fn eprintln_setting(setting: &Setting) {
    eprintln!("setting: {setting}");
}

/// Says that a part of a test was left out and why, where a reader of the run sees it even when tests pass: the
/// line goes to the real standard error, not to the captured one.
pub fn skipped(why: &str) {
    use std::io::Write as _;
    // A `print` macro would be captured by the test runner.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}
