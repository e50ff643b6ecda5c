//! The real programs, beside the test executable in the target directory.
//!
//! `cargo test --workspace` has built them; for a single package this builds them once.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The directory with the programs, like `target/debug`.
fn directory() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own executable");
    // target/debug/deps/it-0123 for tests and benches, target/debug/NAME for programs.
    let mut directory = test.parent().expect("an executable is in a directory");
    if directory.ends_with("deps") {
        directory = directory.parent().expect("deps is in a directory");
    }
    directory.to_owned()
}

fn build_once() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = directory();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args([
            "build",
            "--quiet",
            "-p",
            "toolcell-daemon",
            "-p",
            "toolcell-cli",
            "-p",
            "toolcell-worker",
        ]);
        cargo.args(["-p", "toolcell-tests", "--bins"]);
        if directory.ends_with("release") {
            cargo.arg("--release");
        }
        cargo.current_dir(workspace());
        // Cargo runs tests with flags for their own build; they would make it build everything anew.
        let status = cargo.status().expect("cargo can be run");
        assert!(status.success(), "the programs could not be built");
    });
}

/// The root of the workspace.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in the workspace")
}

/// One of the programs: `toolcelld`, `toolcell`, `toolcell-worker`, `misbehave`.
///
/// # Panics
/// When it is not there and cannot be built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let path = directory().join(name);
    if !path.exists() {
        build_once();
    }
    assert!(path.exists(), "{} is missing; run `cargo build` first", path.display());
    path
}

/// The program at a place that every user can reach: where it is, or a copy in the given directory.
///
/// # Panics
/// When it can not be copied.
#[must_use]
pub fn reachable_program(name: &str, directory: &Path) -> PathBuf {
    let path = program(name);
    let open = path.ancestors().skip(1).all(|ancestor| {
        ancestor.as_os_str().is_empty()
            || fs::metadata(ancestor).is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0)
    });
    if open {
        return path;
    }
    let copy = directory.join(name);
    if !copy.exists() {
        fs::copy(&path, &copy).expect("copy a program to where other users can reach it");
    }
    copy
}
