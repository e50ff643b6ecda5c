//! Resource limits: from what a job asks for to what the kernel is told.

use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use toolcell_protocol::call::{Layer, LayerState};
use toolcell_protocol::worker_api::Rlimits;

/// Each limit's resource and the name of its layer, in the order in which they are set.
const RESOURCES: [(Resource, &str); 8] = [
    (Resource::RLIMIT_CPU, "rlimit_cpu"),
    (Resource::RLIMIT_FSIZE, "rlimit_fsize"),
    (Resource::RLIMIT_NOFILE, "rlimit_nofile"),
    (Resource::RLIMIT_CORE, "rlimit_core"),
    (Resource::RLIMIT_STACK, "rlimit_stack"),
    (Resource::RLIMIT_MEMLOCK, "rlimit_memlock"),
    (Resource::RLIMIT_AS, "rlimit_as"),
    (Resource::RLIMIT_NPROC, "rlimit_nproc"),
];

/// The limits that the spawner was born with, which every tool inherits where its job says nothing.
#[derive(Debug, Clone)]
pub(crate) struct InheritedLimits {
    /// Soft and hard, in the order of [`RESOURCES`].
    limits: [(u64, u64); RESOURCES.len()],
    /// May raise hard limits.
    privileged: bool,
}

impl InheritedLimits {
    /// Asks the kernel.
    pub(crate) fn read() -> Self {
        let limits =
            RESOURCES.map(|(resource, _)| getrlimit(resource).unwrap_or((RLIM_INFINITY, RLIM_INFINITY)));
        Self { limits, privileged: nix::unistd::geteuid().is_root() }
    }
}

/// One limit to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setting {
    index: usize,
    soft: u64,
    hard: u64,
}

/// The limits to set, ready to be applied without taking memory.
#[derive(Debug)]
pub(crate) struct RlimitPlan {
    settings: [Option<Setting>; RESOURCES.len()],
}

impl RlimitPlan {
    /// An ordinary user cannot raise a hard limit: what is asked for beyond the inherited one becomes that one,
    /// which is stricter, and the layer tells the value.
    pub(crate) fn new(asked: &Rlimits, inherited: &InheritedLimits) -> Self {
        let both = |value: Option<u64>| value.map(|value| (value, value));
        let nofile = {
            let (soft, hard) = inherited.limits[2];
            match (asked.nofile_soft, asked.nofile_hard) {
                (None, None) => None,
                (Some(soft), Some(hard)) => Some((soft, hard)),
                // One of them alone must not end up above, or below, the other.
                (Some(soft), None) => Some((soft, hard.max(soft))),
                (None, Some(hard)) => Some((soft.min(hard), hard)),
            }
        };
        let asked = [
            // SIGXCPU at the soft limit, SIGKILL a second later for those who ignore it.
            asked.cpu_seconds.map(|seconds| (seconds, seconds.saturating_add(1))),
            both(asked.fsize_bytes),
            nofile,
            both(asked.core_bytes),
            both(asked.stack_bytes),
            both(asked.memlock_bytes),
            both(asked.as_bytes),
            both(asked.nproc),
        ];
        let mut settings = [None; RESOURCES.len()];
        for (index, (setting, value)) in settings.iter_mut().zip(asked).enumerate() {
            let Some((soft, hard)) = value else { continue };
            let ceiling = if inherited.privileged { RLIM_INFINITY } else { inherited.limits[index].1 };
            let hard = hard.min(ceiling);
            *setting = Some(Setting { index, soft: soft.min(hard), hard });
        }
        Self { settings }
    }

    /// Sets them for this process.
    pub(crate) fn apply(&self) -> Result<(), Errno> {
        for setting in self.settings.iter().flatten() {
            setrlimit(RESOURCES[setting.index].0, setting.soft, setting.hard)?;
        }
        Ok(())
    }

    /// One layer a limit, with the values that are in force.
    pub(crate) fn layers(&self) -> impl Iterator<Item = Layer> + '_ {
        self.settings.iter().flatten().map(|setting| {
            let value =
                |value: u64| if value == RLIM_INFINITY { "unlimited".to_owned() } else { value.to_string() };
            let detail = if setting.soft == setting.hard {
                value(setting.soft)
            } else {
                format!("{} (hard {})", value(setting.soft), value(setting.hard))
            };
            Layer {
                name: RESOURCES[setting.index].1.to_owned(),
                state: LayerState::Enforced,
                detail: Some(detail),
            }
        })
    }

    /// The CPU seconds of one process after which the kernel sends SIGXCPU.
    pub(crate) fn cpu_seconds(&self) -> Option<u64> {
        self.settings[0].map(|setting| setting.soft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited(privileged: bool) -> InheritedLimits {
        InheritedLimits { limits: [(1000, 4000); RESOURCES.len()], privileged }
    }

    fn setting(asked: &Rlimits, privileged: bool, index: usize) -> Option<(u64, u64)> {
        let plan = RlimitPlan::new(asked, &inherited(privileged));
        plan.settings[index].map(|setting| (setting.soft, setting.hard))
    }

    #[test]
    fn what_a_job_does_not_name_stays_as_inherited() {
        let plan = RlimitPlan::new(&Rlimits::default(), &inherited(true));
        assert_eq!(plan.settings, [None; RESOURCES.len()]);
        assert_eq!(plan.layers().count(), 0);
    }

    #[test]
    fn a_cpu_limit_warns_a_second_before_it_kills() {
        let asked = Rlimits { cpu_seconds: Some(5), ..Rlimits::default() };
        assert_eq!(setting(&asked, true, 0), Some((5, 6)));
        let plan = RlimitPlan::new(&asked, &inherited(true));
        assert_eq!(plan.cpu_seconds(), Some(5));
        let layer = plan.layers().next().expect("one layer");
        assert_eq!((layer.name.as_str(), layer.detail.as_deref()), ("rlimit_cpu", Some("5 (hard 6)")));
    }

    #[test]
    fn only_root_gets_more_than_was_inherited() {
        let asked = Rlimits { fsize_bytes: Some(9000), ..Rlimits::default() };
        assert_eq!(setting(&asked, false, 1), Some((4000, 4000)));
        assert_eq!(setting(&asked, true, 1), Some((9000, 9000)));
    }

    #[test]
    fn one_half_of_the_open_files_limit_keeps_the_other_in_order() {
        let soft = |value| Rlimits { nofile_soft: Some(value), ..Rlimits::default() };
        let hard = |value| Rlimits { nofile_hard: Some(value), ..Rlimits::default() };
        assert_eq!(setting(&soft(64), true, 2), Some((64, 4000)));
        assert_eq!(setting(&soft(5000), true, 2), Some((5000, 5000)));
        assert_eq!(setting(&soft(5000), false, 2), Some((4000, 4000)));
        assert_eq!(setting(&hard(64), true, 2), Some((64, 64)));
        assert_eq!(setting(&hard(2000), true, 2), Some((1000, 2000)));
    }
}
