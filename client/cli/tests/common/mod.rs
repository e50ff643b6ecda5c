//! How the tests start the command.
// Each test file uses its own part of this.
#![allow(dead_code)]

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};

use serde_json::json;

/// A command that finds no daemon but its own.
pub fn toolcell(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolcell"));
    command
        .args(arguments)
        .env_remove("TOOLCELL_SOCKET")
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("COLUMNS")
        .stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub fn output(arguments: &[&str]) -> Output {
    toolcell(arguments).output().expect("the command starts")
}

/// Runs it with a daemon of its own, whatever else there is.
pub fn own(arguments: &[&str]) -> Output {
    output(&[&["--no-daemon"], arguments].concat())
}

/// Runs it with something on its standard input.
pub fn with_input(mut command: Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    feed(&mut child, input);
    child.wait_with_output().expect("it ends")
}

/// Gives it all of its standard input.
pub fn feed(child: &mut Child, input: &str) {
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).expect("written");
}

/// Arguments of the tool `bash`.
pub fn bash(script: &str) -> String {
    json!({ "command": script }).to_string()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}"))
}

pub fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let status = Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill starts");
    assert!(status.success());
}
