//! Arguments that do not fit, in words for the model: which field, what is wrong, what is expected.

use std::fmt::Write as _;

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use serde_json::Value;

use super::nearest;
use super::schema::{MAX_PROBLEM_BYTES, Schema, pointer_to};
use super::{ArgsProblem, cut};

/// Problems that one message lists.
const MAX_LISTED: usize = 4;

/// Longest excerpt of a value or a list in a message.
const MAX_EXCERPT_BYTES: usize = 160;

/// A problem of the arguments as a whole.
pub(super) fn whole(message: String) -> ArgsProblem {
    ArgsProblem { field: None, message: cut(&message, MAX_PROBLEM_BYTES).into_owned() }
}

/// What a tool wants, with an example.
pub(super) fn expected(schema: &Schema) -> String {
    let example = example(schema);
    match schema.required().next() {
        Some(_) => format!("Expected a JSON object like {example}."),
        None => format!("Expected a JSON object; {example} is enough when nothing needs to be said."),
    }
}

/// An object with all required arguments.
fn example(schema: &Schema) -> String {
    let mut text = String::from("{");
    for name in schema.required() {
        let property = schema.property(name);
        let value = property.map_or_else(|| "\"…\"".to_owned(), example_value);
        let separator = if text.len() > 1 { ", " } else { "" };
        if text.len() + name.len() + value.len() > MAX_EXCERPT_BYTES {
            text.push_str(", …");
            break;
        }
        let _ = write!(text, "{separator}{}: {value}", Value::from(name));
    }
    text.push('}');
    text
}

fn example_value(schema: &Value) -> String {
    let given = schema
        .get("default")
        .or_else(|| schema.get("const"))
        .or_else(|| schema.get("enum").and_then(|options| options.get(0)));
    if let Some(value) = given {
        return value.to_string();
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("integer") => "1",
        Some("number") => "1.5",
        Some("boolean") => "true",
        Some("array") => "[]",
        Some("object") => "{}",
        Some("null") => "null",
        _ => "\"…\"",
    }
    .to_owned()
}

/// Text that is not JSON, or only the beginning of it.
pub(super) fn not_json(schema: &Schema, text: &str, error: &serde_json::Error) -> ArgsProblem {
    if error.is_eof() {
        return whole(format!(
            "The arguments are cut off: the JSON text ends in the middle, after {} bytes. Most often the model's \
             output limit was reached. Send the call again with the whole arguments, in smaller pieces if they \
             are long.",
            text.len()
        ));
    }
    let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
    // The column counts bytes from 1.
    let at = line.floor_char_boundary(error.column().saturating_sub(1).min(line.len()));
    let from = line.floor_char_boundary(at.saturating_sub(30));
    let to = line.floor_char_boundary((at + 30).min(line.len()));
    whole(format!("The arguments are not JSON: {error}, near {:?}. {}", &line[from..to], expected(schema)))
}

/// JSON, and not an object.
pub(super) fn not_an_object(schema: &Schema, value: &Value) -> ArgsProblem {
    if let Value::String(inner) = value
        && serde_json::from_str::<Value>(inner).is_ok_and(|inner| inner.is_object())
    {
        return whole(
            "The arguments are an object that was encoded twice: a JSON string that holds the object's text. Send \
             the object itself."
                .to_owned(),
        );
    }
    whole(format!("The arguments are {}. {}", describe(value), expected(schema)))
}

