//! Which existing name a model meant when it wrote one that does not exist.
//!
//! Models mix up the tools of the agents they were trained with, so a short table of those names comes first;
//! then words in another order or spelling (`ReadFile`, `file-read`), then typing errors.

use std::cmp::Reverse;

/// Most names that are proposed.
pub const MAX_NEAREST: usize = 3;

/// A name longer than this is nobody's typing error; it is cut before it is compared.
const MAX_COMPARED_CHARS: usize = 128;

/// Below this a name is not worth proposing (0 to 1000).
const WORTH_PROPOSING: u32 = 620;

/// Names that other agents use, reduced as `reduce` does, and what they are called here.
const ALIASES: &[(&str, &[&str])] = &[
    ("bash", &["shell", "sh", "run", "exec", "execute", "terminal", "console", "command", "run_command"]),
    ("bash", &["run_terminal_cmd", "run_shell_command", "execute_command", "local_shell", "run_in_terminal"]),
    ("read_file", &["read", "cat", "view", "view_file", "open", "open_file", "get_file", "read_text_file"]),
    ("write_file", &["write", "create", "create_file", "save", "save_file", "write_to_file", "new_file"]),
    ("edit_file", &["edit", "replace", "str_replace", "str_replace_editor", "search_replace", "update"]),
    ("edit_file", &["str_replace_based_edit_tool", "multi_edit", "replace_in_file", "patch", "modify_file"]),
    ("list_dir", &["ls", "list", "dir", "list_files", "list_directory", "read_directory", "tree"]),
];

/// At most [`MAX_NEAREST`] of `candidates`, the likeliest first.
#[must_use]
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<String> {
    let wanted = Reduced::of(name);
    let mut scored: Vec<(Reverse<u32>, &str)> = candidates
        .map(|candidate| (Reverse(wanted.likeness(&Reduced::of(candidate), candidate)), candidate))
        .filter(|(Reverse(score), _)| *score >= WORTH_PROPOSING)
        .collect();
    scored.sort_unstable();
    scored.truncate(MAX_NEAREST);
    scored.into_iter().map(|(_, candidate)| candidate.to_owned()).collect()
}

/// A name as its lower-case words.
struct Reduced {
    joined: String,
    words: Vec<String>,
}

impl Reduced {
    fn of(name: &str) -> Self {
        // `functions.read_file`, `default_api:read_file`, `mcp__files__read_file`: the name is what comes last.
        let name = name.trim();
        let name = name.rsplit(['.', ':', '/']).next().unwrap_or(name);
        let name = name.rsplit("__").next().unwrap_or(name);
        let mut words: Vec<String> = Vec::new();
        let mut word = String::new();
        let mut before = ' ';
        for c in name.chars().take(MAX_COMPARED_CHARS) {
            let boundary = !c.is_alphanumeric() || (c.is_uppercase() && before.is_lowercase());
            if boundary && !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            if c.is_alphanumeric() {
                word.extend(c.to_lowercase());
            }
            before = c;
        }
        if !word.is_empty() {
            words.push(word);
        }
        Self { joined: words.join("_"), words }
    }

    /// From 0 (nothing in common) to 1000 (the same).
    fn likeness(&self, other: &Self, other_name: &str) -> u32 {
        if self.joined.is_empty() || other.joined.is_empty() {
            return 0;
        }
        if self.joined == other.joined {
            return 1000;
        }
        let is_alias = ALIASES
            .iter()
            .any(|(here, elsewhere)| *here == other_name && elsewhere.contains(&self.joined.as_str()));
        if is_alias {
            return 990;
        }
        let sorted = |reduced: &Self| {
            let mut words = reduced.words.clone();
            words.sort_unstable();
            words
        };
        if sorted(self) == sorted(other) {
            return 950;
        }
        let spelling = strsim::normalized_damerau_levenshtein(&self.joined, &other.joined);
        // `search_code_files` for `search_code`: all words of the shorter one are in the longer one.
        let shared = self.words.iter().filter(|word| other.words.contains(word)).count();
        let fewer = self.words.len().min(other.words.len());
        let contained = if shared == fewer { 0.7 } else { 0.0 };
        // The spelling decides between names that share their words. At most 940, and cut off on purpose.
        (spelling.max(contained) * 890.0 + spelling * 50.0) as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUILTIN: [&str; 5] = ["bash", "edit_file", "list_dir", "read_file", "write_file"];

    fn first(name: &str) -> Option<String> {
        nearest(name, BUILTIN.into_iter()).into_iter().next()
    }

    #[test]
    fn names_of_other_agents_lead_to_the_tool_that_does_the_same() {
        for (name, meant) in [
            ("Read", "read_file"),
            ("shell", "bash"),
            ("Bash", "bash"),
            ("run_terminal_cmd", "bash"),
            ("str_replace", "edit_file"),
            ("LS", "list_dir"),
            ("create_file", "write_file"),
            ("mcp__fs__read_file", "read_file"),
            ("functions.bash", "bash"),
            ("default_api:write_file", "write_file"),
        ] {
            assert_eq!(first(name).as_deref(), Some(meant), "for {name}");
        }
    }

    #[test]
    fn other_spellings_orders_and_typing_errors_are_found() {
        for name in ["ReadFile", "readFile", "read-file", "file_read", "raed_file", "read_fil", "READ_FILE"] {
            assert_eq!(first(name).as_deref(), Some("read_file"), "for {name}");
        }
        assert_eq!(nearest("search", ["search_code", "zebra"].into_iter()), ["search_code"]);
    }

    #[test]
    fn nothing_is_proposed_for_a_name_that_resembles_none() {
        assert!(nearest("send_email", BUILTIN.into_iter()).is_empty());
        assert!(nearest("", BUILTIN.into_iter()).is_empty());
        assert!(nearest("___", BUILTIN.into_iter()).is_empty());
    }

    #[test]
    fn an_alias_is_proposed_only_if_its_tool_exists() {
        assert!(nearest("shell", ["read_file"].into_iter()).is_empty());
    }

    #[test]
    fn equally_near_names_come_in_the_order_of_the_alphabet() {
        assert_eq!(
            nearest("tool_x", ["tool_c", "tool_a", "tool_b", "tool_d"].into_iter()),
            ["tool_a", "tool_b", "tool_c"]
        );
    }

    proptest! {
        #[test]
        fn proposals_are_few_and_are_candidates(
            name in ".{0,300}",
            candidates in prop::collection::vec("[a-z_]{1,12}", 0..12),
        ) {
            let found = nearest(&name, candidates.iter().map(String::as_str));
            prop_assert!(found.len() <= MAX_NEAREST);
            prop_assert!(found.iter().all(|near| candidates.contains(near)));
        }

        #[test]
        fn one_slip_in_a_name_of_some_length_is_found(at in 0usize..9, c in "[a-z]") {
            let mut name = String::from("read_file");
            name.replace_range(at..=at, &c);
            prop_assert!(nearest(&name, BUILTIN.into_iter()).contains(&"read_file".to_owned()));
        }
    }
}
