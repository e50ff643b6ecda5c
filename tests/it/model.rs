//! Every habit of the misbehaving tool ends as the table says: alone, in every setting, and in mixtures.

use proptest::test_runner::{Config, TestRunner};
use toolcell_protocol::call::Containment;
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::model::{ENDLESS, Habit, SHORT};
use toolcell_tests::setting::{self, Setting};

#[test]
fn every_habit_ends_as_the_model_says_in_every_setting() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        for habit in SHORT.iter().chain(&ENDLESS) {
            habit.check(&client.run_one(habit.call()));
            let left = daemon.tool_processes();
            assert!(left.is_empty(), "{setting}: {}: left when its result came: {left:?}", habit.line);
        }
    });
}

#[test]
fn habits_end_as_the_model_says_in_any_mixture() {
    let best = Setting::own(Containment::Cgroup);
    let setting = if best.lacks().is_some() { Setting::own(Containment::Weak) } else { best };
    let daemon = TestDaemon::in_setting(setting);
    let all: Vec<Habit> = SHORT.iter().chain(&ENDLESS).map(|habit| habit.patient()).collect();
    let mixture = proptest::collection::vec(proptest::sample::select(all), 1..24);
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(8) });
    runner
        .run(&mixture, |habits| {
            let mut client = daemon.client();
            let result = client.run(habits.iter().map(Habit::call).collect());
            for (habit, result) in habits.iter().zip(&result.results) {
                habit.check(result);
            }
            Ok(())
        })
        .expect("every mixture ends as the model says");
}
