//! A worker with a built-in tool: it confines itself, runs the tool, and tells what it said.
//!
//! While the tool works nobody looks at the socket: the daemon stops a built-in by killing this worker (through
//! the spawner, its pidfd or the leaf), and there is no tree below it.

use std::path::Path;
use std::time::Instant;

use nix::sys::resource::UsageWho;
use toolcell_protocol::call::{Containment, Layers, LimitName, Stream};
use toolcell_protocol::worker_api::{AttemptEnd, Finished, FromWorker, Job, Rlimits};

use crate::cgroup::Cgroup;
use crate::channel::Channel;
use crate::confine::confine_self;
use crate::job::{Confinement, Refusal};
use crate::spawner::Facts;
use crate::tool;
use crate::usage::usage;
use crate::worker::{self, EXIT_DONE};

/// Runs the tool; the result is the worker's exit code.
pub(crate) fn run(
    facts: &Facts,
    mut channel: Channel,
    leaf: Option<&Cgroup>,
    job: &Job,
    name: &str,
    args: &str,
) -> i32 {
    let confinement = match confine(facts, job) {
        Ok(confinement) => confinement,
        Err(refusal) => return worker::refuse(channel, refusal),
    };
    let containment = if leaf.is_some() { Containment::Cgroup } else { Containment::Weak };
    let layers = Layers { containment, layers: confinement.layers };
    let pid = nix::unistd::getpid().as_raw();
    // Leaves with the end: built-ins are short, and each write wakes the daemon.
    channel.queue(&FromWorker::Started { pid, layers: layers.clone() });
    let started_at = Instant::now();
    let outcome = tool::run(name, args, Path::new(&job.cwd));
    let duration = started_at.elapsed();
    // The text is bounded by the tool itself, so all of it travels whatever the policy says: after the change of
    // identity the spool could not be made any more.
    channel.queue_output(Stream::Stdout, &outcome.text);
    let total_bytes = outcome.text.len() as u64;
    let limits_hit = match job.output.max_total_bytes {
        Some(limit) if total_bytes > limit => vec![LimitName::Output],
        _ => Vec::new(),
    };
    let finished = Finished {
        limits_hit,
        stdout_bytes: total_bytes,
        usage: usage(UsageWho::RUSAGE_SELF),
        duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
        ..Finished::new(AttemptEnd::Builtin { ok: outcome.ok }, Some(layers))
    };
    channel.queue(&FromWorker::Finished(Box::new(finished)));
    let _ = channel.flush_all();
    EXIT_DONE
}

fn confine(facts: &Facts, job: &Job) -> Result<Confinement, Refusal> {
    // There is one process only, so the tree's budget is the process's.
    let tree_seconds = job.tree_cpu_ms.map(|budget| budget.div_ceil(1000));
    let cpu_seconds = [job.rlimits.cpu_seconds, tree_seconds].into_iter().flatten().min();
    let rlimits = Rlimits { cpu_seconds, ..job.rlimits.clone() };
    let confined = Job { rlimits, ..job.clone() };
    let confinement = Confinement::new(&confined, &facts.limits)?;
    confine_self(&confinement.rlimits, confinement.identity.as_ref(), &confinement.cwd, job.umask)
        .map_err(|(stage, errno)| Refusal::new(stage, errno, confinement.describe(stage)))?;
    Ok(confinement)
}
