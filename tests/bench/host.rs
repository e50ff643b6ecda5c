//! A real daemon for the benchmark: the release binary, a private directory, manifests for the tools it runs.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use toolcell_client::blocking::{Client, Session};
use toolcell_client::{call, session};
use toolcell_protocol::client_api::CallRequest;

/// Runs the daemon ("$@") beside a pipe from the benchmark. The pipe ends with the benchmark, however that ends;
/// then the daemon is asked to end too, and its directory goes.
const SUPERVISE: &str = r#"
directory=$1; shift
"$@" </dev/null & daemon=$!
cat >/dev/null
kill -TERM "$daemon"; wait "$daemon"
rm -rf -- "$directory"
"#;

/// A running daemon; killed and cleaned up at the end, also at that of a benchmark that is killed.
pub struct Host {
    directory: tempfile::TempDir,
    /// Its standard input is the pipe; nothing is ever written to it.
    supervisor: Child,
    pid: u32,
    /// Connected to it.
    pub client: Client,
}

const MANIFESTS: [(&str, &str); 3] = [
    (
        "noop",
        "name = \"noop\"\ndescription = \"Does nothing.\"\ncommand = [\"/bin/true\"]\n\
         input_schema = '{\"type\": \"object\"}'\n\
         [limits]\ncore_bytes = 0\nnofile = 1024\nfsize_bytes = 1073741824\nstack_bytes = 8388608\nmemlock_bytes = 65536\n",
    ),
    (
        "gibibyte",
        "name = \"gibibyte\"\ndescription = \"Writes a GiB.\"\ncommand = [\"/usr/bin/head\", \"-c\", \"{bytes}\", \"/dev/zero\"]\n\
         input_schema = '{\"type\": \"object\", \"properties\": {\"bytes\": {\"type\": \"integer\"}}, \"required\": [\"bytes\"]}'\n",
    ),
    (
        "family",
        "name = \"family\"\ndescription = \"Five processes that wait.\"\n\
         command = [\"/bin/sh\", \"-c\", \"for i in 1 2 3 4; do sleep 1000 & done; echo ready; wait\"]\n\
         input_schema = '{\"type\": \"object\"}'\n",
    ),
];

impl Host {
    /// Starts one; `config` is added to its configuration.
    pub fn start(toolcelld: &Path, config: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let tools = directory.path().join("tools.d");
        std::fs::create_dir(&tools).expect("a directory");
        for (name, text) in MANIFESTS {
            std::fs::write(tools.join(format!("{name}.toml")), text).expect("written");
        }
        std::fs::write(directory.path().join("block.txt"), vec![b'x'; 4096]).expect("written");
        let extra = std::env::var("TOOLCELL_BENCH_CONFIG").unwrap_or_default();
        let file = directory.path().join("toolcelld.toml");
        std::fs::write(&file, format!("tools_dirs = [\"tools.d\"]\n{config}{extra}")).expect("written");
        let socket = directory.path().join("toolcell.sock");
        let supervisor = Command::new("/bin/sh")
            .args(["-c", SUPERVISE, "toolcelld-supervisor"])
            .arg(directory.path())
            .arg(toolcelld)
            .args(["--log", "error", "--config"])
            .arg(&file)
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::piped())
            // An interrupt from the terminal ends the benchmark, and by that these.
            .process_group(0)
            .spawn()
            .expect("sh starts");
        let deadline = Instant::now() + Duration::from_secs(10);
        let client = loop {
            match Client::connect(&socket) {
                Ok(client) => break client,
                Err(error) => {
                    assert!(Instant::now() < deadline, "no daemon at {}: {error}", socket.display())
                }
            }
        };
        let pid = client.server_status().expect("a status").pid.unsigned_abs();
        let host = Self { directory, supervisor, pid, client };
        let tools = host.client.tools().expect("tools");
        for (name, _) in MANIFESTS {
            assert!(tools.iter().any(|tool| tool.name == name), "{name} was not loaded");
        }
        host
    }

    /// The daemon's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A file of 4 KiB.
    pub fn block(&self) -> PathBuf {
        self.directory.path().join("block.txt")
    }

    /// Opens a session.
    pub fn session(&self, name: &str) -> Session {
        self.client.session_open(session(name, "/")).expect("a session")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}

/// A batch of `count` equal calls.
pub fn calls(count: usize, tool: &str, args: &str) -> Vec<CallRequest> {
    (0..count).map(|n| call(&format!("call-{n}"), tool, args)).collect()
}

/// The daemon's release binary beside this benchmark, with the small spawner beside it; built if they are missing or
/// older than their sources. The spawner is linked statically, as a package would ship it.
pub fn release_binary() -> PathBuf {
    let cargo = |args: &[&str]| {
        let status = Command::new(env!("CARGO"))
            .args(args)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .status()
            .expect("cargo runs");
        assert!(status.success(), "cargo {args:?} failed");
    };
    cargo(&["build", "--release", "--quiet", "-p", "toolcell-daemon", "--bin", "toolcelld"]);
    let small = ["rustc", "--release", "--quiet", "-p", "toolcell-worker", "--bin", "toolcell-worker", "--"];
    cargo(&[&small[..], &["-C", "target-feature=+crt-static", "-C", "relocation-model=static"]].concat());
    let me = std::env::current_exe().expect("own path");
    me.ancestors().nth(2).expect("target/release").join("toolcelld")
}
