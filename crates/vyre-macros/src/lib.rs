//! Procedural macros: `#[kernel]` compiles a Rust function to a kernel, `#[derive(Record)]` makes a struct an element type.
//!
//! The expansion contains the function twice. The *plain* version is the unchanged function: rustc infers and checks types there, and
//! `host` runs it; its type errors suppress those of the other version. The *builder* version makes the program: statements become calls of
//! `vyre_foundation::build` with the spans of the user's tokens, which give the program its source locations. `usize` is `u32` there.

mod body;
mod flow;
mod record;
mod signature;
mod source;

use proc_macro::TokenStream;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, Ident, ItemFn, Lit, Token};

/// Compiles a function to a kernel: `#[kernel(workgroup = 256)]`, or with two or three sizes, `#[kernel(workgroup = (16, 16))]`.
///
/// `#[kernel(inline)]` makes a function that kernels can call. `fast` enables fast-math. The documentation of the crate `vyre` lists the
/// supported subset of Rust.
///
/// A kernel `k` is a function that returns a launch, and a type (`k::<f32>` of a generic kernel) with these functions:
///
/// | function | result |
/// |---|---|
/// | `k::host(grid, …)` | runs the body as plain Rust, one invocation at a time |
/// | `k::program()` | the program |
/// | `k::text()` | the program as `.vyre` text |
/// | `k::wgsl()` | the program in WGSL |
/// | `k::asm()` | the machine code of the device `cpu` |
/// | `k::explain_html(path)` | writes the page of `vyre explain --html` |
#[proc_macro_attribute]
pub fn kernel(options: TokenStream, function: TokenStream) -> TokenStream {
    let expanded = syn::parse(options).and_then(|options: Options| {
        let function: ItemFn = syn::parse(function)
            .map_err(|error| syn::Error::new(error.span(), format!("`#[kernel]` needs a function: {error}")))?;
        if options.inline { signature::inline(&function) } else { signature::kernel(&options, &function) }
    });
    expanded.unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a struct an element type of slices and buffers: `#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable, vyre::Record)]`,
/// with `#[repr(C)]`.
///
/// The fields are numbers or arrays of numbers, of one type or of the types `f32`, `i32` and `u32`.
#[proc_macro_derive(Record)]
pub fn record(item: TokenStream) -> TokenStream {
    syn::parse(item).and_then(|item| record::derive(&item)).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Arguments of `#[kernel(…)]`.
#[derive(Default)]
struct Options {
    workgroup: Option<[u32; 3]>,
    inline: bool,
    fast: bool,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> syn::Result<Options> {
        let mut options = Options::default();
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            match name.to_string().as_str() {
                "inline" => options.inline = true,
                "fast" => options.fast = true,
                "workgroup" => {
                    input.parse::<Token![=]>()?;
                    options.workgroup = Some(sizes(&input.parse()?)?);
                }
                _ => {
                    let message = format!("unknown option `{name}`: write `workgroup = 256`, `inline` or `fast`");
                    return Err(syn::Error::new(name.span(), message));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

/// Parses a workgroup size of one to three dimensions.
fn sizes(expr: &Expr) -> syn::Result<[u32; 3]> {
    let one = |expr: &Expr| match expr {
        Expr::Lit(ExprLit { lit: Lit::Int(size), .. }) => size.base10_parse::<u32>(),
        _ => Err(syn::Error::new(expr.span(), "write the size as an integer literal, such as `256`")),
    };
    let mut sizes = [1; 3];
    match expr {
        Expr::Tuple(tuple) if (1..=3).contains(&tuple.elems.len()) => {
            for (size, expr) in sizes.iter_mut().zip(&tuple.elems) {
                *size = one(expr)?;
            }
        }
        Expr::Tuple(_) => return Err(syn::Error::new(expr.span(), "a workgroup has one to three dimensions")),
        _ => sizes[0] = one(expr)?,
    }
    Ok(sizes)
}
