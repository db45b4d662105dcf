//! Statements and expressions, as calls of the builder.
//!
//! Rust's own scopes do most of the work: a name of the source is the same name in the builder version, bound to a value, a
//! variable, a uniform or an object. Only which of these it is must be known here.

use std::collections::HashSet;

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    BinOp, Block, Expr, ExprCall, ExprForLoop, ExprIf, ExprLit, ExprMatch, ExprMethodCall, Ident, Item, Lit, LitInt,
    Local, Macro, Pat, RangeLimits, Stmt, Token, Type, UnOp,
};

use crate::signature::Slice;

/// What a name of the body is.
#[derive(Clone)]
pub(crate) enum Kind {
    Value,
    Variable,
    Uniform,
    /// A const parameter, whose value on the device has [another name](constant_name): a pattern cannot shadow it.
    Constant,
    /// `name` is that of the program's object; elements of `narrow` ones have fewer bits than a value.
    Object {
        name: String,
        mutable: bool,
        narrow: bool,
        atomic: bool,
    },
}

/// The type of a value on the device.
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
            "values of 8 and 16 bits are only in slices: compute with `u32` or `i32`, and cast where you store"
        }
        Some("i128" | "u128") => "the widest integers of a device are `i64` and `u64`",
        Some("char" | "str" | "String") => "there is no text on a device: use `u32`",
        Some("Vec") => "there is no `Vec` on a device: use a slice parameter, or a local array `[T; N]`",
        _ if matches!(ty, Type::Path(_)) => return Ok(ty.to_token_stream()),
        _ => "this is not the type of a value: values are scalars such as `f32`, `u32`, `usize` and `bool`",
    };
    Err(syn::Error::new(ty.span(), message))
}

