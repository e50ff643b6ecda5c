//! May this call run, and as what? Resolve the tool, validate the arguments, make the job.
//!
//! A call that may not run gets its result here, and costs no process. Hooks and the loop guard have their
//! place between validation and the job.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolcell_protocol::call::{Containment, Status, StatusDetail};
use toolcell_protocol::client_api::CallRequest;
use toolcell_protocol::id::CallUid;
use toolcell_protocol::worker_api::{Identity, Job, OutputPolicy, SpoolPolicy};

use super::event::{ConnId, StartAttempt};
use super::outcome::Outcome;
use super::session::Session;
use crate::tools::{ArgsProblem, OutputKind, ToolDef, ToolSet};

/// Time between TERM and KILL when a timeout ends a call whose tool sets none.
pub const TIMEOUT_GRACE_MS: u64 = 2_000;

/// File mode creation mask of a tool that sets none.
const DEFAULT_UMASK: u32 = 0o022;

/// Room that the sentence under the output takes in the text for the model.
pub const FOOTER_BYTES: usize = 512;

/// What admission must know about the daemon. Fixed while the daemon runs.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The daemon is root, so calls run as the session's owner.
    pub root: bool,
    /// The daemon lives in a command and ends with it, so nobody can ask it for output later.
    pub embedded: bool,
    /// The daemon's own environment; only names on the lists reach a tool.
    pub daemon_env: Vec<(String, String)>,
    /// Names of the daemon's variables that every tool gets.
    pub env_inherit: Vec<String>,
    /// How trees are held together.
    pub containment: Containment,
    /// Where spool files go; `None` keeps none.
    pub spool_dir: Option<String>,
    /// Largest spool file.
    pub spool_bytes: u64,
    /// Output that the daemon keeps in memory.
    pub inline_bytes: u64,
    /// End of the output that is kept.
    pub tail_bytes: u64,
    /// Largest text for the model.
    pub for_model_bytes: usize,
    /// Longest timeout that may be asked for.
    pub max_timeout_ms: u64,
    /// `run_as` of root-owned manifests, resolved: tool name to identity.
    pub run_as: Vec<(String, Identity)>,
}

/// The identity that may do least; taken where a `run_as` cannot be resolved.
pub const NOBODY: Identity = Identity { uid: 65534, gid: 65534, groups: Vec::new() };

/// A call that may run.
#[derive(Debug)]
pub struct Admitted {
    /// What to start.
    pub start: Box<StartAttempt>,
    /// Spared by steering and `killable` aborts.
    pub immune: bool,
    /// Wall-clock timeout.
    pub timeout_ms: u64,
    /// Idle timeout.
    pub idle_timeout_ms: Option<u64>,
    /// Between TERM and KILL when a timeout ends it.
    pub timeout_grace_ms: u64,
    /// The same for everything else.
    pub kill_grace_ms: u64,
}

/// Decides about one call.
///
/// # Errors
/// The outcome that the call has instead of running.
pub fn admit(
    tools: &ToolSet,
    around: &Surroundings,
    session: &Session,
    executor: ConnId,
    call_uid: CallUid,
    call: &CallRequest,
) -> Result<Admitted, Box<Outcome>> {
    let Some(tool) = tools.get(&call.tool) else {
        return Err(Box::new(unknown_tool(&call.tool, tools.nearest(&call.tool))));
    };
    let args = tool.validate(&call.args).map_err(invalid)?;
    let action = tool.action(&args).map_err(invalid)?;
    let timeout_ms = call.timeout_ms.unwrap_or_else(|| tool.timeout_ms_for(&args)).min(around.max_timeout_ms);
    let cwd = tool.working_dir(Path::new(&session.cwd), call.cwd.as_deref());
    let job = Job {
        call_uid,
        attempt: 1,
        tool: tool.name.clone(),
        action,
        identity: identity(tool, around, session),
        cwd: cwd_text(cwd),
        env: environment(tool, around, session, call_uid, call),
        umask: tool.umask.unwrap_or(DEFAULT_UMASK),
        rlimits: tool.rlimits(),
        tree_cpu_ms: tool.limits.cpu_ms,
        pid_namespace: around.containment == Containment::PidNamespace,
        output: output_policy(tool, around, call_uid, call),
    };
    let for_model_bytes = tool
        .for_model_bytes
        .and_then(|bytes| usize::try_from(bytes).ok())
        .map_or(around.for_model_bytes, |bytes| bytes.clamp(2 * FOOTER_BYTES, 1024 * 1024));
    Ok(Admitted {
        immune: call.immune.unwrap_or(tool.immune),
        timeout_ms,
        idle_timeout_ms: tool.idle_timeout_ms,
        timeout_grace_ms: tool.kill_grace_ms.unwrap_or(TIMEOUT_GRACE_MS),
        kill_grace_ms: tool.kill_grace_ms.unwrap_or(0),
        start: Box::new(StartAttempt {
            kind: tool.worker_kind(),
            job,
            stream_to: call.stream.then_some(executor),
            for_model_bytes: for_model_bytes.saturating_sub(FOOTER_BYTES).max(FOOTER_BYTES),
            expect_json: tool.output == OutputKind::Json,
            how_to_read: if around.embedded {
                "this daemon keeps them no longer than its command runs".to_owned()
            } else {
                format!("all that was kept: toolcell output {call_uid}")
            },
        }),
    })
}

