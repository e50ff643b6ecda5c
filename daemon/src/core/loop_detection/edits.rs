//! Which files a call edits, and with what: read from the arguments of edit tools, from patches and from shell commands.

use serde_json::Value;

use super::digest::Fingerprint;
use super::shell::{self, Body};

/// One file that a call edits if it succeeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The file, its path made absolute and plain.
    pub path: Fingerprint,
    /// The path as it is shown, its last 80 characters at most.
    pub shown: Box<str>,
    /// What is put in.
    pub body: EditBody,
}

/// What an edit puts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditBody {
    /// The whole file: fingerprint of the new content.
    Whole(Fingerprint),
    /// One passage: fingerprints of the old and the new one.
    Replace(Fingerprint, Fingerprint),
    /// Not to be seen from the arguments.
    Unknown,
}

impl Edit {
    pub(crate) fn new(path: &str, cwd: Option<&str>, body: EditBody) -> Self {
        let plain = plain_path(path, cwd);
        let shown = plain.char_indices().rev().nth(79).map_or(plain.as_str(), |(at, _)| &plain[at..]);
        Self { path: Fingerprint::of(&plain), shown: shown.into(), body }
    }
}

/// The fingerprint under which a path is known: absolute if `cwd` is given, without `.`, `..` and doubled slashes.
#[must_use]
pub fn path_fingerprint(path: &str, cwd: Option<&str>) -> Fingerprint {
    Fingerprint::of(&plain_path(path, cwd))
}

fn plain_path(path: &str, cwd: Option<&str>) -> String {
    let joined;
    let path = match cwd {
        Some(cwd) if !path.starts_with('/') => {
            joined = format!("{cwd}/{path}");
            &joined
        }
        _ => path,
    };
    let absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if absolute => {}
            part => parts.push(part),
        }
    }
    format!("{}{}", if absolute { "/" } else { "" }, parts.join("/"))
}

const PATH_KEYS: &[&str] =
    &["path", "file_path", "filePath", "filename", "file", "target_file", "notebook_path"];
const WHOLE_KEYS: &[&str] = &["content", "contents", "file_text", "text", "new_source"];
const OLD_KEYS: &[&str] = &["old_str", "old_string", "oldString", "old_text", "oldText", "search"];
const NEW_KEYS: &[&str] = &["new_str", "new_string", "newString", "new_text", "newText", "replace"];
/// Values of `command` with which an edit tool edits; with any other (`view`) it reads.
const EDIT_COMMANDS: &[&str] =
    &["create", "str_replace", "insert", "undo_edit", "write", "edit", "append", "delete"];

fn text<'a>(args: &'a Value, keys: &[&str]) -> Option<&'a str> {
    keys.iter().find_map(|key| args.get(key)?.as_str())
}

/// Whether a tool of that name edits files, going by the name alone.
pub(crate) fn is_edit_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("edit")
        || name.contains("str_replace")
        || name.contains("apply_patch")
        || matches!(
            name.as_str(),
            "write"
                | "write_file"
                | "writefile"
                | "create_file"
                | "create_or_update_file"
                | "replace_in_file"
                | "write_to_file"
                | "insert"
                | "push_files"
        )
}

/// Whether these arguments make an edit tool edit.
pub(crate) fn does_edit(args: &Value) -> bool {
    args.get("command").and_then(Value::as_str).is_none_or(|command| EDIT_COMMANDS.contains(&command))
}

/// The edits of a call of an edit tool. `declared` names the arguments that hold paths.
pub(crate) fn of_arguments(args: &Value, declared: &[String], cwd: Option<&str>, out: &mut Vec<Edit>) {
    if let Some(patch) = text(args, &["patch", "input", "diff"]).or_else(|| args.as_str())
        && of_patch(patch, cwd, out)
    {
        return;
    }
    let body = body_of(args);
    if declared.is_empty() {
        if let Some(path) = text(args, PATH_KEYS) {
            out.push(Edit::new(path, cwd, body));
        }
        return;
    }
    for key in declared {
        match args.get(key) {
            Some(Value::String(path)) => out.push(Edit::new(path, cwd, body)),
            Some(Value::Array(paths)) => {
                out.extend(
                    paths.iter().filter_map(Value::as_str).take(32).map(|path| Edit::new(path, cwd, body)),
                );
            }
            _ => {}
        }
    }
}

