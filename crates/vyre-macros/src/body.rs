//! Translation of statements and expressions to builder calls.
//!
//! Scopes are those of Rust: a name of the source is the same name in the builder version, bound to a value, variable, uniform or object.
//! The translation tracks only its [`Kind`].

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    BinOp, Block, Expr, ExprCall, ExprLit, ExprMethodCall, Ident, Item, Lit, LitInt, Local, Macro, Member, Pat, Path,
    Stmt, Token, Type, UnOp,
};

use crate::flow::{FUNCTION, Loop, diverges, label, mentions};
use crate::record;
use crate::signature::{Slice, is_bf16};

/// Kind of a name in the body.
#[derive(Clone)]
pub(crate) enum Kind {
    Value,
    Variable,
    Uniform,
    /// A const parameter, whose builder value has [another name](constant_name), because a pattern cannot shadow it.
    Constant,
    /// A slice or an array; `narrow` if its elements have 8 or 16 bits.
    Object {
        element: Box<Type>,
        mutable: bool,
        narrow: bool,
        atomic: bool,
    },
}

/// Type of a value in the builder version.
pub(crate) fn device_type(ty: &Type) -> syn::Result<TokenStream> {
    let name = match ty {
        Type::Path(path) if path.qself.is_none() => path.path.segments.last().map(|last| last.ident.to_string()),
        Type::Paren(inner) => return device_type(&inner.elem),
        _ => None,
    };
    let message = match name.as_deref() {
        Some("usize") => return Ok(quote_spanned!(ty.span() => u32)),
        Some("isize") => return Ok(quote_spanned!(ty.span() => i32)),
        Some("u8" | "i8" | "u16" | "i16") => {
            "integers of 8 and 16 bits are only supported as elements of slices: compute with `u32` or `i32`, and cast when storing"
        }
        Some("bf16") => {
            "`bf16` is only supported as an element of slices: compute with `f32`, and store `bf16::from_f32(value)`"
        }
        Some("i128" | "u128") => "128-bit integers are not supported in kernels: use `i64` or `u64`",
        Some("char" | "str" | "String") => "strings and chars are not supported in kernels: use `u32`",
        Some("Vec") => "`Vec` is not supported in kernels: use a slice parameter, or a local array `[T; N]`",
        _ if matches!(ty, Type::Path(_)) => return Ok(ty.to_token_stream()),
        _ => "this type is not supported for values in kernels: use a scalar such as `f32`, `u32`, `usize` or `bool`",
    };
    Err(syn::Error::new(ty.span(), message))
}

