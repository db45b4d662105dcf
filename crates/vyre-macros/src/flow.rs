//! Translation of control flow to builder calls.
//!
//! The builder has exits of the innermost loop only. An exit of an outer loop sets a flag variable and breaks the innermost loop; each loop
//! in between tests the flag after it. A function with an early `return` is a single-trip loop.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    BinOp, Block, Expr, ExprBlock, ExprForLoop, ExprIf, ExprLit, ExprLoop, ExprMatch, Ident, Label, Lit, Pat,
    RangeLimits, Stmt,
};

use crate::body::{Body, Kind, debug_name, name_of, strip};

/// An enclosing loop.
pub(crate) struct Loop {
    label: Option<Ident>,
    /// Variable that `break` assigns the value of the loop to.
    value: Option<Ident>,
    /// Exits of outer loops from inside this loop.
    exits: Vec<Exit>,
}

/// An exit of an outer loop.
#[derive(Clone, PartialEq)]
struct Exit {
    variable: Ident,
    /// Index of its target loop.
    target: usize,
    method: Ident,
}

/// Label of the single-trip loop of a function with `return`: not a valid label in the source.
pub(crate) const FUNCTION: &str = "return";

/// Maximum number of operations of an arm that is speculated (if-converted to `select`).
const MAX_SPECULATED: usize = 2;

