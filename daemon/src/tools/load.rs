//! Reads directories of manifests; the only file of this module that touches the file system.
//!
//! ```text
//! built-ins ◀─ overridden by ─ first directory ◀─ overridden by ─ next directory …
//! ```
//!
//! * A broken manifest is reported and does not stop the others.
//! * Of two manifests with one name in one directory the second (by file name) is broken.
//! * A later directory wins over an earlier one, and over the built-ins.
//! * A broken manifest still takes the place of the tool that it was to override: falling back to, say, the
//!   built-in `bash` because the stricter one has a typing error would open what somebody meant to close.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use thiserror::Error;

use super::manifest::{self, MAX_MANIFEST_BYTES, ManifestError, Parsed};
use super::template::Element;
use super::{Runner, Source, ToolDef, ToolSet};

/// Most manifests in one directory.
pub const MAX_MANIFESTS: usize = 4096;

/// Why a manifest, or a directory of them, was not loaded. The text begins with the path.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The directory cannot be listed.
    #[error("{}: cannot list the directory: {source}", path.display())]
    List {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// More than [`MAX_MANIFESTS`] in one directory.
    #[error("{}: more than {MAX_MANIFESTS} manifests in one directory; the rest is not loaded", path.display())]
    TooMany {
        /// The directory.
        path: PathBuf,
    },
    /// The file cannot be opened.
    #[error("{}: cannot open the manifest: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("{}: cannot read the manifest: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A directory, FIFO, device or socket.
    #[error("{}: a manifest must be a regular file", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
    },
    /// Larger than [`MAX_MANIFEST_BYTES`].
    #[error("{}: the manifest has more than {MAX_MANIFEST_BYTES} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Not UTF-8.
    #[error("{}:{line}: the manifest is not UTF-8 from this line on; save it as UTF-8", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// Something in it is wrong.
    #[error("{}:{error}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What, and where.
        error: ManifestError,
    },
    /// Another manifest of the directory has the name.
    #[error("{}: the tool {name:?} is already defined by {}; rename or remove one", path.display(), first.display())]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The tool.
        name: String,
        /// The file that counts.
        first: PathBuf,
    },
    /// `run_as` in a manifest that others than root can change.
    #[error(
        "{}: run_as is only taken from a manifest that belongs to root (uid 0) and that nobody else may write; \
         it belongs to uid {uid} and has mode {mode:04o}. Remove run_as, or chown and chmod the file",
        path.display()
    )]
    RunAsNotRoot {
        /// The file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its mode.
        mode: u32,
    },
}

/// A manifest, or a directory, that was not loaded.
#[derive(Debug)]
pub struct Broken {
    /// Why; says the path too.
    pub error: LoadError,
    /// The tool of an earlier directory, or the built-in, that is not offered since this was to override it.
    pub withheld: Option<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        match &self.withheld {
            Some(name) => write!(f, " (the tool {name:?} is not offered until this is corrected)"),
            None => Ok(()),
        }
    }
}

/// A tool that took the place of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// Their name.
    pub name: String,
    /// The one that counts.
    pub by: Source,
    /// The one that does not.
    pub replaced: Source,
}

/// Something that works and is most likely not what was meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The manifest.
    pub path: PathBuf,
    /// What.
    pub message: String,
}

/// What directories of manifests gave.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The tools, built-ins included.
    pub tools: ToolSet,
    /// What was not loaded.
    pub broken: Vec<Broken>,
    /// Tools that took the place of others.
    pub overrides: Vec<Override>,
    /// What looks wrong.
    pub warnings: Vec<Warning>,
    /// Directories that do not exist. Fine for a default, an error for one that somebody named.
    pub missing: Vec<PathBuf>,
}

/// Reads the directories, the least important first, on top of the built-ins. `search_path` is the PATH that tools
/// get, for the warning about programs that are not there.
#[must_use]
pub fn load(dirs: &[PathBuf], search_path: &OsStr) -> Loaded {
    let mut loaded = Loaded { tools: ToolSet::builtin(), ..Loaded::default() };
    for dir in dirs {
        load_dir(&mut loaded, dir, search_path);
    }
    loaded
}

