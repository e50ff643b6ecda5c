//! Gives back the resident pages of code that was needed at the start only: reading arguments, manifests and schemas
//! touches several MiB of text, and a daemon waits for days.

use nix::libc;

/// Drops this process's mappings of executable file pages. They come back from the page cache when they are run again,
/// so nothing changes but the resident size. Best effort: what cannot be read or dropped stays.
pub fn forget_start_up_code() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for (start, end) in maps.lines().filter_map(executable_file_range) {
        // SAFETY: the range is mapped from a file, private, executable and not writable, so its pages hold what is in
        // the file and nothing else: the kernel reads the very same bytes again at the next touch.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
}

/// The range of a line that maps a file's pages for running, without the right to write.
fn executable_file_range(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let range = fields.next()?;
    let rights = fields.next()?;
    let path = fields.nth(3)?;
    if rights != "r-xp" || !path.starts_with('/') {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unwritable_executable_file_mappings_are_taken() {
        let text =
            "55d0c0a00000-55d0c0b00000 r-xp 00001000 fe:00 1234                       /usr/bin/toolcelld";
        assert_eq!(executable_file_range(text), Some((0x55d0_c0a0_0000, 0x55d0_c0b0_0000)));
        for other in [
            "55d0c0a00000-55d0c0b00000 rw-p 00001000 fe:00 1234                       /usr/bin/toolcelld",
            "55d0c0a00000-55d0c0b00000 rwxp 00001000 fe:00 1234                       /usr/bin/toolcelld",
            "7ffd8a5f2000-7ffd8a5f4000 r-xp 00000000 00:00 0                          [vdso]",
            "7ffd8a5f2000-7ffd8a5f4000 r-xp 00000000 00:00 0",
            "",
        ] {
            assert_eq!(executable_file_range(other), None, "{other}");
        }
    }

    #[test]
    fn the_program_goes_on_after_it() {
        forget_start_up_code();
        assert_eq!("still here".to_owned() + "!", "still here!");
    }
}
