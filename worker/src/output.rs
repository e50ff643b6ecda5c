//! What happens to a tool's output: which bytes travel, which go to the spool, which are only counted.
//!
//! ```text
//!            first `inline_bytes`      after that
//! stream     travel                    travel, until StopStream
//! spool      travel, kept back         the file, from the first byte on; a Spooled now and then
//! neither    travel                    counted
//! ```
//!
//! The end of what did not travel is kept in a [`Tail`]. Memory: `inline_bytes` while a spool may still be
//! needed, `tail_bytes`, and one read; never more, however much the tool writes.

mod tail;

use toolcell_protocol::call::{SpoolInfo, Stream};
use toolcell_protocol::worker_api::{OutputPolicy, Segment};

use self::tail::Tail;
use crate::spool::Spool;

/// The output of one attempt.
#[derive(Debug)]
pub(crate) struct Output {
    inline_bytes: u64,
    streaming: bool,
    max_total_bytes: Option<u64>,
    stdout_bytes: u64,
    stderr_bytes: u64,
    travelled_bytes: u64,
    tail: Tail,
    spool: Option<Spool>,
    /// Bytes went elsewhere than into the stream since the last [`Output::take_progress`].
    progressed: bool,
}

impl Output {
    /// Starts with nothing; no file is made before it is needed.
    pub(crate) fn new(policy: &OutputPolicy) -> Self {
        Self {
            inline_bytes: policy.inline_bytes,
            streaming: policy.stream,
            max_total_bytes: policy.max_total_bytes,
            stdout_bytes: 0,
            stderr_bytes: 0,
            travelled_bytes: 0,
            tail: Tail::new(usize::try_from(policy.tail_bytes).unwrap_or(usize::MAX)),
            spool: policy.spool.as_ref().map(Spool::new),
            progressed: false,
        }
    }

    /// Takes a piece of output; says how many bytes of its beginning must travel now.
    pub(crate) fn take(&mut self, stream: Stream, bytes: &[u8]) -> usize {
        let count = bytes.len() as u64;
        match stream {
            Stream::Stdout => self.stdout_bytes += count,
            Stream::Stderr => self.stderr_bytes += count,
        }
        let travelling = if self.streaming {
            bytes.len()
        } else {
            let room = self.inline_bytes.saturating_sub(self.travelled_bytes);
            usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len())
        };
        self.travelled_bytes += travelling as u64;
        let rest = &bytes[travelling..];
        if !rest.is_empty() {
            self.tail.push(stream, rest);
            self.progressed = true;
        }
        let total_bytes = self.total_bytes();
        if let Some(spool) = &mut self.spool {
            if total_bytes > self.inline_bytes {
                spool.write(stream, bytes);
            } else {
                spool.keep_back(stream, bytes);
            }
        }
        travelling
    }

    /// Nobody reads the stream any more.
    pub(crate) fn stop_stream(&mut self) {
        self.streaming = false;
        self.inline_bytes = self.inline_bytes.min(self.travelled_bytes);
    }

    /// All bytes so far.
    pub(crate) const fn total_bytes(&self) -> u64 {
        self.stdout_bytes + self.stderr_bytes
    }

    /// The limit on all bytes, once it is exceeded.
    pub(crate) fn exceeded(&self) -> Option<u64> {
        self.max_total_bytes.filter(|&limit| self.total_bytes() > limit)
    }

    /// Whether there is something new that a `Spooled` should tell.
    pub(crate) const fn has_progress(&self) -> bool {
        self.progressed
    }

    /// The numbers for a `Spooled`: all bytes, bytes in the spool.
    pub(crate) fn take_progress(&mut self) -> (u64, u64) {
        self.progressed = false;
        (self.total_bytes(), self.spool.as_ref().map_or(0, Spool::bytes))
    }

    /// The final account.
    pub(crate) fn finish(self) -> Account {
        let total_bytes = self.total_bytes();
        let omitted_bytes = total_bytes - self.travelled_bytes - self.tail.bytes() as u64;
        Account {
            stdout_bytes: self.stdout_bytes,
            stderr_bytes: self.stderr_bytes,
            tail: self.tail.into_segments(),
            omitted_bytes,
            spool: self.spool.and_then(|spool| spool.finish(total_bytes)),
        }
    }
}

