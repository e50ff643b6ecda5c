//! `toolcell validate`: manifests, configuration files and batch files, without a daemon.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use toolcell_daemon::config::Config;
use toolcell_daemon::tools::load::{load, read_manifest};

use crate::args::{Common, FileKind, ValidateArgs};
use crate::batch_file;
use crate::console::Console;
use crate::error::CliError;
use crate::exit;
use crate::input::text_file;
use crate::table::Tone;
use crate::text::harmless;

/// Top-level keys that only a manifest has.
const MANIFEST_KEYS: [&str; 4] = ["name", "description", "command", "input_schema"];

/// What was found in one file.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    file: PathBuf,
    kind: &'static str,
    ok: bool,
    /// What it defines, where it is right.
    holds: Option<String>,
    errors: Vec<String>,
    warnings: Vec<String>,
}

pub fn validate(common: &Common, validate: &ValidateArgs, console: &mut Console) -> Result<u8, CliError> {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let mut findings = Vec::new();
    for file in &validate.files {
        if file.is_dir() {
            findings.extend(directory(file, &search_path));
        } else {
            findings.push(one_file(file, validate.kind, &search_path));
        }
    }
    let ok = findings.iter().all(|finding| finding.ok);
    if common.json {
        console.json(&findings)?;
    } else {
        let text: String = findings.iter().map(|finding| render(finding, console.colour)).collect();
        console.out(&text)?;
    }
    Ok(if ok { exit::OK } else { exit::BAD_CONFIGURATION })
}

fn one_file(file: &Path, kind: Option<FileKind>, search_path: &OsStr) -> Finding {
    match kind.unwrap_or_else(|| guess(file)) {
        FileKind::Manifest => match read_manifest(file, search_path) {
            Ok(parsed) => good(file, "manifest", format!("tool {}", parsed.tool.name), parsed.warnings),
            Err((error, _)) => bad(file, "manifest", error.to_string()),
        },
        FileKind::Config => match Config::read(file) {
            Ok(_) => good(file, "config", "a configuration".to_owned(), Vec::new()),
            Err(error) => bad(file, "config", error.to_string()),
        },
        FileKind::Batch => {
            let read = text_file(file).map_err(|error| error.to_string());
            match read.and_then(|text| batch_file::parse(&text).map_err(|error| error.to_string())) {
                Ok(calls) => {
                    let word = if calls.len() == 1 { "call" } else { "calls" };
                    good(file, "batch", format!("{} {word}", calls.len()), Vec::new())
                }
                Err(error) => bad(file, "batch", error),
            }
        }
    }
}

/// A directory as a daemon loads it: together, so that tools with one name are found.
fn directory(dir: &Path, search_path: &OsStr) -> Vec<Finding> {
    let loaded = load(&[dir.to_owned()], search_path);
    let mut findings = Vec::new();
    for broken in loaded.broken {
        let text = broken.error.to_string();
        findings.push(bad(dir, "manifest", text));
    }
    for tool in loaded.tools.iter() {
        if let toolcell_daemon::tools::Source::Manifest(path) = &tool.source {
            let warnings = loaded.warnings.iter().filter(|warning| warning.path == *path);
            let warnings = warnings.map(|warning| warning.message.clone()).collect();
            findings.push(good(path, "manifest", format!("tool {}", tool.name), warnings));
        }
    }
    if findings.is_empty() {
        findings.push(bad(dir, "manifest", format!("{}: no manifest (*.toml) in it", dir.display())));
    }
    findings
}

/// By name, and for TOML by contents: a manifest and a configuration have no top-level key of one meaning.
fn guess(file: &Path) -> FileKind {
    match file.extension().and_then(OsStr::to_str) {
        Some("json" | "jsonl" | "ndjson") => return FileKind::Batch,
        _ if file == Path::new("-") => return FileKind::Batch,
        _ => {}
    }
    let has_manifest_key = |table: toml::Table| MANIFEST_KEYS.iter().any(|key| table.contains_key(*key));
    let is_named_config = file.file_name().is_some_and(|name| name == "toolcelld.toml");
    match std::fs::read_to_string(file).ok().map(|text| text.parse::<toml::Table>()) {
        Some(Ok(table)) if has_manifest_key(table.clone()) => FileKind::Manifest,
        Some(Ok(_)) => FileKind::Config,
        Some(Err(_)) | None if is_named_config => FileKind::Config,
        Some(Err(_)) | None => FileKind::Manifest,
    }
}

