//! `write_file`: all of a file at once.

use std::borrow::Cow;
use std::path::Path;

use serde::Deserialize;

use super::Failure;
use super::path::resolve;
use super::replace::Target;

/// Arguments of `write_file`.
#[derive(Debug, Deserialize)]
pub(super) struct Args<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow)]
    content: Cow<'a, str>,
}

pub(super) fn run(args: &Args<'_>, cwd: &Path) -> Result<Vec<u8>, Failure> {
    let target = Target::open(&resolve(&args.path, cwd)?, false)?;
    let shown = target.path.display().to_string();
    let before = target.existing.as_ref().map(|existing| existing.metadata.len());
    target.write(args.content.as_bytes())?;
    let bytes = args.content.len();
    let lines = args.content.lines().count();
    Ok(match before {
        None => format!("created {shown}: {lines} lines, {bytes} bytes\n"),
        Some(before) => format!("replaced {shown}: {lines} lines, {bytes} bytes (before: {before} bytes)\n"),
    }
    .into_bytes())
}
