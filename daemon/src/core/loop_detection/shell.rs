//! Reads a shell command just far enough to know what it is for: whether it changes something, whether it is a check
//! (whose exit code 1 is an answer), and which files it writes.
//!
//! This is a look, not a shell: quotes, separators, redirects and here-documents are understood, expansions are not. A
//! wrong guess makes a rule a little slower or a little quicker; it never decides what is run.

use super::digest::Fingerprint;

/// What was seen in a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ShellFacts {
    /// If it succeeds, something is different from before.
    pub(crate) changes: bool,
    /// Searches, listings and test runs: their failure is an answer.
    pub(crate) check: bool,
    /// Puts files back to a stored state.
    pub(crate) restores: bool,
    /// Simple commands in it.
    pub(crate) commands: usize,
    /// Files it writes.
    pub(crate) writes: Vec<Write>,
}

/// One file that a command writes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) path: String,
    /// The whole new content, where the command spells it out; else the script that edits it.
    pub(crate) body: Body,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// `cat > f <<EOF`: this is all that is in the file afterwards.
    Whole(Fingerprint),
    /// `sed -i 's/old/new/'`: the two sides.
    Replace(Fingerprint, Fingerprint),
    /// Something else.
    Unknown,
}

const CHECKS: &[&str] = &[
    "grep",
    "rg",
    "egrep",
    "fgrep",
    "zgrep",
    "diff",
    "cmp",
    "test",
    "[",
    "[[",
    "find",
    "ls",
    "which",
    "command",
    "type",
    "pytest",
    "py.test",
    "tox",
    "nosetests",
    "ctest",
    "jest",
    "mypy",
    "ruff",
    "flake8",
    "pylint",
    "tsc",
    "eslint",
];
const CHANGES: &[&str] = &[
    "tee",
    "mv",
    "cp",
    "rm",
    "mkdir",
    "touch",
    "patch",
    "pip",
    "pip3",
    "apt",
    "apt-get",
    "make",
    "chmod",
    "ln",
    "tar",
    "unzip",
    "wget",
    "git-apply",
    "ed",
    "truncate",
    "dd",
    "install",
    "rsync",
    "kill",
    "pkill",
];
const GIT_CHANGES: &[&str] = &[
    "apply",
    "checkout",
    "stash",
    "reset",
    "commit",
    "add",
    "restore",
    "switch",
    "merge",
    "rebase",
    "revert",
    "clean",
    "rm",
    "mv",
    "pull",
    "clone",
    "cherry-pick",
];

/// Longest command that is looked into; the rest of a longer one is not.
const MAX_COMMAND: usize = 16 * 1024;

pub(crate) fn read(command: &str) -> ShellFacts {
    let command = match command.char_indices().nth(MAX_COMMAND) {
        Some((at, _)) => &command[..at],
        None => command,
    };
    let mut facts = ShellFacts::default();
    for simple in split(command) {
        simple_command(&simple, &mut facts);
    }
    facts
}

/// One command between separators.
#[derive(Debug, Default)]
struct Simple<'a> {
    /// The command before it feeds it, or decides whether it runs as a fallback: `a | b`, `a || b`.
    piped: bool,
    words: Vec<&'a str>,
    redirect: Option<&'a str>,
    appends: bool,
    document: Option<&'a str>,
}

