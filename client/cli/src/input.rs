//! What is read before anything is run: arguments of a tool, files, the working directory, the environment.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;
use toolcell_client::protocol::limits::{MAX_ARGS_BYTES, MAX_FRAME_BYTES};

use crate::error::CliError;

/// The largest file that is worth reading: more does not fit one request.
const MAX_INPUT_BYTES: usize = 2 * MAX_FRAME_BYTES;

/// The arguments of `run`: nothing, JSON text, `@FILE` or `-`.
pub fn tool_args(given: Option<&str>) -> Result<String, CliError> {
    let (text, from) = match given {
        None => return Ok("{}".to_owned()),
        Some("-") => (text_file(Path::new("-"))?, "standard input"),
        Some(text) => match text.strip_prefix('@') {
            Some(path) => (text_file(Path::new(path))?, path),
            None => (text.to_owned(), "the command line"),
        },
    };
    object(&text).map_err(|why| CliError::Usage(format!("the tool's arguments from {from}: {why}")))?;
    Ok(text.trim().to_owned())
}

/// Checks that a text is one JSON object, not too large; says why not.
pub fn object(text: &str) -> Result<(), String> {
    if text.len() > MAX_ARGS_BYTES {
        return Err(format!("{} bytes, at most {MAX_ARGS_BYTES} are allowed", text.len()));
    }
    if text.trim().is_empty() {
        return Err("empty; an object without arguments is {}".to_owned());
    }
    let value: &RawValue = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    if value.get().starts_with('{') {
        Ok(())
    } else {
        Err(format!("a JSON object is needed, not {}", kind_of(value)))
    }
}

/// What a JSON value is, in words.
pub fn kind_of(value: &RawValue) -> &'static str {
    match value.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "true or false",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// A file's text; `-` is standard input.
pub fn text_file(path: &Path) -> Result<String, CliError> {
    let read_error = |source| CliError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let limit = MAX_INPUT_BYTES as u64 + 1;
    if path == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes).map_err(read_error)?;
    } else {
        let file = std::fs::File::open(path).map_err(read_error)?;
        file.take(limit).read_to_end(&mut bytes).map_err(read_error)?;
    }
    if bytes.len() > MAX_INPUT_BYTES {
        let what = path.display();
        return Err(CliError::Usage(format!("{what} has more than {MAX_INPUT_BYTES} bytes; split it")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        CliError::Usage(format!("{} is not UTF-8 from byte {at} on", path.display()))
    })
}

/// The absolute working directory of the session.
pub fn working_dir(given: Option<&Path>) -> Result<String, CliError> {
    let here = || {
        std::env::current_dir()
            .map_err(|error| CliError::Usage(format!("the working directory is gone ({error}); give --cwd")))
    };
    let path: PathBuf = match given {
        None => here()?,
        Some(path) if path.is_absolute() => path.to_owned(),
        Some(path) => here()?.join(path),
    };
    path.into_os_string()
        .into_string()
        .map_err(|path| CliError::Usage(format!("the working directory {} is not UTF-8", path.display())))
}

/// The variables of `--env`.
pub fn environment(given: &[String]) -> Result<Vec<(String, String)>, CliError> {
    let one = |text: &String| match text.split_once('=') {
        Some(("", _)) => Err(CliError::Usage(format!("--env {text}: the name is empty"))),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => match std::env::var(text) {
            Ok(value) => Ok((text.clone(), value)),
            Err(error) => Err(CliError::Usage(format!("--env {text}: {error}; write NAME=VALUE"))),
        },
    };
    given.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_as_text_or_from_a_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("args.json");
        std::fs::write(&path, " {\"a\": 1.0}\n").expect("written");
        assert_eq!(tool_args(None).expect("default"), "{}");
        assert_eq!(tool_args(Some("{\"a\": 1}")).expect("text"), "{\"a\": 1}");
        // Passed on as they are written: 1.0 stays 1.0.
        assert_eq!(tool_args(Some(&format!("@{}", path.display()))).expect("file"), "{\"a\": 1.0}");
        let error = tool_args(Some("@/missing/args.json")).expect_err("missing");
        assert!(error.to_string().contains("/missing/args.json"), "{error}");
    }

    #[test]
    fn arguments_that_are_no_object_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "empty"),
            ("{\"a\": }", "line 1 column 7"),
            ("[1]", "an array"),
            ("\"ls\"", "a string"),
            ("{} {}", "trailing"),
        ] {
            let error = tool_args(Some(text)).expect_err(text);
            assert!(error.to_string().contains(reason), "{text:?}: {error}");
            assert_eq!(error.exit_code(true), 2);
        }
    }

    #[test]
    fn a_relative_working_directory_is_taken_from_ours() {
        let here = std::env::current_dir().expect("there").join("sub");
        assert_eq!(working_dir(Some(Path::new("sub"))).expect("good"), here.to_str().expect("UTF-8"));
        assert_eq!(working_dir(Some(Path::new("/"))).expect("good"), "/");
    }

    #[test]
    fn variables_are_given_or_passed_on() {
        let given = |text: &str| environment(&[text.to_owned()]);
        assert_eq!(given("A=b=c").expect("good"), [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!(given("PATH").expect("set")[0].0, "PATH");
        assert!(given("=x").is_err());
        assert!(given("SURELY_NOT_SET_ANYWHERE").is_err());
    }
}