fn unknown_tool(name: &str, nearest: Vec<String>) -> Outcome {
    let hint = if nearest.is_empty() {
        "ask for the list of tools".to_owned()
    } else {
        format!("did you mean {}?", nearest.join(" or "))
    };
    Outcome {
        status: Status::UnknownTool,
        detail: StatusDetail {
            message: Some(format!("there is no tool {:?}; {hint}", shortened(name))),
            nearest,
            ..StatusDetail::default()
        },
    }
}

/// A name that a model made up may be of any length.
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(80)]
}

fn invalid(problem: ArgsProblem) -> Box<Outcome> {
    Box::new(Outcome {
        status: Status::InvalidArgs,
        detail: StatusDetail {
            message: Some(problem.message),
            field: problem.field,
            ..StatusDetail::default()
        },
    })
}

fn cwd_text(cwd: PathBuf) -> String {
    // Both parts came from UTF-8 text, so nothing is lost.
    cwd.to_string_lossy().into_owned()
}

/// As whom: the manifest's `run_as`, else the session's owner. Only root can choose.
fn identity(tool: &Arc<ToolDef>, around: &Surroundings, session: &Session) -> Option<Identity> {
    if !around.root {
        return None;
    }
    if tool.run_as.is_some() {
        // One that could not be resolved must not end up as root.
        let resolved = around.run_as.iter().find(|(name, _)| *name == tool.name);
        return Some(resolved.map_or(NOBODY, |(_, identity)| identity.clone()));
    }
    let owner = &session.owner;
    (owner.uid != 0).then(|| Identity { uid: owner.uid, gid: owner.gid, groups: owner.groups.clone() })
}

/// The whole environment of a tool. Built from lists of what is let in, never by taking things out: the
/// daemon's allow-list, the owner's home, what the session brought, what the manifest sets, and our own.
fn environment(
    tool: &ToolDef,
    around: &Surroundings,
    session: &Session,
    call_uid: CallUid,
    call: &CallRequest,
) -> Vec<(String, String)> {
    let mut env: Vec<(String, String)> = Vec::with_capacity(24);
    let mut set = |name: &str, value: &str| match env.iter_mut().find(|(known, _)| known == name) {
        Some((_, old)) => value.clone_into(old),
        None => env.push((name.to_owned(), value.to_owned())),
    };
    let inherited = around.env_inherit.iter().chain(&tool.env.inherit);
    for name in inherited {
        if let Some((_, value)) = around.daemon_env.iter().find(|(known, _)| known == name) {
            set(name, value);
        }
    }
    for (name, value) in &session.owner.home_env {
        set(name, value);
    }
    // No terminal is there, so programs that would ask on one must not.
    for (name, value) in
        [("TERM", "dumb"), ("GIT_TERMINAL_PROMPT", "0"), ("DEBIAN_FRONTEND", "noninteractive")]
    {
        set(name, value);
    }
    for (name, value) in session.env.iter().chain(&tool.env.set) {
        set(name, value);
    }
    set("TOOLCELL_CALL_UID", &call_uid.to_string());
    set("TOOLCELL_CALL_ID", &call.call_id.0);
    set("TOOLCELL_SESSION", &session.name.0);
    set("TOOLCELL_TOOL", &tool.name);
    env
}

fn output_policy(
    tool: &ToolDef,
    around: &Surroundings,
    call_uid: CallUid,
    call: &CallRequest,
) -> OutputPolicy {
    let max_bytes = tool.spool_bytes.unwrap_or(around.spool_bytes);
    let spool = around
        .spool_dir
        .as_ref()
        .filter(|_| !call.stream && max_bytes > 0)
        .map(|dir| SpoolPolicy { path: format!("{dir}/{call_uid}.spool"), max_bytes });
    OutputPolicy {
        inline_bytes: around.inline_bytes,
        tail_bytes: around.tail_bytes,
        stream: call.stream,
        max_total_bytes: tool.limits.output_bytes,
        spool,
    }
}
