//! One message of every variant of the daemon's conversations with its spawner and its workers.

use toolcell_protocol::call::{Blob, LimitName, Stream};
use toolcell_protocol::codec::encode;
use toolcell_protocol::worker_api::{
    Action, AttemptEnd, Finished, FromSpawner, FromWorker, Identity, Job, OutputPolicy, Rlimits, Segment,
    SpawnerSetup, SpoolPolicy, Stage, ToSpawner, ToWorker, Usage, WaitStatus, WorkerKind,
};

use crate::samples::{Sample, call_uid, layers, leftover, spool, variants};

variants!(TO_SPAWNER_NAMES, to_spawner_name, ToSpawner, {
    ToSpawner::Hello(_) => "to_spawner_hello",
    ToSpawner::Fork { .. } => "to_spawner_fork",
    ToSpawner::Kill { .. } => "to_spawner_kill",
    ToSpawner::Sweep => "to_spawner_sweep",
});

variants!(FROM_SPAWNER_NAMES, from_spawner_name, FromSpawner, {
    FromSpawner::Hello { .. } => "from_spawner_hello",
    FromSpawner::Forked { .. } => "from_spawner_forked",
    FromSpawner::ForkFailed { .. } => "from_spawner_fork_failed",
    FromSpawner::Reaped { status: WaitStatus::Exited(_), .. } => "from_spawner_reaped_exited",
    FromSpawner::Reaped { status: WaitStatus::Signaled(_), .. } => "from_spawner_reaped_signaled",
    FromSpawner::Swept { .. } => "from_spawner_swept",
});

variants!(TO_WORKER_NAMES, to_worker_name, ToWorker, {
    ToWorker::Hello { .. } => "to_worker_hello",
    ToWorker::Job(_) => "to_worker_job",
    ToWorker::Terminate => "to_worker_terminate",
    ToWorker::Kill => "to_worker_kill",
    ToWorker::StopStream => "to_worker_stop_stream",
});

variants!(ACTION_NAMES, action_name, Action, {
    Action::Exec { .. } => "action_exec",
    Action::Builtin { .. } => "action_builtin",
});

variants!(FROM_WORKER_NAMES, from_worker_name, FromWorker, {
    FromWorker::Hello { .. } => "from_worker_hello",
    FromWorker::Started { .. } => "from_worker_started",
    FromWorker::Output { .. } => "from_worker_output",
    FromWorker::Spooled { .. } => "from_worker_spooled",
    FromWorker::Finished(_) => "from_worker_finished",
});

variants!(END_NAMES, end_name, AttemptEnd, {
    AttemptEnd::Ended(_) => "end_ended",
    AttemptEnd::SpawnFailed { .. } => "end_spawn_failed",
    AttemptEnd::Builtin { .. } => "end_builtin",
});

pub const STAGES: [Stage; 16] = [
    Stage::Cgroup,
    Stage::Pipes,
    Stage::Fork,
    Stage::Namespaces,
    Stage::Mounts,
    Stage::IdMaps,
    Stage::Session,
    Stage::ParentDeath,
    Stage::Stdio,
    Stage::Rlimits,
    Stage::Identity,
    Stage::Cwd,
    Stage::NoNewPrivileges,
    Stage::CloseFds,
    Stage::Lookup,
    Stage::Exec,
];

/// Every value of the enums without fields.
pub fn plain_enums() -> Vec<Sample> {
    vec![
        ("enum_stage", encode(&STAGES.as_slice()).expect("stages have an encoding")),
        (
            "enum_worker_kind",
            encode(&[WorkerKind::Exec, WorkerKind::Builtin].as_slice()).expect("kinds have an encoding"),
        ),
    ]
}

pub fn to_spawner() -> Vec<ToSpawner> {
    vec![
        ToSpawner::Hello(SpawnerSetup {
            version: 1,
            cgroup_base: Some("/sys/fs/cgroup/toolcell".into()),
            remove_at_exit: Some("/tmp/toolcell-x".into()),
        }),
        ToSpawner::Fork { ticket: 1, kind: WorkerKind::Builtin, leaf: Some("call-1".into()), hurry: false },
        ToSpawner::Kill { pid: 4242 },
        ToSpawner::Sweep,
    ]
}

