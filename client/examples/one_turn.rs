//! The shortest client: one turn of two calls, blocking. The README shows it from the first `use` on.
#![expect(clippy::print_stdout, reason = "an example prints")]

use toolcell_client::{blocking::Client, call, session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect_default()?;
    let session = client.session_open(session("agent-7", "/tmp"))?;
    let batch = session.execute(vec![
        call("c1", "bash", r#"{"command": "echo hello"}"#),
        call("c2", "bash", r#"{"command": "kill -SEGV $$"}"#),
    ])?;
    for result in batch.finish()?.results {
        println!("{} {}: {}", result.call_id, result.status, result.for_model.trim_end());
    }
    session.close()?;
    Ok(())
}
