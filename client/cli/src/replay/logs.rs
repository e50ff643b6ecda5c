//! placeholder
use super::input::Unknown;
use super::record::Run;
use serde_json::Value;
use std::path::Path;
pub struct Logs;
impl Logs {
    pub fn new(_: &Path) -> Self {
        Self
    }
    pub fn entry(
        &mut self,
        _v: &Value,
        place: &dyn Fn() -> String,
        unknown: &mut Unknown,
        _each: &mut dyn FnMut(Run),
    ) {
        unknown.add("entry".to_owned(), place);
    }
    pub fn finish(self, _: &mut Unknown, _: &mut dyn FnMut(Run)) {}
}
