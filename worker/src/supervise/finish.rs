//! The last word about an attempt.

use nix::libc;
use toolcell_protocol::call::LimitName;
use toolcell_protocol::worker_api::{AttemptEnd, Finished, OutputPolicy, WaitStatus};

use super::Supervision;
use crate::cgroup::Cgroup;
use crate::job::Stdin;
use crate::output::Output;

impl Supervision {
    /// Everything that is known now; the output's account is taken out.
    pub(super) fn finish(&mut self) -> Finished {
        // Without a status the daemon is gone and nobody will read this.
        let status = self.tree.status().unwrap_or(WaitStatus::Signaled(libc::SIGKILL));
        let nothing = OutputPolicy {
            inline_bytes: 0,
            tail_bytes: 0,
            stream: false,
            max_total_bytes: None,
            spool: None,
        };
        let account = std::mem::replace(&mut self.output, Output::new(&nothing)).finish();
        let mut usage = self.tree.usage();
        // What a kill took away unreaped is not in the kernel's account any more.
        let reaped_us = usage.user_cpu_us + usage.system_cpu_us;
        usage.user_cpu_us += self.cpu_before_kill_us.saturating_sub(reaped_us);
        if self.memory_controller
            && let Some(peak) = self.tree.leaf().and_then(Cgroup::peak_memory_bytes)
        {
            usage.peak_memory_bytes = peak;
        }
        let duration = self.ended_at.unwrap_or(self.started_at) - self.started_at;
        Finished {
            signalled: self.signalled,
            killed_for: self.killed_for,
            limits_hit: self.limits_hit(status, usage.user_cpu_us + usage.system_cpu_us),
            stdout_bytes: account.stdout_bytes,
            stderr_bytes: account.stderr_bytes,
            tail: account.tail,
            omitted_bytes: account.omitted_bytes,
            spool: account.spool,
            stdout_open_after_exit: self.open_after_exit,
            stdin_unread_bytes: self.stdin.as_ref().map_or(0, Stdin::unread_bytes),
            usage,
            leftovers: std::mem::take(&mut self.leftovers),
            proven_gone: self.proven_gone,
            duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            ..Finished::new(AttemptEnd::Ended(status), Some(self.layers.clone()))
        }
    }

    /// Limits of the kernel's that show in how the tool ended.
    fn limits_hit(&self, status: WaitStatus, cpu_us: u64) -> Vec<LimitName> {
        let mut hit = Vec::new();
        match status {
            WaitStatus::Signaled(libc::SIGXCPU) => hit.push(LimitName::Cpu),
            WaitStatus::Signaled(libc::SIGXFSZ) => hit.push(LimitName::Fsize),
            // The hard limit, a second after a SIGXCPU that was ignored.
            WaitStatus::Signaled(libc::SIGKILL)
                if !self.signalled
                    && self.killed_for.is_none()
                    && self.cpu_seconds.is_some_and(|limit| cpu_us >= limit.saturating_mul(1_000_000)) =>
            {
                hit.push(LimitName::Cpu);
            }
            _ => {}
        }
        if self.memory_controller
            && self.tree.leaf().and_then(Cgroup::oom_kills).is_some_and(|count| count > 0)
        {
            hit.push(LimitName::Memory);
        }
        hit
    }
}
