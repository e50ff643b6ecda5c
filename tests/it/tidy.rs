//! Rules of the house that a compiler does not know: borders between modules, lints, documents that keep up.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use toolcell_tests::binaries::workspace;

/// Lines that a source file may have. Data and tables are not counted as purposes, but neither are they endless.
const MOST_LINES: usize = 700;

/// Every file of the workspace with this extension; nothing that is built or fetched.
fn files(extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![workspace().to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).expect("read a directory") {
            let path = entry.expect("read a directory").path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                open.push(path);
            } else if path.extension().is_some_and(|own| own == extension) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "no *.{extension} in {}", workspace().display());
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(workspace()).expect("in the workspace").display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Lines of code: comments and everything after `#[cfg(test)]` left out.
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = read(path);
    let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    code.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(at, line)| (at + 1, line.to_owned()))
        .collect()
}

/// Complaints about lines of these files that hold one of these words.
fn lines_with(paths: &[PathBuf], words: &[&str]) -> Vec<String> {
    let mut complaints = Vec::new();
    for path in paths {
        for (number, line) in code(path) {
            for word in words.iter().filter(|word| line.contains(**word)) {
                complaints.push(format!("{}:{number}: {word}", relative(path)));
            }
        }
    }
    complaints
}

fn rust_files_below(directory: &str) -> Vec<PathBuf> {
    let root = workspace().join(directory);
    let mut found = files("rs");
    found.retain(|path| path.starts_with(&root));
    assert!(!found.is_empty(), "no Rust in {directory}");
    found
}

fn assert_none(rule: &str, complaints: &[String]) {
    assert!(complaints.is_empty(), "{rule}:\n{}", complaints.join("\n"));
}

#[test]
fn the_core_is_pure() {
    let impure = [
        "std::fs",
        "std::net",
        "std::process",
        "std::thread",
        "std::env",
        "std::os",
        "std::io",
        "Instant",
        "SystemTime",
        "tokio",
        "tracing",
        "toolcell_worker",
        "async ",
        ".await",
        "now_v7",
        "new_v4",
        "rand::",
        "crate::server",
        "crate::supervisor",
        "crate::dispatcher",
        "crate::start",
        "crate::signals",
        "crate::telemetry",
        "crate::plugin_host",
    ];
    let mut core = rust_files_below("daemon/src/core");
    // Test code by another name: simulated clock, scripted workers.
    core.retain(|path| !path.ends_with("sim.rs"));
    assert_none("daemon/src/core has no I/O, clock, task or randomness", &lines_with(&core, &impure));
}

#[test]
fn the_cores_lints_are_on() {
    let module = read(&workspace().join("daemon/src/core/mod.rs"));
    for lint in ["clippy::disallowed_methods", "clippy::disallowed_types"] {
        let denied = module.lines().any(|line| {
            (line.contains("deny(") || line.contains("forbid(")) && line.contains(lint) || line.trim() == lint
        });
        assert!(
            denied || module.contains(&format!("{lint},")),
            "daemon/src/core/mod.rs does not deny {lint}"
        );
    }
}

#[test]
fn shells_do_not_know_each_other() {
    let borders = [
        ("daemon/src/server", "crate::supervisor"),
        ("daemon/src/supervisor", "crate::server::listener"),
        ("daemon/src/tools", "crate::server"),
        ("daemon/src/tools", "crate::supervisor"),
        ("daemon/src/tools", "crate::core"),
        ("daemon/src/tools", "tokio"),
    ];
    let mut complaints = Vec::new();
    for (directory, other) in borders {
        complaints.extend(lines_with(&rust_files_below(directory), &[other]));
    }
    assert_none("modules that must not know each other", &complaints);
}

/// Normal dependencies of a package, also indirect ones.
fn dependencies(package: &str) -> Vec<String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["tree", "--offline", "-p", package, "-e", "normal", "--prefix", "none", "--format", "{p}"]);
    let output = cargo.current_dir(workspace()).output().expect("run cargo tree");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut names: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    assert!(names.iter().any(|name| name == package), "{package} is not in its own tree: {names:?}");
    names
}

#[test]
fn crates_depend_in_one_direction() {
    let ours = ["toolcell-protocol", "toolcell-worker", "toolcell-daemon", "toolcell-client", "toolcell-cli"];
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("toolcell-protocol", &[][..]),
        ("toolcell-worker", &["toolcell-protocol"]),
        ("toolcell-client", &["toolcell-protocol"]),
        ("toolcell-daemon", &["toolcell-protocol", "toolcell-worker"]),
        ("toolcell-cli", &["toolcell-protocol", "toolcell-worker", "toolcell-client", "toolcell-daemon"]),
    ]);
    let mut complaints = Vec::new();
    for package in ours {
        let tree = dependencies(package);
        for other in ours.iter().filter(|other| **other != package) {
            if tree.iter().any(|name| name == other) && !allowed[package].contains(other) {
                complaints.push(format!("{package} depends on {other}"));
            }
        }
    }
    for package in ["toolcell-protocol", "toolcell-worker"] {
        if dependencies(package).iter().any(|name| name == "tokio") {
            complaints.push(format!("{package} depends on tokio"));
        }
    }
    assert_none("the direction of dependencies", &complaints);
}

