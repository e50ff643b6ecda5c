//! The strings of an execve, laid out before the clone: after it nothing may be allocated.

use nix::errno::Errno;
use nix::libc::{self, c_char};

/// A program's candidates, arguments and environment in one piece of memory.
#[derive(Debug)]
pub(crate) struct ExecImage {
    /// All strings, each with its NUL. Never touched again once the pointers below are made.
    arena: Vec<u8>,
    /// Offsets of the paths to try, in order.
    candidates: Vec<usize>,
    /// Ends with a null pointer.
    argv: Vec<*const c_char>,
    /// Ends with a null pointer.
    envp: Vec<*const c_char>,
}

/// A string holds a NUL byte, which an exec cannot pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HoldsNul;

/// Collects the strings of an [`ExecImage`].
#[derive(Debug)]
pub(crate) struct ExecImageBuilder {
    arena: Vec<u8>,
    candidates: Vec<usize>,
    argv: Vec<usize>,
    envp: Vec<usize>,
}

impl ExecImageBuilder {
    /// Room for so many bytes and strings is taken at once.
    pub(crate) fn with_capacity(bytes: usize, args: usize, variables: usize) -> Self {
        Self {
            arena: Vec::with_capacity(bytes),
            candidates: Vec::with_capacity(8),
            argv: Vec::with_capacity(args + 1),
            envp: Vec::with_capacity(variables + 1),
        }
    }

    /// Adds a path to try.
    pub(crate) fn candidate(&mut self, parts: &[&[u8]]) -> Result<(), HoldsNul> {
        let at = self.push(parts)?;
        self.candidates.push(at);
        Ok(())
    }

    /// Adds an argument.
    pub(crate) fn arg(&mut self, bytes: &[u8]) -> Result<(), HoldsNul> {
        let at = self.push(&[bytes])?;
        self.argv.push(at);
        Ok(())
    }

    /// Adds a variable.
    pub(crate) fn variable(&mut self, name: &[u8], value: &[u8]) -> Result<(), HoldsNul> {
        let at = self.push(&[name, b"=", value])?;
        self.envp.push(at);
        Ok(())
    }

    fn push(&mut self, parts: &[&[u8]]) -> Result<usize, HoldsNul> {
        let at = self.arena.len();
        for part in parts {
            if part.contains(&0) {
                return Err(HoldsNul);
            }
            self.arena.extend_from_slice(part);
        }
        self.arena.push(0);
        Ok(at)
    }

    /// Makes the pointers; no string may be added afterwards, since the memory might move.
    pub(crate) fn build(self) -> ExecImage {
        let Self { arena, candidates, argv, envp } = self;
        let pointers = |offsets: Vec<usize>| {
            let mut list: Vec<*const c_char> = Vec::with_capacity(offsets.len() + 1);
            list.extend(offsets.iter().map(|&at| arena[at..].as_ptr().cast::<c_char>()));
            list.push(std::ptr::null());
            list
        };
        let (argv, envp) = (pointers(argv), pointers(envp));
        ExecImage { arena, candidates, argv, envp }
    }
}

impl ExecImage {
    /// How many paths there are to try.
    pub(crate) fn candidates(&self) -> usize {
        self.candidates.len()
    }

    /// One path, without its NUL.
    pub(crate) fn candidate(&self, index: usize) -> &[u8] {
        let rest = self.candidates.get(index).map_or(&[][..], |&at| &self.arena[at..]);
        rest.split(|&byte| byte == 0).next().unwrap_or_default()
    }

    /// Becomes that program; returns only if that failed.
    pub(crate) fn exec(&self, index: usize) -> Errno {
        let Some(path) = self.candidates.get(index).and_then(|&at| self.arena.get(at..)) else {
            return Errno::ENOENT;
        };
        // SAFETY: `path` starts a string of the arena, which ends with a NUL. Both lists end with a null
        // pointer and otherwise point to such strings; the arena was not touched since they were made.
        unsafe { libc::execve(path.as_ptr().cast(), self.argv.as_ptr(), self.envp.as_ptr()) };
        Errno::last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_keep_every_byte_but_nul() {
        let mut builder = ExecImageBuilder::with_capacity(0, 0, 0);
        let odd: Vec<u8> = (1..=255).collect();
        builder.arg(&odd).expect("no NUL");
        builder.candidate(&[b"/bin", b"/", b"x"]).expect("no NUL");
        assert_eq!(builder.arg(b"a\0b"), Err(HoldsNul));
        let image = builder.build();
        assert_eq!(image.candidates(), 1);
        assert_eq!(image.candidate(0), b"/bin/x");
        assert_eq!(image.candidate(1), b"");
        // SAFETY: the first argument was built above and ends with a NUL.
        let seen = unsafe { std::ffi::CStr::from_ptr(image.argv[0]) };
        assert_eq!(seen.to_bytes(), odd);
        assert!(image.argv[1].is_null());
    }
}