pub fn from_spawner() -> Vec<FromSpawner> {
    vec![
        FromSpawner::Hello { version: 1, pid: 4242 },
        FromSpawner::Forked { ticket: 1, pid: 4243 },
        FromSpawner::ForkFailed { ticket: 1, stage: Stage::Fork, errno: 11 },
        FromSpawner::Reaped { pid: 4243, status: WaitStatus::Exited(3), orphans: vec![leftover()] },
        FromSpawner::Reaped { pid: 4243, status: WaitStatus::Signaled(9), orphans: vec![] },
        FromSpawner::Swept { killed: 2, clean: true },
    ]
}

pub fn actions() -> Vec<Action> {
    vec![
        Action::Exec {
            argv: vec![Blob(b"printf".to_vec()), Blob(vec![0xff, b'x'])],
            stdin: Some(Blob(b"in".to_vec())),
        },
        Action::Builtin { name: "read_file".into(), args: "{\"path\":\"x\"}".into() },
    ]
}

pub fn to_worker() -> Vec<ToWorker> {
    let job = Job {
        call_uid: call_uid(),
        attempt: 1,
        tool: "bash".into(),
        action: actions().remove(0),
        identity: Some(Identity { uid: 1000, gid: 1001, groups: vec![27, 100] }),
        cwd: "/srv".into(),
        env: vec![("LANG".into(), "C".into())],
        umask: 0o022,
        rlimits: Rlimits {
            cpu_seconds: Some(1),
            fsize_bytes: Some(2),
            nofile_soft: Some(3),
            nofile_hard: Some(4),
            core_bytes: Some(5),
            stack_bytes: Some(6),
            memlock_bytes: Some(7),
            as_bytes: Some(8),
            nproc: Some(9),
        },
        tree_cpu_ms: Some(10),
        pid_namespace: true,
        output: OutputPolicy {
            inline_bytes: 11,
            tail_bytes: 12,
            stream: false,
            max_total_bytes: Some(13),
            spool: Some(SpoolPolicy { path: "/var/spool/x".into(), max_bytes: 14 }),
        },
    };
    vec![
        ToWorker::Hello { version: 1 },
        ToWorker::Job(Box::new(job)),
        ToWorker::Terminate,
        ToWorker::Kill,
        ToWorker::StopStream,
    ]
}

pub fn ends() -> Vec<AttemptEnd> {
    vec![
        AttemptEnd::Ended(WaitStatus::Signaled(11)),
        AttemptEnd::SpawnFailed { stage: Stage::Lookup, errno: 2, what: "no-such-program".into() },
        AttemptEnd::Builtin { ok: true },
    ]
}

pub fn from_worker() -> Vec<FromWorker> {
    vec![
        FromWorker::Hello { version: 1 },
        FromWorker::Started { pid: 4242, layers: layers() },
        FromWorker::Output { seq: 3, stream: Stream::Stderr, bytes: Blob(vec![0, 255]) },
        FromWorker::Spooled { total_bytes: 300, spool_bytes: 200 },
        FromWorker::Finished(Box::new(Finished {
            end: ends().remove(0),
            signalled: true,
            killed_for: Some((LimitName::Output, 1 << 33)),
            limits_hit: vec![LimitName::Fsize],
            stdout_bytes: 1,
            stderr_bytes: 2,
            tail: vec![Segment { stream: Stream::Stdout, bytes: Blob(b"tail".to_vec()) }],
            omitted_bytes: 3,
            spool: Some(spool()),
            stdout_open_after_exit: true,
            stdin_unread_bytes: 4,
            usage: Usage { user_cpu_us: 5, system_cpu_us: 6, peak_memory_bytes: 7 },
            leftovers: vec![leftover()],
            proven_gone: true,
            duration_us: 8,
            layers: Some(layers()),
        })),
    ]
}