fn simple_command(simple: &Simple<'_>, facts: &mut ShellFacts) {
    let mut words = &simple.words[..];
    loop {
        match words {
            [word, rest @ ..] if is_assignment(word) => words = rest,
            [
                "sudo" | "time" | "nohup" | "exec" | "xargs" | "then" | "do" | "else" | "!" | "{" | "(",
                rest @ ..,
            ] => words = rest,
            ["timeout", rest @ ..] => {
                words = rest.iter().position(|w| !w.starts_with('-')).map_or(&[], |at| &rest[at + 1..])
            }
            ["env", rest @ ..] => words = rest,
            _ => break,
        }
    }
    if let Some(path) = simple.redirect {
        facts.changes = true;
        let body = match simple.document {
            Some(document) if !simple.appends => Body::Whole(Fingerprint::of(document)),
            _ => Body::Unknown,
        };
        facts.writes.push(Write { path: path.to_owned(), body });
    }
    facts.commands += usize::from(!simple.words.is_empty());
    let Some((&head, arguments)) = words.split_first() else { return };
    let head = head.rsplit('/').next().unwrap_or(head);
    if head == "cd" || head == "set" || head == "source" || head == "." || head == "export" {
        return;
    }
    // What a script answers is what its last pipeline answers, and that is about what its first command does.
    if !simple.piped {
        facts.check = is_check(head, arguments);
    }
    facts.changes |= changes(head, arguments, simple);
    facts.restores |= head == "git" && matches!(arguments, ["checkout" | "restore" | "reset" | "stash", ..]);
    if (head == "sed" || head == "perl") && arguments.iter().any(|a| is_in_place(a)) {
        in_place(arguments, facts);
    }
    if head == "tee"
        && let Some(path) = arguments.iter().find(|a| !a.starts_with('-'))
    {
        let body = simple.document.map_or(Body::Unknown, |document| Body::Whole(Fingerprint::of(document)));
        facts.writes.push(Write { path: unquoted(path).to_owned(), body });
    }
    if head.starts_with("python")
        && let Some(script) = simple.document.or_else(|| arguments.iter().find(|a| a.len() > 2).copied())
    {
        facts.changes |= script.contains("write");
    }
}

fn is_check(head: &str, arguments: &[&str]) -> bool {
    match head {
        "cargo" => matches!(arguments, ["test" | "check" | "clippy" | "nextest", ..]),
        "go" => matches!(arguments, ["test" | "vet", ..]),
        "npm" | "yarn" | "pnpm" => matches!(arguments, ["test" | "t", ..] | ["run", "test" | "lint", ..]),
        "make" => arguments.iter().any(|a| matches!(*a, "test" | "check" | "lint")),
        _ if head.starts_with("python") => {
            matches!(arguments, ["-m", "pytest" | "unittest" | "mypy" | "pylint" | "flake8" | "ruff", ..])
                || arguments.first().is_some_and(|a| a.ends_with("runtests.py") || a.ends_with("/test"))
        }
        _ => CHECKS.contains(&head),
    }
}

fn changes(head: &str, arguments: &[&str], simple: &Simple<'_>) -> bool {
    match head {
        "sed" | "perl" => arguments.iter().any(|a| is_in_place(a)),
        "git" => arguments.iter().find(|a| !a.starts_with('-')).is_some_and(|a| GIT_CHANGES.contains(a)),
        "npm" | "yarn" | "pnpm" => matches!(arguments, ["install" | "i" | "ci" | "add" | "remove", ..]),
        "cargo" => matches!(arguments, ["add" | "remove" | "fix" | "fmt" | "build" | "run", ..]),
        "curl" => arguments.iter().any(|a| matches!(*a, "-o" | "-O" | "-X" | "-d" | "--data")),
        "python" | "python3" => simple.document.is_some_and(|document| document.contains("write")),
        _ => CHANGES.contains(&head) || is_sql_change(head),
    }
}

pub(crate) fn is_sql_change(word: &str) -> bool {
    ["insert", "update", "delete", "create", "alter", "drop", "replace"]
        .iter()
        .any(|sql| word.eq_ignore_ascii_case(sql))
}

fn is_in_place(argument: &str) -> bool {
    argument == "--in-place"
        || (argument.starts_with('-')
            && !argument.starts_with("--")
            && argument.len() < 8
            && argument.contains('i'))
}

