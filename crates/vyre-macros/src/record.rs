//! Records: the derive macro, and field accesses in a body.
//!
//! The derive macro implements `Stored`. In a body, `offset_of!` gives the offset of a field, and a closure that reads the field its type,
//! so the macro needs only the name of the struct.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Expr, ExprAssign, ExprIndex, Ident, Member, PatStruct, Type};

use crate::body::{Body, Kind, strip};

/// Scalar types of fields with their elements.
const SCALARS: &[(&str, &str)] =
    &[("f32", "F32"), ("i32", "I32"), ("u32", "U32"), ("f64", "F64"), ("i64", "I64"), ("u64", "U64"), ("f16", "F16")];

/// Expands `#[derive(Record)]`.
pub(crate) fn derive(item: &DeriveInput) -> syn::Result<TokenStream> {
    let Data::Struct(data) = &item.data else {
        return Err(syn::Error::new(item.ident.span(), "`Record` can only be derived for structs"));
    };
    if let Some(parameter) = item.generics.params.first() {
        return Err(syn::Error::new(parameter.span(), "a record cannot be generic: write the types of its fields"));
    }
    let mut element = None;
    for field in &data.fields {
        let scalar = scalar(&field.ty).ok_or_else(|| {
            let message =
                "a field of a record is an `f32`, `i32`, `u32`, `f64`, `i64`, `u64` or `f16`, or an array of these";
            syn::Error::new(field.ty.span(), message)
        })?;
        element = match element {
            None => Some(scalar),
            Some(element) if element == scalar => Some(element),
            Some(element) if element.ends_with("32") && scalar.ends_with("32") => Some("U32"),
            Some(_) => {
                let message = "the fields of a record must have one type, or types of 32 bits";
                return Err(syn::Error::new(field.ty.span(), message));
            }
        };
    }
    let Some(element) = element else {
        return Err(syn::Error::new(item.ident.span(), "a record needs at least one field"));
    };
    let (name, element) = (&item.ident, Ident::new(element, Span::call_site()));
    Ok(quote! {
        impl ::vyre::build::Stored for #name {
            const ELEMENT: ::vyre::ir::Element = ::vyre::ir::Element::#element;
            const WIDTH: u32 = (::core::mem::size_of::<#name>() / Self::ELEMENT.size()) as u32;
            type Value = Self;
        }
    })
}

/// Scalar element of a field type.
fn scalar(ty: &Type) -> Option<&'static str> {
    match ty {
        Type::Array(array) => scalar(&array.elem).filter(|_| !matches!(*array.elem, Type::Array(_))),
        Type::Path(path) => {
            let name = &path.path.segments.last()?.ident;
            SCALARS.iter().find(|(known, _)| name == known).map(|(_, element)| *element)
        }
        _ => None,
    }
}

/// The parts of `x[i].field` and `x[i].field[k]`: the element, the field, and the index in it.
pub(crate) fn field(expr: &Expr) -> Option<(&ExprIndex, &Member, Option<&Expr>)> {
    let (field, at) = match strip(expr) {
        Expr::Index(index) => (strip(&index.expr), Some(&*index.index)),
        field => (field, None),
    };
    let Expr::Field(field) = field else { return None };
    match strip(&field.base) {
        Expr::Index(element) => Some((element, &field.member, at)),
        _ => None,
    }
}

/// Returns the expression that constructs the `build::Field` of a struct member.
fn named(record: &impl ToTokens, member: &Member) -> TokenStream {
    quote_spanned! { member.span() =>
        ::vyre::build::Field::new(::core::mem::offset_of!(#record, #member), |__record: &#record| __record.#member)
    }
}

impl Body {
    /// Translates [a field access](field) to a `build::FieldRef`; returns the name and kind of the slice and the expression.
    pub(crate) fn field(&mut self, expr: &Expr) -> Option<(Ident, Kind, TokenStream)> {
        let (record, member, at) = field(expr)?;
        let (name, kind) = self.object_of(&record.expr)?;
        let Kind::Object { element, .. } = &kind else { return None };
        let (index, member) = (self.value(&record.index), named(element, member));
        let at = at.map(|at| self.value(at)).map(|at| quote_spanned!(expr.span() => .at(#at)));
        Some((name.clone(), kind, quote_spanned!(expr.span() => #name.field(#index, #member) #at)))
    }

    /// Translates `let Name { a, b } = x[i];` to `load_record`, with the fewest possible accesses; with `..`, to a load per named field.
    pub(crate) fn take_record(&mut self, pattern: &PatStruct, from: &Expr) -> TokenStream {
        let Expr::Index(index) = strip(from) else {
            return self.error(from.span(), "destructure an element of a slice: `let Name { a, b } = x[i];`");
        };
        let Some((object, _)) = self.object_of(&index.expr) else { return quote!(()) };
        let (at, path, span) = (self.value(&index.index), &pattern.path, from.span());
        let whole = pattern.rest.is_none();
        let loaded = whole.then(|| quote_spanned!(span => let __record = #object.load_record(__at);));
        let mut fields = Vec::new();
        for field in &pattern.fields {
            let member = named(path, &field.member);
            let value = if whole {
                quote_spanned!(field.span() => __record.get(#member))
            } else {
                quote_spanned!(field.span() => #object.field(__at, #member).load())
            };
            fields.push(self.parts(&field.pat, &value));
        }
        quote_spanned!(span => let __at = #at; #loaded #(#fields)*)
    }

    /// Translates `x[i] = Name { a, b };` to `store_record`, which makes the fewest possible accesses.
    pub(crate) fn put_record(&mut self, assign: &ExprAssign) -> TokenStream {
        let (Expr::Index(index), Expr::Struct(record)) = (strip(&assign.left), strip(&assign.right)) else {
            return self.error(assign.span(), "store a struct to an element of a slice: `x[i] = Name { a, b };`");
        };
        let Some((object, kind)) = self.object_of(&index.expr) else { return quote!(()) };
        if let Some(error) = self.read_only(assign.span(), &object, &kind) {
            return error;
        }
        if let Some(rest) = &record.rest {
            return self.error(rest.span(), "write all fields: `..` is not supported in kernels");
        }
        let mut fields = Vec::new();
        for field in &record.fields {
            let member = named(&record.path, &field.member);
            let value = self.value(&field.expr);
            fields.push(quote_spanned!(field.span() => let __record = __record.with(#member, #value);));
        }
        let at = self.value(&index.index);
        quote_spanned! { assign.span() => {
            let __record = __k.record();
            #(#fields)*
            #object.store_record(#at, &__record);
        } }
    }
}
