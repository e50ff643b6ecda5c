//! What can be typed. Each help text has an example.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

const EXIT_CODES: &str = "\
Exit codes of run: the tool's own; 124 timed out; 125 toolcell failed; 126 could not be executed or was blocked; \
127 unknown tool; 128+n ended by signal n.
Of all: 2 usage or arguments that the tool does not take; 69 no daemon; 77 not allowed; 78 bad configuration; \
130 or 143 interrupted.

Example: toolcell run bash '{\"command\": \"make test\"}'";

/// Runs the tool calls of LLM agents in cells, each in a worker process of its own.
///
/// Talks to the daemon of $TOOLCELL_SOCKET, $XDG_RUNTIME_DIR/toolcell/toolcell.sock or
/// /run/toolcell/toolcell.sock; with none of them, `run`, `batch` and `tools` start one of their own for as long
/// as they run.
#[derive(Debug, Parser)]
#[command(name = "toolcell", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Args {
    /// Options of all commands.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of all commands.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Common {
    /// Socket of the daemon; it alone is tried.
    #[arg(long, global = true, value_name = "PATH", conflicts_with_all = ["no_daemon", "tools_dirs", "config"])]
    pub socket: Option<PathBuf>,
    /// Use a daemon of our own, even if one could be reached.
    #[arg(long, global = true)]
    pub no_daemon: bool,
    /// Directory of tool manifests for a daemon of our own (implies --no-daemon); may be repeated, later ones win.
    #[arg(long = "tools", global = true, value_name = "DIR")]
    pub tools_dirs: Vec<PathBuf>,
    /// Configuration of a daemon of our own (implies --no-daemon). Default: /etc/toolcell/toolcelld.toml if it is
    /// there.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Session to use or to look at. Default: a new one that ends with this command. A named one stays.
    #[arg(long, global = true, value_name = "NAME")]
    pub session: Option<String>,
    /// Working directory of the calls. Default: this one.
    #[arg(long, global = true, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
    /// Variable for the calls, as NAME=VALUE, or NAME to pass ours on; may be repeated.
    #[arg(long = "env", global = true, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// Timeout of each call (`wait`: how long to wait). Default: the tool's own.
    #[arg(long, global = true, value_name = "MS")]
    pub timeout_ms: Option<u64>,
    /// Print JSON; docs/CLI.md describes it.
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress and no notes on standard error; errors only.
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one tool.
    ///
    /// Its output is passed on as it comes, byte by byte, and its exit code is this command's.
    #[command(
        after_help = "Examples:\n  toolcell run bash '{\"command\": \"ls -l\"}'\n  toolcell run read_file @args.json --json\n  \
                      echo '{\"path\": \".\"}' | toolcell run list_dir -"
    )]
    Run(RunArgs),
    /// Run the tool calls of one model turn, all at once.
    ///
    /// Reads a JSON array, or JSON lines, of {"call_id", "tool", "args"}; each may also have "cwd", "timeout_ms" and
    /// "immune". Exits with 0 when a verdict was printed, 3 when it is abort.
    #[command(
        after_help = "Example:\n  echo '[{\"call_id\": \"1\", \"tool\": \"bash\", \"args\": {\"command\": \"date\"}}]' \
                            | toolcell batch - --json"
    )]
    Batch(BatchArgs),
    /// List the tools there are.
    #[command(after_help = "Example:\n  toolcell tools --tools ./tools.d")]
    Tools,
    /// List calls that run or wait.
    #[command(after_help = "Example:\n  toolcell ps --all --session agent-7")]
    Ps(PsArgs),
    /// Print the output of a call, while it runs or later.
    #[command(after_help = "Example:\n  toolcell output 019ade3c-5f01-7 --follow")]
    Output(OutputArgs),
    /// Wait for the end of a call and print its result; exits as `run` would, or with 75 when it still runs.
    #[command(after_help = "Example:\n  toolcell wait 019ade3c-5f01-7 --timeout-ms 60000")]
    Wait(CallArg),
    /// Kill a call with everything that it has started; exits with 75 when that is not proven within 2 s.
    #[command(after_help = "Example:\n  toolcell kill 019ade3c-5f01-7 --reason 'wrong branch'")]
    Kill(KillArgs),
    /// Check tool manifests, configuration files and batch files; exits with 78 when one is wrong.
    #[command(after_help = "Example:\n  toolcell validate tools.d toolcelld.toml calls.json")]
    Validate(ValidateArgs),
    /// Run loop detection over recorded agent runs: what it would have said, and where.
    ///
    /// Reads runs as JSON lines, plain or gzip, and the session logs of known agents; docs/LOOPS.md describes them.
    /// --config names a file with the `[loop_detection]` block to replay with.
    #[command(after_help = "Example:\n  toolcell replay runs.jsonl.gz --labels labels.jsonl")]
    Replay(crate::replay::ReplayArgs),
    /// Tell what this host offers, why something is missing and how to get it.
    #[command(after_help = "Example:\n  toolcell doctor")]
    Doctor,
}

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The tool's name; `toolcell tools` lists them.
    #[arg(value_name = "TOOL")]
    pub tool: String,
    /// Its arguments, a JSON object: as text, @FILE, or - for standard input. Default: {}.
    #[arg(value_name = "JSON")]
    pub args: Option<String>,
}

