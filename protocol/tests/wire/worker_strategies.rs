//! Any message of the daemon's conversations with its spawner and its workers, for proptest.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use toolcell_protocol::worker_api::{
    Action, AttemptEnd, Finished, FromSpawner, FromWorker, Identity, Job, OutputPolicy, Rlimits, Segment,
    SpawnerSetup, SpoolPolicy, Stage, ToSpawner, ToWorker, Usage, WaitStatus, WorkerKind,
};

use crate::strategies::{
    blob, call_uid, layers, leftovers, limit, maybe_number, maybe_text, number, spool, stream, text,
};
use crate::worker_samples::STAGES;

fn rlimits() -> BoxedStrategy<Rlimits> {
    let one = maybe_number;
    ((one(), one(), one(), one(), one()), (one(), one(), one(), one()))
        .prop_map(|((cpu, fsize, nofile_soft, nofile_hard, core), (stack, memlock, address_space, nproc))| {
            Rlimits {
                cpu_seconds: cpu,
                fsize_bytes: fsize,
                nofile_soft,
                nofile_hard,
                core_bytes: core,
                stack_bytes: stack,
                memlock_bytes: memlock,
                as_bytes: address_space,
                nproc,
            }
        })
        .boxed()
}

fn job() -> BoxedStrategy<Job> {
    let action = prop_oneof![
        (vec(blob(), 0..5), option::of(blob())).prop_map(|(argv, stdin)| Action::Exec { argv, stdin }),
        (text(), text()).prop_map(|(name, args)| Action::Builtin { name, args }),
    ];
    let identity = (any::<u32>(), any::<u32>(), vec(any::<u32>(), 0..5))
        .prop_map(|(uid, gid, groups)| Identity { uid, gid, groups });
    let spool = (text(), number()).prop_map(|(path, max_bytes)| SpoolPolicy { path, max_bytes });
    let output = (number(), number(), any::<bool>(), maybe_number(), option::of(spool)).prop_map(
        |(inline_bytes, tail_bytes, stream, max_total_bytes, spool)| OutputPolicy {
            inline_bytes,
            tail_bytes,
            stream,
            max_total_bytes,
            spool,
        },
    );
    let what = (call_uid(), any::<u32>(), text(), action);
    let how = (option::of(identity), text(), vec((text(), text()), 0..5), any::<u32>(), rlimits());
    (what, how, maybe_number(), any::<bool>(), output)
        .prop_map(
            |(
                (call_uid, attempt, tool, action),
                (identity, cwd, env, umask, rlimits),
                tree_cpu_ms,
                pid_namespace,
                output,
            )| Job {
                call_uid,
                attempt,
                tool,
                action,
                identity,
                cwd,
                env,
                umask,
                rlimits,
                tree_cpu_ms,
                pid_namespace,
                output,
            },
        )
        .boxed()
}

pub fn to_worker() -> BoxedStrategy<ToWorker> {
    prop_oneof![
        any::<u32>().prop_map(|version| ToWorker::Hello { version }),
        job().prop_map(|job| ToWorker::Job(Box::new(job))),
        select(vec![ToWorker::Terminate, ToWorker::Kill, ToWorker::StopStream]),
    ]
    .boxed()
}

fn wait_status() -> impl Strategy<Value = WaitStatus> {
    prop_oneof![any::<i32>().prop_map(WaitStatus::Exited), any::<i32>().prop_map(WaitStatus::Signaled)]
}

fn stage() -> impl Strategy<Value = Stage> {
    select(STAGES.to_vec())
}

fn finished() -> BoxedStrategy<Finished> {
    let end = prop_oneof![
        wait_status().prop_map(AttemptEnd::Ended),
        (stage(), any::<i32>(), text()).prop_map(|(stage, errno, what)| AttemptEnd::SpawnFailed {
            stage,
            errno,
            what
        }),
        any::<bool>().prop_map(|ok| AttemptEnd::Builtin { ok }),
    ];
    let usage = (number(), number(), number()).prop_map(|(user_cpu_us, system_cpu_us, peak_memory_bytes)| {
        Usage { user_cpu_us, system_cpu_us, peak_memory_bytes }
    });
    let segment = (stream(), blob()).prop_map(|(stream, bytes)| Segment { stream, bytes });
    let why = (end, any::<bool>(), option::of((limit(), number())), vec(limit(), 0..3));
    let bytes = (number(), number(), vec(segment, 0..4), number(), spool());
    let rest = (any::<bool>(), number(), usage, leftovers(), any::<bool>(), number(), option::of(layers()));
    (why, bytes, rest)
        .prop_map(
            |(
                (end, signalled, killed_for, limits_hit),
                (stdout_bytes, stderr_bytes, tail, omitted_bytes, spool),
                (
                    stdout_open_after_exit,
                    stdin_unread_bytes,
                    usage,
                    leftovers,
                    proven_gone,
                    duration_us,
                    layers,
                ),
            )| Finished {
                end,
                signalled,
                killed_for,
                limits_hit,
                stdout_bytes,
                stderr_bytes,
                tail,
                omitted_bytes,
                spool,
                stdout_open_after_exit,
                stdin_unread_bytes,
                usage,
                leftovers,
                proven_gone,
                duration_us,
                layers,
            },
        )
        .boxed()
}

pub fn from_worker() -> BoxedStrategy<FromWorker> {
    prop_oneof![
        any::<u32>().prop_map(|version| FromWorker::Hello { version }),
        (any::<i32>(), layers()).prop_map(|(pid, layers)| FromWorker::Started { pid, layers }),
        (number(), stream(), blob()).prop_map(|(seq, stream, bytes)| FromWorker::Output {
            seq,
            stream,
            bytes
        }),
        (number(), number())
            .prop_map(|(total_bytes, spool_bytes)| FromWorker::Spooled { total_bytes, spool_bytes }),
        finished().prop_map(|finished| FromWorker::Finished(Box::new(finished))),
    ]
    .boxed()
}

pub fn to_spawner() -> BoxedStrategy<ToSpawner> {
    let kind = select(vec![WorkerKind::Exec, WorkerKind::Builtin]);
    prop_oneof![
        (any::<u32>(), maybe_text(), maybe_text()).prop_map(|(version, cgroup_base, remove_at_exit)| {
            ToSpawner::Hello(SpawnerSetup { version, cgroup_base, remove_at_exit })
        }),
        (number(), kind, maybe_text(), any::<bool>())
            .prop_map(|(ticket, kind, leaf, hurry)| ToSpawner::Fork { hurry, ticket, kind, leaf }),
        any::<i32>().prop_map(|pid| ToSpawner::Kill { pid }),
        Just(ToSpawner::Sweep),
    ]
    .boxed()
}

pub fn from_spawner() -> BoxedStrategy<FromSpawner> {
    prop_oneof![
        any::<(u32, i32)>().prop_map(|(version, pid)| FromSpawner::Hello { version, pid }),
        (number(), any::<i32>()).prop_map(|(ticket, pid)| FromSpawner::Forked { ticket, pid }),
        (number(), stage(), any::<i32>()).prop_map(|(ticket, stage, errno)| FromSpawner::ForkFailed {
            ticket,
            stage,
            errno
        }),
        (any::<i32>(), wait_status(), leftovers()).prop_map(|(pid, status, orphans)| FromSpawner::Reaped {
            pid,
            status,
            orphans
        }),
        any::<(u32, bool)>().prop_map(|(killed, clean)| FromSpawner::Swept { killed, clean }),
    ]
    .boxed()
}
