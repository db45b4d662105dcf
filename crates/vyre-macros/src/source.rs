//! Source text of a kernel, for reports.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ItemFn;

/// Returns an expression of type `Option<explain::Source>` for a function; `None` if rustc does not have its source text.
pub(crate) fn of(function: &ItemFn) -> TokenStream {
    let ItemFn { vis, sig, block, .. } = function;
    match text(quote!(#vis #sig #block)) {
        Some((text, line)) => {
            quote!(::core::option::Option::Some(::vyre::explain::Source {
                file: ::std::string::String::from(::core::file!()),
                text: ::std::string::String::from(#text),
                first_line: #line,
            }))
        }
        None => quote!(::core::option::Option::None),
    }
}

/// Source text of tokens without their common indentation, and its first line.
///
/// An item has no span of its own, so the text is assembled from the lines and columns of its tokens. A group, such as the body, is one
/// token.
fn text(tokens: TokenStream) -> Option<(String, u32)> {
    let mut trees = tokens.into_token_stream().into_iter().peekable();
    let first = trees.peek()?.span().unwrap();
    let (mut text, mut line, mut column) = (String::new(), first.line(), first.column());
    for tree in trees {
        let span = tree.span().unwrap();
        let (start, end) = (span.start(), span.end());
        // Tokens from other macros have other locations.
        if span.file() != first.file() || (start.line(), start.column()) < (line, column) {
            return None;
        }
        while line < start.line() {
            text.push('\n');
            (line, column) = (line + 1, 1);
        }
        text.extend(std::iter::repeat_n(' ', start.column() - column));
        text += &span.source_text()?;
        (line, column) = (end.line(), end.column());
    }
    let indentation = " ".repeat(first.column().saturating_sub(1));
    let lines = text.split('\n').map(|line| line.strip_prefix(&indentation).unwrap_or(line));
    Some((lines.collect::<Vec<_>>().join("\n"), u32::try_from(first.line()).ok()?))
}
