//! Standard output.

use std::io::{self, BufWriter, Write};

use crate::terminal::Escaping;

/// Buffered standard output, with control characters escaped on a terminal. A closed pipe, as in `vyre print … | head`, is not an error:
/// later output is dropped.
pub(crate) struct Stdout {
    inner: Escaping<BufWriter<io::Stdout>>,
    closed: bool,
}

impl Default for Stdout {
    fn default() -> Self {
        Stdout { inner: Escaping::new(io::stdout(), BufWriter::new), closed: false }
    }
}

impl Stdout {
    /// Returns whether the pipe was found closed, which ends commands that otherwise run until interrupted.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Clears the screen of a terminal.
    pub(crate) fn clear_screen(&mut self) -> io::Result<()> {
        self.unless_closed((), |inner| inner.raw().write_all(b"\x1b[H\x1b[J"))
    }

    /// Calls `write`, or returns `dropped` if the pipe is closed.
    fn unless_closed<T>(
        &mut self,
        dropped: T,
        write: impl FnOnce(&mut Escaping<BufWriter<io::Stdout>>) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.closed {
            return Ok(dropped);
        }
        match write(&mut self.inner) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(dropped)
            }
            result => result,
        }
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_closed(bytes.len(), |inner| inner.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_closed((), Write::flush)
    }
}

/// `1 node`, `2 nodes`
pub(crate) fn counted(count: impl TryInto<u64>, what: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
