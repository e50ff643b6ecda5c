//! The tools on real files. A test that root's power over permissions would spoil says so and returns.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A directory in which tools are called.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: TempDir::new().expect("a temporary directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("written");
        path
    }

    fn content(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("readable")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).expect("readable");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn call(&self, tool: &str, args: &Value) -> (bool, String) {
        let ToolOutcome { ok, text } = run(tool, &args.to_string(), self.dir.path());
        (ok, String::from_utf8_lossy(&text).into_owned())
    }

    fn works(&self, tool: &str, args: &Value) -> String {
        let (ok, text) = self.call(tool, args);
        assert!(ok, "{tool} failed: {text}");
        text
    }

    fn fails(&self, tool: &str, args: &Value) -> String {
        let (ok, text) = self.call(tool, args);
        assert!(!ok, "{tool} should have failed: {text}");
        text
    }
}

fn mkfifo(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").mode() & 0o7777
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn is_root(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if root {
        eprintln!("skipped: {test} needs an ordinary user, since root may write everywhere");
    }
    root
}

#[test]
fn lines_are_read_with_their_numbers() {
    let place = Place::new();
    place.file("a", "one\n\ntwo\r\nthree");
    assert_eq!(
        place.works("read_file", &json!({"path": "a"})),
        "     1\tone\n     2\t\n     3\ttwo\r\n     4\tthree"
    );
    let absolute = place.path("a");
    assert_eq!(
        place.works("read_file", &json!({"path": absolute, "offset": 3.0, "limit": 9})),
        "     3\ttwo\r\n     4\tthree"
    );
}

#[test]
fn a_page_says_how_to_read_on_and_the_last_page_does_not() {
    let place = Place::new();
    place.file("a", "1\n2\n3\n4\n");
    assert_eq!(
        place.works("read_file", &json!({"path": "a", "limit": 3})),
        "     1\t1\n     2\t2\n     3\t3\n[lines 1 to 3 of a file of 8 bytes; it goes on: read on with offset = 4]\n"
    );
    assert_eq!(place.works("read_file", &json!({"path": "a", "offset": 4, "limit": 1})), "     4\t4\n");
}

#[test]
fn an_empty_file_says_so_and_a_line_beyond_the_end_says_how_many_there_are() {
    let place = Place::new();
    place.file("empty", "");
    place.file("two", "a\nb");
    place.file("three", "a\nb\nc\n");
    assert_eq!(place.works("read_file", &json!({"path": "empty"})), "[the file is empty]\n");
    assert!(place.fails("read_file", &json!({"path": "two", "offset": 3})).contains("it has 2 lines"));
    assert!(place.fails("read_file", &json!({"path": "three", "offset": 9})).contains("it has 3 lines"));
}

#[test]
fn a_large_file_comes_in_pages_that_are_bounded_and_lose_nothing() {
    let place = Place::new();
    let content: String = (0..20_000).map(|n| format!("line {n} {}\n", "x".repeat(n % 120))).collect();
    place.file("large", &content);
    let (mut offset, mut pages, mut read) = (1, 0, String::new());
    loop {
        let text = place.works("read_file", &json!({"path": "large", "offset": offset, "limit": 100_000}));
        assert!(text.len() <= 256 * 1024 + 200, "{} bytes", text.len());
        let (lines, more) = match text.rsplit_once("\n[lines ") {
            Some((lines, more)) => (lines, Some(more)),
            None => (text.trim_end_matches('\n'), None),
        };
        for line in lines.split('\n') {
            let (_, line) = line.split_once('\t').expect("a number");
            read.push_str(line);
            read.push('\n');
        }
        pages += 1;
        let Some(more) = more else { break };
        let next = more.rsplit_once("offset = ").expect("says how").1.trim_end_matches("]\n");
        offset = next.parse().expect("a number");
    }
    assert!(pages > 3, "{pages} pages");
    assert_eq!(read, content);
}

#[test]
fn a_very_long_line_is_cut_at_a_character_and_says_what_is_missing() {
    let place = Place::new();
    // Characters of three bytes, so that 16 KiB end within one.
    place.file("long", format!("{}\nnext\n", "€".repeat(100_000)));
    let text = place.works("read_file", &json!({"path": "long"}));
    assert!(!text.contains('\u{fffd}'), "cut through a character");
    assert!(text.contains("more bytes in this line; in bash: sed -n 1p"), "{}", &text[text.len() - 200..]);
    assert!(text.ends_with("\n     2\tnext\n"));
    let shown = text.matches('€').count() * 3;
    assert!(text.contains(&format!("… {} more bytes", 300_000 - shown)));
    place.file("long", "y".repeat(200_000));
    let text = place.works("read_file", &json!({"path": "long"}));
    assert!(text.ends_with("tail -c +16385]"), "{}", &text[text.len() - 100..]);
}

#[test]
fn a_binary_file_is_refused_and_text_that_is_not_utf_8_is_not() {
    let place = Place::new();
    place.file("binary", b"text\nELF\0\x01");
    place.file("latin1", b"caf\xe9\n");
    let text = place.fails("read_file", &json!({"path": "binary"}));
    assert!(text.contains("binary file") && text.contains("line 2"), "{text}");
    let outcome = run("read_file", r#"{"path": "latin1"}"#, place.dir.path());
    assert_eq!(outcome, ToolOutcome { ok: true, text: b"     1\tcaf\xe9\n".to_vec() });
}

#[test]
fn directories_fifos_devices_and_sockets_are_refused_without_waiting() {
    let place = Place::new();
    fs::create_dir(place.path("dir")).expect("made");
    mkfifo(&place.path("fifo"));
    symlink("/dev/zero", place.path("device")).expect("linked");
    let _socket = UnixListener::bind(place.path("socket")).expect("bound");
    for tool in ["read_file", "write_file", "edit_file"] {
        let call = |name: &str| {
            place.fails(tool, &json!({"path": name, "content": "", "old_string": "a", "new_string": "b"}))
        };
        assert!(call("dir").contains("list_dir"));
        assert!(call("fifo").contains("is a FIFO"));
        assert!(call("device").contains("is a device"));
        // A socket cannot even be opened for reading.
        assert!(!call("socket").is_empty());
    }
}

#[test]
fn files_of_proc_whose_size_is_unknown_are_read_whole() {
    let place = Place::new();
    let text = place.works("read_file", &json!({"path": "/proc/self/status"}));
    assert!(text.contains("\tName:") && text.contains("VmRSS"), "{text}");
}

#[test]
fn a_path_that_does_not_exist_names_the_nearest_directory_that_does() {
    let place = Place::new();
    let text = place.fails("read_file", &json!({"path": "no/such/file"}));
    let expected = format!("The nearest directory that does is {};", place.dir.path().display());
    assert!(text.contains(&expected), "{text}");
    assert!(place.fails("list_dir", &json!({"path": "gone"})).contains(&expected));
}

#[test]
fn paths_that_cannot_be_meant_are_refused_with_the_reason() {
    let place = Place::new();
    assert!(place.fails("read_file", &json!({"path": ""})).contains("empty"));
    assert!(place.fails("read_file", &json!({"path": "a\0b"})).contains("NUL"));
    assert!(place.fails("write_file", &json!({"path": "~/x", "content": ""})).contains("not expanded"));
    assert!(place.fails("write_file", &json!({"path": "dir/", "content": ""})).contains("names a directory"));
    assert!(place.fails("write_file", &json!({"path": "..", "content": ""})).contains("directory"));
    assert_eq!(place.names(), Vec::<String>::new());
}

#[test]
fn a_new_file_is_created_with_the_directories_that_lead_to_it() {
    let place = Place::new();
    let text = place.works("write_file", &json!({"path": "a/b/c.txt", "content": "x\ny"}));
    assert!(text.starts_with("created ") && text.ends_with("c.txt: 2 lines, 3 bytes\n"), "{text}");
    assert_eq!(place.content("a/b/c.txt"), "x\ny");
    assert_eq!(place.names(), ["a"]);
}

#[test]
fn replacing_a_file_keeps_its_mode_and_leaves_nothing_beside_it() {
    let place = Place::new();
    let path = place.file("script", "old");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).expect("changed");
    let before = fs::metadata(&path).expect("there");
    let text = place.works("write_file", &json!({"path": "script", "content": "new content"}));
    assert!(text.contains("replaced") && text.contains("before: 3 bytes"), "{text}");
    let after = fs::metadata(&path).expect("there");
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    assert_ne!(after.ino(), before.ino(), "replaced as a whole");
    place.works("edit_file", &json!({"path": "script", "old_string": "new", "new_string": "newer"}));
    assert_eq!(mode(&path), 0o751);
    assert_eq!(place.content("script"), "newer content");
    assert_eq!(place.names(), ["script"]);
}

#[test]
fn a_symbolic_link_stays_and_its_target_is_written() {
    let place = Place::new();
    place.file("target", "old");
    symlink("target", place.path("link")).expect("linked");
    symlink("link", place.path("link2")).expect("linked");
    symlink("fresh", place.path("dangling")).expect("linked");
    place.works("write_file", &json!({"path": "link2", "content": "new"}));
    place.works("edit_file", &json!({"path": "link", "old_string": "new", "new_string": "newer"}));
    place.works("write_file", &json!({"path": "dangling", "content": "made"}));
    assert_eq!((place.content("target"), place.content("fresh")), ("newer".to_owned(), "made".to_owned()));
    for link in ["link", "link2", "dangling"] {
        assert!(fs::symlink_metadata(place.path(link)).expect("there").is_symlink(), "{link}");
    }
}

#[test]
fn links_in_a_circle_are_refused() {
    let place = Place::new();
    symlink("b", place.path("a")).expect("linked");
    symlink("a", place.path("b")).expect("linked");
    for tool in ["read_file", "write_file"] {
        assert!(place.fails(tool, &json!({"path": "a", "content": ""})).contains("in a circle"));
    }
}

#[test]
fn all_names_of_a_file_see_what_was_written() {
    let place = Place::new();
    let path = place.file("one", "a long old content");
    fs::hard_link(&path, place.path("two")).expect("linked");
    place.works("write_file", &json!({"path": "one", "content": "new"}));
    assert_eq!(place.content("two"), "new");
    assert_eq!(place.names(), ["one", "two"]);
}

#[test]
fn a_read_only_file_is_left_alone() {
    if is_root("a_read_only_file_is_left_alone") {
        return;
    }
    let place = Place::new();
    let path = place.file("a", "old");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("changed");
    let text = place.fails("write_file", &json!({"path": "a", "content": "new"}));
    assert!(text.contains("may not do this"), "{text}");
    assert_eq!(place.content("a"), "old");
}

#[test]
fn in_a_directory_that_is_read_only_files_can_be_changed_and_not_created() {
    if is_root("in_a_directory_that_is_read_only_files_can_be_changed_and_not_created") {
        return;
    }
    let place = Place::new();
    place.file("a", "a long old content");
    fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o555)).expect("changed");
    place.works("write_file", &json!({"path": "a", "content": "new"}));
    assert_eq!(place.content("a"), "new");
    let text = place.fails("write_file", &json!({"path": "b", "content": "new"}));
    assert!(text.contains("Cannot create") && text.contains("may not do this"), "{text}");
    fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o755)).expect("changed back");
    assert_eq!(place.names(), ["a"]);
}

