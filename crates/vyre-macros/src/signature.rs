//! Parameters, and the items that a function becomes.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, FnArg, GenericParam, Ident, ItemFn, Pat, ReturnType, Type};

use crate::Options;
use crate::body::{Body, Kind, constant_name, debug_name, device_type};
use crate::source;

/// A parameter of a function.
struct Param {
    name: Ident,
    ty: Type,
    /// `None` for a scalar.
    slice: Option<Slice>,
}

/// What the type of a slice, or of an array, says.
pub(crate) struct Slice {
    pub(crate) element: Type,
    pub(crate) length: Option<Expr>,
    pub(crate) mutable: bool,
    pub(crate) atomic: bool,
}

impl Slice {
    /// Understands `[T]`, `[T; N]`, and both of `Atomic<T>`.
    pub(crate) fn of(ty: &Type, mutable: bool) -> Option<Slice> {
        let (element, length) = match ty {
            Type::Slice(slice) => (&*slice.elem, None),
            Type::Array(array) => (&*array.elem, Some(array.len.clone())),
            _ => return None,
        };
        let (element, atomic) = match atomic(element) {
            Some(inner) => (inner, true),
            None => (element, false),
        };
        Some(Slice { element: element.clone(), length, mutable, atomic })
    }

    pub(crate) fn kind(&self) -> Kind {
        let narrow = matches!(&self.element, Type::Path(path) if ["u8", "i8", "u16", "i16"].iter().any(|ty| path.path.is_ident(ty)));
        Kind::Object { element: Box::new(self.element.clone()), mutable: self.mutable, narrow, atomic: self.atomic }
    }
}

/// The `T` of `Atomic<T>`.
fn atomic(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == "Atomic")?;
    let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first()? {
        syn::GenericArgument::Type(ty) => Some(ty),
        _ => None,
    }
}

fn params(function: &ItemFn) -> syn::Result<Vec<Param>> {
    let signature = &function.sig;
    let misplaced = [
        (signature.asyncness.map(|token| token.span), "a kernel cannot be `async`"),
        (
            signature.unsafety.map(|token| token.span),
            "a kernel cannot be `unsafe`: every operation is defined, nothing is unsafe in it",
        ),
        (signature.constness.map(|token| token.span), "a kernel cannot be `const`"),
        (signature.abi.as_ref().map(Spanned::span), "a kernel cannot be `extern`"),
        (signature.variadic.as_ref().map(Spanned::span), "a kernel has a fixed number of parameters"),
    ];
    if let Some((span, message)) = misplaced.into_iter().find_map(|(span, message)| Some((span?, message))) {
        return Err(syn::Error::new(span, message));
    }
    signature.inputs.iter().map(param).collect()
}

fn param(input: &FnArg) -> syn::Result<Param> {
    let FnArg::Typed(input) = input else {
        return Err(syn::Error::new(input.span(), "a kernel is a free function: it has no `self`"));
    };
    let Pat::Ident(pattern) = &*input.pat else {
        return Err(syn::Error::new(input.pat.span(), "a parameter is a name and a type"));
    };
    if let Some(token) = pattern.mutability {
        let message = format!("parameters do not change: copy it with `let mut {0} = {0};`", pattern.ident);
        return Err(syn::Error::new(token.span, message));
    }
    let slice = match &*input.ty {
        Type::Reference(reference) => {
            let slice = Slice::of(&reference.elem, reference.mutability.is_some());
            Some(slice.ok_or_else(|| {
                syn::Error::new(
                    input.ty.span(),
                    "a reference is to a slice: `&[T]`, `&mut [T]`, `&[Atomic<T>]`; a scalar is given by value",
                )
            })?)
        }
        ty => {
            device_type(ty)?;
            None
        }
    };
    if let Some(slice) = &slice
        && slice.atomic
        && slice.mutable
    {
        return Err(syn::Error::new(input.ty.span(), "atomics are shared by all invocations: write `&[Atomic<T>]`"));
    }
    Ok(Param { name: pattern.ident.clone(), ty: (*input.ty).clone(), slice })
}