impl Body {
    /// Translates a function with an early `return` to a single-trip loop.
    pub(crate) fn function(&mut self, block: &Block, valued: bool) -> TokenStream {
        let span = block.span();
        let ends = block.stmts.iter().any(|statement| matches!(statement, Stmt::Expr(expr, _) if diverges(expr)));
        self.repeat(span, Some(&Ident::new(FUNCTION, span)), valued, |body| {
            let value = body.loops.last().and_then(|function| function.value.clone());
            let statements = body.block(block, valued && !ends);
            let statements = match value {
                _ if ends => statements,
                Some(value) => quote_spanned!(span => #value.set(#statements); __k.break_();),
                None => quote_spanned!(span => #statements __k.break_();),
            };
            quote_spanned!(span => __k.loop_(|| { #statements });)
        })
    }

    /// Translates a loop, whose body `body` translates, with the flag variables and tests of its exits.
    pub(crate) fn repeat(
        &mut self,
        span: Span,
        label: Option<&Ident>,
        valued: bool,
        body: impl FnOnce(&mut Body) -> TokenStream,
    ) -> TokenStream {
        let depth = self.loops.len();
        let value = valued.then(|| Ident::new(&format!("__value_{depth}"), span));
        self.loops.push(Loop { label: label.cloned(), value: value.clone(), exits: Vec::new() });
        let body = body(self);
        let exits = self.loops.pop().map(|closed| closed.exits).unwrap_or_default();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for Exit { variable, target, method } in exits {
            let method = if target + 1 == depth {
                before.push(quote_spanned!(span => let #variable = __k.var(false);));
                method
            } else {
                Ident::new("break_", span)
            };
            after.push(quote_spanned!(span => __k.if_(#variable.get(), || __k.#method());));
        }
        let declared = value.as_ref().map(|value| quote_spanned!(span => let #value = __k.unset();));
        let given = value.map(|value| quote_spanned!(span => #value.get()));
        quote_spanned!(span => { #declared #(#before)* #body #(#after)* #given })
    }

    /// Translates a `break`, `continue` or `return`.
    pub(crate) fn exit(
        &mut self,
        span: Span,
        label: Option<&Ident>,
        method: &str,
        value: Option<&Expr>,
    ) -> TokenStream {
        let innermost = self.loops.len().saturating_sub(1);
        let target = match label {
            None => Some(innermost),
            Some(label) => self.loops.iter().rposition(|open| open.label.as_ref() == Some(label)),
        };
        let Some(target) = target else {
            return self.error(span, "no enclosing loop has this label");
        };
        if let Some(Expr::Tuple(tuple)) = value.map(strip) {
            return self.error(tuple.span(), "pass one value, and assign the others to variables");
        }
        let given = value.map(|value| match self.loops.get(target).and_then(|open| open.value.clone()) {
            Some(variable) => {
                let value = self.value(value);
                quote_spanned!(span => #variable.set(#value);)
            }
            None => self.error(value.span(), "this loop is not used as a value"),
        });
        let method = Ident::new(method, span);
        if target == innermost {
            return quote_spanned!(span => #given __k.#method(););
        }
        let label = label.map(ToString::to_string).unwrap_or_default();
        let exit = Exit { variable: Ident::new(&format!("__{method}{label}"), span), target, method };
        for inner in &mut self.loops[target + 1..] {
            if !inner.exits.contains(&exit) {
                inner.exits.push(exit.clone());
            }
        }
        let variable = exit.variable;
        quote_spanned!(span => #given #variable.set(true); __k.break_();)
    }

    pub(crate) fn endless(&mut self, repeat: &ExprLoop, valued: bool) -> TokenStream {
        let span = repeat.loop_token.span;
        self.repeat(span, label(repeat.label.as_ref()), valued, |translation| {
            let body = translation.block(&repeat.body, false);
            quote_spanned!(span => __k.loop_(|| #body);)
        })
    }

    /// Translates a block; a labelled block is a region with that name.
    pub(crate) fn labelled_block(&mut self, block: &ExprBlock, valued: bool) -> TokenStream {
        let body = self.block(&block.block, valued);
        let Some(label) = label(block.label.as_ref()) else { return body };
        let (name, end) = (label.to_string(), (!valued).then(|| quote!(;)));
        quote_spanned!(block.span() => __k.region(#name, || #body) #end)
    }

    pub(crate) fn count(&mut self, repeat: &ExprForLoop) -> TokenStream {
        let (range, step) = match strip(&repeat.expr) {
            Expr::MethodCall(call) if call.method == "step_by" && call.args.len() == 1 => {
                (strip(&call.receiver), Some(&call.args[0]))
            }
            range => (range, None),
        };
        let Expr::Range(range @ syn::ExprRange { start: Some(from), end: Some(to), .. }) = range else {
            return self
                .error(repeat.expr.span(), "`for` needs a range: `for i in 0..n`, or `for i in (0..n).step_by(2)`");
        };
        if let RangeLimits::Closed(token) = &range.limits {
            return self.error(token.span(), "inclusive ranges are not supported in kernels: write `a..b + 1`");
        }
        let (from, to) = (self.value(from), self.value(to));
        let step = step.map(|step| self.value(step));
        let (name, text) = match &*repeat.pat {
            Pat::Ident(name) if name.mutability.is_none() && name.by_ref.is_none() => {
                (name.ident.clone(), Some(debug_name(&name.ident)))
            }
            Pat::Wild(wild) => (Ident::new("__counter", wild.span()), None),
            pattern => return self.error(pattern.span(), "the loop variable must be a name without `mut`"),
        };
        let span = repeat.for_token.span;
        self.repeat(span, label(repeat.label.as_ref()), false, |translation| {
            translation.scopes.push((name.clone(), Kind::Value));
            let body = translation.block(&repeat.body, false);
            translation.scopes.pop();
            let named = text.map(|text| quote_spanned!(span => __k.debug_name(#text, #name);));
            match step {
                None => quote_spanned!(span => __k.for_range(#from, #to, |#name| { #named #body });),
                Some(step) => quote_spanned!(span => __k.for_range_step(#from, #to, #step, |#name| { #named #body });),
            }
        })
    }

    pub(crate) fn branch(&mut self, branch: &ExprIf, valued: bool) -> TokenStream {
        let span = branch.if_token.span;
        let condition = self.value(&branch.cond);
        let simple = |block: &Block| match &block.stmts[..] {
            [Stmt::Expr(expr, None)] if operations(expr).is_some_and(|count| count <= MAX_SPECULATED) => {
                Some(expr.clone())
            }
            _ => None,
        };
        let Some((_, otherwise)) = &branch.else_branch else {
            let then = self.block(&branch.then_branch, false);
            return quote_spanned!(span => __k.if_(#condition, || #then););
        };
        // If-conversion: cheap arms are speculated.
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

    pub(crate) fn switch(&mut self, choice: &ExprMatch, valued: bool) -> TokenStream {
        let span = choice.match_token.span;
        let selector = self.value(&choice.expr);
        let mut cases = Vec::new();
        let mut arms = Vec::new();
        let mut has_rest = false;
        for arm in &choice.arms {
            if let Some((token, _)) = &arm.guard {
                return self.error(token.span(), "match guards are not supported in kernels: write an `if` in the arm");
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
                            "only integer patterns are supported in kernels: `1`, `2 | 3`, or `_` for the rest",
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
            return self.error(span, "add an arm `_ => …` for the other numbers");
        }
        let end = (!valued).then(|| quote!(;));
        quote_spanned!(span => __k.switch_(#selector, [#(#cases),*], |__case| match __case { #(#arms)* }) #end)
    }
}

/// Returns the name of a label.
pub(crate) fn label(label: Option<&Label>) -> Option<&Ident> {
    label.map(|label| &label.name.ident)
}

/// Returns the number of operations of an expression, if all are cheap and free of side effects.
fn operations(expr: &Expr) -> Option<usize> {
    match strip(expr) {
        Expr::Lit(_) | Expr::Path(_) => Some(0),
        Expr::Unary(unary) => Some(operations(&unary.expr)? + 1),
        Expr::Binary(binary) => match binary.op {
            BinOp::Add(_) | BinOp::Sub(_) | BinOp::Mul(_) | BinOp::BitAnd(_) | BinOp::BitOr(_) | BinOp::BitXor(_) => {
                Some(operations(&binary.left)? + operations(&binary.right)? + 1)
            }
            _ => None,
        },
        _ => None,
    }
}

/// Returns the integer literal that a pattern matches.
fn number(pattern: &Pat) -> Option<TokenStream> {
    match pattern {
        Pat::Lit(ExprLit { lit: Lit::Int(number), .. }) if number.suffix().is_empty() => Some(number.to_token_stream()),
        // syn has no variant of its own for negative literals.
        Pat::Verbatim(tokens) => Some(tokens.clone()),
        _ => None,
    }
}

/// Returns true if the code after an expression is unreachable.
pub(crate) fn diverges(expr: &Expr) -> bool {
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
        Expr::Loop(repeat) => !mentions("break", repeat.body.to_token_stream()),
        _ => false,
    }
}

/// Returns true if tokens contain a keyword. A `break` of an inner loop counts, too: conservatively, the code after the outer loop is
/// reachable.
pub(crate) fn mentions(keyword: &str, tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(name) => name == keyword,
        TokenTree::Group(group) => mentions(keyword, group.stream()),
        _ => false,
    })
}
