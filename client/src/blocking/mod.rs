//! The face for programs without a runtime: plain threads and a plain socket, nothing hidden.
//!
//! The surface is that of the asynchronous face. [`Client`], [`Session`] and [`RunningBatch`] may be used from
//! any thread, and many threads may wait on one connection.
//!
//! ```no_run
//! # fn agent() -> Result<(), toolcell_client::ClientError> {
//! use toolcell_client::{blocking::Client, call, session};
//!
//! let client = Client::connect_default()?;
//! let session = client.session_open(session("agent-7", "/srv/project"))?;
//! let batch = session.execute(vec![call("c1", "bash", r#"{"command":"make test"}"#)])?;
//! println!("{}", batch.finish()?.results[0].for_model);
//! # Ok(())
//! # }
//! ```
//!
//! * `client`: requests and their answers.
//! * `batch`: sessions and running batches.
//! * `pump`: the socket; whoever waits drives it.

mod batch;
mod client;
mod pump;

pub use batch::{RunningBatch, Session};
pub use client::Client;