/// The body of the plain version, where `#[shared]` arrays are local arrays.
pub(crate) fn plain(block: &Block) -> TokenStream {
    let statements = block.stmts.iter().map(|statement| match statement {
        Stmt::Local(local) if is_shared(local) => {
            let pattern = &local.pat;
            quote_spanned!(local.span() => #[allow(unused_mut)] let mut #pattern = ::vyre::host::shared();)
        }
        _ => statement.to_token_stream(),
    });
    // `let mut` stands before the name, and the type after it: a pattern with a type can take it as it is.
    quote!(#(#statements)*)
}

fn is_shared(local: &Local) -> bool {
    local.attrs.iter().any(|attribute| attribute.path().is_ident("shared"))
}

/// Translation of a body.
pub(crate) struct Body {
    pub(crate) scopes: Vec<(Ident, Kind)>,
    /// True if the body has barriers or subgroup operations, which `host` cannot run.
    collective: bool,
    /// Called functions.
    called: Vec<Path>,
    /// Name of the function, if it is inline.
    inline: Option<Ident>,
    /// Enclosing loops.
    pub(crate) loops: Vec<Loop>,
    /// Nesting depth of blocks.
    depth: usize,
    error: Option<syn::Error>,
}

/// Methods of numbers with the same name in the builder. `vyre::host` defines those that Rust does not have.
#[rustfmt::skip]
const METHODS: &[&str] = &[
    "abs", "acos", "acosh", "add_u8x4", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp", "copysign",
    "cos", "cosh", "count_ones", "dot4_i8", "dot4_i8u8", "dot4_u8", "eq_u8x4", "exp", "exp2", "floor", "fract",
    "frexp_exponent", "frexp_fraction", "hypot", "is_finite", "is_nan", "leading_zeros", "log2", "lookup_u8x4",
    "lt_u8x4", "max", "max_i8x4", "max_u8x4", "min", "min_i8x4", "min_u8x4", "modf_fraction", "pack_f16",
    "pack_i8_clamp", "pack_snorm16", "pack_snorm8", "pack_u8_clamp", "pack_unorm16", "pack_unorm8", "quantize_f16",
    "recip", "reverse_bits", "rotate_left", "rotate_right", "signum", "sin", "sinh", "sqrt", "tan", "tanh", "to_bits",
    "trailing_zeros", "trunc", "unpack_f16_high", "unpack_f16_low", "unpack_snorm16", "unpack_snorm8",
    "unpack_unorm16", "unpack_unorm8",
];

/// Builder names of Rust methods, where they differ. `wrapping_add` is `add`: operators of the builder wrap, and `Add` is in scope.
#[rustfmt::skip]
const RENAMED: &[(&str, &str)] = &[
    ("ln", "log"), ("mul_add", "fma"), ("powf", "pow"), ("round_ties_even", "round"), ("wrapping_add", "add"),
    ("wrapping_mul", "mul"), ("wrapping_neg", "neg"), ("wrapping_sub", "sub"),
];

/// Returns true for the path `bf16::from_f32`.
fn is_from_f32(function: &Expr) -> bool {
    let Expr::Path(path) = function else { return false };
    let mut names = path.path.segments.iter().rev().map(|segment| &segment.ident);
    names.next().is_some_and(|name| name == "from_f32") && names.next().is_some_and(|name| name == "bf16")
}

/// Builder name of a method of numbers.
fn method_name(name: &str) -> Option<&str> {
    let renamed = RENAMED.iter().find(|(known, _)| *known == name).map(|(_, method)| *method);
    renamed.or(METHODS.contains(&name).then_some(name))
}

/// Unsupported methods, with their replacements.
const MISSING: &[(&str, &str)] = &[
    ("round", "write `round_ties_even`: devices round halves to even"),
    ("powi", "write `powf`, or multiply"),
    ("log", "write `ln` or `log2`"),
    ("saturating_sub", "of unsigned numbers, write `a.max(b) - b`"),
    ("unwrap", "`Option` is not supported in kernels"),
    ("iter", "write `for i in 0..x.len()`"),
    ("get", "write `x[i]`, which is 0 out of bounds"),
    ("swap", "write both stores, with a `let` for the first value"),
];

/// Methods of atomic elements, with their builder name and number of arguments.
#[rustfmt::skip]
const ATOMIC: &[(&str, &str, usize)] = &[
    ("load", "load", 0), ("store", "store", 1), ("fetch_add", "add", 1), ("fetch_sub", "sub", 1),
    ("fetch_min", "min", 1), ("fetch_max", "max", 1), ("fetch_and", "and", 1), ("fetch_or", "or", 1),
    ("fetch_xor", "xor", 1), ("swap", "exchange", 1), ("compare_exchange", "compare_exchange", 2),
];

/// Functions without arguments that return an index.
const POSITIONS: &[&str] =
    &["global_index", "local_index", "group_index", "subgroup_size", "subgroup_id", "subgroup_lane"];

/// Functions with `.x`, `.y` and `.z`.
const AXES: &[&str] = &["global_id", "local_id", "group_id", "group_count", "group_size"];

/// Collective functions with their number of arguments.
#[rustfmt::skip]
const COLLECTIVE: &[(&str, usize)] = &[
    ("broadcast", 1), ("subgroup_add", 1), ("subgroup_mul", 1), ("subgroup_min", 1), ("subgroup_max", 1),
    ("subgroup_and", 1), ("subgroup_or", 1), ("subgroup_xor", 1), ("subgroup_inclusive_add", 1),
    ("subgroup_exclusive_add", 1), ("subgroup_inclusive_mul", 1), ("subgroup_exclusive_mul", 1), ("subgroup_ballot", 1),
    ("subgroup_all", 1), ("subgroup_any", 1), ("subgroup_broadcast_first", 1), ("subgroup_shuffle", 2),
    ("subgroup_shuffle_up", 2), ("subgroup_shuffle_down", 2), ("subgroup_shuffle_xor", 2), ("subgroup_compact", 2),
];

impl Body {
    pub(crate) fn of_kernel() -> Body {
        Body {
            scopes: Vec::new(),
            collective: false,
            called: Vec::new(),
            inline: None,
            loops: Vec::new(),
            depth: 0,
            error: None,
        }
    }

    pub(crate) fn of_inline(name: &Ident) -> Body {
        Body { inline: Some(name.clone()), ..Body::of_kernel() }
    }

    pub(crate) fn bind(&mut self, name: &Ident, kind: Kind) {
        self.scopes.push((name.clone(), kind));
    }

    /// Translates a body; `valued` if it has a result.
    pub(crate) fn translate(&mut self, block: &Block, valued: bool) -> syn::Result<TokenStream> {
        let tokens = if self.inline.is_some() && mentions("return", block.to_token_stream()) {
            self.function(block, valued)
        } else {
            self.block(block, valued)
        };
        self.error.take().map_or(Ok(tokens), Err)
    }

    pub(crate) fn is_collective(&self) -> bool {
        self.collective
    }

    pub(crate) fn called(&self) -> &[Path] {
        &self.called
    }

    pub(crate) fn error(&mut self, span: Span, message: impl std::fmt::Display) -> TokenStream {
        let error = syn::Error::new(span, message);
        match &mut self.error {
            Some(errors) => errors.combine(error),
            None => self.error = Some(error),
        }
        quote!(())
    }

    pub(crate) fn kind(&self, name: &Ident) -> Option<&Kind> {
        self.scopes.iter().rev().find(|(known, _)| known == name).map(|(_, kind)| kind)
    }

    fn ty(&mut self, ty: &Type) -> TokenStream {
        device_type(ty).unwrap_or_else(|error| self.error(error.span(), error))
    }

    // Statements.

    /// Translates a block; `valued` if its last expression is its value.
    pub(crate) fn block(&mut self, block: &Block, valued: bool) -> TokenStream {
        let names = self.scopes.len();
        self.depth += 1;
        let mut statements = Vec::new();
        let mut value = valued.then(|| quote_spanned!(block.span() => __k.never()));
        for (position, statement) in block.stmts.iter().enumerate() {
            let last = position + 1 == block.stmts.len();
            match statement {
                Stmt::Expr(expr, None) if valued && last && !diverges(expr) => value = Some(self.value(expr)),
                _ => statements.push(self.statement(statement)),
            }
            // Unreachable statements are dropped: rustc warns about them, and the builder rejects them.
            if matches!(statement, Stmt::Expr(expr, _) if diverges(expr)) {
                break;
            }
        }
        self.depth -= 1;
        self.scopes.truncate(names);
        quote_spanned!(block.span() => { #(#statements)* #value })
    }

    fn statement(&mut self, statement: &Stmt) -> TokenStream {
        match statement {
            Stmt::Local(local) => self.local(local),
            Stmt::Item(item @ (Item::Const(_) | Item::Use(_))) => item.to_token_stream(),
            Stmt::Item(item) => {
                self.error(item.span(), "items are not supported in kernels: move this out of the function")
            }
            Stmt::Expr(expr, _) => self.effect(expr),
            Stmt::Macro(statement) => self.macro_call(&statement.mac),
        }
    }

    fn local(&mut self, local: &Local) -> TokenStream {
        let (pattern, ty) = match &local.pat {
            Pat::Type(typed) => (&*typed.pat, Some(&*typed.ty)),
            pattern => (pattern, None),
        };
        let span = local.span();
        if is_shared(local) {
            return self.shared(local, pattern, ty);
        }
        if let Some(attribute) = local.attrs.first() {
            return self.error(attribute.span(), "the only attribute of a `let` is `#[shared]`");
        }
        let Some(init) = &local.init else {
            let Pat::Ident(name) = pattern else {
                return self.error(span, "initialize the variable here");
            };
            let ty = ty.map(|ty| self.ty(ty));
            let (ident, ty) = (&name.ident, ty.map(|ty| quote!(::<#ty>)));
            let text = debug_name(ident);
            self.bind(ident, Kind::Variable);
            return quote_spanned!(span => let #ident = __k.unset #ty ().debug_name(#text););
        };
        if let Some((token, _)) = &init.diverge {
            return self.error(token.span(), "`let … else` is not supported in kernels: use `if`");
        }
        let name = match pattern {
            Pat::Ident(name) if name.by_ref.is_none() && name.subpat.is_none() => name,
            Pat::Wild(_) => return self.effect(&init.expr),
            Pat::Tuple(_) | Pat::Slice(_) => {
                let value = self.value(&init.expr);
                return self.parts(pattern, &value);
            }
            Pat::Struct(record) => return self.take_record(record, &init.expr),
            _ => return self.error(pattern.span(), "bind one name: `let x = …;`"),
        };
        let ident = &name.ident;
        if let expr @ (Expr::Array(_) | Expr::Repeat(_)) = strip(&init.expr) {
            return self.array(ident, ty, expr);
        }
        let value = self.value(&init.expr);
        let ty = ty.map(|ty| self.ty(ty));
        let text = debug_name(ident);
        if name.mutability.is_some() {
            self.bind(ident, Kind::Variable);
            let ty = ty.map(|ty| quote!(::<#ty>));
            quote_spanned!(span => let #ident = __k.var #ty (#value).debug_name(#text);)
        } else {
            self.bind(ident, Kind::Value);
            let ty = ty.map(|ty| quote!(: ::vyre::build::Val<'_, #ty>));
            // The parts of a tuple are named where it is destructured.
            let is_tuple = matches!(strip(&init.expr), Expr::Tuple(_));
            let named = (!is_tuple).then(|| quote_spanned!(span => __k.debug_name(#text, #ident);));
            quote_spanned!(span => let #ident #ty = #value; #named)
        }
    }

    /// Binds the names of a pattern to the parts of a value.
    pub(crate) fn parts(&mut self, pattern: &Pat, value: &TokenStream) -> TokenStream {
        let mut bound = Vec::new();
        let names = self.part(pattern, &mut bound);
        let bound = bound.iter().map(|(ident, is_variable)| {
            let text = debug_name(ident);
            match is_variable {
                true => quote_spanned!(ident.span() => let #ident = __k.var(#ident).debug_name(#text);),
                false => quote_spanned!(ident.span() => __k.debug_name(#text, #ident);),
            }
        });
        quote_spanned!(pattern.span() => let #names = #value; #(#bound)*)
    }

    /// Translates a pattern. `bound` collects its names, with `true` for `mut`, which become variables afterwards.
    fn part(&mut self, pattern: &Pat, bound: &mut Vec<(Ident, bool)>) -> TokenStream {
        match pattern {
            Pat::Ident(name) if name.by_ref.is_none() && name.subpat.is_none() => {
                let (ident, variable) = (&name.ident, name.mutability.is_some());
                bound.push((ident.clone(), variable));
                self.bind(ident, if variable { Kind::Variable } else { Kind::Value });
                ident.to_token_stream()
            }
            Pat::Wild(_) | Pat::Rest(_) => pattern.to_token_stream(),
            Pat::Tuple(tuple) => {
                let parts: Vec<_> = tuple.elems.iter().map(|part| self.part(part, bound)).collect();
                quote_spanned!(pattern.span() => (#(#parts,)*))
            }
            Pat::Slice(array) => {
                let parts: Vec<_> = array.elems.iter().map(|part| self.part(part, bound)).collect();
                quote_spanned!(pattern.span() => [#(#parts),*])
            }
            _ => self.error(pattern.span(), "only names are supported in this pattern"),
        }
    }

    fn shared(&mut self, local: &Local, pattern: &Pat, ty: Option<&Type>) -> TokenStream {
        let example = "write `#[shared] let tile: [f32; 256];`";
        let (Pat::Ident(name), Some(ty)) = (pattern, ty) else { return self.error(local.span(), example) };
        let Some(slice @ Slice { length: Some(_), .. }) = Slice::of(ty, true) else {
            return self.error(ty.span(), example);
        };
        if let Some(init) = &local.init {
            let message = "a `#[shared]` array is zero-initialized: fill it by stores before a `workgroup_barrier()`";
            return self.error(init.expr.span(), message);
        }
        if self.depth > 1 || self.inline.is_some() {
            return self.error(local.span(), "declare `#[shared]` arrays at the top of the kernel");
        }
        self.collective = true;
        self.object(&name.ident, &slice, if slice.atomic { "workgroup_atomic" } else { "workgroup" })
    }

    /// Declares an array.
    fn object(&mut self, ident: &Ident, slice: &Slice, method: &str) -> TokenStream {
        self.bind(ident, slice.kind());
        let (method, text) = (Ident::new(method, ident.span()), ident.to_string());
        let (element, length) = (&slice.element, &slice.length);
        quote_spanned!(ident.span() => let #ident = __k.#method::<#element>(#text, (#length) as u32);)
    }

    fn array(&mut self, ident: &Ident, ty: Option<&Type>, init: &Expr) -> TokenStream {
        let Some(slice @ Slice { length: Some(_), atomic: false, .. }) = ty.and_then(|ty| Slice::of(ty, true)) else {
            return self.error(ident.span(), format!("write the type of the array: `let mut {ident}: [f32; 16] = …;`"));
        };
        let span = init.span();
        let fill = match init {
            Expr::Repeat(repeat) => {
                // Private arrays are zero-initialized; in a loop (an inline function may be called in one), they keep the values of the
                // previous iteration.
                let starts_so = self.loops.is_empty() && self.inline.is_none() && is_zero(&repeat.expr);
                let value = self.stored(&repeat.expr, &slice.kind());
                let length = &slice.length;
                (!starts_so).then(|| {
                    quote_spanned! { span =>
                        let __value = #value;
                        __k.for_range(0u32, (#length) as u32, |__i| #ident.store(__i, __value));
                    }
                })
            }
            Expr::Array(array) => {
                let values: Vec<_> = array.elems.iter().map(|value| self.stored(value, &slice.kind())).collect();
                let positions = 0u32..;
                let values = values
                    .iter()
                    .zip(positions)
                    .map(|(value, position)| quote_spanned!(span => #ident.store(#position, #value);));
                Some(quote!(#(#values)*))
            }
            _ => None,
        };
        let declaration = self.object(ident, &slice, "private");
        quote!(#declaration #fill)
    }

    /// Translates an expression statement.
    pub(crate) fn effect(&mut self, expr: &Expr) -> TokenStream {
        let span = expr.span();
        match expr {
            Expr::Paren(inner) => self.effect(&inner.expr),
            Expr::Block(block) => self.labelled_block(block, false),
            Expr::If(branch) => self.branch(branch, false),
            Expr::Match(choice) => self.switch(choice, false),
            Expr::While(repeat) => {
                let span = repeat.while_token.span;
                self.repeat(span, label(repeat.label.as_ref()), false, |translation| {
                    let condition = translation.value(&repeat.cond);
                    let body = translation.block(&repeat.body, false);
                    quote_spanned!(span => __k.while_(|| #condition, || #body);)
                })
            }
            Expr::Loop(repeat) => self.endless(repeat, false),
            Expr::ForLoop(repeat) => self.count(repeat),
            Expr::Break(exit) => {
                self.exit(span, exit.label.as_ref().map(|label| &label.ident), "break_", exit.expr.as_deref())
            }
            Expr::Continue(exit) => self.exit(span, exit.label.as_ref().map(|label| &label.ident), "continue_", None),
            Expr::Return(exit) if self.inline.is_some() => {
                self.exit(span, Some(&Ident::new(FUNCTION, span)), "break_", exit.expr.as_deref())
            }
            Expr::Return(exit) => match &exit.expr {
                Some(value) => {
                    self.error(value.span(), "a kernel cannot return a value: write results to a `&mut` slice")
                }
                None => quote_spanned!(span => __k.return_();),
            },
            Expr::Assign(assign) if matches!(strip(&assign.right), Expr::Struct(_)) => self.put_record(assign),
            Expr::Assign(assign) => {
                let value = match self.place(&assign.left) {
                    Some(kind) => self.stored(&assign.right, &kind),
                    None => self.value(&assign.right),
                };
                let assigned = self.assign(&assign.left, span, |_| quote_spanned!(assign.right.span() => __right));
                quote_spanned!(span => { let __right = #value; #assigned })
            }
            Expr::Binary(binary) if compound(&binary.op).is_some() => {
                let operator = compound(&binary.op);
                if let Some(Kind::Object { narrow: true, element, .. }) = self.place(&binary.left) {
                    let message = match is_bf16(&element) {
                        true => "elements of bf16 are converted: `x[i] = bf16::from_f32(x[i].to_f32() + 1.0)`",
                        false => {
                            "elements of 8 and 16 bits are loaded and stored with casts: `x[i] = (x[i] as u32 + 1) as u8`"
                        }
                    };
                    return self.error(span, message);
                }
                let right = self.value(&binary.right);
                let assigned =
                    self.assign(&binary.left, span, |current| quote_spanned!(span => (#current) #operator __right));
                quote_spanned!(span => { let __right = #right; #assigned })
            }
            Expr::Macro(call) => self.macro_call(&call.mac),
            Expr::Call(call) => {
                let call = self.call(call);
                quote_spanned!(span => #call;)
            }
            Expr::MethodCall(call) => {
                let call = self.method(call);
                quote_spanned!(span => #call;)
            }
            _ => {
                let value = self.value(expr);
                quote_spanned!(span => let _ = #value;)
            }
        }
    }

    /// Returns the kind of `x` for an expression `x[i]`.
    fn place(&self, expr: &Expr) -> Option<Kind> {
        let Expr::Index(index) = strip(expr) else { return None };
        name_of(&index.expr).and_then(|name| self.kind(name)).cloned()
    }

    /// Translates an assignment to a variable or element; `value` takes the current value.
    fn assign(&mut self, place: &Expr, span: Span, value: impl FnOnce(TokenStream) -> TokenStream) -> TokenStream {
        if let Some((object, kind, field)) = self.field(place) {
            if let Some(error) = self.read_only(span, &object, &kind) {
                return error;
            }
            let value = value(quote!(__at.load()));
            return quote_spanned!(span => { let __at = #field; __at.store(#value); });
        }
        match strip(place) {
            Expr::Path(path) => match name_of(place).and_then(|name| self.kind(name)) {
                Some(Kind::Variable) => {
                    let value = value(quote!(#path.get()));
                    quote_spanned!(span => #path.set(#value);)
                }
                Some(Kind::Object { .. }) => self.error(span, "assign arrays element by element: `a[i] = …;`"),
                Some(Kind::Uniform) => self.error(span, "parameters are immutable: copy it first, with `let mut`"),
                Some(Kind::Value | Kind::Constant) => self.error(span, "to change it, declare it with `let mut`"),
                None => self.error(span, "only variables of the kernel can be assigned"),
            },
            Expr::Index(index) => {
                let Some((object, kind)) = self.object_of(&index.expr) else { return quote!(()) };
                if let Some(error) = self.read_only(span, &object, &kind) {
                    return error;
                }
                let at = self.value(&index.index);
                let value = value(quote!(#object.load(__at)));
                quote_spanned!(span => { let __at = #at; #object.store(__at, #value); })
            }
            _ => self.error(place.span(), "only variables and elements of slices can be assigned"),
        }
    }

    /// Reports an assignment to an element of a read-only or atomic object.
    pub(crate) fn read_only(&mut self, span: Span, object: &Ident, kind: &Kind) -> Option<TokenStream> {
        match kind {
            Kind::Object { atomic: true, .. } => {
                let message = format!("this element is atomic: write `{object}[…].store(…)` or `fetch_add`");
                Some(self.error(span, message))
            }
            Kind::Object { mutable: false, .. } => {
                Some(self.error(span, format!("`{object}` is read-only: declare the parameter as `&mut [T]`")))
            }
            _ => None,
        }
    }

    pub(crate) fn object_of(&mut self, expr: &Expr) -> Option<(Ident, Kind)> {
        if let Some(name) = name_of(expr)
            && let Some(kind @ Kind::Object { .. }) = self.kind(name)
        {
            return Some((name.clone(), kind.clone()));
        }
        self.error(
            expr.span(),
            "only slices and arrays can be indexed; in two dimensions, write `x[row * width + column]`",
        );
        None
    }

    fn macro_call(&mut self, call: &Macro) -> TokenStream {
        let span = call.span();
        if !["print", "println"].iter().any(|name| call.path.is_ident(name)) {
            return self
                .error(span, "the only macro in kernels is `print!`; to make the launch fail, call `trap(code)`");
        }
        let parsed = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(call.tokens.clone());
        let arguments = match parsed {
            Ok(arguments) => arguments,
            Err(error) => return self.error(error.span(), error),
        };
        let Some(Expr::Lit(ExprLit { lit: Lit::Str(format), .. })) = arguments.first() else {
            return self.error(span, "start with a format string: `print!(\"{}\", x)`");
        };
        let text = format.value();
        let braces = text.matches("{}").count();
        if text.replace("{}", "").contains(['{', '}']) || braces != arguments.len() - 1 {
            return self.error(format.span(), "write one `{}` for each value, and the values after the text");
        }
        let text = text.trim_end_matches('\n');
        let values: Vec<_> = arguments.iter().skip(1).map(|value| self.value(value)).collect();
        match &values[..] {
            [value] => quote_spanned!(span => __k.print(#text, #value);),
            values => quote_spanned!(span => __k.print(#text, (#(#values),*));),
        }
    }

    // Expressions.

    /// Translates an expression to its value.
    pub(crate) fn value(&mut self, expr: &Expr) -> TokenStream {
        let span = expr.span();
        match expr {
            Expr::Paren(inner) => self.value(&inner.expr),
            Expr::Group(inner) => self.value(&inner.expr),
            Expr::Block(block) => self.labelled_block(block, true),
            Expr::Loop(repeat) => self.endless(repeat, true),
            Expr::Tuple(tuple) if tuple.elems.len() > 1 => {
                let parts: Vec<_> = tuple.elems.iter().map(|part| self.value(part)).collect();
                quote_spanned!(span => (#(#parts),*))
            }
            Expr::Array(array) => {
                let elements: Vec<_> = array.elems.iter().map(|element| self.value(element)).collect();
                quote_spanned!(span => [#(#elements),*])
            }
            Expr::Repeat(repeat) => {
                let (value, length) = (self.value(&repeat.expr), &repeat.len);
                quote_spanned!(span => [#value; #length])
            }
            Expr::Lit(literal) => {
                let literal = self.literal(&literal.lit);
                quote_spanned!(span => __k.lit(#literal))
            }
            Expr::Path(path) => match name_of(expr).and_then(|name| self.kind(name)) {
                Some(Kind::Value) => path.to_token_stream(),
                Some(Kind::Variable) => quote_spanned!(span => #path.get()),
                Some(Kind::Uniform) => {
                    let text = name_of(expr).map(debug_name);
                    quote_spanned!(span => __k.debug_name(#text, #path.load()))
                }
                Some(Kind::Constant) => constant_name(&path.path).to_token_stream(),
                Some(Kind::Object { .. }) => self.error(span, "a slice is not a value: use an element, such as `x[i]`"),
                None => quote_spanned!(span => __k.lit(::vyre::__private::scalar(#path))),
            },
            Expr::Unary(unary) => match (&unary.op, strip(&unary.expr)) {
                (UnOp::Neg(_), Expr::Lit(literal)) => {
                    let literal = self.literal(&literal.lit);
                    quote_spanned!(span => __k.lit(-#literal))
                }
                (UnOp::Neg(_) | UnOp::Not(_), _) => {
                    let (operator, value) = (unary.op, self.value(&unary.expr));
                    quote_spanned!(span => #operator (#value))
                }
                _ => self.error(span, "pointers are not supported in kernels: use `x[i]`"),
            },
            Expr::Binary(binary) => {
                if compound(&binary.op).is_some() {
                    return self.error(span, "an assignment has no value: write it as a statement");
                }
                self.binary(binary)
            }
            Expr::Cast(cast) => self.cast(cast),
            Expr::Index(_) | Expr::Field(_) if record::field(expr).is_some() => {
                let place = self.field(expr).map(|(_, _, place)| place);
                quote_spanned!(span => #place.load())
            }
            Expr::Index(index) => match self.object_of(&index.expr) {
                Some((object, Kind::Object { narrow: false, atomic: false, .. })) => {
                    let at = self.value(&index.index);
                    quote_spanned!(span => #object.load(#at))
                }
                Some((object, Kind::Object { atomic: true, .. })) => {
                    self.error(span, format!("this element is atomic: write `{object}[…].load()`"))
                }
                Some((_, Kind::Object { element, .. })) if is_bf16(&element) => {
                    self.error(span, "elements of bf16 are converted where they are loaded: `x[i].to_f32()`")
                }
                Some(_) => self.error(span, "elements of 8 and 16 bits are cast where they are loaded: `x[i] as u32`"),
                None => quote!(()),
            },
            Expr::If(branch) => self.branch(branch, true),
            Expr::Match(choice) => self.switch(choice, true),
            Expr::MethodCall(call) => self.method(call),
            Expr::Call(call) => self.call(call),
            Expr::Field(field) => {
                if let Expr::Call(call) = strip(&field.base)
                    && is_axes(&call.func)
                    && let Some(name) = name_of(&call.func)
                    && let Member::Named(axis) = &field.member
                    && let axis @ ("X" | "Y" | "Z") = axis.to_string().to_uppercase().as_str()
                {
                    let axis = Ident::new(axis, field.member.span());
                    return quote_spanned!(span => __k.#name(::vyre::ir::Axis::#axis));
                }
                let message = match field.member {
                    Member::Named(_) => "only elements of slices have fields: write `x[i].field`",
                    Member::Unnamed(_) => "destructure the tuple: `let (a, b) = …;`",
                };
                self.error(span, message)
            }
            Expr::While(_) | Expr::ForLoop(_) => {
                self.error(span, "only a `loop` has a value: assign to a `let mut` variable in this one")
            }
            Expr::Break(_) | Expr::Continue(_) | Expr::Return(_) => {
                let exit = self.effect(expr);
                quote_spanned!(span => { #exit __k.never() })
            }
            Expr::Closure(_) => {
                self.error(span, "closures are not supported in kernels: write a function with `#[kernel(inline)]`")
            }
            // The error of the range says how to access a part of a slice.
            Expr::Reference(reference) if is_slicing(&reference.expr) => self.value(&reference.expr),
            Expr::Reference(_) => self.error(span, "references to values are not supported in kernels: remove the `&`"),
            Expr::Struct(_) => self.error(span, "store the struct directly: `x[i] = Name { a, b };`"),
            Expr::Tuple(_) => self.error(span, "this expression has no value"),
            Expr::Range(_) => {
                let part = "for a part of a slice, add the offset to the index: `x[start + i]`";
                self.error(span, format!("ranges are only supported in `for i in a..b`; {part}"))
            }
            Expr::Try(_) => self.error(span, "`?` is not supported in kernels: `trap(code)` makes the launch fail"),
            Expr::Let(_) => self.error(span, "`let` conditions are not supported in kernels: use a comparison"),
            Expr::Assign(_) => self.error(span, "an assignment has no value: write it as a statement"),
            Expr::Macro(_) => self.error(span, "macros are not supported in kernels; `print!` is a statement"),
            Expr::Unsafe(_) => self.error(span, "`unsafe` is not supported in kernels: remove it"),
            Expr::Async(_) | Expr::Await(_) => self.error(span, "`async` is not supported in kernels"),
            _ => self.error(span, "this expression is not supported in kernels"),
        }
    }

    /// Translates a literal, with its builder type as suffix.
    fn literal(&mut self, literal: &Lit) -> TokenStream {
        let message = match literal {
            Lit::Int(number) => match number.suffix() {
                "usize" | "isize" => {
                    let ty = if number.suffix() == "usize" { "u32" } else { "i32" };
                    return LitInt::new(&format!("{}{ty}", number.base10_digits()), number.span()).to_token_stream();
                }
                "u8" | "i8" | "u16" | "i16" => {
                    "integers of 8 and 16 bits are only supported as elements of slices: compute with `u32` or `i32`"
                }
                "u128" | "i128" => "128-bit integers are not supported in kernels: use `i64` or `u64`",
                _ => return literal.to_token_stream(),
            },
            Lit::Float(_) | Lit::Bool(_) => return literal.to_token_stream(),
            _ => "strings are only supported in `print!`",
        };
        self.error(literal.span(), message)
    }

    fn binary(&mut self, binary: &syn::ExprBinary) -> TokenStream {
        let (left, right) = (self.value(&binary.left), self.value(&binary.right));
        let (operator, span) = (&binary.op, binary.op.span());
        let method = match operator {
            BinOp::Eq(_) => "eq",
            BinOp::Ne(_) => "ne",
            BinOp::Lt(_) => "lt",
            BinOp::Le(_) => "le",
            BinOp::Gt(_) => "gt",
            BinOp::Ge(_) => "ge",
            // Without side effects, both operands may be evaluated.
            BinOp::And(_) if self.is_pure(&binary.right) => return quote_spanned!(span => (#left) & (#right)),
            BinOp::Or(_) if self.is_pure(&binary.right) => return quote_spanned!(span => (#left) | (#right)),
            BinOp::And(_) => return quote_spanned!(span => __k.if_else(#left, || #right, || __k.lit(false))),
            BinOp::Or(_) => return quote_spanned!(span => __k.if_else(#left, || __k.lit(true), || #right)),
            _ => return quote_spanned!(binary.span() => (#left) #operator (#right)),
        };
        let method = Ident::new(method, span);
        quote_spanned!(span => (#left).#method(#right))
    }

    fn is_pure(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Paren(inner) => self.is_pure(&inner.expr),
            Expr::Lit(_) | Expr::Path(_) => true,
            Expr::Field(field) => {
                self.is_pure(&field.base) || matches!(strip(&field.base), Expr::Call(call) if is_axes(&call.func))
            }
            Expr::Unary(unary) => self.is_pure(&unary.expr),
            Expr::Binary(binary) => self.is_pure(&binary.left) && self.is_pure(&binary.right),
            Expr::Cast(cast) => self.is_pure(&cast.expr),
            Expr::Index(index) => self.is_pure(&index.expr) && self.is_pure(&index.index),
            Expr::MethodCall(call) => {
                let known = call.method == "len" || method_name(&call.method.to_string()).is_some();
                known && self.is_pure(&call.receiver) && call.args.iter().all(|argument| self.is_pure(argument))
            }
            _ => false,
        }
    }

    fn cast(&mut self, cast: &syn::ExprCast) -> TokenStream {
        let span = cast.as_token.span;
        let ty = self.ty(&cast.ty);
        match strip(&cast.expr) {
            Expr::Lit(ExprLit { lit: lit @ Lit::Int(number), .. }) if number.suffix().is_empty() => {
                // As in Rust, an integer literal takes the integer type that it is cast to.
                let (literal, name) = (self.literal(lit), ty.to_string());
                let integer = ["i32", "u32", "i64", "u64"].contains(&name.as_str());
                if integer {
                    quote_spanned!(span => __k.lit::<#ty>(#literal))
                } else {
                    quote_spanned!(span => __k.lit(#literal).cast::<#ty>())
                }
            }
            inner => {
                let value = self.loaded_wide(inner).unwrap_or_else(|| self.value(inner));
                quote_spanned!(span => (#value).cast::<#ty>())
            }
        }
    }

    /// An element of 8 or 16 bits that is not an f16, loaded as a 32-bit value.
    fn loaded_wide(&mut self, expr: &Expr) -> Option<TokenStream> {
        let Expr::Index(index) = strip(expr) else { return None };
        let Some(Kind::Object { narrow: true, .. }) = self.place(expr) else { return None };
        let (object, at) = (&index.expr, self.value(&index.index));
        Some(quote_spanned!(expr.span() => #object.load(#at)))
    }

    /// Translates a value that is stored to an element of an object.
    fn stored(&mut self, expr: &Expr, object: &Kind) -> TokenStream {
        let Kind::Object { narrow: true, element, .. } = object else { return self.value(expr) };
        if is_bf16(element) {
            return match strip(expr) {
                Expr::Call(call) if is_from_f32(&call.func) && call.args.len() == 1 => self.value(&call.args[0]),
                inner => self.loaded_wide(inner).unwrap_or_else(|| {
                    self.error(expr.span(), "convert it where it is stored: `x[i] = bf16::from_f32(value)`")
                }),
            };
        }
        match strip(expr) {
            Expr::Lit(_) => self.value(expr),
            // A store truncates, like the cast of an integer.
            Expr::Cast(cast) => {
                let wide = match cast.ty.to_token_stream().to_string().as_str() {
                    "u8" | "u16" => quote!(u32),
                    "i8" | "i16" => quote!(i32),
                    _ => return self.error(cast.ty.span(), "cast to the type of the element"),
                };
                let value = self.loaded_wide(&cast.expr).unwrap_or_else(|| self.value(&cast.expr));
                quote_spanned!(cast.as_token.span => ::vyre::__private::integer(#value).cast::<#wide>())
            }
            inner => match self.loaded_wide(inner) {
                Some(value) => value,
                None => {
                    let element = element.to_token_stream();
                    let help = format!(
                        "values are cast where they are stored in elements of 8 and 16 bits: `x[i] = value as {element}`"
                    );
                    self.error(expr.span(), help)
                }
            },
        }
    }

    fn method(&mut self, call: &ExprMethodCall) -> TokenStream {
        let (name, span) = (call.method.to_string(), call.method.span());
        if let Expr::Index(index) = strip(&call.receiver)
            && let Some(Kind::Object { atomic: true, .. }) = self.place(&call.receiver)
        {
            let Some((_, method, arguments)) = ATOMIC.iter().find(|(known, ..)| *known == name) else {
                let known: Vec<_> = ATOMIC.iter().map(|(name, ..)| *name).collect();
                return self.error(span, format!("atomics have no `{name}`: there are {}", known.join(", ")));
            };
            if call.args.len() != *arguments {
                return self
                    .error(span, format!("`{name}` takes {arguments} here; atomics of kernels take no `Ordering`"));
            }
            let (object, at) = (&index.expr, self.value(&index.index));
            let arguments: Vec<_> = call.args.iter().map(|argument| self.value(argument)).collect();
            let method = Ident::new(method, span);
            return quote_spanned!(span => #object.#method(#at #(, #arguments)*));
        }
        if name == "to_f32"
            && let Some(Kind::Object { narrow: true, element, .. }) = self.place(&call.receiver)
            && is_bf16(&element)
            && let Some(value) = self.loaded_wide(&call.receiver)
        {
            return value;
        }
        if name == "len"
            && let Some(object) = name_of(&call.receiver)
            && let Some(Kind::Object { .. }) = self.kind(object)
        {
            return quote_spanned!(span => #object.len());
        }
        let Some(method) = method_name(&name) else {
            let instead = MISSING
                .iter()
                .find(|(missing, _)| *missing == name)
                .map_or("use operators, or a function with `#[kernel(inline)]`", |(_, instead)| instead);
            return self.error(span, format!("the method `{name}` is not supported in kernels: {instead}"));
        };
        let receiver = self.value(&call.receiver);
        let arguments: Vec<_> = call.args.iter().map(|argument| self.value(argument)).collect();
        let method = Ident::new(method, span);
        quote_spanned!(span => (#receiver).#method(#(#arguments),*))
    }

    fn call(&mut self, call: &ExprCall) -> TokenStream {
        let span = call.span();
        let Expr::Path(path) = &*call.func else {
            return self.error(call.func.span(), "call a function by its name");
        };
        let name = path.path.get_ident().map(ToString::to_string).unwrap_or_default();
        let count = |expected: usize| call.args.len() == expected;
        let function = &path.path;
        if POSITIONS.contains(&name.as_str()) && count(0) {
            self.collective |= name.starts_with("subgroup");
            return quote_spanned!(span => __k.#function());
        }
        if AXES.contains(&name.as_str()) {
            return self.error(span, format!("choose a dimension: `{name}().x`"));
        }
        if ["workgroup_barrier", "storage_barrier"].contains(&name.as_str()) && count(0) {
            self.collective = true;
            return quote_spanned!(span => __k.#function());
        }
        if name == "trap" && count(1) {
            let code = self.value(&call.args[0]);
            return quote_spanned!(span => __k.trap(#code));
        }
        if COLLECTIVE.iter().any(|&(known, arguments)| known == name && count(arguments)) {
            self.collective = true;
            let mut arguments = call.args.iter().map(|argument| self.value(argument)).collect::<Vec<_>>().into_iter();
            let first = arguments.next();
            return quote_spanned!(span => (#first).#function(#(#arguments),*));
        }
        if ["load_wide", "store_wide"].contains(&name.as_str()) && count(if name == "load_wide" { 2 } else { 3 }) {
            return self.wide(call, function);
        }
        if ["f32", "f64"].iter().any(|float| is_from_bits(function, float)) && count(1) {
            let (bits, float) = (self.value(&call.args[0]), &function.segments[0]);
            return quote_spanned!(span => (#bits).bitcast::<#float>());
        }
        if self.inline.as_ref().is_some_and(|inline| *inline == name) {
            return self.error(span, "recursion is not supported in kernels: write a loop");
        }
        let mut arguments = Vec::new();
        for argument in &call.args {
            let inner = behind(argument);
            if let Some(Kind::Object { .. }) = name_of(inner).and_then(|name| self.kind(name)) {
                arguments.push(inner.to_token_stream());
            } else {
                arguments.push(self.value(argument));
            }
        }
        let mut function = path.path.clone();
        let generics = function.segments.last_mut().map(|last| std::mem::take(&mut last.arguments));
        let generics = generics.filter(|generics| !generics.is_none());
        self.called.push(function.clone());
        quote_spanned!(span => <#function>::build #generics (__k #(, #arguments)*))
    }

    /// `load_wide(x, i)` and `store_wide(x, i, [a, b])`.
    fn wide(&mut self, call: &ExprCall, function: &Path) -> TokenStream {
        let (span, slice) = (call.span(), behind(&call.args[0]));
        let Some((object, kind)) = self.object_of(slice) else { return quote!(()) };
        let at = self.value(&call.args[1]);
        let Some(values) = call.args.get(2) else {
            return quote_spanned!(span => #object.#function(#at));
        };
        if let Some(error) = self.read_only(span, &object, &kind) {
            return error;
        }
        let Expr::Array(values) = strip(values) else {
            return self.error(values.span(), "write the values here: `[a, b]`");
        };
        let values: Vec<_> = values.elems.iter().map(|value| self.value(value)).collect();
        quote_spanned!(span => #object.#function(#at, [#(#values),*]))
    }
}

/// Strips a reference.
fn behind(expr: &Expr) -> &Expr {
    match strip(expr) {
        Expr::Reference(reference) => strip(&reference.expr),
        expr => expr,
    }
}

fn is_from_bits(function: &Path, float: &str) -> bool {
    let names: Vec<_> = function.segments.iter().map(|segment| &segment.ident).collect();
    matches!(names[..], [ty, name] if ty == float && name == "from_bits")
}

/// Debug name of a variable.
pub(crate) fn debug_name(name: &Ident) -> String {
    name.unraw().to_string()
}

pub(crate) fn constant_name(name: &impl ToTokens) -> Ident {
    let name = name.to_token_stream();
    Ident::new(&format!("__constant_{name}"), name.span())
}

/// Strips parentheses.
pub(crate) fn strip(expr: &Expr) -> &Expr {
    match expr {
        Expr::Paren(inner) => strip(&inner.expr),
        Expr::Group(inner) => strip(&inner.expr),
        expr => expr,
    }
}

/// Returns true for `x[a..b]`.
fn is_slicing(expr: &Expr) -> bool {
    matches!(strip(expr), Expr::Index(index) if matches!(*index.index, Expr::Range(_)))
}

pub(crate) fn name_of(expr: &Expr) -> Option<&Ident> {
    match strip(expr) {
        Expr::Path(path) if path.qself.is_none() => path.path.get_ident(),
        _ => None,
    }
}

fn is_axes(function: &Expr) -> bool {
    name_of(function).is_some_and(|name| AXES.iter().any(|axis| name == axis))
}

fn is_zero(expr: &Expr) -> bool {
    match strip(expr) {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_digits() == "0",
        // `-0.0` is not a literal.
        Expr::Lit(ExprLit { lit: Lit::Float(number), .. }) => {
            number.base10_parse::<f64>().is_ok_and(|number| number == 0.0)
        }
        _ => false,
    }
}

/// The operator of a compound assignment.
fn compound(operator: &BinOp) -> Option<TokenStream> {
    let span = operator.span();
    Some(match operator {
        BinOp::AddAssign(_) => quote_spanned!(span => +),
        BinOp::SubAssign(_) => quote_spanned!(span => -),
        BinOp::MulAssign(_) => quote_spanned!(span => *),
        BinOp::DivAssign(_) => quote_spanned!(span => /),
        BinOp::RemAssign(_) => quote_spanned!(span => %),
        BinOp::BitAndAssign(_) => quote_spanned!(span => &),
        BinOp::BitOrAssign(_) => quote_spanned!(span => |),
        BinOp::BitXorAssign(_) => quote_spanned!(span => ^),
        BinOp::ShlAssign(_) => quote_spanned!(span => <<),
        BinOp::ShrAssign(_) => quote_spanned!(span => >>),
        _ => return None,
    })
}