/// `sed -i 's/old/new/' file`: the last word is the file, the first quoted one the script.
fn in_place(arguments: &[&str], facts: &mut ShellFacts) {
    let Some(path) = arguments.iter().rev().find(|a| !a.starts_with('-') && !a.starts_with(['\'', '"']))
    else {
        return;
    };
    let script = arguments.iter().find(|a| a.starts_with(['\'', '"']) || a.starts_with("s/"));
    let body = script.and_then(|script| substitution(unquoted(script))).unwrap_or(Body::Unknown);
    facts.writes.push(Write { path: unquoted(path).to_owned(), body });
}

/// The two sides of `s/old/new/`, with any delimiter, as one would write them undone.
fn substitution(script: &str) -> Option<Body> {
    let mut rest = script.trim_start_matches(|c: char| c.is_ascii_digit() || c == ',').strip_prefix('s')?;
    let delimiter = rest.chars().next().filter(|c| !c.is_alphanumeric() && !c.is_whitespace())?;
    rest = &rest[delimiter.len_utf8()..];
    let mut sides = rest.splitn(3, delimiter);
    let (old, new) = (sides.next()?, sides.next()?);
    let plain = |side: &str| Fingerprint::of(&side.replace('\\', ""));
    Some(Body::Replace(plain(old), plain(new)))
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

fn unquoted(word: &str) -> &str {
    let word = word.strip_prefix(['\'', '"']).unwrap_or(word);
    word.strip_suffix(['\'', '"']).unwrap_or(word)
}

fn split(command: &str) -> Vec<Simple<'_>> {
    let bytes = command.as_bytes();
    let mut out = vec![Simple::default()];
    let mut at = 0;
    // Here-documents whose bodies start at the next line end: index of their command, delimiter.
    let mut documents: Vec<(usize, &str)> = Vec::new();
    while at < bytes.len() {
        match bytes[at] {
            b'\n' => {
                at += 1;
                for (index, delimiter) in documents.drain(..) {
                    let (body, next) = document_body(command, at, delimiter);
                    if let Some(simple) = out.get_mut(index) {
                        simple.document = Some(body);
                    }
                    at = next;
                }
                out.push(Simple::default());
            }
            b';' | b'|' | b'&' if !(bytes[at] == b'&' && bytes.get(at + 1) == Some(&b'>')) => {
                let piped = bytes[at] == b'|';
                at += 1 + usize::from(bytes.get(at + 1) == Some(&bytes[at]));
                out.push(Simple { piped, ..Simple::default() });
            }
            b'#' if at == 0 || bytes[at - 1].is_ascii_whitespace() => {
                at += command[at..].find('\n').unwrap_or(command.len() - at);
            }
            b'<' if command[at..].starts_with("<<<") => at += 3,
            b'<' if command[at..].starts_with("<<") => {
                at += 2;
                at += usize::from(bytes.get(at) == Some(&b'-'));
                at = skip_blanks(bytes, at);
                let end = word_end(bytes, at);
                documents.push((out.len() - 1, unquoted(&command[at..end])));
                at = end;
            }
            b'>' => {
                let appends = bytes.get(at + 1) == Some(&b'>');
                at = skip_blanks(bytes, at + 1 + usize::from(appends));
                if bytes.get(at) == Some(&b'&') {
                    at = word_end(bytes, at + 1);
                    continue;
                }
                let end = word_end(bytes, at);
                let path = unquoted(&command[at..end]);
                if !path.is_empty()
                    && !path.starts_with("/dev/")
                    && let Some(simple) = out.last_mut()
                {
                    simple.redirect = Some(path);
                    simple.appends = appends;
                }
                at = end.max(at);
            }
            b if b.is_ascii_whitespace() || b == b'<' || b == b'&' => at += 1,
            _ => {
                let end = word_end(bytes, at).max(at + 1);
                let end =
                    (end..=bytes.len()).find(|end| command.is_char_boundary(*end)).unwrap_or(bytes.len());
                let word = &command[at..end];
                // `2>file`: the digit belongs to the redirect.
                if !(word.len() == 1 && word.as_bytes()[0].is_ascii_digit() && bytes.get(end) == Some(&b'>'))
                    && let Some(simple) = out.last_mut()
                {
                    simple.words.push(word);
                }
                at = end;
            }
        }
    }
    out
}

