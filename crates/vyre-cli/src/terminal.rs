//! Escaping of control characters on terminals.
//!
//! Untrusted files and names appear in the output, and terminals interpret control sequences, which can change the title, clear the
//! screen or disguise text. On terminals, control characters are therefore printed as escapes, such as `\u001b` for ESC. Pipes and files
//! receive the bytes unchanged.
//!
//! Standard output ([`Stdout`](crate::stdout::Stdout)) and standard error ([`stderr`]) are written through [`Escaping`] only.

use std::io::{self, IsTerminal, Write};

/// A writer that escapes control characters if the stream is a terminal.
pub(crate) struct Escaping<W> {
    inner: W,
    escapes: bool,
}

impl<W: Write> Escaping<W> {
    /// Wraps `stream` in `wrap`, such as a buffer.
    pub(crate) fn new<S: IsTerminal>(stream: S, wrap: impl FnOnce(S) -> W) -> Escaping<W> {
        let escapes = stream.is_terminal();
        Escaping { inner: wrap(stream), escapes }
    }

    /// The writer without escaping, for control sequences of the command itself.
    pub(crate) fn raw(&mut self) -> &mut W {
        &mut self.inner
    }
}

/// Unbuffered standard error.
pub(crate) fn stderr() -> Escaping<io::Stderr> {
    Escaping::new(io::stderr(), |stderr| stderr)
}

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.escapes {
            return self.inner.write(bytes);
        }
        self.inner.write_all(escaped(bytes).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Escapes control characters, as in JSON strings, and bytes that are not UTF-8.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match is_control(letter) {
                true => text += &format!("\\u{:04x}", u32::from(letter)),
                false => text.push(letter),
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// Returns whether a character is a C0 or C1 control other than newline and tab, or a bidirectional formatting character.
fn is_control(letter: char) -> bool {
    match letter {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        letter => letter.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn controls_are_escaped_and_text_is_not() {
        for plain in ["", "a\tb\n", "größer → 数", "\\u001b", "🦀 e\u{301}"] {
            assert_eq!(escaped(plain.as_bytes()), plain);
        }
        assert_eq!(escaped(b"\x1b]0;t\x07\r\x08\x00\x7f"), r"\u001b]0;t\u0007\u000d\u0008\u0000\u007f");
        assert_eq!(escaped("\u{9b}31m\u{202e}\u{2066}\u{200f}".as_bytes()), r"\u009b31m\u202e\u2066\u200f");
        assert_eq!(escaped(b"a\xff\xc3"), r"a\xff\xc3");
    }
}
