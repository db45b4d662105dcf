//! Vectors of 32-bit lanes, to write an algorithm once for all widths.
//!
//! Every method is one or a few instructions. They are inlined into functions compiled for the target features, which
//! alone may call them; see `on` in [`super::expert`].

use std::arch::x86_64::*;

/// Vector types of a processor: floats `F`, integers `U`, and lane masks `M`.
///
/// # Safety
/// The processor supports them. Pointers are valid for `COUNT` elements; those of `stream` are aligned to a vector.
pub(super) trait Lanes: Copy {
    const COUNT: usize;
    type F: Copy;
    type U: Copy;
    type M: Copy;

    unsafe fn splat(value: f32) -> Self::F;
    unsafe fn load(from: *const f32) -> Self::F;
    unsafe fn store(to: *mut f32, value: Self::F);
    /// Non-temporal store.
    unsafe fn stream(to: *mut f32, value: Self::F);
    /// Gathers table elements at indices below 2^31.
    unsafe fn gather(table: *const f32, index: Self::U) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// a × b + c with one rounding.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn sqrt(a: Self::F) -> Self::F;
    /// Approximates 1 / √a with at least 11 bits.
    unsafe fn rsqrt(a: Self::F) -> Self::F;

    unsafe fn splat_u(value: u32) -> Self::U;
    unsafe fn load_u(from: *const u32) -> Self::U;
    unsafe fn store_u(to: *mut u32, value: Self::U);
    /// Non-temporal store.
    unsafe fn stream_u(to: *mut u32, value: Self::U);
    unsafe fn add_u(a: Self::U, b: Self::U) -> Self::U;
    unsafe fn mul_u(a: Self::U, b: Self::U) -> Self::U;
    unsafe fn xor_u(a: Self::U, b: Self::U) -> Self::U;
    unsafe fn shr_13(a: Self::U) -> Self::U;
    unsafe fn shr_16(a: Self::U) -> Self::U;
    /// Inclusive prefix sum of the lanes.
    unsafe fn prefix_sums(a: Self::U) -> Self::U;
    /// Broadcasts the last lane.
    unsafe fn last(a: Self::U) -> Self::U;

    unsafe fn any(mask: Self::M) -> bool;
    /// Mask of lanes with a ≤ b.
    unsafe fn at_most(a: Self::F, b: Self::F) -> Self::M;
    /// Adds 1 to the lanes of a mask.
    unsafe fn count(counts: Self::U, mask: Self::M) -> Self::U;
}

