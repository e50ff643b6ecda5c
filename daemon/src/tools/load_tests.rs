use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

fn manifest(name: &str) -> String {
    format!("name = \"{name}\"\ndescription = \"From a test.\"\ncommand = [\"/bin/sh\"]\n")
}

fn dir(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().expect("a temporary directory");
    for (name, text) in files {
        fs::write(dir.path().join(name), text).expect("written");
    }
    dir
}

fn load_all(dirs: &[&TempDir]) -> Loaded {
    let dirs: Vec<PathBuf> = dirs.iter().map(|dir| dir.path().to_owned()).collect();
    load(&dirs, OsStr::new("/usr/bin:/bin"))
}

fn errors(loaded: &Loaded) -> Vec<String> {
    loaded.broken.iter().map(|broken| broken.error.to_string()).collect()
}

#[test]
fn without_directories_there_are_the_builtin_tools_in_order() {
    let loaded = load_all(&[]);
    let names: Vec<&str> = loaded.tools.names().collect();
    assert_eq!(names, ["bash", "edit_file", "list_dir", "read_file", "write_file"]);
    assert!(loaded.broken.is_empty() && loaded.warnings.is_empty() && loaded.overrides.is_empty());
}

#[test]
fn a_broken_manifest_is_reported_with_its_line_and_does_not_stop_the_others() {
    let dir = dir(&[
        ("a.toml", &manifest("one")),
        ("b.toml", "name = \"broken\"\n\nnonsense = 1\n"),
        ("c.toml", &manifest("two")),
        ("notes.txt", "no manifest"),
        (".hidden.toml", "no manifest either"),
    ]);
    let loaded = load_all(&[&dir]);
    assert!(loaded.tools.get("one").is_some() && loaded.tools.get("two").is_some());
    assert_eq!(loaded.tools.len(), 7);
    let errors = errors(&loaded);
    assert_eq!(errors.len(), 1, "{errors:?}");
    let place = format!("{}:3:1: nonsense: unknown field `nonsense`", dir.path().join("b.toml").display());
    assert!(errors[0].starts_with(&place), "{errors:?}");
    assert_eq!(loaded.broken[0].withheld, None);
}

#[test]
fn of_two_manifests_with_one_name_in_a_directory_the_second_is_broken() {
    let dir = dir(&[("b.toml", &manifest("same")), ("a.toml", &manifest("same"))]);
    let loaded = load_all(&[&dir]);
    let tool = loaded.tools.get("same").expect("the first");
    assert_eq!(tool.source, Source::Manifest(dir.path().join("a.toml")));
    let errors = errors(&loaded);
    assert!(errors[0].contains("b.toml: the tool \"same\" is already defined by"), "{errors:?}");
}

#[test]
fn a_later_directory_wins_over_an_earlier_one_and_over_builtins_and_says_so() {
    let first = dir(&[("x.toml", &manifest("mine"))]);
    let second = dir(&[("y.toml", &manifest("mine")), ("bash.toml", &manifest("bash"))]);
    let loaded = load_all(&[&first, &second]);
    let source = |name: &str| loaded.tools.get(name).expect("there").source.clone();
    assert_eq!(source("mine"), Source::Manifest(second.path().join("y.toml")));
    assert_eq!(source("bash"), Source::Manifest(second.path().join("bash.toml")));
    let replaced: Vec<(&str, &Source)> =
        loaded.overrides.iter().map(|change| (change.name.as_str(), &change.replaced)).collect();
    let before = Source::Manifest(first.path().join("x.toml"));
    assert_eq!(replaced, [("bash", &Source::Builtin), ("mine", &before)]);
    assert!(loaded.broken.is_empty());
}

#[test]
fn a_broken_manifest_withholds_the_tool_that_it_was_to_override() {
    let by_name = dir(&[("strict.toml", "name = \"bash\"\ncommand = 5\n")]);
    let loaded = load_all(&[&by_name]);
    assert!(loaded.tools.get("bash").is_none());
    assert_eq!(loaded.broken[0].withheld.as_deref(), Some("bash"));
    let text = loaded.broken[0].to_string();
    assert!(text.ends_with("(the tool \"bash\" is not offered until this is corrected)"), "{text}");
    let by_file = dir(&[("bash.toml", "this is not TOML")]);
    let loaded = load_all(&[&by_file]);
    assert!(loaded.tools.get("bash").is_none());
    // A tool of the same directory was not to be overridden.
    let same = dir(&[("a.toml", &manifest("b")), ("b.toml", "this is not TOML")]);
    let loaded = load_all(&[&same]);
    assert!(loaded.tools.get("b").is_some());
    assert_eq!(loaded.broken[0].withheld, None);
}

