//! Limits and the reasons they give. (Rows L about rlimits and reasons.)

use std::time::{Duration, Instant};

use serde_json::json;
use toolcell_protocol::call::{CallResult, Containment, LimitName, Status};
use toolcell_protocol::client_api::CallRequest;
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::peer::{call, habit, within};
use toolcell_tests::setting::{self, Setting};

const WEAK: Setting = Setting::own(Containment::Weak);

fn limited(line: &str) -> CallRequest {
    call("limited", &json!({ "line": line }))
}

fn limit_of(result: &CallResult) -> (Status, Option<LimitName>, Option<u64>) {
    (result.status, result.status_detail.limit, result.status_detail.limit_value)
}

/// Soft and hard limit as `misbehave limits` prints them.
fn limit_line(result: &CallResult, name: &str) -> (u64, u64) {
    let line = result.for_model.lines().find(|line| line.starts_with(name)).expect("a line");
    let mut words = line.split(' ').skip(1).map(|word| word.parse().expect("a number"));
    (words.next().expect("soft"), words.next().expect("hard"))
}

#[test]
fn l07_limits_are_what_the_manifest_says_and_only_for_its_tool() {
    let toml = "limits = { cpu_ms = 5000, fsize_bytes = 1048576, nofile = 77, core_bytes = 0, \
                stack_bytes = 4194304, memlock_bytes = 65536, as_bytes = 2147483648 }";
    setting::everywhere(|setting| {
        let daemon = TestDaemon::configure(setting).tool("limited", toml).start();
        let mut client = daemon.client();
        let free = client.run_one(habit("limits"));
        for _ in 0..5 {
            let result = client.run(vec![limited("limits"), habit("limits")]);
            let (bound, unbound) = (&result.results[0], &result.results[1]);
            assert_eq!(limit_line(bound, "fsize"), (1_048_576, 1_048_576), "{setting}: {bound:#?}");
            assert_eq!(limit_line(bound, "nofile"), (77, 77), "{setting}: {bound:#?}");
            assert_eq!(limit_line(bound, "core"), (0, 0), "{setting}: {bound:#?}");
            assert_eq!(limit_line(bound, "stack").0, 4_194_304, "{setting}: {bound:#?}");
            assert_eq!(limit_line(bound, "memlock").0, 65_536, "{setting}: {bound:#?}");
            assert_eq!(limit_line(bound, "as").0, 2_147_483_648, "{setting}: {bound:#?}");
            let cpu = limit_line(bound, "cpu").0;
            assert!((5..=7).contains(&cpu), "{setting}: {bound:#?}");
            assert_eq!(unbound.for_model, free.for_model, "{setting}: a limit stuck");
        }
    });
}

#[test]
fn l09_the_cpu_budget_is_that_of_the_whole_tree() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::configure(setting).tool("limited", "limits.cpu_ms = 1000").start();
        let mut client = daemon.client();
        for line in ["spin 4 60", "spin 0 60"] {
            let result = client.run_one(within(30_000, limited(line)));
            let expected = (Status::LimitExceeded, Some(LimitName::Cpu), Some(1000));
            assert_eq!(limit_of(&result), expected, "{setting}: {line}: {result:#?}");
            let used = result.details.user_cpu_us.unwrap_or(0) + result.details.system_cpu_us.unwrap_or(0);
            assert!((900_000..3_000_000).contains(&used), "{setting}: {line}: {used} us: {result:#?}");
            assert!(daemon.tool_processes().is_empty(), "{setting}: {line}: something spins on");
        }
        let frugal = client.run_one(limited("sleep 1.5"));
        assert_eq!(frugal.status, Status::Ok, "{setting}: sleeping costs no CPU time: {frugal:#?}");
    });
}

#[test]
fn l10_a_file_that_grows_too_large_is_a_limit_and_not_a_bare_signal() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::configure(setting).tool("limited", "limits.fsize_bytes = 100000").start();
        let mut client = daemon.client();
        let path = daemon.work().join("file");
        let small = client.run_one(limited(&format!("write-file {} 100000", path.display())));
        assert_eq!(small.status, Status::Ok, "{setting}: {small:#?}");
        let large = client.run_one(limited(&format!("write-file {} 100001", path.display())));
        let expected = (Status::LimitExceeded, Some(LimitName::Fsize), Some(100_000));
        assert_eq!(limit_of(&large), expected, "{setting}: {large:#?}");
        assert!(large.for_model.contains("100000"), "{setting}: {large:#?}");
        // The limit is of files, not of pipes.
        let flood = client.run_one(limited("flood 1000000"));
        assert_eq!((flood.status, flood.details.stdout_bytes), (Status::Ok, 1_000_000), "{flood:#?}");
    });
}