fn load_dir(loaded: &mut Loaded, dir: &Path, search_path: &OsStr) {
    let files = match manifests_in(dir) {
        Ok(files) => files,
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            loaded.missing.push(dir.to_owned());
            return;
        }
        Err(source) => {
            let error = LoadError::List { path: dir.to_owned(), source };
            loaded.broken.push(Broken { error, withheld: None });
            return;
        }
    };
    if files.len() > MAX_MANIFESTS {
        let error = LoadError::TooMany { path: dir.to_owned() };
        loaded.broken.push(Broken { error, withheld: None });
    }
    let mut here: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in files.into_iter().take(MAX_MANIFESTS) {
        match read_manifest(&path, search_path) {
            Ok(Parsed { tool, warnings }) => {
                if let Some(first) = here.get(&tool.name) {
                    let error = LoadError::Duplicate { path, name: tool.name, first: first.clone() };
                    loaded.broken.push(Broken { error, withheld: None });
                    continue;
                }
                let warnings = warnings.into_iter().map(|message| Warning { path: path.clone(), message });
                loaded.warnings.extend(warnings);
                here.insert(tool.name.clone(), path);
                let (name, by) = (tool.name.clone(), tool.source.clone());
                if let Some(before) = loaded.tools.insert(tool) {
                    loaded.overrides.push(Override { name, by, replaced: before.source.clone() });
                }
            }
            Err((error, name)) => {
                let withheld =
                    name.filter(|name| !here.contains_key(name)).filter(|name| loaded.tools.remove(name));
                loaded.broken.push(Broken { error, withheld });
            }
        }
    }
}

/// The manifests of a directory in the order of their names: what ends in `.toml` and is not hidden.
fn manifests_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
        if files.len() > MAX_MANIFESTS {
            break;
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Reads one manifest, as [`load`] does; for `toolcell validate`.
///
/// # Errors
/// [`LoadError`], with the name of the tool that it was to define, as far as that can be told (else the file's
/// name without `.toml`).
pub fn read_manifest(path: &Path, search_path: &OsStr) -> Result<Parsed, (LoadError, Option<String>)> {
    let stem = || path.file_stem().and_then(OsStr::to_str).map(str::to_owned);
    let (text, uid, mode) = read_text(path).map_err(|error| (error, stem()))?;
    let name = || manifest::name_in(&text).or_else(stem);
    let mut parsed = manifest::parse(&text, path.to_owned())
        .map_err(|error| (LoadError::Manifest { path: path.to_owned(), error }, name()))?;
    if parsed.tool.run_as.is_some() && (uid != 0 || mode & 0o022 != 0) {
        return Err((LoadError::RunAsNotRoot { path: path.to_owned(), uid, mode }, name()));
    }
    parsed.warnings.extend(program_warning(&parsed.tool, search_path));
    Ok(parsed)
}

/// The text of a manifest, its owner and its mode, all of one opened file.
fn read_text(path: &Path) -> Result<(String, u32, u32), LoadError> {
    let file: File = fs::OpenOptions::new()
        .read(true)
        // A FIFO without a writer would hold the daemon for ever.
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY).bits())
        .open(path)
        .map_err(|source| LoadError::Open { path: path.to_owned(), source })?;
    let read_error = |source| LoadError::Read { path: path.to_owned(), source };
    let metadata = file.metadata().map_err(read_error)?;
    if !metadata.is_file() {
        return Err(LoadError::NotRegular { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.take(MAX_MANIFEST_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() > MAX_MANIFEST_BYTES {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        LoadError::NotUtf8 { path: path.to_owned(), line }
    })?;
    Ok((text, metadata.uid(), metadata.mode() & 0o7777))
}

/// A warning if the program is not where it would be looked up. Only a warning: it may come later, and sessions may
/// bring a PATH of their own.
fn program_warning(tool: &ToolDef, search_path: &OsStr) -> Option<String> {
    let Runner::Command(template) = &tool.runner else { return None };
    let Some(Element::Literal(program)) = template.elements().first() else { return None };
    if program.contains('/') {
        let path = Path::new(program);
        // A relative path is taken from the call's working directory, which is not known yet.
        return (path.is_absolute() && !is_executable(path))
            .then(|| format!("command: {program} is not there, or is not executable"));
    }
    let own_path = tool.env.set.iter().find(|(name, _)| name == "PATH").map(|(_, value)| OsStr::new(value));
    let search_path = own_path.unwrap_or(search_path);
    let found = std::env::split_paths(search_path).any(|dir| is_executable(&dir.join(program)));
    (!found).then(|| {
        format!(
            "command: {program:?} is in no directory of PATH ({}); install it, write its absolute path, or set PATH \
             in env",
            search_path.display()
        )
    })
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
