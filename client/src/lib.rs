//! Client library of toolcell: hand the tool calls of one model turn to the daemon, watch them, get exactly one
//! result per call.
//!
//! There are two faces with the same surface. [`Client`] is for tokio, [`blocking::Client`] is for everything
//! else and starts no runtime and no thread. Neither spawns a task: whoever waits for something also reads the
//! socket for the others, so an answer costs no detour over a second task, and a client that does not wait does
//! not read, which is all the back-pressure there is.
//!
//! ```no_run
//! # async fn agent() -> Result<(), toolcell_client::ClientError> {
//! use toolcell_client::{BatchEvent, Client, call, session};
//!
//! let client = Client::connect_default().await?;
//! let session = client.session_open(session("agent-7", "/srv/project")).await?;
//! let mut batch = session.execute(vec![call("c1", "bash", r#"{"command":"make test"}"#)]).await?;
//! while let Some(event) = batch.next_event().await? {
//!     if let BatchEvent::Output(output) = event {
//!         print!("{}", String::from_utf8_lossy(&output.bytes));
//!     }
//! }
//! let result = batch.finish().await?;
//! println!("{}", result.results[0].for_model);
//! # Ok(())
//! # }
//! ```
//!
//! * [`address`]: where a daemon is looked for.
//! * [`connection`]: the protocol without I/O: bytes in, messages out; requests in, bytes out.
//! * `inbox`: which waiter a message is for; shared by both faces, without I/O too.
//! * `nonblocking` (re-exported here) and [`blocking`]: the two faces.
//!
//! A tool that fails is not an error here: it is a result with a status. [`ClientError`] is about the
//! conversation with the daemon, and a cut connection is [`ClientError::ConnectionLost`], never a result.
#![forbid(unsafe_code)]

pub mod address;
mod answer;
pub mod blocking;
pub mod connection;
mod error;
mod event;
mod inbox;
mod nonblocking;
mod options;
mod receive;

pub use error::{ClientError, Tried};
pub use event::{BatchEvent, LiveOutput};
pub use nonblocking::{Client, RunningBatch, Session};
pub use options::{Options, call, session};
pub use toolcell_protocol as protocol;