#[test]
fn the_number_of_open_files_is_bounded() {
    let daemon = TestDaemon::configure(WEAK).tool("limited", "limits.nofile = 20").start();
    let result = daemon.client().run_one(limited("open-many"));
    assert!(result.for_model.starts_with("17 files"), "{result:#?}");
}

#[test]
fn address_space_is_bounded_where_it_is_asked_for() {
    let daemon = TestDaemon::configure(WEAK).tool("limited", "limits.as_bytes = 268435456").start();
    let mut client = daemon.client();
    let large = client.run_one(limited("alloc 1000 0"));
    assert!(matches!(large.status, Status::Error | Status::Crashed), "{large:#?}");
    let free = client.run_one(habit("alloc 300 0"));
    assert_eq!(free.status, Status::Ok, "{free:#?}");
    assert!(free.details.peak_memory_bytes > Some(300 << 20), "{free:#?}");
}

#[test]
fn a_wall_timeout_comes_on_time_and_says_so() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let result = daemon.client().run_one(within(300, habit("sleep 60")));
        assert_eq!(result.status, Status::TimedOut, "{result:#?}");
        assert_eq!(result.status_detail.timeout_kind.as_deref(), Some("wall"));
        assert_eq!(result.status_detail.timeout_ms, Some(300));
        assert!(result.for_model.contains("300 ms"), "{result:#?}");
        let took = result.details.duration_us.expect("it ran");
        assert!((300_000..10_000_000).contains(&took), "{setting}: took {took} us");
    });
}

#[test]
fn a_short_timeout_holds_beside_a_long_one() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let started = Instant::now();
    let calls = vec![
        within(60_000, habit("sleep 0.9")),
        within(200, habit("sleep 60")),
        within(500, habit("sleep 60")),
    ];
    let result = client.run(calls);
    let statuses: Vec<Status> = result.results.iter().map(|result| result.status).collect();
    assert_eq!(statuses, [Status::Ok, Status::TimedOut, Status::TimedOut]);
    let durations: Vec<u64> = result.results.iter().filter_map(|result| result.details.duration_us).collect();
    assert!(durations[1] < durations[2] && durations[2] < durations[0], "{durations:?}");
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_tool_that_ignores_term_goes_after_the_grace_and_not_before() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::configure(setting).tool("limited", "kill_grace_ms = 600").start();
        let result = daemon.client().run_one(within(200, limited("ignore-term 60")));
        assert_eq!(result.status, Status::TimedOut, "{result:#?}");
        let took = result.details.duration_us.expect("it ran");
        assert!((800_000..20_000_000).contains(&took), "{setting}: took {took} us");
    });
}

#[test]
fn a_timeout_cannot_be_longer_than_the_daemon_allows() {
    let daemon = TestDaemon::configure(WEAK).set("limits.max_timeout_ms", 300).start();
    let result = daemon.client().run_one(within(3_600_000, habit("sleep 60")));
    assert_eq!(result.status, Status::TimedOut, "{result:#?}");
    assert_eq!(result.status_detail.timeout_ms, Some(300), "{result:#?}");
}

#[test]
fn l12_an_idle_timeout_fires_for_silence_and_only_where_it_is_asked_for() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::configure(setting).tool("limited", "idle_timeout_ms = 1000").start();
        let mut client = daemon.client();
        let calls = vec![
            within(20_000, limited("sleep 60")),
            within(20_000, limited("drip 15 100")),
            within(20_000, habit("sleep 2")),
        ];
        let result = client.run(calls);
        let (silent, talking, free) = (&result.results[0], &result.results[1], &result.results[2]);
        assert_eq!(silent.status, Status::TimedOut, "{setting}: {silent:#?}");
        assert_eq!(silent.status_detail.timeout_kind.as_deref(), Some("idle"), "{setting}: {silent:#?}");
        assert_eq!(silent.status_detail.timeout_ms, Some(1000), "{setting}: {silent:#?}");
        assert_eq!(talking.status, Status::Ok, "{setting}: {talking:#?}");
        assert_eq!(free.status, Status::Ok, "{setting}: {free:#?}");
    });
}