#[test]
fn an_edit_shows_the_lines_around_it() {
    let place = Place::new();
    place.file("a", "1\n2\n3\n4\n5\n6\n");
    let text = place.works("edit_file", &json!({"path": "a", "old_string": "4\n", "new_string": "x\ny\n"}));
    assert!(text.contains("1 replacement, in line 4\n"), "{text}");
    assert!(text.ends_with("     2\t2\n     3\t3\n     4\tx\n     5\ty\n     6\t5\n     7\t6\n"), "{text}");
    assert_eq!(place.content("a"), "1\n2\n3\nx\ny\n5\n6\n");
}

#[test]
fn an_edit_keeps_crlf_and_a_missing_last_line_end() {
    let place = Place::new();
    place.file("a", "one\r\ntwo\r\nthree");
    place.works("edit_file", &json!({"path": "a", "old_string": "one\ntwo", "new_string": "1\n2\n3"}));
    assert_eq!(place.content("a"), "1\r\n2\r\n3\r\nthree");
}

#[test]
fn an_edit_that_is_not_unique_changes_nothing_and_says_where() {
    let place = Place::new();
    place.file("a", "x\ny\nx\n");
    let args = json!({"path": "a", "old_string": "x", "new_string": "z"});
    let text = place.fails("edit_file", &args);
    assert!(
        text.contains("2 times") && text.contains("lines 1, 3") && text.contains("replace_all"),
        "{text}"
    );
    assert_eq!(place.content("a"), "x\ny\nx\n");
    let args = json!({"path": "a", "old_string": "x", "new_string": "z", "replace_all": true});
    assert!(place.works("edit_file", &args).contains("2 replacements, the first in line 1"));
    assert_eq!(place.content("a"), "z\ny\nz\n");
}