/// Arguments of `batch`.
#[derive(Debug, clap::Args)]
pub struct BatchArgs {
    /// The calls; - for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Arguments of `ps`.
#[derive(Debug, clap::Args)]
pub struct PsArgs {
    /// Also calls that have ended and are still known.
    #[arg(long, short)]
    pub all: bool,
}

/// A call.
#[derive(Debug, clap::Args)]
pub struct CallArg {
    /// The call's uid as `toolcell ps` shows it, or the beginning of it.
    #[arg(value_name = "CALL")]
    pub call: String,
}

/// Arguments of `output`.
#[derive(Debug, clap::Args)]
pub struct OutputArgs {
    /// The call.
    #[command(flatten)]
    pub call: CallArg,
    /// Go on until the call has ended.
    #[arg(long, short)]
    pub follow: bool,
}

/// Arguments of `kill`.
#[derive(Debug, clap::Args)]
pub struct KillArgs {
    /// The call.
    #[command(flatten)]
    pub call: CallArg,
    /// For the record and the call's result.
    #[arg(long, value_name = "TEXT", default_value = "killed by toolcell kill")]
    pub reason: String,
}

/// Arguments of `validate`.
#[derive(Debug, clap::Args)]
pub struct ValidateArgs {
    /// Files, or directories of manifests.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// What the files are, where it cannot be told from their names and contents.
    #[arg(long, value_name = "KIND")]
    pub kind: Option<FileKind>,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FileKind {
    /// A tool manifest.
    Manifest,
    /// A configuration of toolcelld.
    Config,
    /// Calls for `toolcell batch`.
    Batch,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(std::iter::once("toolcell").chain(arguments.iter().copied()))
    }

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example_in_its_help() {
        for command in Args::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(
                help.contains("Example") && help.contains("toolcell "),
                "{}: {help:?}",
                command.get_name()
            );
        }
    }

    #[test]
    fn options_stand_before_or_after_the_command() {
        let before = parse(&["--json", "--timeout-ms", "5", "run", "bash", "{}"]).expect("good");
        let after = parse(&["run", "bash", "{}", "--json", "--timeout-ms", "5"]).expect("good");
        for args in [before, after] {
            assert!(args.common.json);
            assert_eq!(args.common.timeout_ms, Some(5));
            assert!(matches!(args.command, Command::Run(RunArgs { args: Some(text), .. }) if text == "{}"));
        }
    }

    #[test]
    fn a_lone_dash_is_standard_input_and_no_option() {
        let args = parse(&["run", "bash", "-"]).expect("good");
        assert!(matches!(args.command, Command::Run(RunArgs { args: Some(text), .. }) if text == "-"));
        assert!(parse(&["batch", "-"]).is_ok());
    }

    #[test]
    fn a_named_daemon_and_one_of_our_own_exclude_each_other() {
        for other in [&["--no-daemon"][..], &["--tools", "d"], &["--config", "f"]] {
            let mut arguments = vec!["tools", "--socket", "/s"];
            arguments.extend(other);
            let error = parse(&arguments).expect_err("both");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn usage_errors_name_the_argument() {
        let error = parse(&["run", "bash", "--timeout-ms", "soon"]).expect_err("no number");
        assert!(error.to_string().contains("--timeout-ms"), "{error}");
        assert!(parse(&["validate"]).is_err());
        assert!(parse(&[]).is_err());
    }
}
