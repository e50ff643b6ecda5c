//! Every bound of the protocol in one place; the unit is in the name.

/// Largest frame body on any socket, checked before memory is taken for it.
pub const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

/// Largest JSON text of one call's arguments.
pub const MAX_ARGS_BYTES: usize = 4 * 1024 * 1024;

/// Calls in one batch.
pub const MAX_CALLS_PER_BATCH: usize = 1024;

/// Length of a caller's `call_id`.
pub const MAX_CALL_ID_BYTES: usize = 256;

/// Length of a session's name.
pub const MAX_SESSION_NAME_BYTES: usize = 128;

/// Length of a tool's name, as providers of models allow it.
pub const MAX_TOOL_NAME_BYTES: usize = 64;

/// Largest payload of one output chunk, on the worker's socket and towards clients.
pub const MAX_CHUNK_BYTES: usize = 256 * 1024;

/// Largest answer to one `call.output` request.
pub const MAX_OUTPUT_PAGE_BYTES: usize = 1024 * 1024;

/// Longest time one `call.output` or `call.wait` request may be held open.
pub const MAX_WAIT_MS: u64 = 10 * 60 * 1000;

/// Longest path or free text (reason, client name) in a request.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;

/// Variables in a session's environment.
pub const MAX_ENV_VARS: usize = 4096;

/// Names and values of a session's environment together; half of what an exec takes on Linux by default.
pub const MAX_ENV_BYTES: usize = 1024 * 1024;