/// What is left to say about output at the end.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) stdout_bytes: u64,
    pub(crate) stderr_bytes: u64,
    pub(crate) tail: Vec<Segment>,
    pub(crate) omitted_bytes: u64,
    pub(crate) spool: Option<SpoolInfo>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use toolcell_protocol::worker_api::SpoolPolicy;

    use super::*;

    fn policy(inline_bytes: u64, tail_bytes: u64, stream: bool) -> OutputPolicy {
        OutputPolicy { inline_bytes, tail_bytes, stream, max_total_bytes: None, spool: None }
    }

    fn pieces() -> impl Strategy<Value = Vec<(bool, Vec<u8>)>> {
        prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..40)), 0..30)
    }

    fn stream(is_stderr: bool) -> Stream {
        if is_stderr { Stream::Stderr } else { Stream::Stdout }
    }

    /// The simple model: every byte with its stream, in order.
    fn flat(pieces: &[(bool, Vec<u8>)]) -> Vec<(Stream, u8)> {
        pieces
            .iter()
            .flat_map(|(is_stderr, bytes)| bytes.iter().map(|&byte| (stream(*is_stderr), byte)))
            .collect()
    }

    fn flat_segments(segments: &[Segment]) -> Vec<(Stream, u8)> {
        segments
            .iter()
            .flat_map(|segment| segment.bytes.0.iter().map(|&byte| (segment.stream, byte)))
            .collect()
    }

    proptest! {
        #[test]
        fn head_and_tail_are_the_two_ends_of_the_output_and_the_middle_is_counted(
            pieces in pieces(), inline in 0_u64..100, tail in 0_u64..100,
        ) {
            let whole = flat(&pieces);
            let mut output = Output::new(&policy(inline, tail, false));
            let mut head = Vec::new();
            for (is_stderr, bytes) in &pieces {
                let travelling = output.take(stream(*is_stderr), bytes);
                head.extend(bytes[..travelling].iter().map(|&byte| (stream(*is_stderr), byte)));
            }
            let account = output.finish();
            let head_bytes = whole.len().min(inline as usize);
            prop_assert_eq!(&head[..], &whole[..head_bytes]);
            let tail_bytes = (whole.len() - head_bytes).min(tail as usize);
            prop_assert_eq!(flat_segments(&account.tail), &whole[whole.len() - tail_bytes..]);
            prop_assert_eq!(account.omitted_bytes as usize, whole.len() - head_bytes - tail_bytes);
            let stdout = whole.iter().filter(|(stream, _)| *stream == Stream::Stdout).count();
            prop_assert_eq!(account.stdout_bytes as usize, stdout);
            prop_assert_eq!(account.stderr_bytes as usize, whole.len() - stdout);
            // Neighbours of one stream are one segment.
            prop_assert!(account.tail.windows(2).all(|pair| pair[0].stream != pair[1].stream));
        }

        #[test]
        fn a_stream_travels_until_it_is_stopped(pieces in pieces(), stop_at in 0_usize..30, tail in 0_u64..50) {
            let mut output = Output::new(&policy(10, tail, true));
            let mut missed = Vec::new();
            for (at, (is_stderr, bytes)) in pieces.iter().enumerate() {
                if at == stop_at {
                    output.stop_stream();
                }
                let travelling = output.take(stream(*is_stderr), bytes);
                prop_assert_eq!(travelling, if at < stop_at { bytes.len() } else { 0 });
                missed.extend(bytes[travelling..].iter().map(|&byte| (stream(*is_stderr), byte)));
            }
            let account = output.finish();
            let kept = missed.len().min(tail as usize);
            prop_assert_eq!(flat_segments(&account.tail), &missed[missed.len() - kept..]);
            prop_assert_eq!(account.omitted_bytes as usize, missed.len() - kept);
        }

        #[test]
        fn the_spool_has_the_output_from_its_first_byte_on(
            pieces in pieces(), inline in 0_u64..60, max in 0_u64..400,
        ) {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("spool");
            let mut policy = policy(inline, 0, false);
            policy.spool = Some(SpoolPolicy { path: path.to_str().expect("text").to_owned(), max_bytes: max });
            let whole = flat(&pieces);
            let mut output = Output::new(&policy);
            for (is_stderr, bytes) in &pieces {
                output.take(stream(*is_stderr), bytes);
            }
            let account = output.finish();
            if whole.len() as u64 <= inline {
                prop_assert_eq!(account.spool, None);
                prop_assert!(!path.exists());
            } else {
                let kept = whole.len().min(max as usize);
                let info = SpoolInfo { bytes: kept as u64, complete: kept == whole.len(), error: None };
                prop_assert_eq!(account.spool, Some(info));
                let file = std::fs::read(&path).expect("the spool");
                prop_assert_eq!(crate::spool::tests::records(&file), &whole[..kept]);
            }
        }
    }

    #[test]
    fn the_limit_is_exceeded_by_the_first_byte_above_it() {
        let mut output = Output::new(&OutputPolicy { max_total_bytes: Some(4), ..policy(100, 0, false) });
        output.take(Stream::Stdout, b"abc");
        output.take(Stream::Stderr, b"d");
        assert_eq!(output.exceeded(), None);
        output.take(Stream::Stdout, b"e");
        assert_eq!(output.exceeded(), Some(4));
    }

    #[test]
    fn progress_is_told_once() {
        let mut output = Output::new(&policy(2, 0, false));
        output.take(Stream::Stdout, b"ab");
        assert!(!output.has_progress());
        output.take(Stream::Stdout, b"cd");
        assert!(output.has_progress());
        assert_eq!(output.take_progress(), (4, 0));
        assert!(!output.has_progress());
    }
}
