//! Finding and executing the program: the rules of `execvpe`, but nothing is ever handed to a shell.

use nix::errno::Errno;
use toolcell_protocol::call::Blob;
use toolcell_protocol::worker_api::Stage;

use crate::sys::exec::{ExecImage, ExecImageBuilder};

/// Where programs are looked for when the job's environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Why a program cannot even be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// The argument list is empty.
    NoProgram,
    /// An argument or a variable holds a NUL byte.
    HoldsNul,
}

/// A program with its arguments and environment, ready to exec.
#[derive(Debug)]
pub(crate) struct Program {
    image: ExecImage,
    /// It is looked up in PATH.
    searched: bool,
}

/// Why no path led to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExecFailure {
    pub(crate) stage: Stage,
    pub(crate) errno: Errno,
    pub(crate) candidate: usize,
}

impl Program {
    /// Lays everything out.
    pub(crate) fn new(argv: &[Blob], env: &[(String, String)]) -> Result<Self, Unfit> {
        let program = &argv.first().filter(|program| !program.0.is_empty()).ok_or(Unfit::NoProgram)?.0;
        let searched = !program.contains(&b'/');
        let path = env.iter().find(|(name, _)| name == "PATH").map_or(DEFAULT_PATH, |(_, value)| value);
        let bytes = argv.iter().map(|arg| arg.0.len() + 1).sum::<usize>()
            + env.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>()
            + if searched { path.len() + (program.len() + 2) * 16 } else { program.len() + 1 };
        let mut builder = ExecImageBuilder::with_capacity(bytes, argv.len(), env.len());
        let nul = |_| Unfit::HoldsNul;
        if searched {
            for directory in path.split(':') {
                // An empty part means the working directory, as everywhere.
                let parts: [&[u8]; 3] = if directory.is_empty() {
                    [b"./", program, b""]
                } else {
                    [directory.as_bytes(), b"/", program]
                };
                builder.candidate(&parts).map_err(nul)?;
            }
        } else {
            builder.candidate(&[program]).map_err(nul)?;
        }
        for arg in argv {
            builder.arg(&arg.0).map_err(nul)?;
        }
        for (name, value) in env {
            builder.variable(name.as_bytes(), value.as_bytes()).map_err(nul)?;
        }
        Ok(Self { image: builder.build(), searched })
    }

    /// Becomes the program; returns only if that failed. Allocates nothing.
    pub(crate) fn exec(&self) -> ExecFailure {
        let mut denied = None;
        for candidate in 0..self.image.candidates() {
            let errno = self.image.exec(candidate);
            match errno {
                // Not here: look on.
                Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE | Errno::ENODEV | Errno::ETIMEDOUT
                    if self.searched => {}
                // Here, and not for us; perhaps there is another further on.
                Errno::EACCES if self.searched => denied = denied.or(Some(candidate)),
                _ => return ExecFailure { stage: Stage::Exec, errno, candidate },
            }
        }
        match denied {
            Some(candidate) => ExecFailure { stage: Stage::Exec, errno: Errno::EACCES, candidate },
            None => ExecFailure { stage: Stage::Lookup, errno: Errno::ENOENT, candidate: 0 },
        }
    }

    /// What was tried, for a person.
    pub(crate) fn describe(&self, stage: Stage, errno: Errno, candidate: usize) -> String {
        let path = String::from_utf8_lossy(self.image.candidate(candidate)).into_owned();
        if stage == Stage::Lookup {
            let tried: Vec<_> = (0..self.image.candidates())
                .map(|index| String::from_utf8_lossy(self.image.candidate(index)).into_owned())
                .collect();
            return tried.join(", ");
        }
        if errno == Errno::ENOENT && std::path::Path::new(&path).exists() {
            return format!("{path} (it is there, so the interpreter or loader that it names is missing)");
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(argv: &[&str], path: Option<&str>) -> Program {
        let argv: Vec<Blob> = argv.iter().map(|arg| Blob(arg.as_bytes().to_vec())).collect();
        let env: Vec<_> = path.map(|path| ("PATH".to_owned(), path.to_owned())).into_iter().collect();
        Program::new(&argv, &env).expect("fit")
    }

    fn candidates(program: &Program) -> Vec<String> {
        (0..program.image.candidates())
            .map(|index| String::from_utf8_lossy(program.image.candidate(index)).into_owned())
            .collect()
    }

    #[test]
    fn a_name_is_looked_up_in_the_jobs_own_path_and_a_path_is_not() {
        assert_eq!(candidates(&program(&["ls"], Some("/a:/b"))), ["/a/ls", "/b/ls"]);
        assert_eq!(candidates(&program(&["ls"], Some("/a::/b"))), ["/a/ls", "./ls", "/b/ls"]);
        assert_eq!(candidates(&program(&["/x/ls"], Some("/a:/b"))), ["/x/ls"]);
        assert_eq!(candidates(&program(&["./ls"], Some("/a"))), ["./ls"]);
        assert_eq!(candidates(&program(&["ls"], None)), ["/usr/local/bin/ls", "/usr/bin/ls", "/bin/ls"]);
    }

    #[test]
    fn nothing_to_run_and_bytes_that_cannot_be_passed_are_refused() {
        assert_eq!(Program::new(&[], &[]).expect_err("empty"), Unfit::NoProgram);
        assert_eq!(Program::new(&[Blob(Vec::new())], &[]).expect_err("empty"), Unfit::NoProgram);
        let nul = [Blob(b"/bin/x".to_vec()), Blob(b"a\0b".to_vec())];
        assert_eq!(Program::new(&nul, &[]).expect_err("NUL"), Unfit::HoldsNul);
        let env = [("A".to_owned(), "\0".to_owned())];
        assert_eq!(Program::new(&nul[..1], &env).expect_err("NUL"), Unfit::HoldsNul);
    }

    #[test]
    fn the_search_tells_missing_from_forbidden() {
        let failure = program(&["no-such-program"], Some("/bin:/nowhere:/etc/passwd")).exec();
        assert_eq!((failure.stage, failure.errno), (Stage::Lookup, Errno::ENOENT));
        // Found, but not executable, and nowhere else.
        let failure = program(&["passwd"], Some("/nowhere:/etc:/nowhere")).exec();
        assert_eq!((failure.stage, failure.errno, failure.candidate), (Stage::Exec, Errno::EACCES, 1));
        let failure = program(&["/etc"], None).exec();
        assert_eq!((failure.stage, failure.errno), (Stage::Exec, Errno::EACCES));
    }
}
