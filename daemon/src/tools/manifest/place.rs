//! From an offset in a manifest's text to line, column and key.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ManifestError;
use crate::tools::cut;

/// Longest text of an error; a list of all known keys must fit.
const MAX_MESSAGE_BYTES: usize = 1024;

/// A manifest's text.
pub(super) struct Place<'a> {
    text: &'a str,
}

impl<'a> Place<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text }
    }

    /// An error at the place of a value.
    pub(super) fn error<T>(&self, at: &Spanned<T>, message: &str) -> ManifestError {
        self.error_at(at.span().start, message)
    }

    /// An error about a key that is not there.
    pub(super) fn error_at_start(&self, key: &str, error: &impl ToString) -> ManifestError {
        ManifestError { line: 1, column: 1, key: Some(key.to_owned()), message: error.to_string() }
    }

    /// What the TOML reader or serde says, with what to do.
    pub(super) fn of_toml_error(&self, error: &toml::de::Error) -> ManifestError {
        let message = error.message();
        let advice = if let Some(key) = between(message, "missing field `", "`") {
            return ManifestError {
                line: 1,
                column: 1,
                key: Some(key.to_owned()),
                message: "the key is missing; every manifest needs name, description and command".to_owned(),
            };
        } else if let Some(unknown) = between(message, "unknown field `", "`") {
            let known = message.split('`').skip(3).step_by(2);
            match super::nearest::nearest(unknown, known).first() {
                Some(near) => format!("; did you mean `{near}`?"),
                None => "; remove it or use one of these".to_owned(),
            }
        } else {
            String::new()
        };
        let message = message.trim().replace('\n', ", ");
        self.error_at(error.span().map_or(0, |span| span.start), &format!("{message}{advice}"))
    }

    fn error_at(&self, offset: usize, message: &str) -> ManifestError {
        let offset = self.text.floor_char_boundary(offset.min(self.text.len()));
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let key = DeTable::parse(self.text).ok().and_then(|table| key_in_table(table.get_ref(), offset));
        ManifestError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            key,
            message: cut(message, MAX_MESSAGE_BYTES).into_owned(),
        }
    }
}

/// The dotted key whose name or value covers the offset.
fn key_in_table(table: &DeTable<'_>, offset: usize) -> Option<String> {
    for (key, value) in table {
        let name = key.get_ref();
        let inner = match value.get_ref() {
            DeValue::Table(table) => key_in_table(table, offset).map(|inner| format!("{name}.{inner}")),
            _ => None,
        };
        if inner.is_some() {
            return inner;
        }
        if key.span().contains(&offset) || value.span().contains(&offset) {
            return Some(name.to_string());
        }
    }
    None
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let rest = &text[text.find(before)? + before.len()..];
    Some(&rest[..rest.find(after)?])
}
