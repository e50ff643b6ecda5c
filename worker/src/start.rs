//! Starting the tool: in a PID namespace if asked and possible, else directly; again if its file is busy.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::fchown;
use toolcell_protocol::call::{Blob, Layer, LayerState, Layers};
use toolcell_protocol::worker_api::{Job, Stage};

use crate::cgroup::Cgroup;
use crate::confine::{Report, TowardsExec, become_tool};
use crate::containment::Tree;
use crate::containment::namespace::{Namespace, NoNamespace};
use crate::job::{self, Confinement, Refusal, Stdin};
use crate::spawner::Facts;
use crate::sys::clone::{Placement, spawn};
use crate::worker::Kit;

/// Pauses before a file that is open for writing somewhere is tried again: in any process with threads a fork at
/// the wrong moment keeps a freshly written file busy for a moment.
const BUSY_PAUSES_MS: [u64; 5] = [20, 40, 60, 80, 100];

/// A tool that runs.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) tree: Tree,
    pub(crate) stdin: Option<Stdin>,
    pub(crate) layers: Layers,
    pub(crate) cpu_seconds: Option<u64>,
}

/// Starts the job's program.
pub(crate) fn start(
    facts: &Facts,
    kit: &Kit,
    leaf: Option<Cgroup>,
    job: &Job,
    argv: &[Blob],
    stdin: Option<&Blob>,
) -> Result<Started, Refusal> {
    let confinement = Confinement::new(job, &facts.limits)?;
    let program = job::program(argv, &job.env)?;
    let stdin = stdin.map(Stdin::new).transpose()?;
    if let Some(identity) = &confinement.identity {
        // Else the tool could not open its own /dev/stdout again.
        let (uid, gid) = identity.owner();
        for pipe in [&kit.stdout, &kit.stderr] {
            fchown(&pipe.write, Some(uid), Some(gid))
                .map_err(|errno| Refusal::new(Stage::Pipes, errno, "ownership of the output pipes"))?;
        }
    }
    let report = Report::new(job.pid_namespace)
        .map_err(|errno| Refusal::new(Stage::Pipes, errno, "memory to share with the tool's process"))?;
    let plan = TowardsExec {
        program: &program,
        stdin: stdin.as_ref().map(AsFd::as_fd),
        stdout: kit.stdout.write.as_fd(),
        stderr: kit.stderr.write.as_fd(),
        rlimits: &confinement.rlimits,
        identity: confinement.identity.as_ref(),
        cwd: &confinement.cwd,
        umask: confinement.umask,
        parent: kit.pid,
        cgroup: leaf.as_ref().map(AsFd::as_fd),
        report: &report,
    };
    let mut layers = Vec::with_capacity(confinement.layers.len() + 1);
    let mut namespaced = job.pid_namespace;
    let mut pauses = BUSY_PAUSES_MS.iter();
    let (main, namespace) = loop {
        let attempt = if namespaced {
            match Namespace::start(&plan) {
                Ok((namespace, tool)) => Ok((tool, Some(namespace))),
                Err(NoNamespace::Unavailable(stage, errno)) => {
                    namespaced = false;
                    layers.push(pid_namespace_layer(LayerState::Unavailable, Some((stage, errno))));
                    continue;
                }
                Err(NoNamespace::ToolFailed) => Ok((0, None)),
            }
        } else {
            spawn(Placement { cgroup: plan.cgroup, namespaces: 0 }, become_tool, &plan).map(|pid| (pid, None))
        };
        let (pid, namespace) = attempt.map_err(|errno| clone_refused(errno, leaf.is_some()))?;
        let Some(failed) = report.failure() else { break (pid, namespace) };
        if pid != 0 {
            let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None);
        }
        if failed.errno == Errno::ETXTBSY
            && let Some(&pause) = pauses.next()
        {
            report.clear();
            std::thread::sleep(Duration::from_millis(pause));
            continue;
        }
        let what = match failed.stage {
            Stage::Lookup | Stage::Exec => program.describe(failed.stage, failed.errno, failed.candidate),
            other => confinement.describe(other),
        };
        return Err(Refusal::new(failed.stage, failed.errno, what));
    };
    if namespace.is_some() {
        layers.push(pid_namespace_layer(LayerState::Enforced, None));
    }
    layers.extend(confinement.layers);
    let tree = Tree::new(kit.pid, main, leaf, namespace);
    let layers = Layers { containment: tree.containment(), layers };
    Ok(Started { tree, stdin, layers, cpu_seconds: confinement.rlimits.cpu_seconds() })
}

/// With a leaf, these say that the kernel would not have a process born there.
fn clone_refused(errno: Errno, has_leaf: bool) -> Refusal {
    let of_leaf = matches!(errno, Errno::EACCES | Errno::EBUSY | Errno::ENODEV | Errno::EOPNOTSUPP);
    if has_leaf && of_leaf {
        Refusal::new(Stage::Cgroup, errno, "birth in the cell's cgroup")
    } else {
        Refusal::new(Stage::Fork, errno, "clone")
    }
}

fn pid_namespace_layer(state: LayerState, why: Option<(Stage, Errno)>) -> Layer {
    let detail = why.map(|(stage, errno)| format!("{}: {errno}", stage.name()));
    Layer { name: "pid_namespace".to_owned(), state, detail }
}
