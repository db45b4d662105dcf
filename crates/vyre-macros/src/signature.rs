//! Parameters, and the items of the expansion.

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

/// A slice or array type.
pub(crate) struct Slice {
    pub(crate) element: Type,
    pub(crate) length: Option<Expr>,
    pub(crate) mutable: bool,
    pub(crate) atomic: bool,
}

impl Slice {
    /// Parses `[T]`, `[T; N]`, and both of `Atomic<T>`.
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
        let narrow = matches!(&self.element, Type::Path(path) if ["u8", "i8", "u16", "i16"].iter().any(|ty| path.path.is_ident(ty)))
            || is_bf16(&self.element);
        Kind::Object { element: Box::new(self.element.clone()), mutable: self.mutable, narrow, atomic: self.atomic }
    }
}

/// Returns true for the type `bf16`, which is only an element of slices.
pub(crate) fn is_bf16(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "bf16"))
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
        (signature.unsafety.map(|token| token.span), "a kernel cannot be `unsafe`: every operation is defined"),
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
        return Err(syn::Error::new(input.span(), "a kernel must be a free function, without `self`"));
    };
    let Pat::Ident(pattern) = &*input.pat else {
        return Err(syn::Error::new(input.pat.span(), "write the parameter as a name and a type: `x: f32`"));
    };
    if let Some(token) = pattern.mutability {
        let message = format!("parameters are immutable: copy it with `let mut {0} = {0};`", pattern.ident);
        return Err(syn::Error::new(token.span, message));
    }
    let slice = match &*input.ty {
        Type::Reference(reference) => {
            let slice = Slice::of(&reference.elem, reference.mutability.is_some());
            Some(slice.ok_or_else(|| {
                syn::Error::new(
                    input.ty.span(),
                    "only slices are passed by reference: `&[T]`, `&mut [T]`, `&[Atomic<T>]`; pass scalars by value",
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
        return Err(syn::Error::new(name.span(), "specify the workgroup size: `#[kernel(workgroup = 256)]`"));
    };
    if let ReturnType::Type(_, ty) = &function.sig.output {
        let message = "a kernel cannot return a value: write results to a `&mut` slice, or use `#[kernel(inline)]`";
        return Err(syn::Error::new(ty.span(), message));
    }
    let params = params(function)?;
    let mut generics = function.sig.generics.clone();
    for param in &mut generics.params {
        match param {
            GenericParam::Lifetime(lifetime) => {
                return Err(syn::Error::new(lifetime.span(), "a kernel cannot have lifetime parameters: remove them"));
            }
            // Programs are cached by type for the life of the process.
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
            /// Runs the kernel as plain Rust, one invocation at a time, over the grid of a launch.
            #visibility fn host(grid: impl ::vyre::IntoGrid, #(#plain_inputs),*) {
                #(const {
                    let alone = !<#called>::COLLECTIVE;
                    assert!(alone, "a function that this kernel calls has barriers or subgroup operations: the kernel has no `host`");
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

            /// The program.
            ///
            /// # Errors
            /// The body violates a rule that rustc does not check.
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

            /// The program as `.vyre` text, for the command `vyre`.
            ///
            /// # Errors
            /// As for `program`.
            #visibility fn text() -> ::core::result::Result<::std::string::String, ::vyre::Error> {
                ::core::result::Result::Ok(::std::string::ToString::to_string(&Self::program()?))
            }

            /// The program in WGSL, the shader language of WebGPU.
            ///
            /// # Errors
            /// The program is invalid or cannot be expressed in WGSL, or the feature `wgpu` of `vyre` is off.
            #visibility fn wgsl() -> ::core::result::Result<::std::string::String, ::vyre::Error> {
                ::vyre::emit::wgsl(&Self::program()?)
            }

            /// The machine code of the device `cpu`, annotated with the instructions of the optimized program.
            ///
            /// # Errors
            /// The program is invalid, there is no code generator for this processor, or the feature `cpu` of `vyre` is off.
            #visibility fn asm() -> ::core::result::Result<::std::string::String, ::vyre::Error> {
                ::vyre::emit::asm(&Self::program()?)
            }

            /// Writes an HTML page: the program and its cost after each pass, and the generated code.
            ///
            /// # Errors
            /// The program is invalid, or the file cannot be written.
            #visibility fn explain_html(
                path: impl ::core::convert::AsRef<::std::path::Path>,
            ) -> ::core::result::Result<(), ::vyre::Error> {
                ::vyre::explain::__kernel(&Self::program()?, #source, path.as_ref())
            }
        }
    })
}

/// The plain version, as a constant that rustc can evaluate only if the body has no type errors. `asked` adds a constant that depends on
/// it, which generic functions cannot have.
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
        // clippy would suggest code that kernels do not support.
        #[allow(dead_code, unused_labels, clippy::all, clippy::pedantic)]
        const __PLAIN: fn(#(#types),*) #output = |#(#inputs),*| #result {
            #[allow(unused_imports)]
            use ::vyre::host::*;
            #body
        };
        #understood
    }
}

/// Gives the kernel of the builder version an error type if the plain version has type errors, so that rustc reports each error once, at
/// the source.
fn understood(name: &Ident) -> TokenStream {
    quote!(let __k: &::vyre::__private::Builder<{ #name::__UNDERSTOOD }> = __k;)
}

/// A parameter of the launch function, and the call that binds it.
fn launch_param(param: &Param) -> (TokenStream, TokenStream) {
    let Param { name, ty, slice } = param;
    let (text, span) = (name.to_string(), ty.span());
    match slice {
        None => (quote!(#name: #ty), quote!(.__scalar(#text, #name))),
        Some(slice) => {
            let element = &slice.element;
            // An atomic slice is written, so it is borrowed exclusively.
            let mutable = (slice.mutable || slice.atomic).then(|| quote_spanned!(span => mut));
            (
                quote_spanned!(span => #name: &'__launch #mutable ::vyre::Buffer<#element>),
                quote!(.__buffer(#text, #name)),
            )
        }
    }
}

/// The items of an inline function.
pub(crate) fn inline(function: &ItemFn) -> syn::Result<TokenStream> {
    let ItemFn { attrs, vis, sig, block } = function;
    let name = &sig.ident;
    if let Some(lifetime) = sig.generics.lifetimes().next() {
        return Err(syn::Error::new(
            lifetime.span(),
            "an inline function cannot have lifetime parameters: remove them",
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
    // A generic function has no plain version as a constant of the non-generic type.
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

            /// True if the function has barriers or subgroup operations.
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