#[test]
fn an_edit_that_finds_nothing_shows_what_is_nearest() {
    let place = Place::new();
    place.file("a.py", "def f():\n    return 1\n\ndef g():\n\treturn  2\n");
    let args = |old: &str| json!({"path": "a.py", "old_string": old, "new_string": "zzzzzzzzz"});
    let text = place.fails("edit_file", &args("def g():\n    return 2"));
    assert!(text.contains("From line 4 on it is there with other white space"), "{text}");
    assert!(text.ends_with("     4\tdef g():\n     5\t\treturn  2\n"), "{text}");
    let text = place.fails("edit_file", &args("    return 11"));
    assert!(text.contains("most similar text begins in line 2:\n     2\t    return 1\n"), "{text}");
    let text = place.fails("edit_file", &args("     2\t    return 1"));
    assert!(text.contains("line numbers as read_file shows them"), "{text}");
    let text = place.fails("edit_file", &args("%%%%%%%%"));
    assert!(text.contains("Nothing in it is similar"), "{text}");
}

#[test]
fn an_edit_of_a_file_that_is_not_there_leads_to_write_file() {
    let place = Place::new();
    let args = json!({"path": "a", "old_string": "x", "new_string": "y"});
    assert!(place.fails("edit_file", &args).contains("write_file"));
    let args = json!({"path": "a", "old_string": "", "new_string": "y"});
    assert!(place.fails("edit_file", &args).contains("write_file"));
}

