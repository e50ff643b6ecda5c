//! Whatever comes in: nothing panics, memory stays bounded, a stored state goes on as if nothing had happened.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use toolcell_daemon::core::loop_detection::{
    CallFacts, Decisions, Ended, Fingerprint, LoopBlock, LoopConfig, LoopDetection, LoopState,
    OutcomeBuilder, Output, Reading, Strategy as LoopStrategy, ToolTraits,
};

const MAX_BYTES: usize = 64 * 1024;

fn text() -> impl Strategy<Value = String> {
    let words = [
        "cd /x && ",
        "grep -rn ",
        "cat <<'EOF' > a.py\n",
        "EOF\n",
        "sed -i 's/a/b/' f",
        "sed -i",
        "> ",
        "2>&1",
        "|",
        "'",
        "\"",
        "\\",
        "é",
        "\u{0}",
        "/tmp/tmpab12cd",
        "2026-01-01T00:00:00Z",
        "12:00:00",
        "pid ",
        "123",
        "0x7fffff",
        " s",
        "\n",
        "*** Update File: a\n",
        "-x\n+y\n",
        "Traceback (most recent call last)\nValueError: x",
        "error: ",
        "unknown tool ",
        "<output>",
        "a/../b//./c",
    ];
    prop::collection::vec(
        prop_oneof![3 => prop::sample::select(words.to_vec()).prop_map(str::to_owned), 1 => any::<String>()],
        0..8,
    )
    .prop_map(|parts| parts.concat())
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from)
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        let key = prop::sample::select(vec![
            "command", "path", "content", "old_str", "new_str", "action", "edits", "patch", "query", "ts",
            "x",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..5).prop_map(|entries| entries
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<serde_json::Map<_, _>>()
                .into()),
        ]
    })
}

#[derive(Debug, Clone)]
enum Event {
    Call {
        tool: String,
        args: Value,
        output: String,
        stderr: bool,
        ended: u8,
        exit: Option<i32>,
        run: Option<u8>,
        outcome: bool,
    },
    UserTurn,
    Compaction,
}

fn event() -> impl Strategy<Value = Event> {
    let tools = [
        "bash",
        "exec",
        "edit_file",
        "write",
        "apply_patch",
        "process",
        "read",
        "<format_error>",
        "",
        "execute_sql",
        "ghost",
    ];
    let tool =
        prop_oneof![8 => prop::sample::select(tools.to_vec()).prop_map(str::to_owned), 1 => any::<String>()];
    let call = (
        tool,
        json_value(),
        text(),
        any::<bool>(),
        0_u8..5,
        any::<Option<i32>>(),
        prop::option::weighted(0.2, 0_u8..3),
        prop::bool::weighted(0.9),
    )
        .prop_map(|(tool, args, output, stderr, ended, exit, run, outcome)| Event::Call {
            tool,
            args,
            output,
            stderr,
            ended,
            exit,
            run,
            outcome,
        });
    prop_oneof![40 => call, 1 => Just(Event::UserTurn), 1 => Just(Event::Compaction)]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec((prop::collection::vec(event(), 1..5), 1_usize..8), 1..8)
        .prop_map(|parts| parts.into_iter().flat_map(|(part, times)| vec![part; times].concat()).collect())
}

fn play(detection: &mut LoopDetection, events: &[Event], from: usize) -> Vec<Decisions> {
    let mut said = Vec::new();
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::UserTurn => detection.note_user_turn(),
            Event::Compaction => detection.note_compaction(),
            Event::Call { tool, args, output, stderr, ended, exit, run, outcome } => {
                let run = run.map(|run| Fingerprint::of(&run.to_string()));
                let facts = CallFacts::new(
                    &format!("c{}", from + at),
                    tool,
                    args,
                    &ToolTraits::default(),
                    &[],
                    Some("/w"),
                )
                .in_run(run);
                let before = detection.before_call(&facts);
                let refused = before.refusal().is_some();
                said.push(before);
                if refused || !outcome {
                    continue;
                }
                let mut builder = OutcomeBuilder::new();
                builder.push(if *stderr { Output::Stderr } else { Output::Stdout }, output.as_bytes());
                let ended =
                    [Ended::Ok, Ended::Failed, Ended::UnknownTool, Ended::InvalidArgs, Ended::NotCounted]
                        [usize::from(*ended)];
                said.push(detection.after_call(&facts, &builder.finish(&facts, ended, *exit)));
            }
        }
    }
    said
}