fn good(file: &Path, kind: &'static str, holds: String, warnings: Vec<String>) -> Finding {
    Finding { file: file.to_owned(), kind, ok: true, holds: Some(holds), errors: Vec::new(), warnings }
}

fn bad(file: &Path, kind: &'static str, error: String) -> Finding {
    Finding { file: file.to_owned(), kind, ok: false, holds: None, errors: vec![error], warnings: Vec::new() }
}

fn render(finding: &Finding, colour: bool) -> String {
    let file = finding.file.display().to_string();
    let mut text = String::new();
    let mut line = |tone: Tone, word: &str, rest: &str| {
        // Most messages of the daemon begin with the path already.
        let rest = rest.strip_prefix(&file).map_or(rest, |rest| rest.trim_start_matches([':', ' ']));
        let _ = writeln!(text, "{file}: {}: {}", tone.paint(word, colour), harmless(rest));
    };
    for error in &finding.errors {
        line(Tone::Bad, "error", error);
    }
    for warning in &finding.warnings {
        line(Tone::Odd, "warning", warning);
    }
    if let Some(holds) = &finding.holds {
        line(Tone::Good, "ok", holds);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "\
name = \"greet\"
description = \"Says hello.\"
command = [\"echo\", \"{name}\"]
[input_schema]
type = \"object\"
required = [\"name\"]
[input_schema.properties.name]
type = \"string\"
";

    fn check(name: &str, text: &str) -> Finding {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join(name);
        std::fs::write(&file, text).expect("written");
        one_file(&file, None, OsStr::new("/usr/bin:/bin"))
    }

    #[test]
    fn each_kind_of_file_is_told_by_its_contents() {
        let manifest = check("greet.toml", MANIFEST);
        assert_eq!(
            (manifest.kind, manifest.holds.as_deref()),
            ("manifest", Some("tool greet")),
            "{manifest:?}"
        );
        let config = check("any.toml", "[limits]\nmax_running = 3\n");
        assert_eq!((config.kind, config.ok), ("config", true), "{config:?}");
        let batch = check("calls.jsonl", "{\"call_id\": \"1\", \"tool\": \"bash\"}\n");
        assert_eq!((batch.kind, batch.holds.as_deref()), ("batch", Some("1 call")));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (name, text, place) in [
            ("greet.toml", &MANIFEST.replace("description", "descripton")[..], "descripton"),
            ("toolcelld.toml", "[limits]\nmax_runing = 3\n", "max_runing"),
            ("calls.json", "[{\"call_id\": \"1\"}]", "field \"tool\""),
            ("broken.toml", "name = \n", "broken.toml:1"),
        ] {
            let finding = check(name, text);
            assert!(!finding.ok);
            assert!(finding.errors[0].contains(place), "{name}: {:?}", finding.errors);
        }
    }

    #[test]
    fn a_directory_is_checked_as_a_daemon_loads_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let empty = super::directory(directory.path(), OsStr::new("/bin"));
        assert!(!empty[0].ok, "an empty directory is most likely the wrong one");
        for name in ["a.toml", "b.toml"] {
            std::fs::write(directory.path().join(name), MANIFEST).expect("written");
        }
        let findings = super::directory(directory.path(), OsStr::new("/usr/bin:/bin"));
        assert_eq!(findings.iter().map(|finding| finding.ok).collect::<Vec<_>>(), [false, true]);
        assert!(findings[0].errors[0].contains("already defined"), "{findings:?}");
    }

    #[test]
    fn the_path_is_written_once() {
        let finding = bad(Path::new("/d/x.toml"), "manifest", "/d/x.toml:3:1: no".to_owned());
        assert_eq!(render(&finding, false), "/d/x.toml: error: 3:1: no\n");
    }
}
