//! The bytes that `misbehave flood` writes: any piece of them says where it comes from, so that head, tail and
//! whole of a captured output can be checked.
//!
//! Blocks of 4096 bytes: 15 hexadecimal digits with the number of the block and a newline, then lines of
//! filler. Text throughout, and cheap to make, since the tool must be faster than what it floods.

/// Bytes of one block.
pub const BLOCK: usize = 4096;

const HEAD: usize = 16;
const FILLER: &[u8; 64] = b"the quick brown fox jumps over the lazy dog 0123456789 abcdefg.\n";

/// Fills a buffer with the bytes of the flood from this offset on.
pub fn fill(offset: u64, buffer: &mut [u8]) {
    let mut at = 0;
    while at < buffer.len() {
        let position = offset + at as u64;
        let block = position / BLOCK as u64;
        let within = (position % BLOCK as u64) as usize;
        let head = format!("{block:015x}\n");
        let take = (BLOCK - within).min(buffer.len() - at);
        let mut piece = [0_u8; BLOCK];
        piece[..HEAD].copy_from_slice(head.as_bytes());
        for line in piece[HEAD..].chunks_mut(FILLER.len()) {
            line.copy_from_slice(&FILLER[..line.len()]);
        }
        buffer[at..at + take].copy_from_slice(&piece[within..within + take]);
        at += take;
    }
}

/// The bytes of the flood from this offset on.
#[must_use]
pub fn bytes(offset: u64, length: usize) -> Vec<u8> {
    let mut buffer = vec![0; length];
    fill(offset, &mut buffer);
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_the_same_wherever_it_is_cut() {
        let whole = bytes(0, 3 * BLOCK);
        for (from, length) in [(0, 1), (15, 2), (4095, 2), (4096, 4096), (5000, 7000)] {
            assert_eq!(bytes(from, length), whole[from as usize..from as usize + length]);
        }
        assert!(whole.is_ascii());
        assert_eq!(&whole[BLOCK..BLOCK + 16], b"000000000000001\n");
    }
}