/// Implements the trait from a table of methods and their bodies.
macro_rules! lanes {
    (
        $(#[$doc:meta])*
        $name:ident, $count:literal, $f:ty, $u:ty, $m:ty;
        $($method:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $value:expr;)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Lanes for $name {
            const COUNT: usize = $count;
            type F = $f;
            type U = $u;
            type M = $m;
            $(
                #[inline(always)]
                #[allow(unused_unsafe)] // A mask of AVX-512 is an integer, on which some methods are safe.
                unsafe fn $method($($argument: $type),*) $(-> $result)? {
                    // SAFETY: the caller fulfils the requirements of the trait.
                    unsafe { $value }
                }
            )*
        }
    };
}

lanes! {
    /// 8 lanes: AVX2 and FMA.
    Avx2, 8, __m256, __m256i, __m256;
    splat(value: f32) -> __m256 = _mm256_set1_ps(value);
    load(from: *const f32) -> __m256 = _mm256_loadu_ps(from);
    store(to: *mut f32, value: __m256) = _mm256_storeu_ps(to, value);
    stream(to: *mut f32, value: __m256) = _mm256_stream_ps(to, value);
    gather(table: *const f32, index: __m256i) -> __m256 = _mm256_i32gather_ps::<4>(table, index);
    add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
    sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
    mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
    div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
    fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
    sqrt(a: __m256) -> __m256 = _mm256_sqrt_ps(a);
    rsqrt(a: __m256) -> __m256 = _mm256_rsqrt_ps(a);
    splat_u(value: u32) -> __m256i = _mm256_set1_epi32(value as i32);
    load_u(from: *const u32) -> __m256i = _mm256_loadu_si256(from.cast());
    store_u(to: *mut u32, value: __m256i) = _mm256_storeu_si256(to.cast(), value);
    stream_u(to: *mut u32, value: __m256i) = _mm256_stream_si256(to.cast(), value);
    add_u(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
    mul_u(a: __m256i, b: __m256i) -> __m256i = _mm256_mullo_epi32(a, b);
    xor_u(a: __m256i, b: __m256i) -> __m256i = _mm256_xor_si256(a, b);
    shr_13(a: __m256i) -> __m256i = _mm256_srli_epi32::<13>(a);
    shr_16(a: __m256i) -> __m256i = _mm256_srli_epi32::<16>(a);
    prefix_sums(a: __m256i) -> __m256i = {
        // Shifts stay within halves; then the sum of the lower half is added to the upper one.
        let a = _mm256_add_epi32(a, _mm256_slli_si256::<4>(a));
        let a = _mm256_add_epi32(a, _mm256_slli_si256::<8>(a));
        let lower = _mm256_permute2x128_si256::<0x08>(a, a);
        _mm256_add_epi32(a, _mm256_shuffle_epi32::<0xff>(lower))
    };
    last(a: __m256i) -> __m256i = _mm256_permutevar8x32_epi32(a, _mm256_set1_epi32(7));
    any(mask: __m256) -> bool = _mm256_movemask_ps(mask) != 0;
    at_most(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LE_OQ>(a, b);
    count(counts: __m256i, mask: __m256) -> __m256i = _mm256_sub_epi32(counts, _mm256_castps_si256(mask));
}

lanes! {
    /// 16 lanes: AVX-512 with F, BW, DQ and VL.
    Avx512, 16, __m512, __m512i, __mmask16;
    splat(value: f32) -> __m512 = _mm512_set1_ps(value);
    load(from: *const f32) -> __m512 = _mm512_loadu_ps(from);
    store(to: *mut f32, value: __m512) = _mm512_storeu_ps(to, value);
    stream(to: *mut f32, value: __m512) = _mm512_stream_ps(to, value);
    gather(table: *const f32, index: __m512i) -> __m512 = _mm512_i32gather_ps::<4>(index, table);
    add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
    sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
    mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
    div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
    fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
    sqrt(a: __m512) -> __m512 = _mm512_sqrt_ps(a);
    rsqrt(a: __m512) -> __m512 = _mm512_rsqrt14_ps(a);
    splat_u(value: u32) -> __m512i = _mm512_set1_epi32(value as i32);
    load_u(from: *const u32) -> __m512i = _mm512_loadu_si512(from.cast());
    store_u(to: *mut u32, value: __m512i) = _mm512_storeu_si512(to.cast(), value);
    stream_u(to: *mut u32, value: __m512i) = _mm512_stream_si512(to.cast(), value);
    add_u(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
    mul_u(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi32(a, b);
    xor_u(a: __m512i, b: __m512i) -> __m512i = _mm512_xor_si512(a, b);
    shr_13(a: __m512i) -> __m512i = _mm512_srli_epi32::<13>(a);
    shr_16(a: __m512i) -> __m512i = _mm512_srli_epi32::<16>(a);
    prefix_sums(a: __m512i) -> __m512i = {
        // `alignr` of the vector and zeros by 16 − n shifts the lanes up by n.
        let zeros = _mm512_setzero_si512();
        let a = _mm512_add_epi32(a, _mm512_alignr_epi32::<15>(a, zeros));
        let a = _mm512_add_epi32(a, _mm512_alignr_epi32::<14>(a, zeros));
        let a = _mm512_add_epi32(a, _mm512_alignr_epi32::<12>(a, zeros));
        _mm512_add_epi32(a, _mm512_alignr_epi32::<8>(a, zeros))
    };
    last(a: __m512i) -> __m512i = _mm512_permutexvar_epi32(_mm512_set1_epi32(15), a);
    any(mask: __mmask16) -> bool = mask != 0;
    at_most(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b);
    count(counts: __m512i, mask: __mmask16) -> __m512i =
        _mm512_mask_add_epi32(counts, mask, counts, _mm512_set1_epi32(1));
}