/// The body as plain Rust: what is shared is an ordinary array there.
pub(crate) fn plain(block: &Block) -> TokenStream {
    let statements = block.stmts.iter().map(|statement| match statement {
        Stmt::Local(local) if is_shared(local) => {
            let pattern = &local.pat;
            quote_spanned!(local.span() => #[allow(unused_mut)] let mut #pattern = ::vyre::host::zeroed();)
        }
        _ => statement.to_token_stream(),
    });
    // `let mut` stands before the name, and the type after it: a pattern with a type can take it as it is.
    quote!(#(#statements)*)
}

fn is_shared(local: &Local) -> bool {
    local.attrs.iter().any(|attribute| attribute.path().is_ident("shared"))
}

/// The translation of one body.
pub(crate) struct Body {
    scopes: Vec<(Ident, Kind)>,
    /// The names of the program's objects.
    objects: HashSet<String>,
    loaded: HashSet<String>,
    /// Whether invocations work together, so that one after the other would be something else.
    collective: bool,
    /// The function, if it is one that kernels call.
    inline: Option<Ident>,
    loops: usize,
    /// How many blocks are open.
    depth: usize,
    error: Option<syn::Error>,
}

/// Methods of numbers that the builder has by the same names.
#[rustfmt::skip]
const METHODS: &[&str] = &[
    "abs", "acos", "asin", "atan", "atan2", "cbrt", "ceil", "cos", "cosh", "count_ones", "exp", "exp2", "floor",
    "hypot", "leading_zeros", "log2", "max", "min", "reverse_bits", "rotate_left", "sin", "sinh", "sqrt", "tan",
    "tanh", "trailing_zeros", "trunc",
];

/// Methods of numbers that the builder calls otherwise. Operators wrap; their traits are in scope.
#[rustfmt::skip]
const RENAMED: &[(&str, &str)] = &[
    ("ln", "log"), ("mul_add", "fma"), ("powf", "pow"), ("round_ties_even", "round"), ("wrapping_add", "add"),
    ("wrapping_mul", "mul"), ("wrapping_neg", "neg"), ("wrapping_sub", "sub"),
];

/// What the builder calls a method of numbers.
fn method_name(name: &str) -> Option<&str> {
    let renamed = RENAMED.iter().find(|(known, _)| *known == name).map(|(_, method)| *method);
    renamed.or(METHODS.contains(&name).then_some(name))
}

/// Methods that are missing, and what to write instead.
const MISSING: &[(&str, &str)] = &[
    ("round", "write `round_ties_even`: devices round halves to even"),
    ("powi", "write `powf`, or multiply"),
    ("log", "write `ln` or `log2`"),
    ("saturating_sub", "of unsigned numbers, write `a.max(b) - b`"),
    ("unwrap", "there are no `Option`s on a device"),
    ("iter", "write `for i in 0..x.len()`"),
    ("get", "write `x[i]`: outside of the slice it is 0"),
    ("swap", "write both stores, with a `let` for the first value"),
];

/// Methods of atomic elements, and what the builder calls them.
#[rustfmt::skip]
const ATOMIC: &[(&str, &str, usize)] = &[
    ("load", "load", 0), ("store", "store", 1), ("fetch_add", "add", 1), ("fetch_sub", "sub", 1),
    ("fetch_min", "min", 1), ("fetch_max", "max", 1), ("fetch_and", "and", 1), ("fetch_or", "or", 1),
    ("fetch_xor", "xor", 1), ("swap", "exchange", 1), ("compare_exchange", "compare_exchange", 2),
];

/// Functions without arguments that give an index.
const POSITIONS: &[&str] =
    &["global_index", "local_index", "group_index", "subgroup_size", "subgroup_id", "subgroup_lane"];

/// Functions with `.x`, `.y` and `.z`.
const AXES: &[&str] = &["global_id", "local_id", "group_id", "group_count", "group_size"];

/// Functions of a value that invocations compute together.
#[rustfmt::skip]
const COLLECTIVE: &[&str] = &[
    "broadcast", "subgroup_add", "subgroup_mul", "subgroup_min", "subgroup_max", "subgroup_and", "subgroup_or",
    "subgroup_xor", "subgroup_inclusive_add", "subgroup_exclusive_add", "subgroup_inclusive_mul",
    "subgroup_exclusive_mul", "subgroup_shuffle",
];

impl Body {
    pub(crate) fn of_kernel() -> Body {
        Body {
            scopes: Vec::new(),
            objects: HashSet::new(),
            loaded: HashSet::new(),
            collective: false,
            inline: None,
            loops: 0,
            depth: 0,
            error: None,
        }
    }

    pub(crate) fn of_inline(name: &Ident) -> Body {
        Body { inline: Some(name.clone()), ..Body::of_kernel() }
    }

    pub(crate) fn bind(&mut self, name: &Ident, kind: Kind) {
        if let Kind::Object { name, .. } = &kind {
            self.objects.insert(name.clone());
        }
        self.scopes.push((name.clone(), kind));
    }

    pub(crate) fn translate(&mut self, block: &Block) -> syn::Result<TokenStream> {
        let tokens = self.block(block, false);
        self.error.take().map_or(Ok(tokens), Err)
    }

    pub(crate) fn translate_value(&mut self, block: &Block) -> syn::Result<TokenStream> {
        let tokens = self.block(block, true);
        self.error.take().map_or(Ok(tokens), Err)
    }

    /// Whether a parameter is read, after the translation.
    pub(crate) fn loads(&self, name: &str) -> bool {
        self.loaded.contains(name)
    }

    pub(crate) fn is_collective(&self) -> bool {
        self.collective
    }

    fn error(&mut self, span: Span, message: impl std::fmt::Display) -> TokenStream {
        let error = syn::Error::new(span, message);
        match &mut self.error {
            Some(errors) => errors.combine(error),
            None => self.error = Some(error),
        }
        quote!(())
    }

    fn kind(&self, name: &Ident) -> Option<&Kind> {
        self.scopes.iter().rev().find(|(known, _)| known == name).map(|(_, kind)| kind)
    }

    fn ty(&mut self, ty: &Type) -> TokenStream {
        device_type(ty).unwrap_or_else(|error| self.error(error.span(), error))
    }

    // Statements.

    /// A block. One with a value gives that of its last expression.
    fn block(&mut self, block: &Block, valued: bool) -> TokenStream {
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
            // rustc warns of what follows, and the builder would not take it.
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
            Stmt::Item(item) => self.error(item.span(), "put this outside of the kernel"),
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
            return self.error(span, "give it a value here, such as `let x = if c { 1.0 } else { 2.0 };`");
        };
        if let Some((token, _)) = &init.diverge {
            return self.error(token.span(), "there is no `let … else` on a device: use `if`");
        }
        let name = match pattern {
            Pat::Ident(name) if name.by_ref.is_none() && name.subpat.is_none() => name,
            Pat::Wild(_) => return self.effect(&init.expr),
            Pat::Tuple(tuple) => {
                let value = self.value(&init.expr);
                for part in &tuple.elems {
                    match part {
                        Pat::Ident(name) if name.by_ref.is_none() && name.mutability.is_none() => {
                            self.bind(&name.ident, Kind::Value);
                        }
                        Pat::Wild(_) => {}
                        _ => return self.error(part.span(), "the parts of this pattern are names"),
                    }
                }
                return quote_spanned!(span => let #tuple = #value;);
            }
            _ => return self.error(pattern.span(), "bind one name: `let x = …;`"),
        };
        let ident = &name.ident;
        if let expr @ (Expr::Array(_) | Expr::Repeat(_)) = strip(&init.expr) {
            return self.array(ident, ty, expr);
        }
        let value = self.value(&init.expr);
        let ty = ty.map(|ty| self.ty(ty));
        if name.mutability.is_some() {
            self.bind(ident, Kind::Variable);
            let ty = ty.map(|ty| quote!(::<#ty>));
            quote_spanned!(span => let #ident = __k.var #ty (#value);)
        } else {
            self.bind(ident, Kind::Value);
            let ty = ty.map(|ty| quote!(: ::vyre::build::Val<'_, #ty>));
            quote_spanned!(span => let #ident #ty = #value;)
        }
    }

    fn shared(&mut self, local: &Local, pattern: &Pat, ty: Option<&Type>) -> TokenStream {
        let example = "write `#[shared] let tile: [f32; 256];`";
        let (Pat::Ident(name), Some(ty)) = (pattern, ty) else { return self.error(local.span(), example) };
        let Some(slice @ Slice { length: Some(_), .. }) = Slice::of(ty, true) else {
            return self.error(ty.span(), example);
        };
        if let Some(init) = &local.init {
            let message = "all invocations of the workgroup share it: it starts as zeros, and is filled by stores before a `workgroup_barrier()`";
            return self.error(init.expr.span(), message);
        }
        if self.depth > 1 || self.inline.is_some() {
            return self.error(local.span(), "what a workgroup shares is declared at the top of the kernel");
        }
        self.collective = true;
        self.object(&name.ident, &slice, if slice.atomic { "workgroup_atomic" } else { "workgroup" })
    }

    /// Declares an array.
    fn object(&mut self, ident: &Ident, slice: &Slice, method: &str) -> TokenStream {
        let mut object = ident.clone();
        let mut number = 2;
        while self.objects.contains(&object.to_string()) {
            object = Ident::new(&format!("{ident}_{number}"), ident.span());
            number += 1;
        }
        self.bind(ident, slice.kind(&object));
        let (method, text) = (Ident::new(method, ident.span()), object.to_string());
        let (element, length) = (&slice.element, &slice.length);
        quote_spanned!(ident.span() => let #ident = __k.#method::<#element>(#text, (#length) as u32);)
    }

    fn array(&mut self, ident: &Ident, ty: Option<&Type>, init: &Expr) -> TokenStream {
        if self.inline.is_some() {
            return self.error(init.span(), "declare the array in the kernel, and take it as `&mut [T]`");
        }
        let Some(slice @ Slice { length: Some(_), atomic: false, .. }) = ty.and_then(|ty| Slice::of(ty, true)) else {
            return self.error(ident.span(), format!("write the type of the array: `let mut {ident}: [f32; 16] = …;`"));
        };
        let span = init.span();
        let fill = match init {
            Expr::Repeat(repeat) => {
                // An invocation's arrays start as zeros; only in a loop there can be something else from the trip before.
                let starts_so = self.loops == 0 && is_zero(&repeat.expr);
                let value = self.stored(&repeat.expr, &slice.kind(ident));
                let length = &slice.length;
                (!starts_so).then(|| {
                    quote_spanned! { span =>
                        let __value = #value;
                        __k.for_range(0u32, (#length) as u32, |__i| #ident.store(__i, __value));
                    }
                })
            }
            Expr::Array(array) => {
                let values: Vec<_> = array.elems.iter().map(|value| self.stored(value, &slice.kind(ident))).collect();
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

    /// An expression for what it does.
    fn effect(&mut self, expr: &Expr) -> TokenStream {
        let span = expr.span();
        match expr {
            Expr::Paren(inner) => self.effect(&inner.expr),
            Expr::Block(block) if block.label.is_none() => self.block(&block.block, false),
            Expr::If(branch) => self.branch(branch, false),
            Expr::Match(choice) => self.switch(choice, false),
            Expr::While(repeat) => {
                self.unlabelled(repeat.label.as_ref());
                self.loops += 1;
                let condition = self.value(&repeat.cond);
                let body = self.block(&repeat.body, false);
                self.loops -= 1;
                quote_spanned!(repeat.while_token.span => __k.while_(|| #condition, || #body);)
            }
            Expr::Loop(repeat) => {
                self.unlabelled(repeat.label.as_ref());
                self.loops += 1;
                let body = self.block(&repeat.body, false);
                self.loops -= 1;
                quote_spanned!(repeat.loop_token.span => __k.loop_(|| #body);)
            }
            Expr::ForLoop(repeat) => self.count(repeat),
            Expr::Break(exit) => {
                if let Some(value) = &exit.expr {
                    return self.error(value.span(), "assign the value to a `let mut` variable before the `break`");
                }
                self.exit_label(exit.label.as_ref());
                quote_spanned!(span => __k.break_();)
            }
            Expr::Continue(exit) => {
                self.exit_label(exit.label.as_ref());
                quote_spanned!(span => __k.continue_();)
            }
            Expr::Return(exit) => {
                if self.inline.is_some() {
                    return self.error(span, "a function for kernels ends at its end: let its last expression be the value, with `if` and `else`");
                }
                match &exit.expr {
                    Some(value) => {
                        self.error(value.span(), "a kernel returns nothing: write results to a `&mut` slice")
                    }
                    None => quote_spanned!(span => __k.return_();),
                }
            }
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
                if let Some(Kind::Object { narrow: true, .. }) = self.place(&binary.left) {
                    return self.error(
                        span,
                        "elements of 8 and 16 bits are loaded and stored with casts: `x[i] = (x[i] as u32 + 1) as u8`",
                    );
                }
                let right = self.value(&binary.right);
                let assigned =
                    self.assign(&binary.left, span, |current| quote_spanned!(span => (#current) #operator __right));
                if let Expr::Index(index) = strip(&binary.left) {
                    self.mark_loaded(&index.expr);
                }
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

    /// The object that an expression is an element of.
    fn place(&self, expr: &Expr) -> Option<Kind> {
        let Expr::Index(index) = strip(expr) else { return None };
        name_of(&index.expr).and_then(|name| self.kind(name)).cloned()
    }

    fn mark_loaded(&mut self, object: &Expr) {
        if let Some(Kind::Object { name, .. }) = name_of(object).and_then(|name| self.kind(name)) {
            self.loaded.insert(name.clone());
        }
    }

    /// Assigns to a variable or an element; `value` is given what it is now.
    fn assign(&mut self, place: &Expr, span: Span, value: impl FnOnce(TokenStream) -> TokenStream) -> TokenStream {
        match strip(place) {
            Expr::Path(path) => match name_of(place).and_then(|name| self.kind(name)) {
                Some(Kind::Variable) => {
                    let value = value(quote!(#path.get()));
                    quote_spanned!(span => #path.set(#value);)
                }
                Some(Kind::Object { .. }) => self.error(span, "arrays are assigned element by element"),
                Some(Kind::Uniform) => self.error(span, "parameters do not change: copy it first, with `let mut`"),
                Some(Kind::Value | Kind::Constant) => self.error(span, "to change it, declare it with `let mut`"),
                None => self.error(span, "only variables of the kernel can be assigned"),
            },
            Expr::Index(index) => {
                let Some((object, Kind::Object { atomic, mutable, .. })) = self.object_of(&index.expr) else {
                    return quote!(());
                };
                if !mutable && !atomic {
                    return self.error(span, format!("`{object}` is only read: to store to it, take it as `&mut [T]`"));
                }
                if atomic {
                    return self
                        .error(span, format!("this element is atomic: write `{object}[…].store(…)` or `fetch_add`"));
                }
                let at = self.value(&index.index);
                let value = value(quote!(#object.load(__at)));
                quote_spanned!(span => { let __at = #at; #object.store(__at, #value); })
            }
            _ => self.error(place.span(), "only variables and elements of slices can be assigned"),
        }
    }

    fn object_of(&mut self, expr: &Expr) -> Option<(Ident, Kind)> {
        if let Some(name) = name_of(expr)
            && let Some(kind @ Kind::Object { .. }) = self.kind(name)
        {
            return Some((name.clone(), kind.clone()));
        }
        self.error(expr.span(), "only slices and arrays have elements; two dimensions are `x[row * width + column]`");
        None
    }

    fn unlabelled(&mut self, label: Option<&syn::Label>) {
        if let Some(label) = label {
            self.error(label.span(), "loops have no labels: `break` and `continue` are for the innermost loop");
        }
    }

    fn exit_label(&mut self, label: Option<&syn::Lifetime>) {
        if let Some(label) = label {
            self.error(
                label.span(),
                "`break` and `continue` are for the innermost loop: leave an outer one by a `bool` variable",
            );
        }
    }

    fn count(&mut self, repeat: &ExprForLoop) -> TokenStream {
        self.unlabelled(repeat.label.as_ref());
        let (range, step) = match strip(&repeat.expr) {
            Expr::MethodCall(call) if call.method == "step_by" && call.args.len() == 1 => {
                (strip(&call.receiver), Some(&call.args[0]))
            }
            range => (range, None),
        };
        let Expr::Range(range @ syn::ExprRange { start: Some(from), end: Some(to), .. }) = range else {
            return self.error(repeat.expr.span(), "a `for` counts: `for i in 0..n`, or `for i in (0..n).step_by(2)`");
        };
        if let RangeLimits::Closed(token) = &range.limits {
            return self.error(token.span(), "write `a..b + 1`: ranges do not include their end");
        }
        let (from, to) = (self.value(from), self.value(to));
        let step = step.map(|step| self.value(step));
        let name = match &*repeat.pat {
            Pat::Ident(name) if name.mutability.is_none() && name.by_ref.is_none() => name.ident.clone(),
            Pat::Wild(wild) => Ident::new("__counter", wild.span()),
            pattern => return self.error(pattern.span(), "the counter is a name, and does not change in the body"),
        };
        self.loops += 1;
        self.scopes.push((name.clone(), Kind::Value));
        let body = self.block(&repeat.body, false);
        self.scopes.pop();
        self.loops -= 1;
        let span = repeat.for_token.span;
        match step {
            None => quote_spanned!(span => __k.for_range(#from, #to, |#name| #body);),
            Some(step) => quote_spanned!(span => __k.for_range_step(#from, #to, #step, |#name| #body);),
        }
    }

    fn macro_call(&mut self, call: &Macro) -> TokenStream {
        let span = call.span();
        if !["print", "println"].iter().any(|name| call.path.is_ident(name)) {
            return self.error(
                span,
                "the only macro of a kernel is `print!`; an invocation that must fail calls `trap(code)`",
            );
        }
        let parsed = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(call.tokens.clone());
        let arguments = match parsed {
            Ok(arguments) => arguments,
            Err(error) => return self.error(error.span(), error),
        };
        let Some(Expr::Lit(ExprLit { lit: Lit::Str(format), .. })) = arguments.first() else {
            return self.error(span, "begin with a text: `print!(\"{}\", x)`");
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

    /// An expression for its value.
    fn value(&mut self, expr: &Expr) -> TokenStream {
        let span = expr.span();
        match expr {
            Expr::Paren(inner) => self.value(&inner.expr),
            Expr::Group(inner) => self.value(&inner.expr),
            Expr::Block(block) if block.label.is_none() => self.block(&block.block, true),
            Expr::Lit(literal) => {
                let literal = self.literal(&literal.lit);
                quote_spanned!(span => __k.lit(#literal))
            }
            Expr::Path(path) => match name_of(expr).and_then(|name| self.kind(name)) {
                Some(Kind::Value) => path.to_token_stream(),
                Some(Kind::Variable) => quote_spanned!(span => #path.get()),
                Some(Kind::Uniform) => quote_spanned!(span => #path.load()),
                Some(Kind::Constant) => constant_name(&path.path).to_token_stream(),
                Some(Kind::Object { .. }) => {
                    self.error(span, "a slice is no value: use an element of it, such as `x[i]`")
                }
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
                _ => self.error(span, "there are no pointers on a device: use `x[i]`"),
            },
            Expr::Binary(binary) => {
                if compound(&binary.op).is_some() {
                    return self.error(span, "an assignment has no value: write it as a statement");
                }
                self.binary(binary)
            }
            Expr::Cast(cast) => self.cast(cast),
            Expr::Index(index) => match self.object_of(&index.expr) {
                Some((object, Kind::Object { narrow: false, atomic: false, name, .. })) => {
                    self.loaded.insert(name);
                    let at = self.value(&index.index);
                    quote_spanned!(span => #object.load(#at))
                }
                Some((object, Kind::Object { atomic: true, .. })) => {
                    self.error(span, format!("this element is atomic: write `{object}[…].load()`"))
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
                    && let Some(name) = name_of(&call.func)
                    && AXES.iter().any(|axis| name == axis)
                    && let syn::Member::Named(axis) = &field.member
                    && let axis @ ("X" | "Y" | "Z") = axis.to_string().to_uppercase().as_str()
                {
                    let axis = Ident::new(axis, field.member.span());
                    return quote_spanned!(span => __k.#name(::vyre::ir::Axis::#axis));
                }
                self.error(span, "values have no fields: there are no structs on a device")
            }
            Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_) => {
                self.error(span, "a loop has no value: assign to a `let mut` variable in it")
            }
            Expr::Break(_) | Expr::Continue(_) | Expr::Return(_) => {
                let exit = self.effect(expr);
                quote_spanned!(span => { #exit __k.never() })
            }
            Expr::Array(_) | Expr::Repeat(_) => {
                self.error(span, "an array is declared by a `let` of its own: `let mut a: [f32; 16] = [0.0; 16];`")
            }
            Expr::Closure(_) => {
                self.error(span, "there are no closures on a device: write a function with `#[kernel(inline)]`")
            }
            Expr::Reference(_) => self.error(span, "there are no references to values on a device: leave out the `&`"),
            Expr::Struct(_) => self.error(span, "there are no structs on a device: use one slice for each field"),
            Expr::Tuple(_) => self.error(span, "there are no tuples on a device: use one variable for each part"),
            Expr::Range(_) => self.error(span, "a range stands only in `for i in a..b`"),
            Expr::Try(_) => self.error(span, "there are no `Result`s on a device: `trap(code)` makes the launch fail"),
            Expr::Let(_) => self.error(span, "there are no patterns to test on a device: use a comparison"),
            Expr::Assign(_) => self.error(span, "an assignment has no value: write it as a statement"),
            Expr::Macro(_) => self.error(span, "macros are not known in kernels; `print!` is a statement"),
            Expr::Unsafe(_) => self.error(span, "nothing is unsafe on a device: leave out `unsafe`"),
            Expr::Async(_) | Expr::Await(_) => self.error(span, "nothing is `async` on a device"),
            _ => self.error(span, "this is not known in kernels"),
        }
    }

    /// A literal, with the device's name of its type.
    fn literal(&mut self, literal: &Lit) -> TokenStream {
        let message = match literal {
            Lit::Int(number) => match number.suffix() {
                "usize" | "isize" => {
                    let ty = if number.suffix() == "usize" { "u32" } else { "i32" };
                    return LitInt::new(&format!("{}{ty}", number.base10_digits()), number.span()).to_token_stream();
                }
                "u8" | "i8" | "u16" | "i16" => {
                    "compute with `u32` or `i32`: values of 8 and 16 bits are only in slices"
                }
                "u128" | "i128" => "the widest integers of a device are `i64` and `u64`",
                _ => return literal.to_token_stream(),
            },
            Lit::Float(_) | Lit::Bool(_) => return literal.to_token_stream(),
            _ => "there is no text on a device, except in `print!`",
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
            // What has no effect may be computed whether it is needed or not.
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
            Expr::Lit(_) | Expr::Path(_) | Expr::Field(_) => true,
            Expr::Unary(unary) => self.is_pure(&unary.expr),
            Expr::Binary(binary) => self.is_pure(&binary.left) && self.is_pure(&binary.right),
            Expr::Cast(cast) => self.is_pure(&cast.expr),
            Expr::Index(index) => self.is_pure(&index.index),
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
                // As in Rust, a literal takes the type that it is cast to, if that is one of integers.
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

    /// An element of 8 or 16 bits, as the 32-bit value that it is loaded as.
    fn loaded_wide(&mut self, expr: &Expr) -> Option<TokenStream> {
        let Expr::Index(index) = strip(expr) else { return None };
        let Some(Kind::Object { narrow: true, name, .. }) = self.place(expr) else { return None };
        self.loaded.insert(name);
        let (object, at) = (&index.expr, self.value(&index.index));
        Some(quote_spanned!(expr.span() => #object.load(#at)))
    }

    /// A value that is stored to an element of an object.
    fn stored(&mut self, expr: &Expr, object: &Kind) -> TokenStream {
        if !matches!(object, Kind::Object { narrow: true, .. }) {
            return self.value(expr);
        }
        match strip(expr) {
            Expr::Lit(_) => self.value(expr),
            // A store takes the low bits, which is what the cast of an integer does.
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
                None => self.error(expr.span(), "cast it where it is stored, such as `x[i] = value as u8`"),
            },
        }
    }

    fn branch(&mut self, branch: &ExprIf, valued: bool) -> TokenStream {
        let span = branch.if_token.span;
        let condition = self.value(&branch.cond);
        let simple = |block: &Block| match &block.stmts[..] {
            [Stmt::Expr(expr, None)] if matches!(strip(expr), Expr::Lit(_) | Expr::Path(_)) => Some(expr.clone()),
            _ => None,
        };
        let Some((_, otherwise)) = &branch.else_branch else {
            let then = self.block(&branch.then_branch, false);
            return quote_spanned!(span => __k.if_(#condition, || #then););
        };
        // Where there is nothing to compute, there is nothing to branch for.
        if valued
            && let Some(then) = simple(&branch.then_branch)
            && let Expr::Block(block) = &**otherwise
            && let Some(otherwise) = simple(&block.block)
        {
            let (then, otherwise) = (self.value(&then), self.value(&otherwise));
            return quote_spanned!(span => (#condition).select(#then, #otherwise));
        }
        let then = self.block(&branch.then_branch, valued);
        let otherwise = match &**otherwise {
            Expr::If(next) => self.branch(next, valued),
            Expr::Block(block) => self.block(&block.block, valued),
            other => self.error(other.span(), "an `else` has a block"),
        };
        if valued {
            quote_spanned!(span => __k.if_else(#condition, || #then, || { #otherwise }))
        } else {
            quote_spanned!(span => __k.if_else(#condition, || #then, || { #otherwise });)
        }
    }

    fn switch(&mut self, choice: &ExprMatch, valued: bool) -> TokenStream {
        let span = choice.match_token.span;
        let selector = self.value(&choice.expr);
        let mut cases = Vec::new();
        let mut arms = Vec::new();
        let mut has_rest = false;
        for arm in &choice.arms {
            if let Some((token, _)) = &arm.guard {
                return self.error(token.span(), "an arm has no `if`: put it into the arm");
            }
            let pattern = if let Pat::Wild(wild) = &arm.pat {
                has_rest = true;
                quote_spanned!(wild.span() => _)
            } else {
                let patterns = match &arm.pat {
                    Pat::Or(or) => or.cases.iter().collect(),
                    pattern => vec![pattern],
                };
                for pattern in patterns {
                    let Some(number) = number(pattern) else {
                        return self.error(
                            pattern.span(),
                            "an arm is for integers, such as `1` or `2 | 3`, or `_` for the rest",
                        );
                    };
                    cases.push(number);
                }
                let pattern = &arm.pat;
                quote_spanned!(pattern.span() => ::core::option::Option::Some(#pattern))
            };
            let body = if diverges(&arm.body) {
                let exit = self.effect(&arm.body);
                let never = valued.then(|| quote!(__k.never()));
                quote!({ #exit #never })
            } else if valued {
                self.value(&arm.body)
            } else {
                let effect = self.effect(&arm.body);
                quote!({ #effect })
            };
            arms.push(quote_spanned!(arm.span() => #pattern => #body,));
        }
        if !has_rest {
            return self.error(span, "add an arm `_ => …` for all other numbers");
        }
        let end = (!valued).then(|| quote!(;));
        quote_spanned!(span => __k.switch_(#selector, [#(#cases),*], |__case| match __case { #(#arms)* }) #end)
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
            return self.error(span, format!("`{name}` is not known in kernels: {instead}"));
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
        if COLLECTIVE.contains(&name.as_str()) && count(if name == "subgroup_shuffle" { 2 } else { 1 }) {
            self.collective = true;
            let mut arguments = call.args.iter().map(|argument| self.value(argument)).collect::<Vec<_>>().into_iter();
            let first = arguments.next();
            return quote_spanned!(span => (#first).#function(#(#arguments),*));
        }
        if self.inline.as_ref().is_some_and(|inline| *inline == name) {
            return self.error(span, "a function for kernels cannot call itself: write a loop");
        }
        // What is called may work together with others; only its own expansion knows. Then it panics on the host.
        let mut arguments = Vec::new();
        for argument in &call.args {
            let inner = match argument {
                Expr::Reference(reference) => &*reference.expr,
                argument => argument,
            };
            if let Some(Kind::Object { .. }) = name_of(inner).and_then(|name| self.kind(name)) {
                self.mark_loaded(inner);
                arguments.push(inner.to_token_stream());
            } else {
                arguments.push(self.value(argument));
            }
        }
        let mut function = path.path.clone();
        let generics = function.segments.last_mut().map(|last| std::mem::take(&mut last.arguments));
        let generics = generics.filter(|generics| !generics.is_none());
        quote_spanned!(span => #function::build #generics (__k #(, #arguments)*))
    }
}

pub(crate) fn constant_name(name: &impl ToTokens) -> Ident {
    let name = name.to_token_stream();
    Ident::new(&format!("__constant_{name}"), name.span())
}

/// An expression without the parentheses around it.
fn strip(expr: &Expr) -> &Expr {
    match expr {
        Expr::Paren(inner) => strip(&inner.expr),
        Expr::Group(inner) => strip(&inner.expr),
        expr => expr,
    }
}

fn name_of(expr: &Expr) -> Option<&Ident> {
    match strip(expr) {
        Expr::Path(path) if path.qself.is_none() => path.path.get_ident(),
        _ => None,
    }
}

fn is_zero(expr: &Expr) -> bool {
    match strip(expr) {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_digits() == "0",
        // Not `-0.0`, which is no literal.
        Expr::Lit(ExprLit { lit: Lit::Float(number), .. }) => {
            number.base10_parse::<f64>().is_ok_and(|number| number == 0.0)
        }
        _ => false,
    }
}

/// The number that a pattern is for.
fn number(pattern: &Pat) -> Option<TokenStream> {
    match pattern {
        Pat::Lit(ExprLit { lit: Lit::Int(number), .. }) if number.suffix().is_empty() => Some(number.to_token_stream()),
        // syn has no variant of its own for negative literals.
        Pat::Verbatim(tokens) => Some(tokens.clone()),
        _ => None,
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

/// Whether what follows an expression is never reached.
fn diverges(expr: &Expr) -> bool {
    let block =
        |block: &Block| block.stmts.iter().any(|statement| matches!(statement, Stmt::Expr(expr, _) if diverges(expr)));
    match strip(expr) {
        Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => true,
        Expr::Call(call) => name_of(&call.func).is_some_and(|name| name == "trap"),
        Expr::Block(inner) => block(&inner.block),
        Expr::If(branch) => {
            block(&branch.then_branch) && branch.else_branch.as_ref().is_some_and(|(_, otherwise)| diverges(otherwise))
        }
        Expr::Match(choice) => choice.arms.iter().all(|arm| diverges(&arm.body)),
        Expr::Loop(repeat) => !mentions_break(repeat.body.to_token_stream()),
        _ => false,
    }
}

/// Whether a loop may end: a `break` of a loop inside counts too, which at worst keeps what is never reached.
fn mentions_break(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(name) => name == "break",
        TokenTree::Group(group) => mentions_break(group.stream()),
        _ => false,
    })
}
