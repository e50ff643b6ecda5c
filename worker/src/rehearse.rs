//! What a worker does while nobody waits for it, so that its job finds its pages present.
//!
//! A worker is a copy of the spawner whose pages are still shared: the first write to each, and the first use of
//! each piece of code, costs a fault. So the steps of a job are gone through once with a small one: decoded,
//! laid out, its end encoded. Nothing is executed and nothing leaves.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use nix::sys::resource::UsageWho;
use toolcell_protocol::call::{Containment, Layers};
use toolcell_protocol::codec;
use toolcell_protocol::id::CallUid;
use toolcell_protocol::worker_api::{
    Action, AttemptEnd, Finished, FromWorker, Job, OutputPolicy, Rlimits, ToWorker, WaitStatus, WorkerKind,
};

use crate::job::{self, Confinement};
use crate::output::Output;
use crate::spawner::Facts;
use crate::tool;
use crate::usage::usage;

/// Goes through a job's steps.
pub(crate) fn rehearse(facts: &Facts, kind: WorkerKind) {
    let Ok(bytes) = codec::encode(&ToWorker::Job(Box::new(sample(kind)))) else { return };
    let Ok(ToWorker::Job(job)) = codec::decode::<ToWorker>(&bytes) else { return };
    let Ok(confinement) = Confinement::new(&job, &facts.limits) else { return };
    match &job.action {
        Action::Exec { argv, .. } => drop(black_box(job::program(argv, &job.env))),
        // Refused, since it is no regular file; by then most of what a tool uses has been used.
        Action::Builtin { name, args } => drop(black_box(tool::run(name, args, Path::new("/")))),
    }
    let layers = Layers { containment: Containment::Weak, layers: confinement.layers };
    let mut frames = Vec::with_capacity(1024);
    let _ = codec::encode_frame(&FromWorker::Started { pid: 1, layers: layers.clone() }, &mut frames);
    let end = AttemptEnd::Ended(WaitStatus::Exited(0));
    let finished = Box::new(Finished::new(end, Some(layers)));
    let _ = codec::encode_frame(&FromWorker::Finished(finished), &mut frames);
    black_box(frames);
    black_box((Instant::now(), Output::new(&job.output), usage(UsageWho::RUSAGE_CHILDREN)));
}

fn sample(kind: WorkerKind) -> Job {
    let action = match kind {
        WorkerKind::Exec => Action::Exec { argv: vec![b"/bin/true".to_vec().into()], stdin: None },
        WorkerKind::Builtin => Action::Builtin {
            name: "read_file".to_owned(),
            args: r#"{"path":"/dev/null","offset":1}"#.to_owned(),
        },
    };
    Job {
        call_uid: CallUid(Default::default()),
        attempt: 1,
        tool: "rehearsal".to_owned(),
        action,
        identity: None,
        cwd: "/".to_owned(),
        env: vec![("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())],
        umask: 0o022,
        rlimits: Rlimits {
            cpu_seconds: Some(60),
            nofile_soft: Some(1024),
            nofile_hard: Some(4096),
            core_bytes: Some(0),
            ..Rlimits::default()
        },
        tree_cpu_ms: Some(60_000),
        pid_namespace: false,
        output: OutputPolicy {
            inline_bytes: 65_536,
            tail_bytes: 32_768,
            stream: false,
            max_total_bytes: None,
            spool: None,
        },
    }
}
