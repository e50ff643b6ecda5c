//! What a tool finds when it starts: its descriptors, its environment, its signals, its place. (Rows R10 to R15.)

use std::collections::BTreeMap;

use toolcell_protocol::call::{CallResult, Containment, Status};
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::peer::{bash, habit, within};
use toolcell_tests::setting::{self, Setting};

/// Variables that belong to the daemon and to nobody else. The socket is an abstract one that nobody listens on.
const DAEMONS_OWN: [(&str, &str); 8] = [
    ("NOTIFY_SOCKET", "@toolcell-test-nobody-listens"),
    ("INVOCATION_ID", "0123456789abcdef0123456789abcdef"),
    ("JOURNAL_STREAM", "8:12345"),
    ("MEMORY_PRESSURE_WATCH", "/sys/fs/cgroup/memory.pressure"),
    ("CREDENTIALS_DIRECTORY", "/run/credentials/toolcelld"),
    ("LISTEN_FDNAMES", "varlink"),
    ("MY_API_TOKEN", "sk-do-not-leak"),
    ("LD_PRELOAD_NOT", "do-not-leak"),
];

fn variables(result: &CallResult) -> BTreeMap<String, String> {
    assert_eq!(result.status, Status::Ok, "{result:#?}");
    result
        .for_model
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn r14_r15_nothing_of_the_daemons_environment_reaches_a_tool_unless_it_is_allowed() {
    setting::everywhere(|setting| {
        let mut builder = TestDaemon::configure(setting);
        for (name, value) in DAEMONS_OWN {
            builder = builder.env(name, value);
        }
        let daemon = builder.start();
        let mut client = daemon.client();
        let seen = variables(&client.run_one(habit("env")));
        for (name, _) in DAEMONS_OWN {
            assert!(!seen.contains_key(name), "{setting}: the tool sees {name}: {seen:#?}");
        }
        assert!(seen.keys().all(|name| !name.starts_with("LISTEN_") && !name.starts_with("WATCHDOG_")));
        assert_eq!(seen.get("LANG").map(String::as_str), Some("C.UTF-8"), "{seen:#?}");
        assert!(seen.contains_key("PATH"), "{seen:#?}");
        assert_eq!(seen.get("TOOLCELL_TEST_MARKER"), Some(&daemon.marker), "the session's own: {seen:#?}");
        // Nor can it be read from the processes around the tool.
        let around = "for p in $PPID $$ $(ps -o ppid= -p $PPID 2>/dev/null); do \
                      cat /proc/$p/environ 2>/dev/null; done | tr '\\0' '\\n' | grep -c do-not-leak; true";
        let result = client.run_one(bash(around));
        assert_eq!(result.for_model.trim(), "0", "{setting}: {result:#?}");
    });
}

#[test]
fn variables_are_inherited_by_name_only() {
    let daemon = TestDaemon::configure(Setting::own(Containment::Weak))
        .env("ALLOWED_ONE", "yes")
        .env("ALLOWED_TWO", "no")
        .set("cells.env_inherit", "[\"PATH\", \"ALLOWED_ONE\"]")
        .start();
    let seen = variables(&daemon.client().run_one(habit("env")));
    assert_eq!(seen.get("ALLOWED_ONE").map(String::as_str), Some("yes"));
    assert!(!seen.contains_key("ALLOWED_TWO") && !seen.contains_key("LANG"), "{seen:#?}");
}

#[test]
fn r13_every_tool_has_three_descriptors_and_no_more_also_under_load() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        for _ in 0..3 {
            let result = client.run((0..64).map(|_| habit("fds")).collect());
            for result in &result.results {
                let lines: Vec<&str> = result.for_model.lines().collect();
                assert_eq!(lines.len(), 3, "{setting}: {result:#?}");
                assert_eq!(lines[0], "0 /dev/null", "{setting}: {result:#?}");
                assert!(lines[1].starts_with("1 pipe:") && lines[2].starts_with("2 pipe:"), "{result:#?}");
            }
        }
    });
}

#[test]
fn a_tool_starts_with_no_signal_blocked_or_ignored() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let result = daemon.client().run_one(bash("grep -E 'Sig(Blk|Ign)' /proc/self/status"));
        assert_eq!(
            result.for_model, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n",
            "{setting}: {result:#?}"
        );
    });
}

#[test]
fn a_tool_is_a_session_of_its_own_without_a_terminal_in_the_right_directory() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        let result = client.run_one(habit("place"));
        let text = &result.for_model;
        assert!(text.contains(&format!("cwd {}\n", daemon.work().display())), "{result:#?}");
        assert!(text.contains("umask 22\n"), "{result:#?}");
        assert!(text.contains("session leader true\ngroup leader true\nterminal false\n"), "{result:#?}");
        let mut elsewhere = habit("place");
        elsewhere.cwd = Some("/usr/lib/..".into());
        let result = client.run_one(elsewhere);
        assert!(result.for_model.contains("cwd /usr\n"), "{result:#?}");
    });
}

#[test]
fn a_tool_has_a_control_group_of_its_own_where_there_are_any() {
    let setting = Setting::own(Containment::Cgroup);
    if let Some(what) = setting.lacks() {
        return setting::skipped(&format!("a group for each call needs {what}"));
    }
    let daemon = TestDaemon::in_setting(setting);
    let result = daemon.client().run((0..8).map(|_| habit("place")).collect());
    let mut groups: Vec<&str> = result
        .results
        .iter()
        .map(|result| result.for_model.lines().find_map(|line| line.strip_prefix("0::")).expect("a group"))
        .collect();
    groups.sort_unstable();
    groups.dedup();
    assert_eq!(groups.len(), 8, "{groups:?}");
}

#[test]
fn r10_a_huge_limit_of_descriptors_costs_no_time_and_tools_get_the_small_one_back() {
    let daemon = TestDaemon::in_setting(Setting::own(Containment::Weak));
    let result = daemon.client().run_one(habit("limits"));
    let line = result.for_model.lines().find(|line| line.starts_with("nofile")).expect("a line");
    let soft: u64 = line.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a number");
    let (own_soft, _) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).expect("a limit");
    assert_eq!(soft, own_soft, "the daemon raises its own soft limit, and that must not reach tools");
}

#[test]
fn i01_i05_tools_that_want_input_or_a_terminal_end_at_once() {
    let daemon = TestDaemon::in_setting(Setting::own(Containment::Weak));
    let mut client = daemon.client();
    let scripts = [
        "cat",
        "read line; echo \"[$line]\"",
        "bash -lic 'echo hi' 2>&1",
        "stty sane; true",
        "cat /dev/tty; true",
    ];
    let result = client.run(scripts.map(|script| within(30_000, bash(script))).to_vec());
    for (script, result) in scripts.iter().zip(&result.results) {
        assert_ne!(result.status, Status::TimedOut, "{script}: {result:#?}");
        assert!(result.details.signal.is_none(), "{script}: {result:#?}");
    }
    assert_eq!(result.results[1].for_model, "[]\n");
    assert!(result.results[2].for_model.contains("hi\n"), "{result:#?}");
}
