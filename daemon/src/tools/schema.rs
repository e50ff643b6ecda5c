//! A tool's JSON Schema: compiled once, then asked for every call.
//!
//! Dialect 2020-12, references only within the schema itself (nothing is ever fetched), patterns of the kind that
//! match in linear time, bounded size and depth: a schema cannot make the daemon wait. Rendering of what does not
//! fit is in `explain`.

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::{Map, Value};
use thiserror::Error;
use toolcell_protocol::limits::MAX_ARGS_BYTES;

use super::explain;
use super::{ArgsProblem, cut};

/// Largest JSON text of a schema.
pub const MAX_SCHEMA_BYTES: usize = 64 * 1024;

/// Deepest nesting of a schema.
pub const MAX_SCHEMA_DEPTH: usize = 32;

/// Longest text of an [`ArgsProblem`].
pub const MAX_PROBLEM_BYTES: usize = 1024;

/// Arguments longer than this are described by their first problem only: finding all of them takes memory in
/// proportion to the arguments, and a model may send megabytes.
const MAX_FULL_REPORT_BYTES: usize = 64 * 1024;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SchemaError {
    /// Larger than [`MAX_SCHEMA_BYTES`].
    #[error("the schema has {bytes} bytes as JSON; at most {MAX_SCHEMA_BYTES} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Deeper than [`MAX_SCHEMA_DEPTH`].
    #[error("the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep; make it flatter")]
    TooDeep,
    /// The root is something else than an object's schema.
    #[error(
        "the root of the schema must have type = \"object\", since arguments are an object; it has {found}"
    )]
    RootNotObject {
        /// What there is, in words.
        found: String,
    },
    /// `$schema` names another dialect.
    #[error(
        "$schema names {found:?}; schemas are read as JSON Schema 2020-12. Remove $schema, or convert the schema \
         and write {DIALECT:?}"
    )]
    Dialect {
        /// What it names.
        found: String,
    },
    /// A reference leads out of the schema.
    #[error(
        "{at}: reference to {reference:?}; only references within the schema (\"#/$defs/…\") are followed. Copy \
         what it refers to into $defs"
    )]
    Reference {
        /// JSON pointer into the schema.
        at: String,
        /// The reference.
        reference: String,
    },
    /// Not a valid schema.
    #[error("{at}: {message}")]
    Invalid {
        /// JSON pointer into the schema.
        at: String,
        /// What is wrong.
        message: String,
    },
}

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    value: Value,
    text: String,
    validator: Validator,
    has_alternatives: bool,
}

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// [`SchemaError`], which says where and what to do.
    pub fn compile(value: Value) -> Result<Self, SchemaError> {
        let text = value.to_string();
        if text.len() > MAX_SCHEMA_BYTES {
            return Err(SchemaError::TooLarge { bytes: text.len() });
        }
        let mut has_alternatives = false;
        inspect(&value, &mut String::new(), 0, &mut has_alternatives)?;
        check_root(&value)?;
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(PatternOptions::regex().size_limit(1 << 20).dfa_size_limit(1 << 20))
            .offline()
            .build(&value)
            .map_err(|error| SchemaError::Invalid {
                at: root_as_words(error.instance_path().as_str()),
                message: cut(&error.masked_with("this value").to_string(), MAX_PROBLEM_BYTES).into_owned(),
            })?;
        Ok(Self { value, text, validator, has_alternatives })
    }

    /// The schema as JSON text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The schema.
    #[must_use]
    pub const fn value(&self) -> &Value {
        &self.value
    }

    /// The schema of one argument.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&Value> {
        self.value.get("properties")?.get(name)
    }

    /// The names of the arguments that it declares.
    pub fn property_names(&self) -> impl Iterator<Item = &str> {
        self.value
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(Map::keys)
            .map(String::as_str)
    }

    /// Whether an argument must be given.
    #[must_use]
    pub fn is_required(&self, name: &str) -> bool {
        self.required().any(|required| required == name)
    }

    /// The names of the arguments that must be given.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        let names = self.value.get("required").and_then(Value::as_array);
        names.into_iter().flatten().filter_map(Value::as_str)
    }

    /// The `default`s of its arguments.
    #[must_use]
    pub fn defaults(&self) -> Map<String, Value> {
        let properties = self.value.get("properties").and_then(Value::as_object);
        properties
            .into_iter()
            .flatten()
            .filter_map(|(name, schema)| Some((name.clone(), schema.get("default")?.clone())))
            .collect()
    }

    /// Reads the JSON text of a call's arguments and checks them.
    ///
    /// # Errors
    /// [`ArgsProblem`] for the model.
    pub fn read_args(&self, text: &str) -> Result<Value, ArgsProblem> {
        if text.len() > MAX_ARGS_BYTES {
            return Err(explain::whole(format!(
                "The arguments have {} bytes; at most {MAX_ARGS_BYTES} are allowed. Send less, or put the data into \
                 a file and name the file.",
                text.len()
            )));
        }
        if text.trim_ascii().is_empty() {
            return Err(explain::whole(format!("The arguments are empty. {}", explain::expected(self))));
        }
        let value: Value =
            serde_json::from_str(text).map_err(|error| explain::not_json(self, text, &error))?;
        if !value.is_object() {
            return Err(explain::not_an_object(self, &value));
        }
        if self.validator.is_valid(&value) {
            return Ok(value);
        }
        Err(self.problem(&value, text.len()))
    }

    fn problem(&self, args: &Value, args_bytes: usize) -> ArgsProblem {
        if args_bytes <= MAX_FULL_REPORT_BYTES {
            let errors: Vec<_> = self.validator.iter_errors(args).collect();
            return explain::violations(self, args, &errors);
        }
        // Alternatives keep the problems of all their branches even when only the first problem is asked for.
        match (self.has_alternatives, self.validator.validate(args)) {
            (false, Err(error)) => explain::violations(self, args, &[error]),
            _ => explain::whole(format!(
                "The arguments do not fit the tool's schema, and are too large ({args_bytes} bytes) to say exactly \
                 where. {}",
                explain::expected(self)
            )),
        }
    }

    /// What providers of models are known to refuse or to cut: warnings, since toolcell itself takes it.
    #[must_use]
    pub fn provider_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for keyword in ["oneOf", "anyOf", "allOf", "not", "enum", "$ref"] {
            if self.value.get(keyword).is_some() {
                warnings.push(format!(
                    "input_schema has {keyword} at its root, which several providers refuse for the whole \
                     request; move it into a property"
                ));
            }
        }
        for name in self.property_names() {
            let fits = name.len() <= 64
                && !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
            if !fits {
                warnings.push(format!(
                    "input_schema has a property {:?}; several providers refuse names beyond [A-Za-z0-9_.-]{{1,64}}",
                    cut(name, 100)
                ));
            }
        }
        for name in self.required().filter(|name| self.property(name).is_none()) {
            warnings.push(format!(
                "input_schema requires {:?} and does not declare it in properties; a model cannot know what it is",
                cut(name, 100)
            ));
        }
        warnings
    }
}