/// The items of a kernel.
pub(crate) fn kernel(options: &Options, function: &ItemFn) -> syn::Result<TokenStream> {
    let (name, visibility, block) = (&function.sig.ident, &function.vis, &function.block);
    let Some(workgroup) = options.workgroup else {
        return Err(syn::Error::new(name.span(), "say how large a workgroup is: `#[kernel(workgroup = 256)]`"));
    };
    if let ReturnType::Type(_, ty) = &function.sig.output {
        let message = "a kernel returns nothing: write results to a `&mut` slice; a function with a result is `#[kernel(inline)]`";
        return Err(syn::Error::new(ty.span(), message));
    }
    let params = params(function)?;
    let mut generics = function.sig.generics.clone();
    for param in &mut generics.params {
        match param {
            GenericParam::Lifetime(lifetime) => {
                return Err(syn::Error::new(lifetime.span(), "a kernel has no lifetimes: leave them out"));
            }
            // Programs are kept by type, so the type lives as long as they do.
            GenericParam::Type(ty) => ty.bounds.push(syn::parse_quote!('static)),
            GenericParam::Const(_) => {}
        }
    }

    let mut body = Body::of_kernel();
    let mut declare = Vec::new();
    for constant in generics.const_params() {
        let (name, ty) = (&constant.ident, device_type(&constant.ty)?);
        let text = name.to_string();
        let value = constant_name(name);
        body.bind(name, Kind::Constant);
        declare.push(quote_spanned! { name.span() =>
            let #value = __k.constant::<#ty>(#text, ::vyre::__private::scalar(#name));
        });
    }
    for Param { name, ty, slice } in &params {
        let text = name.to_string();
        body.bind(name, slice.as_ref().map_or(Kind::Uniform, Slice::kind));
        declare.push(match slice {
            None => {
                let ty = device_type(ty)?;
                quote_spanned! { name.span() => let #name = __k.uniform::<#ty>(#text); }
            }
            Some(slice) => {
                let method = match slice {
                    Slice { atomic: true, .. } => "atomic",
                    Slice { mutable: true, .. } => "mutable",
                    _ => "read",
                };
                let (method, element) = (Ident::new(method, name.span()), &slice.element);
                let length = slice
                    .length
                    .iter()
                    .map(|length| quote_spanned! { length.span() => .with_length((#length) as u32) });
                quote_spanned! { name.span() => let #name = __k.#method::<#element>(#text) #(#length)*; }
            }
        });
    }
    let statements = body.translate(block, false)?;

    let (inputs, bindings): (Vec<_>, Vec<_>) = params.iter().map(launch_param).unzip();
    let plain_inputs: Vec<_> = params.iter().map(|Param { name, ty, .. }| quote!(#name: #ty)).collect();
    let given = params.iter().map(|Param { name, slice, .. }| match slice {
        Some(Slice { mutable: true, .. }) => quote!(&mut *#name),
        _ => quote!(#name),
    });
    let called = body.called();
    let host = (!body.is_collective()).then(|| {
        quote! {
            /// Runs the kernel as plain Rust, one invocation after the other, over the same grid as a device would.
            #visibility fn host(grid: impl ::vyre::IntoGrid, #(#plain_inputs),*) {
                #(const {
                    let alone = !<#called>::COLLECTIVE;
                    assert!(alone, "invocations work together in a function that this kernel calls: it has no `host`");
                })*
                ::vyre::host::run(grid, [#(#workgroup),*], || (Self::__PLAIN)(#(#given),*));
            }
        }
    });
    let plain = plain(function, &params, generics.params.is_empty());
    let understood = generics.params.is_empty().then(|| understood(name));
    let fast = options.fast.then(|| quote!(__k.fast();));
    let documentation = function.attrs.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let text = name.to_string();
    let source = source::of(function);
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    let turbofish = type_generics.as_turbofish();
    let types = generics.type_params().map(|param| &param.ident);
    let mut launch_generics = generics.clone();
    launch_generics.params.insert(0, syn::parse_quote!('__launch));
    let (launch_generics, ..) = launch_generics.split_for_impl();
    Ok(quote! {
        #(#documentation)*
        #[allow(clippy::too_many_arguments)]
        #visibility fn #name #launch_generics (#(#inputs),*) -> ::vyre::Launch<'__launch> #where_clause {
            ::vyre::Launch::__new::<#name #type_generics>(#name #turbofish ::program) #(#bindings)*
        }

        #[allow(non_camel_case_types, dead_code)]
        #[doc(hidden)]
        #visibility struct #name #impl_generics #where_clause { never: ::core::marker::PhantomData<(#(#types,)*)> }

        #[allow(dead_code)]
        impl #impl_generics #name #type_generics #where_clause {
            #host

            #plain

            /// The program that devices run.
            ///
            /// # Errors
            /// The body breaks a rule that the type checker does not know.
            #[allow(unused, unused_qualifications, clippy::all, clippy::pedantic, non_snake_case)]
            #visibility fn program() -> ::core::result::Result<::vyre::ir::Program, ::vyre::Error> {
                ::core::result::Result::Ok(::vyre::build::kernel(#text, [#(#workgroup),*], |__k| {
                    #understood
                    use ::core::ops::{Add as _, Mul as _, Neg as _, Sub as _};
                    #fast
                    #(#declare)*
                    #statements
                })?)
            }

            /// The program as `.vyre` text, which the command `vyre` reads.
            ///
            /// # Errors
            /// As for `program`.
            #visibility fn text() -> ::core::result::Result<::std::string::String, ::vyre::Error> {
                ::core::result::Result::Ok(::std::string::ToString::to_string(&Self::program()?))
            }

            /// The program in WGSL, the shader language of WebGPU.
            ///
            /// # Errors
            /// The program is not valid or cannot be said in WGSL, or the feature `wgpu` of `vyre` is off.
            #visibility fn wgsl() -> ::core::result::Result<::std::string::String, ::vyre::Error> {
                ::vyre::emit::wgsl(&Self::program()?)
            }

            /// The machine code of the device `cpu`, after the instructions of the optimized program that it was generated from.
            ///
            /// # Errors
            /// The program is not valid, there is no code generator for this processor, or the feature `cpu` of `vyre` is off.
            #visibility fn asm() -> ::core::result::Result<::std::string::String, ::vyre::Error> {
                ::vyre::emit::asm(&Self::program()?)
            }

            /// Writes a page for a browser: the program after each pass, its cost along the passes, and the code that comes out.
            ///
            /// # Errors
            /// The program is not valid, or the file cannot be written.
            #visibility fn explain_html(
                path: impl ::core::convert::AsRef<::std::path::Path>,
            ) -> ::core::result::Result<(), ::vyre::Error> {
                ::vyre::explain::__kernel(&Self::program()?, #source, path.as_ref())
            }
        }
    })
}

/// The function as plain Rust, as a constant: one that rustc can compute only if it understands the body. A constant cannot
/// depend on parameters, so there is none that asks for it if there are some.
fn plain(function: &ItemFn, params: &[Param], asked: bool) -> TokenStream {
    let (types, output) = (params.iter().map(|param| &param.ty), &function.sig.output);
    let inputs = params.iter().map(|Param { name, ty, .. }| quote!(#name: #ty));
    let body = crate::body::plain(&function.block);
    let result = match output {
        ReturnType::Default => quote!(-> ()),
        ReturnType::Type(..) => output.to_token_stream(),
    };
    let understood = asked.then(|| {
        quote! {
            const __UNDERSTOOD: usize = {
                let _ = Self::__PLAIN;
                1
            };
        }
    });
    quote! {
        // clippy would suggest what devices do not have.
        #[allow(dead_code, unused_labels, clippy::all, clippy::pedantic)]
        const __PLAIN: fn(#(#types),*) #output = |#(#inputs),*| #result {
            #[allow(unused_imports)]
            use ::vyre::host::*;
            #body
        };
        #understood
    }
}

/// In the builder version, the kernel is of no known type if rustc does not understand the plain one, and what is done with it is
/// no error: what is wrong is said once, in the terms of the source.
fn understood(name: &Ident) -> TokenStream {
    quote!(let __k: &::vyre::__private::Builder<{ #name::__UNDERSTOOD }> = __k;)
}

/// A parameter of the function that callers call, and what it adds to the launch.
fn launch_param(param: &Param) -> (TokenStream, TokenStream) {
    let Param { name, ty, slice } = param;
    let (text, span) = (name.to_string(), ty.span());
    match slice {
        None => (quote!(#name: #ty), quote!(.__scalar(#text, #name))),
        Some(slice) => {
            let element = &slice.element;
            // An atomic slice is changed, so nobody else may have it.
            let mutable = (slice.mutable || slice.atomic).then(|| quote_spanned!(span => mut));
            (
                quote_spanned!(span => #name: &'__launch #mutable ::vyre::Buffer<#element>),
                quote!(.__buffer(#text, #name)),
            )
        }
    }
}

/// The items of a function that kernels call.
pub(crate) fn inline(function: &ItemFn) -> syn::Result<TokenStream> {
    let ItemFn { attrs, vis, sig, block } = function;
    let name = &sig.ident;
    if let Some(lifetime) = sig.generics.lifetimes().next() {
        return Err(syn::Error::new(
            lifetime.span(),
            "leave the lifetimes out: a function for kernels returns scalars",
        ));
    }
    let mut body = Body::of_inline(name);
    let (mut inputs, mut named) = (Vec::new(), Vec::new());
    let params = params(function)?;
    for Param { name, ty, slice } in &params {
        let (kind, ty) = match slice {
            None => {
                let ty = device_type(ty)?;
                (Kind::Value, quote_spanned!(ty.span() => ::vyre::build::Val<'__k, #ty>))
            }
            Some(slice) => {
                let element = &slice.element;
                let access = match slice {
                    Slice { atomic: true, .. } => quote!(::vyre::build::Atomic),
                    Slice { mutable: true, .. } => quote!(::vyre::build::ReadWrite),
                    Slice { mutable: false, .. } => quote!(impl ::vyre::build::Loads + ::core::marker::Copy),
                };
                (slice.kind(), quote_spanned!(ty.span() => ::vyre::build::Object<'__k, #element, #access>))
            }
        };
        body.bind(name, kind);
        inputs.push(quote!(#name: #ty));
        if slice.is_none() {
            let text = debug_name(name);
            named.push(quote_spanned!(name.span() => __k.debug_name(#text, #name);));
        }
    }
    let output = match &sig.output {
        ReturnType::Default => quote!(()),
        ReturnType::Type(_, ty) => match &**ty {
            Type::Tuple(tuple) => {
                let parts = tuple.elems.iter().map(device_type).collect::<syn::Result<Vec<_>>>()?;
                quote_spanned!(ty.span() => (#(::vyre::build::Val<'__k, #parts>),*))
            }
            ty => {
                let ty = device_type(ty)?;
                quote_spanned!(ty.span() => ::vyre::build::Val<'__k, #ty>)
            }
        },
    };
    let translated = body.translate(block, matches!(sig.output, ReturnType::Type(..)))?;
    let (collective, called) = (body.is_collective(), body.called());
    let mut build_generics = sig.generics.clone();
    build_generics.params.insert(0, syn::parse_quote!('__k));
    let (build_generics, _, where_clause) = build_generics.split_for_impl();
    // What has parameters cannot be a constant of the type without them.
    let (plain, understood, call) = if sig.generics.params.is_empty() {
        let arguments = params.iter().map(|param| &param.name);
        let call = quote!((#name::__PLAIN)(#(#arguments),*));
        (Some(plain(function, &params, true)), Some(understood(name)), call)
    } else {
        let body = crate::body::plain(block);
        (None, None, quote!(#[allow(unused_imports)] use ::vyre::host::*; #body))
    };
    Ok(quote! {
        #(#attrs)*
        #[allow(dead_code, unused_labels, clippy::all, clippy::pedantic)]
        #vis #sig {
            #call
        }

        #[allow(non_camel_case_types, dead_code)]
        #[doc(hidden)]
        #vis struct #name {}

        impl #name {
            #plain

            /// Whether invocations work together in it.
            #[doc(hidden)]
            #vis const COLLECTIVE: bool = #collective #(|| <#called>::COLLECTIVE)*;

            #[allow(unused, unused_qualifications, clippy::all, clippy::pedantic, non_snake_case)]
            #[doc(hidden)]
            #vis fn build #build_generics (__k: &'__k ::vyre::build::Kernel, #(#inputs),*) -> #output #where_clause {
                #understood
                use ::core::ops::{Add as _, Mul as _, Neg as _, Sub as _};
                #(#named)*
                #translated
            }
        }
    })
}
