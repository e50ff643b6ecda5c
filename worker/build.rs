//! Names this build: a hash of the sources of the worker and of the messages that it speaks, so that a daemon can
//! tell whether a worker binary beside it is of its own build.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

fn main() {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut files = Vec::new();
    for directory in [manifest.join("src"), manifest.join("../protocol/src")] {
        println!("cargo:rerun-if-changed={}", directory.display());
        collect(&directory, &mut files);
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    std::env::var("CARGO_PKG_VERSION").expect("cargo sets it").hash(&mut hasher);
    for file in files {
        std::fs::read(&file).expect("a source file can be read").hash(&mut hasher);
    }
    println!("cargo:rustc-env=TOOLCELL_BUILD_ID={:016x}", hasher.finish());
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