#[test]
fn what_is_no_regular_file_is_refused_without_waiting() {
    let dir = dir(&[]);
    fs::create_dir(dir.path().join("dir.toml")).expect("made");
    nix::unistd::mkfifo(&dir.path().join("fifo.toml"), nix::sys::stat::Mode::S_IRWXU).expect("made");
    symlink("/dev/null", dir.path().join("null.toml")).expect("linked");
    symlink("nowhere", dir.path().join("nowhere.toml")).expect("linked");
    let elsewhere = self::dir(&[("real", &manifest("linked"))]);
    symlink(elsewhere.path().join("real"), dir.path().join("link.toml")).expect("linked");
    let loaded = load_all(&[&dir]);
    let errors = errors(&loaded);
    assert_eq!(errors.len(), 4, "{errors:?}");
    assert_eq!(
        errors.iter().filter(|error| error.contains("must be a regular file")).count(),
        3,
        "{errors:?}"
    );
    assert!(errors.iter().any(|error| error.contains("nowhere.toml: cannot open")), "{errors:?}");
    assert!(loaded.tools.get("linked").is_some());
}

#[test]
fn a_manifest_that_is_too_large_or_not_text_is_refused() {
    let dir = dir(&[("large.toml", &format!("{}# {}", manifest("large"), "x".repeat(MAX_MANIFEST_BYTES)))]);
    fs::write(dir.path().join("latin1.toml"), b"name = \"x\"\n# caf\xe9\n").expect("written");
    let errors = errors(&load_all(&[&dir]));
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].ends_with("large.toml: the manifest has more than 262144 bytes"), "{errors:?}");
    assert!(errors[1].contains("latin1.toml:2: the manifest is not UTF-8"), "{errors:?}");
}

#[test]
fn a_directory_that_is_missing_is_told_apart_from_one_that_cannot_be_listed() {
    let dir = dir(&[("a.toml", &manifest("one"))]);
    let missing = dir.path().join("missing");
    let loaded = load(&[missing.clone(), dir.path().join("a.toml")], OsStr::new(""));
    assert_eq!(loaded.missing, [missing]);
    let errors = errors(&loaded);
    assert!(errors.len() == 1 && errors[0].contains("cannot list the directory"), "{errors:?}");
}

#[test]
fn a_program_that_is_not_in_path_is_a_warning_that_shows_the_path() {
    let no_program = manifest("a").replace("/bin/sh", "no-such-program");
    let no_file = manifest("b").replace("/bin/sh", "/no/such/program");
    let found = manifest("c").replace("/bin/sh", "sh");
    let own_path = format!("{found}[env]\nset = {{ PATH = \"/nowhere\" }}\n").replace("\"c\"", "\"d\"");
    let relative = manifest("e").replace("/bin/sh", "./run.sh");
    let dir = dir(&[
        ("a.toml", &no_program),
        ("b.toml", &no_file),
        ("c.toml", &found),
        ("d.toml", &own_path),
        ("e.toml", &relative),
    ]);
    let loaded = load_all(&[&dir]);
    assert_eq!(loaded.tools.len(), 10);
    let warnings: Vec<&str> = loaded.warnings.iter().map(|warning| warning.message.as_str()).collect();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(
        warnings[0].contains("\"no-such-program\" is in no directory of PATH (/usr/bin:/bin)"),
        "{warnings:?}"
    );
    assert!(warnings[1].contains("/no/such/program is not there"), "{warnings:?}");
    assert!(warnings[2].contains("PATH (/nowhere)"), "{warnings:?}");
}

#[test]
fn run_as_is_only_taken_from_a_manifest_that_nobody_but_root_can_change() {
    let dir = dir(&[("a.toml", &format!("{}run_as = \"nobody\"\n", manifest("a")))]);
    let path = dir.path().join("a.toml");
    let read = || read_manifest(&path, OsStr::new("/bin"));
    if nix::unistd::geteuid().is_root() {
        let parsed = read().expect("root's own");
        assert_eq!(parsed.tool.run_as.map(|run_as| run_as.user).as_deref(), Some("nobody"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).expect("changed");
        let (error, _) = read().expect_err("its group may write");
        assert!(error.to_string().contains("has mode 0664"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("changed");
        std::os::unix::fs::chown(&path, Some(65534), None).expect("given away");
    }
    let (error, name) = read().expect_err("not root's");
    assert!(matches!(error, LoadError::RunAsNotRoot { .. }), "{error}");
    assert_eq!(name.as_deref(), Some("a"));
}
