//! Configuration of loop detection: spellings, defaults, overlay, order of thresholds, refusals.

use serde_json::{Value, json};
use toolcell_daemon::core::loop_detection::{LoopBlock, LoopConfig, Reading, Steps, Strategy};

fn strict(value: &Value) -> Result<LoopBlock, String> {
    LoopBlock::parse(value, Reading::Strict).map_err(|error| error.to_string())
}

fn resolved(value: &Value) -> LoopConfig {
    LoopConfig::resolve(&strict(value).expect("the block is right"))
}

#[test]
fn both_spellings_mean_the_same() {
    let camel = json!({
        "enabled": true, "historySize": 40, "warningThreshold": 5, "criticalThreshold": 9, "unknownToolThreshold": 4,
        "globalCircuitBreakerThreshold": 12, "detectors": {"genericRepeat": false, "knownPollNoProgress": false, "pingPong": false},
        "postCompactionGuard": {"windowSize": 2}, "maxEditsPerFile": 7, "minRepeatPattern": 2, "maxConsecutiveFailures": 3,
        "rules": {"sameError": {"warn": 2, "block": 4}}, "volatileKeys": ["seed"], "cooldownCalls": 5,
        "budget": {"maxCalls": 100, "maxTimeMs": 1000}
    });
    let snake = json!({
        "enabled": true, "history_size": 40, "warning_threshold": 5, "critical_threshold": 9, "unknown_tool_threshold": 4,
        "global_circuit_breaker_threshold": 12,
        "detectors": {"generic_repeat": false, "known_poll_no_progress": false, "ping_pong": false},
        "post_compaction_guard": {"window_size": 2}, "max_edits_per_file": 7, "min_repeat_pattern": 2, "max_consecutive_failures": 3,
        "rules": {"same_error": {"warn": 2, "block": 4}}, "volatile_keys": ["seed"], "cooldown_calls": 5,
        "budget": {"max_calls": 100, "max_time_ms": 1000}
    });
    assert_eq!(strict(&camel), strict(&snake));
    assert!(strict(&camel).is_ok_and(|block| block != LoopBlock::default()));
}

#[test]
fn defaults_are_the_documented_ones() {
    let config = LoopConfig::default();
    assert_eq!(config.strategy, Strategy::Progress);
    assert!(config.on && !config.rolling.on);
    assert_eq!((config.rolling.history_size, config.rolling.warning, config.rolling.critical), (30, 10, 20));
    assert_eq!((config.rolling.unknown_tool, config.rolling.global, config.guard_window), (10, 30, 3));
    assert_eq!(config.runner.max_edits_per_file, None, "progress rules stand in place of the runner paths");
    let classic = resolved(&json!({"strategy": "classic"}));
    assert!(!classic.rolling.on, "unset is off for the rolling detectors");
    assert_eq!(classic.runner.max_edits_per_file, Some(20));
    assert_eq!(
        (classic.runner.min_repeat_pattern, classic.runner.max_consecutive_failures),
        (Some(3), Some(4))
    );
    assert!(resolved(&json!({"strategy": "classic", "enabled": true})).rolling.on);
    assert!(!resolved(&json!({"enabled": false})).on);
}

#[test]
fn thresholds_are_raised_and_never_lowered() {
    let order = |value: Value| {
        let rolling = resolved(&value).rolling;
        (rolling.warning, rolling.critical, rolling.global)
    };
    assert_eq!(order(json!({"criticalThreshold": 5})), (10, 11, 30));
    assert_eq!(order(json!({"warningThreshold": 25})), (25, 26, 30));
    assert_eq!(order(json!({"warningThreshold": 40})), (40, 41, 42));
    assert_eq!(order(json!({"globalCircuitBreakerThreshold": 8})), (10, 20, 21));
}