#[test]
fn edits_of_one_file_at_the_same_time_lose_nothing() {
    let place = Place::new();
    let names: Vec<String> = (0..16).map(|n| format!("<{n}>")).collect();
    place.file("a", names.join("\n"));
    std::thread::scope(|scope| {
        for name in &names {
            let place = &place;
            scope.spawn(move || {
                place.works("edit_file", &json!({"path": "a", "old_string": name, "new_string": "done"}));
            });
        }
    });
    assert_eq!(place.content("a"), vec!["done"; 16].join("\n"));
    assert_eq!(place.names(), ["a"]);
}

#[test]
fn a_directory_is_listed_in_order_with_types_and_sizes() {
    let place = Place::new();
    place.file("b.txt", "12345");
    place.file(".hidden", "");
    fs::create_dir(place.path("src")).expect("made");
    symlink("b.txt", place.path("link")).expect("linked");
    mkfifo(&place.path("pipe"));
    place.file("two\nlines", "x");
    assert_eq!(
        place.works("list_dir", &json!({})),
        "f            0 .hidden\nf            5 b.txt\nl            - link -> b.txt\np            - pipe\n\
         d            - src/\nf            1 two\\nlines\n"
    );
    assert_eq!(
        place.works("list_dir", &json!({"path": "src"})),
        format!("[{} is empty]\n", place.path("src").display())
    );
}

#[test]
fn a_long_directory_is_cut_after_the_first_names_and_says_so() {
    let place = Place::new();
    for n in 0..57 {
        place.file(&format!("f{n:02}"), "");
    }
    let text = place.works("list_dir", &json!({"path": ".", "limit": 10}));
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).take(10).collect();
    assert_eq!(names, ["f00", "f01", "f02", "f03", "f04", "f05", "f06", "f07", "f08", "f09"]);
    assert!(text.contains("[47 more of 57 entries;"), "{text}");
    assert_eq!(text.lines().count(), 11);
}

#[test]
fn a_file_is_not_listed_as_a_directory() {
    let place = Place::new();
    place.file("a", "");
    assert!(place.fails("list_dir", &json!({"path": "a"})).contains("Use read_file"));
}

#[test]
fn arguments_and_names_that_the_daemon_would_not_have_let_through_are_told_all_the_same() {
    let place = Place::new();
    assert!(place.fails("read_file", &json!({})).contains("missing field `path`"));
    assert!(place.fails("read_file", &json!({"path": "a", "offset": -1})).contains("whole number"));
    assert!(place.fails("fly", &json!({})).contains("no tool"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_written_is_read_back(content in "[a-z€\r\n\t]{0,200}") {
        let place = Place::new();
        place.works("write_file", &json!({"path": "f", "content": content}));
        prop_assert_eq!(place.content("f"), content.clone());
        let text = place.works("read_file", &json!({"path": "f"}));
        if content.is_empty() {
            prop_assert_eq!(text, "[the file is empty]\n");
        } else {
            let lines: Vec<&str> = text
                .split_inclusive('\n')
                .map(|line| line.split_once('\t').expect("a number").1)
                .collect();
            prop_assert_eq!(lines.concat(), content);
        }
    }

    #[test]
    fn no_arguments_make_it_panic(tool in "(read|write|edit)_file|list_dir", args in ".{0,60}") {
        let place = Place::new();
        let _ = run(&tool, &args, place.dir.path());
    }
}
