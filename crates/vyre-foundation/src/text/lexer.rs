//! Lexer of the text format.

use crate::diagnostics::{Diagnostic, DiagnosticSink, Fault};
use crate::ir::Span;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'s> {
    Name(&'s str),
    /// A value name, without its `%`.
    Value(&'s str),
    Number(&'s str),
    /// The text between the quotes, with escapes.
    String(&'s str),
    Punctuation(&'static str),
    EndOfLine,
    EndOfText,
    /// An invalid token, already reported.
    Invalid,
}

impl Token<'_> {
    /// Description for messages.
    pub(super) fn describe(self) -> String {
        match self {
            Token::Name(name) => format!("`{name}`"),
            Token::Value(name) => format!("`%{name}`"),
            Token::Number(text) => format!("`{text}`"),
            Token::String(_) => "a string".into(),
            Token::Punctuation(text) => format!("`{text}`"),
            Token::EndOfLine => "the end of the line".into(),
            Token::EndOfText => "the end of the text".into(),
            Token::Invalid => "an invalid token".into(),
        }
    }
}

/// Splits a text into tokens with their spans, ending in `EndOfText`. Reports invalid tokens.
pub(super) fn tokens<'s>(source: &'s str, found: &mut DiagnosticSink) -> Vec<(Token<'s>, Span)> {
    let mut lexer = Lexer { source, at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blanks_and_comments();
        let start = lexer.at;
        let token = lexer.token();
        let span = Span { start: start as u32, end: lexer.at as u32 };
        let token = token.unwrap_or_else(|fault| {
            found.push(Diagnostic::new(fault, span));
            Token::Invalid
        });
        tokens.push((token, span));
        if token == Token::EndOfText {
            return tokens;
        }
    }
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    /// Takes the longest prefix of characters for which `fits` is true.
    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> &'s str {
        let rest = self.rest();
        let length = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn skip_blanks_and_comments(&mut self) {
        loop {
            self.take_while(|c| c == ' ' || c == '\t' || c == '\r');
            if !self.rest().starts_with("//") {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    fn token(&mut self) -> Result<Token<'s>, Fault> {
        const PUNCTUATION: [&str; 12] = ["->", "{", "}", "(", ")", "[", "]", ",", ":", ";", "=", "."];
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(Token::EndOfText) };
        let after = rest[first.len_utf8()..].chars().next();
        match first {
            '\n' => {
                self.at += 1;
                Ok(Token::EndOfLine)
            }
            '%' => {
                self.at += 1;
                match self.take_while(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.') {
                    "" => Err(Fault::UnexpectedCharacter { found: '%' }),
                    name => Ok(Token::Value(name)),
                }
            }
            '"' => {
                self.at += 1;
                self.string()
            }
            'a'..='z' | 'A'..='Z' | '_' => Ok(Token::Name(self.take_while(|c| c.is_ascii_alphanumeric() || c == '_'))),
            '0'..='9' => Ok(self.number()),
            '-' if after.is_some_and(|c| c.is_ascii_digit()) => Ok(self.number()),
            _ => match PUNCTUATION.into_iter().find(|text| rest.starts_with(text)) {
                Some(text) => {
                    self.at += text.len();
                    Ok(Token::Punctuation(text))
                }
                None => {
                    self.at += first.len_utf8();
                    Err(Fault::UnexpectedCharacter { found: first })
                }
            },
        }
    }

    /// Takes the characters of a number, which the parser checks.
    fn number(&mut self) -> Token<'s> {
        let start = self.at;
        self.at += usize::from(self.rest().starts_with('-'));
        let hexadecimal = self.rest().starts_with("0x");
        loop {
            let part = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
            let exponent = !hexadecimal && part.ends_with(['e', 'E']) && self.rest().starts_with(['-', '+']);
            if !exponent {
                return Token::Number(&self.source[start..self.at]);
            }
            self.at += 1;
        }
    }

    fn string(&mut self) -> Result<Token<'s>, Fault> {
        let start = self.at;
        loop {
            self.take_while(|c| !matches!(c, '"' | '\\' | '\n'));
            match self.rest().as_bytes() {
                [b'"', ..] => {
                    self.at += 1;
                    return Ok(Token::String(&self.source[start..self.at - 1]));
                }
                // The escaped character may be longer than a byte.
                [b'\\', next, ..] if *next != b'\n' => {
                    self.at += 1 + self.rest()[1..].chars().next().map_or(0, char::len_utf8);
                }
                _ => return Err(Fault::UnterminatedString {}),
            }
        }
    }
}
