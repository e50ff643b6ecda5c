//! The bytes that the daemon, its workers and its clients share: framing, codec, and the messages of both
//! conversations. No tokio, no unsafe, no clock.
//!
//! * [`version`]: what may talk to what.
//! * [`frame`]: bytes with a length in front.
//! * [`codec`]: values to bytes and back; the only file that names bincode.
//! * [`id`]: newtypes for every name and number.
//! * [`call`]: plain values about a call that both conversations use (status, result, details).
//! * [`client_api`]: client ⇄ daemon.
//! * [`worker_api`]: daemon ⇄ spawner and daemon ⇄ worker.
//! * [`limits`]: every bound of the protocol, with its unit in the name.
//!
//! Rules for changing a message (the format is not self-describing, so the usual serde tricks do not work):
//! variants and fields are only ever appended as *new variants*; a struct that has shipped never changes; no
//! `skip_serializing_if`, no `default`, no untagged or internally tagged enum, no recursion. The golden bytes
//! in `protocol/tests/golden/` fail when a message changes by accident.
#![forbid(unsafe_code)]

pub mod call;
pub mod client_api;
pub mod codec;
pub mod frame;
pub mod id;
pub mod limits;
pub mod version;
pub mod worker_api;