#[test]
fn an_agent_is_laid_over_the_global_block_key_by_key() {
    let global = strict(&json!({"enabled": true, "detectors": {"pingPong": false}, "postCompactionGuard": {"windowSize": 4}, "rules": {"same_error": {"warn": 2}}})).expect("right");
    let agent = strict(&json!({"detectors": {"genericRepeat": false}, "warningThreshold": 8, "rules": {"same_error": {"block": 9}}})).expect("right");
    let both = global.overlaid(&agent);
    assert_eq!((both.enabled, both.ping_pong, both.generic_repeat), (Some(true), Some(false), Some(false)));
    assert_eq!((both.window_size, both.warning_threshold), (Some(4), Some(8)));
    let back = strict(&json!({"detectors": {"genericRepeat": true}})).expect("right");
    assert_eq!(
        LoopConfig::resolve(&both.overlaid(&back)).rules.same_error,
        Steps { warn: Some(2), block: Some(9) }
    );
}

#[test]
fn what_is_wrong_is_refused_naming_the_key() {
    let cases = [
        (json!({"warningThreshold": 0}), "warning_threshold"),
        (json!({"historySize": 1.5}), "history_size"),
        (json!({"historySize": "30"}), "history_size"),
        (json!({"enabled": "yes"}), "enabled"),
        (json!({"strategy": "both"}), "strategy"),
        (json!({"postCompactionGuard": {"windowSize": -1}}), "post_compaction_guard.window_size"),
        (json!({"detectors": {"pingPong": 1}}), "detectors.ping_pong"),
        (json!({"detectors": []}), "detectors"),
        (json!({"warnThreshold": 3}), "warnThreshold"),
        (json!({"detectors": {"pong": true}}), "detectors.pong"),
        (json!({"rules": {"same_eror": {"warn": 1}}}), "rules.same_eror"),
        (json!({"rules": {"same_error": {"warn": 3, "block": 3}}}), "rules.same_error.block"),
        (json!({"warningThreshold": 5, "criticalThreshold": 5}), "critical_threshold"),
        (
            json!({"criticalThreshold": 9, "globalCircuitBreakerThreshold": 9}),
            "global_circuit_breaker_threshold",
        ),
        (json!({"warningThreshold": 5, "warning_threshold": 5}), "warning_threshold"),
        (json!({"max_edits_per_file": 0}), "max_edits_per_file"),
        (json!([]), "(the block)"),
    ];
    for (block, key) in cases {
        let error = strict(&block).expect_err("it is wrong");
        assert!(error.contains(key), "{block}: {error}");
    }
}

#[test]
fn a_recorded_block_falls_back_to_the_defaults() {
    let block = LoopBlock::parse(
        &json!({"warningThreshold": 0, "historySize": "x", "nonsense": 1, "criticalThreshold": 15}),
        Reading::Lenient,
    );
    let rolling = LoopConfig::resolve(&block.expect("lenient reading refuses nothing")).rolling;
    assert_eq!((rolling.warning, rolling.history_size, rolling.critical), (10, 30, 15));
}

#[test]
fn keys_that_people_have_move_the_progress_rules() {
    let rules = resolved(&json!({"warningThreshold": 3, "criticalThreshold": 6})).rules;
    assert_eq!(
        (rules.same_error, rules.same_result),
        (Steps { warn: Some(3), block: Some(6) }, Steps { warn: Some(3), block: Some(6) })
    );
    assert_eq!(
        resolved(&json!({"unknownToolThreshold": 8})).rules.unknown_tool,
        Steps { warn: Some(3), block: Some(8) }
    );
    assert_eq!(resolved(&json!({"detectors": {"genericRepeat": false}})).rules.same_error, Steps::default());
    assert_eq!(resolved(&json!({"rules": {"cycle": false}})).rules.cycle, Steps::default());
}

#[test]
fn the_version_changes_with_the_configuration_only() {
    let version = |value: &Value| resolved(value).version;
    assert_eq!(version(&json!({})), version(&json!({"historySize": 30})));
    assert_ne!(version(&json!({})), version(&json!({"historySize": 31})));
}