#[test]
fn unsafe_stands_in_one_place_and_says_why_it_is_sound() {
    let mut complaints = Vec::new();
    for path in files("rs").into_iter().filter(|path| !path.ends_with("tests/it/tidy.rs")) {
        let place = relative(&path);
        let allowed = place.starts_with("worker/src/sys/") || place == "tests/src/bin/misbehave/raw.rs";
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let words = line.split("//").next().unwrap_or_default();
            let is_unsafe =
                words.contains("unsafe {") || words.contains("unsafe fn") || words.contains("unsafe impl");
            if is_unsafe && !allowed {
                complaints.push(format!("{place}:{}: unsafe", at + 1));
            }
            let explained = lines[at.saturating_sub(8)..=at]
                .iter()
                .any(|near| near.contains("SAFETY:") || near.contains("# Safety"));
            if is_unsafe && !explained {
                complaints.push(format!("{place}:{}: unsafe without SAFETY", at + 1));
            }
        }
    }
    for root in ["protocol", "daemon", "client", "tests", "client/cli"] {
        let lib = read(&workspace().join(root).join("src/lib.rs"));
        if !lib.contains("#![forbid(unsafe_code)]") {
            complaints.push(format!("{root}/src/lib.rs does not forbid unsafe code"));
        }
    }
    assert_none("unsafe only in worker/src/sys (and the program that is meant to crash)", &complaints);
}

#[test]
fn only_the_codec_names_bincode() {
    let mut rust = files("rs");
    rust.retain(|path| !path.ends_with("protocol/src/codec.rs") && !path.ends_with("tests/it/tidy.rs"));
    assert_none(
        "only protocol/src/codec.rs names bincode",
        &lines_with(&rust, &["bincode::", "use bincode"]),
    );
}

#[test]
fn no_test_is_switched_off_and_no_code_is_left_open() {
    let mut rust = files("rs");
    rust.retain(|path| !path.ends_with("tests/it/tidy.rs"));
    let mut complaints = Vec::new();
    for path in &rust {
        for (at, line) in read(path).lines().enumerate() {
            for word in ["#[ignore", "todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX"] {
                if line.contains(word) {
                    complaints.push(format!("{}:{}: {word}", relative(path), at + 1));
                }
            }
        }
    }
    assert_none("nothing is switched off or left open", &complaints);
}

#[test]
fn every_file_has_one_purpose_says_which_and_is_not_too_long() {
    let mut complaints = Vec::new();
    for path in files("rs") {
        let text = read(&path);
        let lines = text.lines().count();
        if lines > MOST_LINES {
            complaints.push(format!("{}: {lines} lines, at most {MOST_LINES}", relative(&path)));
        }
        let only_tests = path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"));
        let first = text.lines().find(|line| !line.is_empty()).unwrap_or_default();
        if !first.starts_with("//!") && !only_tests {
            complaints.push(format!("{}: does not say in its first line what it is", relative(&path)));
        }
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if ["util", "utils", "helper", "helpers", "manager", "misc", "common"].contains(&stem.as_str()) {
            complaints.push(format!("{}: a name that says nothing", relative(&path)));
        }
    }
    assert_none("files", &complaints);
}

/// Names of the public fields of the structs of `daemon/src/config.rs` that are read from the file.
fn configuration_keys() -> Vec<String> {
    let text = read(&workspace().join("daemon/src/config.rs"));
    let mut keys = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("pub struct ") && (line.contains("Config ") || line.contains("Config{")) {
            inside = true;
        } else if line.starts_with('}') {
            inside = false;
        } else if inside && let Some(field) = line.trim().strip_prefix("pub ") {
            keys.extend(field.split(':').next().map(str::to_owned));
        }
    }
    assert!(keys.len() > 20, "the keys were not found: {keys:?}");
    keys
}

fn documents() -> String {
    let mut all = String::new();
    for path in files("md") {
        all.push_str(&read(&path));
    }
    all
}

#[test]
fn the_documents_name_every_key_of_the_configuration() {
    let documents = documents();
    let missing: Vec<String> =
        configuration_keys().into_iter().filter(|key| !documents.contains(key.as_str())).collect();
    assert_none("keys that no document names", &missing);
}

#[test]
fn the_documents_name_every_status_every_exit_code_and_every_refusal() {
    let documents = documents();
    let mut missing: Vec<String> = Vec::new();
    for status in toolcell_protocol::call::Status::ALL {
        if !documents.contains(status.name()) {
            missing.push(status.name().to_owned());
        }
    }
    for code in ["69", "75", "77", "78", "124", "125", "126", "127", "128"] {
        if !documents.contains(code) {
            missing.push(format!("exit code {code}"));
        }
    }
    for program in
        ["toolcelld", "toolcell run", "toolcell batch", "toolcell doctor", "cargo test --workspace"]
    {
        if !documents.contains(program) {
            missing.push(program.to_owned());
        }
    }
    assert_none("what no document names", &missing);
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut complaints = Vec::new();
    for path in files("md") {
        let text = read(&path);
        for piece in text.split("](").skip(1) {
            let target = piece.split([')', '#', ' ']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let directory = path.parent().expect("a file is in a directory");
            if !directory.join(target).exists() {
                complaints.push(format!("{}: {target}", relative(&path)));
            }
        }
    }
    assert_none("links that lead nowhere", &complaints);
}

#[test]
fn nothing_names_a_place_outside_of_the_project() {
    // Put together here, so that this file does not name them either.
    let places = [["/wo", "rk/"].concat(), ["../sha", "red"].concat()];
    let mut complaints = Vec::new();
    for extension in ["rs", "md", "toml", "json"] {
        for path in files(extension) {
            let text = read(&path);
            for place in &places {
                if text.contains(place.as_str()) {
                    complaints.push(format!("{}: {place}", relative(&path)));
                }
            }
        }
    }
    assert_none("places that others do not have", &complaints);
}