fn skip_blanks(bytes: &[u8], from: usize) -> usize {
    let blanks = bytes[from.min(bytes.len())..].iter().take_while(|b| **b == b' ' || **b == b'\t').count();
    (from + blanks).min(bytes.len())
}

/// Where the word that starts at `from` ends; quotes hold it together.
fn word_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from.min(bytes.len());
    let mut quote = None;
    while at < bytes.len() {
        let b = bytes[at];
        match quote {
            Some(open) => {
                if b == b'\\' && open == b'"' {
                    at += 1;
                } else if b == open {
                    quote = None;
                }
            }
            None => match b {
                b'\'' | b'"' => quote = Some(b),
                b'\\' => at += 1,
                b if b.is_ascii_whitespace() || matches!(b, b';' | b'|' | b'&' | b'<' | b'>') => return at,
                _ => {}
            },
        }
        at += 1;
    }
    bytes.len()
}

fn document_body<'a>(command: &'a str, from: usize, delimiter: &str) -> (&'a str, usize) {
    let mut at = from;
    for line in command[from..].split_inclusive('\n') {
        if line.trim() == delimiter {
            return (&command[from..at], at + line.len());
        }
        at += line.len();
    }
    (&command[from..], command.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_apart_by_what_they_are_for() {
        let cases = [
            ("cd /x && grep -rn foo src | head", false, true, ""),
            ("sed -n '1,5p' a.py", false, false, ""),
            ("sed -i 's/a/b/' ./a.py", true, false, "./a.py"),
            (
                "cat <<'EOF' > repro.py\nimport os; os.remove('x')\nEOF\npython repro.py",
                true,
                false,
                "repro.py",
            ),
            ("cat a.py > /dev/null 2>&1", false, false, ""),
            ("FOO=1 timeout 10 python -m pytest -q", false, true, ""),
            ("ls > out.txt", true, true, "out.txt"),
            ("cp a b\npytest -q 2>&1 | tail", true, true, ""),
            ("grep a b || echo none", false, true, ""),
            ("grep a b; cat c", false, false, ""),
            ("git diff", false, false, ""),
            ("git checkout a.py", true, false, ""),
            ("echo 'a > b; rm c'", false, false, ""),
            ("tee f.txt <<EOF\nx\nEOF", true, false, "f.txt"),
            ("python3 - <<'PY'\nopen('f','w').write('x')\nPY", true, false, ""),
            ("cat f.txt 2>/dev/null", false, false, ""),
            ("", false, false, ""),
        ];
        for (command, changes, check, path) in cases {
            let facts = read(command);
            assert_eq!((facts.changes, facts.check), (changes, check), "{command:?}");
            assert_eq!(facts.writes.first().map_or("", |w| w.path.as_str()), path, "{command:?}");
        }
    }

    #[test]
    fn a_substitution_and_its_undoing_mirror_each_other() {
        let body = |command: &str| read(command).writes.into_iter().next().map(|w| w.body);
        let (Some(Body::Replace(a, b)), Some(Body::Replace(c, d))) =
            (body("sed -i 's/x=1/x=2/' f"), body("sed -i 's|x=2|x=1|g' f"))
        else {
            panic!("both are substitutions");
        };
        assert_eq!((a, b), (d, c));
    }

    #[test]
    fn no_text_is_too_odd() {
        for odd in [
            "<<",
            "<<-",
            ">",
            "> é",
            "é<<é",
            "'",
            "\"\\",
            "a\\",
            "2>",
            "cat <<E",
            "|&;",
            "<<''\n\n",
            "sed -i",
            "s",
            "é > é\n",
        ] {
            read(odd);
        }
    }
}
