//! Bounded reads from files, pipes and decoders of untrusted length, into memory whose allocation can fail.
//!
//! [`Read::read_to_end`] does not suffice: it aborts the process if memory runs out while its buffer grows.

use std::io::{self, ErrorKind, Read};

/// Reads to the end, or the first `limit` bytes. `expected` is the number of bytes if known, or 0; `then` is called
/// after each piece with the number of bytes so far.
///
/// # Errors
/// Reading `from` fails, or memory runs out ([`ErrorKind::OutOfMemory`]).
pub fn read_limited<R: Read>(
    mut from: R,
    limit: u64,
    expected: usize,
    mut then: impl FnMut(&R, usize),
) -> io::Result<Vec<u8>> {
    const PIECE: usize = 1 << 18;
    let out_of_memory = |_| io::Error::from(ErrorKind::OutOfMemory);
    let (mut bytes, mut piece) = (Vec::new(), Vec::new());
    bytes.try_reserve_exact(expected).map_err(out_of_memory)?;
    piece.try_reserve_exact(PIECE).map_err(out_of_memory)?;
    piece.resize(PIECE, 0);
    loop {
        let left = limit.saturating_sub(bytes.len() as u64).min(PIECE as u64) as usize;
        let read = match from.read(&mut piece[..left]) {
            Ok(0) => return Ok(bytes),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        bytes.try_reserve(read).map_err(out_of_memory)?;
        bytes.extend_from_slice(&piece[..read]);
        then(&from, bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_bounds_endless_readers() {
        let mut calls = Vec::new();
        let bytes = read_limited(io::repeat(7), 1_000_001, 0, |_, done| calls.push(done)).unwrap();
        assert_eq!(bytes, vec![7; 1_000_001]);
        assert!(calls.is_sorted() && calls.last() == Some(&1_000_001));
        assert_eq!(read_limited(io::repeat(7), 0, 0, |_, _| ()).unwrap(), []);
    }

    #[test]
    fn pieces_of_any_size_are_read() {
        struct Pieces<'a>(&'a [u8], usize);
        impl Read for Pieces<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.1 += 1;
                if self.1.is_multiple_of(3) {
                    return Err(ErrorKind::Interrupted.into());
                }
                let most = buffer.len().min(self.1);
                self.0.read(&mut buffer[..most])
            }
        }
        let all: Vec<u8> = (0..100_000u32).map(|byte| (byte % 251) as u8).collect();
        for expected in [0, 10, all.len()] {
            assert_eq!(read_limited(Pieces(&all, 0), u64::MAX, expected, |_, _| ()).unwrap(), all);
        }
    }

    #[test]
    fn memory_that_cannot_be_reserved_is_an_error() {
        let refused = read_limited(io::empty(), u64::MAX, usize::MAX, |_, _| ());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::OutOfMemory);
    }
}
