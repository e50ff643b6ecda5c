//! The tools that a test daemon offers: `misbehave` with one line of words, and variants of it with limits.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// One manifest to write.
#[derive(Debug, Clone)]
pub struct Manifest {
    name: String,
    command: Vec<String>,
    arguments: Vec<String>,
    rest: String,
}

impl Manifest {
    /// A tool that runs this command; each argument is a string that the schema knows.
    #[must_use]
    pub fn new(name: &str, command: &[&str], arguments: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            rest: String::new(),
        }
    }

    /// The misbehaving tool under another name: one argument, `line`, whose words say how to misbehave.
    #[must_use]
    pub fn misbehave(name: &str, program: &Path) -> Self {
        Self::new(name, &[&program.display().to_string(), "{line}"], &["line"])
    }

    /// Lines of TOML to put in front of the tables, like `timeout_ms = 100` or `limits.cpu_ms = 5`.
    #[must_use]
    pub fn with(mut self, toml: &str) -> Self {
        self.rest.push_str(toml);
        self.rest.push('\n');
        self
    }

    /// Writes `NAME.toml` into the directory.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, directory: &Path) {
        let quoted = |text: &String| serde_json::to_string(text).expect("a text is JSON, and TOML too");
        let mut text = format!(
            "name = {}\ndescription = \"A tool of the tests\"\ncommand = [{}]\n{}\n",
            quoted(&self.name),
            self.command.iter().map(quoted).collect::<Vec<_>>().join(", "),
            self.rest,
        );
        text.push_str("[input_schema]\ntype = \"object\"\nadditionalProperties = false\n");
        let names: Vec<String> = self.arguments.iter().map(quoted).collect();
        writeln!(text, "required = [{}]", names.join(", ")).expect("a String takes every text");
        for name in &self.arguments {
            writeln!(text, "[input_schema.properties.{name}]\ntype = \"string\"")
                .expect("a String takes every text");
        }
        fs::write(directory.join(format!("{}.toml", self.name)), text).expect("write a manifest");
    }
}