/// What does not fit the schema; `errors` are in the validator's order and at least one.
pub(super) fn violations(schema: &Schema, args: &Value, errors: &[ValidationError<'_>]) -> ArgsProblem {
    let Some(first) = errors.first() else {
        return whole(format!("The arguments do not fit the tool's schema. {}", expected(schema)));
    };
    let (field, mut message) = violation(schema, args, first, true);
    for error in &errors[1..errors.len().min(MAX_LISTED)] {
        let (_, more) = violation(schema, args, error, true);
        let _ = write!(message, "\nAlso: {more}");
    }
    if errors.len() > MAX_LISTED {
        let _ = write!(message, "\nAnd {} more.", errors.len() - MAX_LISTED);
    }
    ArgsProblem { field: Some(field), message: cut(&message, MAX_PROBLEM_BYTES).into_owned() }
}

/// One problem: the pointer to the field it is about, and a sentence. With `forms` also why each alternative
/// does not fit; only at the outermost level, since alternatives within alternatives multiply.
fn violation(schema: &Schema, args: &Value, error: &ValidationError<'_>, forms: bool) -> (String, String) {
    let at = error.instance_path().as_str();
    let here = if at.is_empty() { "The object".to_owned() } else { cut(at, MAX_EXCERPT_BYTES).into_owned() };
    let value = args.pointer(at).unwrap_or(&Value::Null);
    let is = describe(value);
    match error.kind() {
        Kind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            let field = format!("{at}{}", pointer_to(name));
            let about = meaning(schema.value(), &format!("{}/properties{}", parent(error), pointer_to(name)));
            (
                field.clone(),
                format!("{} is missing and must be given.{about}", cut(&field, MAX_EXCERPT_BYTES)),
            )
        }
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            unexpected_names(schema, error, at, unexpected)
        }
        Kind::Type { kind } => {
            let wanted = match kind {
                TypeKind::Single(kind) => kind.to_string(),
                TypeKind::Multiple(kinds) => {
                    kinds.iter().map(|kind| kind.to_string()).collect::<Vec<_>>().join(" or ")
                }
            };
            let about = meaning(schema.value(), parent(error));
            (at.to_owned(), format!("{here} must be of type {wanted}, and is {is}.{about}"))
        }
        Kind::Enum { options } => {
            let options = options.to_string();
            let sentence =
                format!("{here} must be one of {}, and is {is}.", cut(&options, MAX_EXCERPT_BYTES));
            (at.to_owned(), sentence)
        }
        Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
            let mut sentence = format!("{here} fits none of the {} forms that it may have.", context.len());
            for (index, errors) in context.iter().take(if forms { 3 } else { 0 }).enumerate() {
                if let Some(first) = errors.first() {
                    let (_, why) = violation(schema, args, first, false);
                    let _ = write!(sentence, " Form {}: {}", index + 1, cut(&why, MAX_EXCERPT_BYTES));
                }
            }
            (at.to_owned(), sentence)
        }
        _ => {
            let what = error.masked_with("this value").to_string();
            let what =
                cut(what.strip_prefix("this value ").unwrap_or(&what), MAX_EXCERPT_BYTES * 2).into_owned();
            let about = meaning(schema.value(), parent(error));
            (at.to_owned(), format!("{here} does not fit: {what}. It is {is}.{about}"))
        }
    }
}

fn unexpected_names(
    schema: &Schema,
    error: &ValidationError<'_>,
    at: &str,
    unexpected: &[String],
) -> (String, String) {
    let name = unexpected.first().map_or("", String::as_str);
    let field = format!("{at}{}", pointer_to(name));
    let declared = schema.value().pointer(&format!("{}/properties", parent(error)));
    let known: Vec<&str> = declared
        .and_then(Value::as_object)
        .map(|map| map.keys().map(String::as_str).collect())
        .unwrap_or_default();
    let mut sentence = format!("{} is not an argument of this tool.", cut(&field, MAX_EXCERPT_BYTES));
    if unexpected.len() > 1 {
        let others = unexpected[1..].join(", ");
        let _ = write!(sentence, " Neither are: {}.", cut(&others, MAX_EXCERPT_BYTES));
    }
    if let Some(near) = nearest::nearest(name, known.iter().copied()).first() {
        let _ = write!(sentence, " Did you mean {near:?}?");
    }
    if known.is_empty() {
        sentence.push_str(" It takes none.");
    } else {
        let _ = write!(sentence, " It takes: {}.", cut(&known.join(", "), MAX_EXCERPT_BYTES));
    }
    (field, sentence)
}

/// Where in the schema the keyword stands that was violated, without the keyword.
fn parent<'a>(error: &'a ValidationError<'_>) -> &'a str {
    let path = error.schema_path().as_str();
    path.rfind('/').map_or("", |end| &path[..end])
}

/// The description that a schema gives of a field.
fn meaning(schema: &Value, at: &str) -> String {
    match schema.pointer(at).and_then(|field| field.get("description")).and_then(Value::as_str) {
        Some(text) if !text.is_empty() => format!(" It means: {}", cut(text, MAX_EXCERPT_BYTES)),
        _ => String::new(),
    }
}

/// A value in a few words.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("{value}"),
        Value::String(text) if text.len() <= 60 => format!("the string {value}"),
        Value::String(text) => format!("a string of {} bytes", text.len()),
        Value::Array(items) => format!("an array of {} items", items.len()),
        Value::Object(map) => format!("an object with {} keys", map.len()),
    }
}