fn config(strategy: LoopStrategy) -> Arc<LoopConfig> {
    let block = LoopBlock {
        enabled: Some(true),
        strategy: Some(strategy),
        max_edits_per_file: Some(3),
        max_calls: Some(200),
        ..LoopBlock::default()
    };
    Arc::new(LoopConfig::resolve(&block))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_panics_and_memory_stays_bounded(events in events()) {
        for strategy in [LoopStrategy::Classic, LoopStrategy::Progress] {
            let mut detection = LoopDetection::new(config(strategy));
            play(&mut detection, &events, 0);
            prop_assert!(detection.state().bytes() <= MAX_BYTES, "{} bytes", detection.state().bytes());
        }
    }

    #[test]
    fn a_stored_state_goes_on_as_if_nothing_had_happened(events in events(), cut in any::<prop::sample::Index>()) {
        for strategy in [LoopStrategy::Classic, LoopStrategy::Progress] {
            let cut = cut.index(events.len());
            let mut whole = LoopDetection::new(config(strategy));
            let mut said = play(&mut whole, &events[..cut], 0);
            said.extend(play(&mut whole, &events[cut..], cut));

            let mut before = LoopDetection::new(config(strategy));
            let mut again = play(&mut before, &events[..cut], 0);
            let stored = serde_json::to_string(before.state()).expect("a state can be stored");
            let state: LoopState = serde_json::from_str(&stored).expect("and read back");
            let mut after = LoopDetection::restore(config(strategy), state);
            again.extend(play(&mut after, &events[cut..], cut));
            prop_assert_eq!(said, again);
        }
    }

    #[test]
    fn output_in_pieces_is_the_same_output(output in text(), piece in 1_usize..20, stderr in text()) {
        let facts = CallFacts::new("c", "bash", &json!({"command": "x"}), &ToolTraits::default(), &[], None);
        let mut whole = OutcomeBuilder::new();
        whole.push(Output::Stdout, output.as_bytes());
        whole.push(Output::Stderr, stderr.as_bytes());
        let mut pieces = OutcomeBuilder::new();
        // The other order, too: which output comes first says nothing.
        pieces.push(Output::Stderr, stderr.as_bytes());
        for piece in output.as_bytes().chunks(piece) {
            pieces.push(Output::Stdout, piece);
        }
        pieces.push(Output::Stdout, b"");
        let (whole, pieces) = (whole.finish(&facts, Ended::Failed, Some(1)), pieces.finish(&facts, Ended::Failed, Some(1)));
        prop_assert_eq!((whole.digest, whole.classic, whole.error), (pieces.digest, pieces.classic, pieces.error));
    }

    #[test]
    fn no_configuration_panics_in_either_reading(value in json_value()) {
        let lenient = LoopBlock::parse(&value, Reading::Lenient).expect("lenient reading refuses nothing");
        let resolved = LoopConfig::resolve(&lenient);
        prop_assert!(resolved.rolling.critical > resolved.rolling.warning && resolved.rolling.global > resolved.rolling.critical);
        let _ = LoopBlock::parse(&value, Reading::Strict);
    }
}

#[test]
fn memory_stays_bounded_in_a_long_session_of_ever_new_calls() {
    let mut detection = LoopDetection::new(config(LoopStrategy::Progress));
    let mut most = 0;
    for i in 0..20_000 {
        let id = format!("call-{i}-{}", "x".repeat(200));
        let args =
            json!({"command": "str_replace", "path": format!("/f{i}"), "old_str": "a", "new_str": "b"});
        let facts =
            CallFacts::new(&id, &format!("edit_{}", i % 500), &args, &ToolTraits::default(), &[], None);
        detection.before_call(&facts);
        let mut builder = OutcomeBuilder::new();
        builder.push(Output::Stdout, format!("error {}", "y".repeat(i % 300)).as_bytes());
        let ended = if i % 3 == 0 { Ended::Failed } else { Ended::Ok };
        detection.after_call(&facts, &builder.finish(&facts, ended, None));
        most = most.max(detection.state().bytes());
    }
    assert!(most <= MAX_BYTES, "{most} bytes");
    assert!(most > 10_000, "the estimate counts the tables: {most} bytes");
}