fn body_of(args: &Value) -> EditBody {
    if let Some(Value::Array(edits)) = args.get("edits") {
        let side = |keys: &[&str]| {
            edits
                .iter()
                .filter_map(|edit| text(edit, keys))
                .fold(Fingerprint::default(), |all, one| all.with(Fingerprint::of(one)))
        };
        return EditBody::Replace(side(OLD_KEYS), side(NEW_KEYS));
    }
    if let (Some(old), Some(new)) = (text(args, OLD_KEYS), text(args, NEW_KEYS)) {
        return EditBody::Replace(Fingerprint::of(old), Fingerprint::of(new));
    }
    text(args, WHOLE_KEYS).map_or(EditBody::Unknown, |content| EditBody::Whole(Fingerprint::of(content)))
}

/// Files and passages of a patch (`*** Update File:` or unified); false if it is none.
fn of_patch(patch: &str, cwd: Option<&str>, out: &mut Vec<Edit>) -> bool {
    let mut found = false;
    let mut file: Option<&str> = None;
    let mut sides = [Fingerprint::default(); 2];
    let mut close = |file: Option<&str>, sides: &mut [Fingerprint; 2]| {
        if let Some(path) = file {
            let body = EditBody::Replace(sides[0], sides[1]);
            out.push(Edit::new(path, cwd, body));
        }
        *sides = [Fingerprint::default(); 2];
    };
    for line in patch.lines() {
        let header = ["*** Update File: ", "*** Add File: ", "*** Delete File: ", "+++ b/", "+++ "]
            .iter()
            .find_map(|h| line.strip_prefix(h));
        if let Some(path) = header {
            close(file, &mut sides);
            file = Some(path.trim());
            found = true;
        } else if line.starts_with("--- ") || line.starts_with("diff ") {
            close(file.take(), &mut sides);
        } else if let Some(gone) = line.strip_prefix('-') {
            sides[0] = sides[0].with(Fingerprint::of(gone));
        } else if let Some(new) = line.strip_prefix('+') {
            sides[1] = sides[1].with(Fingerprint::of(new));
        }
    }
    close(file, &mut sides);
    found
}

/// The edits of a shell command.
pub(crate) fn of_shell(facts: shell::ShellFacts, cwd: Option<&str>, out: &mut Vec<Edit>) {
    for write in facts.writes {
        let body = match write.body {
            Body::Whole(content) => EditBody::Whole(content),
            Body::Replace(old, new) => EditBody::Replace(old, new),
            Body::Unknown => EditBody::Unknown,
        };
        out.push(Edit::new(&write.path, cwd, body));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_file_has_one_fingerprint() {
        let at = |path| path_fingerprint(path, Some("/w"));
        assert_eq!(at("a.txt"), at("./a.txt"));
        assert_eq!(at("a.txt"), at("/w//b/../a.txt"));
        assert_ne!(at("a.txt"), at("b.txt"));
        assert_eq!(plain_path("../a", None), "../a");
        assert_eq!(plain_path("/../a", None), "/a");
    }

    #[test]
    fn a_patch_names_its_files() {
        let patch =
            "*** Begin Patch\n*** Update File: a.rs\n@@\n-old\n+new\n*** Add File: b.rs\n+x\n*** End Patch";
        let mut out = Vec::new();
        of_arguments(&json!({ "patch": patch }), &[], None, &mut out);
        assert_eq!(out.iter().map(|e| &*e.shown).collect::<Vec<_>>(), ["a.rs", "b.rs"]);
        let undo = "*** Update File: a.rs\n@@\n-new\n+old\n";
        let mut back = Vec::new();
        of_arguments(&json!({ "patch": undo }), &[], None, &mut back);
        let (EditBody::Replace(a, b), EditBody::Replace(c, d)) = (out[0].body, back[0].body) else {
            panic!("passages")
        };
        assert_eq!((a, b), (d, c));
    }
}
