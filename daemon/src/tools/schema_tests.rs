use proptest::prelude::*;
use serde_json::json;

use super::*;

fn schema(value: Value) -> Schema {
    Schema::compile(value).expect("compiles")
}

fn search() -> Schema {
    schema(json!({
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "minLength": 1, "description": "What to look for."},
            "path": {"type": "string"},
            "mode": {"enum": ["fast", "deep"]},
            "limit": {"type": ["integer", "null"], "minimum": 1},
            "filter": {"type": "object", "properties": {"ext": {"type": "string"}}, "additionalProperties": false},
            "size": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[0-9]+k$"}]},
        },
        "required": ["pattern", "path"],
        "additionalProperties": false,
    }))
}

fn problem(args: &str) -> ArgsProblem {
    let problem = search().read_args(args).expect_err("does not fit");
    assert!(problem.message.len() <= MAX_PROBLEM_BYTES, "{} bytes", problem.message.len());
    problem
}

#[test]
fn arguments_that_fit_come_back_as_a_value() {
    let args = search().read_args(r#" {"path": "a", "pattern": "b", "limit": 5} "#).expect("fits");
    assert_eq!(args, json!({"path": "a", "pattern": "b", "limit": 5}));
}

#[test]
fn no_arguments_at_all_say_what_is_expected() {
    for args in ["", "  \n"] {
        let problem = problem(args);
        assert_eq!(problem.field, None);
        assert_eq!(
            problem.message,
            r#"The arguments are empty. Expected a JSON object like {"pattern": "…", "path": "…"}."#
        );
    }
}

#[test]
fn arguments_that_are_cut_off_say_so_and_nothing_else() {
    for args in
        [r#"{"path": "a", "pattern": "#, r#"{"path": "a", "patt"#, "{", r#"{"a": [1, 2"#, r#"{"a": "x\"#]
    {
        let problem = problem(args);
        assert_eq!(problem.field, None);
        assert!(problem.message.contains("are cut off"), "{args}: {}", problem.message);
        assert!(problem.message.contains(&format!("after {} bytes", args.len())), "{}", problem.message);
    }
}

#[test]
fn text_that_is_not_json_names_the_place() {
    let message = problem(r#"{"path": 'a', "pattern": "b"}"#).message;
    assert!(message.contains("not JSON") && message.contains("line 1 column 10"), "{message}");
    assert!(message.contains("'a'") || message.contains(r#"\"path\""#), "{message}");
    for args in ["path=a", "{\"a\": €}", "{\"a\": 1}}", "{\"a\": NaN}", "\u{feff}{}", "{\"a\":\"€€€\n\"}"]
    {
        assert!(problem(args).message.contains("not JSON"), "{args}");
    }
}

#[test]
fn something_else_than_an_object_says_what_it_is() {
    assert!(problem("[1, 2]").message.starts_with("The arguments are an array of 2 items."));
    assert!(problem("null").message.starts_with("The arguments are null."));
    assert!(problem("\"ls\"").message.starts_with("The arguments are the string \"ls\"."));
    assert!(problem(r#""{\"path\": \"a\"}""#).message.contains("encoded twice"));
}

#[test]
fn a_missing_field_is_named_with_its_meaning() {
    let problem = problem(r#"{"path": "a"}"#);
    assert_eq!(problem.field.as_deref(), Some("/pattern"));
    assert_eq!(problem.message, "/pattern is missing and must be given. It means: What to look for.");
}

#[test]
fn a_field_of_another_type_is_named_with_both_types() {
    let first = problem(r#"{"path": "a", "pattern": 5}"#);
    assert_eq!(first.field.as_deref(), Some("/pattern"));
    assert_eq!(first.message, "/pattern must be of type string, and is 5. It means: What to look for.");
    let second = problem(r#"{"path": "a", "pattern": "b", "limit": "ten"}"#);
    assert_eq!(second.field.as_deref(), Some("/limit"));
    assert!(second.message.contains("of type null or integer"), "{}", second.message);
    assert!(second.message.contains("the string \"ten\""), "{}", second.message);
}

#[test]
fn an_unknown_field_is_named_with_the_known_ones_and_the_nearest() {
    let problem = problem(r#"{"path": "a", "patern": "b"}"#);
    assert_eq!(problem.field.as_deref(), Some("/pattern"), "{}", problem.message);
    assert!(problem.message.contains("/patern is not an argument of this tool. Did you mean \"pattern\"?"));
    assert!(
        problem.message.contains("It takes: filter, limit, mode, path, pattern, size."),
        "{}",
        problem.message
    );
}

#[test]
fn a_field_within_a_field_has_its_whole_pointer() {
    let problem = problem(r#"{"path": "a", "pattern": "b", "filter": {"ext": 1}}"#);
    assert_eq!(problem.field.as_deref(), Some("/filter/ext"));
    let problem = self::problem(r#"{"path": "a", "pattern": "b", "filter": {"a/b~c": 1}}"#);
    assert_eq!(problem.field.as_deref(), Some("/filter/a~1b~0c"));
}

#[test]
fn values_and_bounds_that_do_not_fit_name_what_would() {
    let message = problem(r#"{"path": "a", "pattern": "b", "mode": "slow"}"#).message;
    assert_eq!(message, r#"/mode must be one of ["fast","deep"], and is the string "slow"."#);
    let message = problem(r#"{"path": "a", "pattern": "b", "limit": 0}"#).message;
    assert_eq!(message, "/limit does not fit: is less than the minimum of 1. It is 0.");
    let message = problem(r#"{"path": "a", "pattern": ""}"#).message;
    assert!(message.contains("/pattern does not fit: is shorter than 1 character"), "{message}");
    let message = problem(r#"{"path": "a", "pattern": "b", "size": true}"#).message;
    assert!(message.contains("/size fits none of the 2 forms"), "{message}");
    assert!(message.contains("Form 1: /size must be of type integer, and is true."), "{message}");
}

#[test]
fn several_problems_are_told_at_once_and_a_flood_of_them_is_cut() {
    let message = problem(r#"{"path": 1, "pattern": 2, "mode": 3, "limit": "x", "size": []}"#).message;
    assert_eq!(message.matches("\nAlso: ").count(), 3, "{message}");
    assert!(message.ends_with("\nAnd 1 more."), "{message}");
    let many = schema(json!({"type": "object", "additionalProperties": {"type": "string"}}));
    let flood: Map<String, Value> =
        (0..2_000).map(|n| (format!("{n}{}", "x".repeat(300)), json!(n))).collect();
    let problem = many.read_args(&Value::from(flood).to_string()).expect_err("no strings");
    assert!(problem.message.len() <= MAX_PROBLEM_BYTES && problem.field.is_some());
}

#[test]
fn arguments_of_megabytes_are_refused_in_words_as_well() {
    let list = schema(json!({
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"type": "string"}}},
    }));
    let args = json!({"items": vec![1; 200_000]}).to_string();
    let problem = list.read_args(&args).expect_err("no strings");
    assert_eq!(problem.field.as_deref(), Some("/items/0"));
    let either = schema(json!({
        "type": "object",
        "properties": {"items": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}},
    }));
    let problem = either.read_args(&args).expect_err("no strings");
    assert!(problem.message.contains("too large (400011 bytes)"), "{}", problem.message);
    let problem = either.read_args(&" ".repeat(MAX_ARGS_BYTES + 1)).expect_err("too long");
    assert!(problem.message.contains("at most 4194304 are allowed"), "{}", problem.message);
}

#[test]
fn deep_nesting_is_refused_and_does_not_use_up_the_stack() {
    let any = schema(json!({"type": "object"}));
    let args = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(any.read_args(&args).expect_err("too deep").message.contains("recursion limit"));
}

#[test]
fn a_root_that_is_no_objects_schema_is_refused() {
    for (value, found) in [
        (json!({"properties": {}}), "it has no type"),
        (json!({"type": "array"}), "type = \"array\""),
        (json!({"type": ["object", "null"]}), "type = [\"object\",\"null\"]"),
        (json!(true), "it has no type"),
    ] {
        let error = Schema::compile(value).expect_err("no object").to_string();
        assert!(error.contains(found), "{error}");
    }
}

#[test]
fn nothing_outside_the_schema_is_referred_to() {
    let value = json!({"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}});
    let error = Schema::compile(value).expect_err("not fetched").to_string();
    assert!(error.contains("/properties/a/$ref") && error.contains("https://example.com/a.json"), "{error}");
    assert!(Schema::compile(json!({"type": "object", "$ref": "file:///etc/passwd"})).is_err());
    let own = json!({
        "type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}},
    });
    let problem = schema(own).read_args(r#"{"a": "x"}"#).expect_err("no integer");
    assert_eq!(problem.field.as_deref(), Some("/a"));
    // A property that is called like the keyword is none.
    assert!(Schema::compile(json!({"type": "object", "properties": {"$ref": {"type": "string"}}})).is_ok());
}

#[test]
fn another_dialect_is_refused_and_the_own_one_may_be_named() {
    let draft7 = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"});
    assert!(Schema::compile(draft7).expect_err("draft 7").to_string().contains("Remove $schema"));
    assert!(Schema::compile(json!({"$schema": DIALECT, "type": "object"})).is_ok());
}

#[test]
fn a_schema_with_an_error_says_where() {
    let error = Schema::compile(json!({"type": "object", "properties": {"a": {"type": "strin"}}}));
    let error = error.expect_err("no such type").to_string();
    assert!(error.starts_with("/properties/a/type: "), "{error}");
    let pattern = json!({"type": "object", "properties": {"a": {"pattern": "(?=look)ahead"}}});
    let error = Schema::compile(pattern).expect_err("look-around").to_string();
    assert!(error.contains("pattern") || error.contains("regex"), "{error}");
}

#[test]
fn schemas_are_bounded_in_size_and_depth() {
    let large = json!({"type": "object", "description": "x".repeat(MAX_SCHEMA_BYTES)});
    assert!(matches!(Schema::compile(large), Err(SchemaError::TooLarge { .. })));
    let mut deep = json!({"type": "string"});
    for _ in 0..MAX_SCHEMA_DEPTH {
        deep = json!({"type": "array", "items": deep});
    }
    let deep = json!({"type": "object", "properties": {"a": deep}});
    assert_eq!(Schema::compile(deep).expect_err("deep"), SchemaError::TooDeep);
}

#[test]
fn what_providers_refuse_is_a_warning() {
    let schema = schema(json!({
        "type": "object", "properties": {"a b": {}}, "required": ["c"], "anyOf": [{"required": ["c"]}],
    }));
    let warnings = schema.provider_warnings();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(
        warnings[0].contains("anyOf") && warnings[1].contains("\"a b\"") && warnings[2].contains("\"c\"")
    );
    assert_eq!(search().provider_warnings(), Vec::<String>::new());
}

proptest! {
    #[test]
    fn every_text_gives_an_object_or_a_problem_of_bounded_length(args in ".{0,300}") {
        match search().read_args(&args) {
            Ok(value) => prop_assert!(value.is_object()),
            Err(problem) => prop_assert!(problem.message.len() <= MAX_PROBLEM_BYTES),
        }
    }

    #[test]
    fn every_cut_of_good_arguments_is_a_problem(at in 0usize..40) {
        let args = r#"{"path": "a", "pattern": "b€", "limit": 5}"#;
        let at = args.floor_char_boundary(at);
        prop_assert!(search().read_args(&args[..at]).is_err());
    }
}