/// The JSON pointer to a property of the root.
#[must_use]
pub fn pointer_to(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn root_as_words(pointer: &str) -> String {
    if pointer.is_empty() { "the schema's root".to_owned() } else { pointer.to_owned() }
}

fn check_root(value: &Value) -> Result<(), SchemaError> {
    if let Some(found) = value.get("$schema").and_then(Value::as_str)
        && found.trim_end_matches('#') != DIALECT
    {
        return Err(SchemaError::Dialect { found: cut(found, 200).into_owned() });
    }
    match value.get("type") {
        Some(Value::String(kind)) if kind == "object" => Ok(()),
        found => Err(SchemaError::RootNotObject {
            found: match found {
                None => "no type".to_owned(),
                Some(other) => format!("type = {}", cut(&other.to_string(), 100)),
            },
        }),
    }
}

/// Depth, references, and whether there are alternatives.
fn inspect(
    value: &Value,
    at: &mut String,
    depth: usize,
    has_alternatives: &mut bool,
) -> Result<(), SchemaError> {
    if depth > MAX_SCHEMA_DEPTH {
        return Err(SchemaError::TooDeep);
    }
    let parent = at.len();
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                at.push_str(&pointer_to(key));
                match (key.as_str(), inner) {
                    ("$ref" | "$dynamicRef", Value::String(reference)) if !reference.starts_with('#') => {
                        return Err(SchemaError::Reference {
                            at: cut(at, 200).into_owned(),
                            reference: cut(reference, 200).into_owned(),
                        });
                    }
                    ("anyOf" | "oneOf", Value::Array(_)) => *has_alternatives = true,
                    _ => {}
                }
                inspect(inner, at, depth + 1, has_alternatives)?;
                at.truncate(parent);
            }
        }
        Value::Array(items) => {
            for (index, inner) in items.iter().enumerate() {
                at.push('/');
                at.push_str(&index.to_string());
                inspect(inner, at, depth + 1, has_alternatives)?;
                at.truncate(parent);
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
