//! Dense row-major and sparse CSR matrices.

use super::{built, expect, length};
use crate::build::Var;
use crate::ir::Axis;
use crate::{Buffer, Device, Error, Number};

/// Transposes a matrix of `rows` × `columns`: `y[c * rows + r] = x[r * columns + c]`.
///
/// - Work: n = `rows` × `columns`, in one launch, through tiles in workgroup memory, so that loads and stores are coalesced.
/// - Memory: none.
/// - Exactness: bits are preserved, including NaN payloads.
///
/// # Errors
/// A length does not match the size, or the launch fails: for example, if the sides, rounded up to multiples of 16, have a product of
/// 2³² or more (`GridTooLarge`), as for a single row or column of 2²⁸ elements.
pub fn transpose<T: Number + 'static>(
    device: &Device,
    [rows, columns]: [usize; 2],
    x: &Buffer<T>,
    y: &mut Buffer<T>,
) -> Result<(), Error> {
    const SIDE: u32 = 16;
    expect("x", x, rows.saturating_mul(columns))?;
    expect("y", y, length("x", x)?)?;
    let launch = built("transpose", [SIDE, SIDE, 1], |k| {
        let (rows, columns) = (k.uniform::<u32>("rows").load(), k.uniform::<u32>("columns").load());
        let (x, y) = (k.read::<T>("x"), k.write::<T>("y"));
        // Rows are padded by one element, to avoid bank conflicts in column accesses.
        let tile = k.workgroup::<T>("tile", SIDE * (SIDE + 1));
        let [left, top] = [Axis::X, Axis::Y].map(|axis| k.group_id(axis) * SIDE);
        let [across, down] = [Axis::X, Axis::Y].map(|axis| k.local_id(axis));
        k.if_((left + across).lt(columns) & (top + down).lt(rows), || {
            tile.store(down * (SIDE + 1) + across, x.load((top + down) * columns + left + across));
        });
        k.workgroup_barrier();
        k.if_((top + across).lt(rows) & (left + down).lt(columns), || {
            y.store((left + down) * rows + top + across, tile.load(across * (SIDE + 1) + down));
        });
    });
    let launch = launch.__scalar("rows", rows).__scalar("columns", columns);
    launch.__buffer("x", x).__buffer("y", y).run(device, [columns, rows])?;
    Ok(())
}

/// Workgroup size of the matrix product kernel.
const GROUP: [u32; 2] = [16, 16];
/// Elements of the product per invocation.
const OWN: [u32; 2] = [1, 1];
/// Tile of the product that a workgroup computes.
const TILE: [u32; 2] = [GROUP[0] * OWN[0], GROUP[1] * OWN[1]];
/// Columns of A and rows of B per tile in workgroup memory: a multiple of both sides of the workgroup.
const DEPTH: u32 = 16;

/// Matrix product C = A × B of sizes `[m, n, k]`: A has m rows of k, B has k rows of n, C has m rows of n.
///
/// - Work: m n k, in one launch, through tiles in workgroup memory: A is read n ÷ 16 times and B m ÷ 16 times.
/// - Memory: none.
/// - Exactness: each element of C accumulates its products from 0 in the order of k; floats are rounded once per product (`mul_add`), and
///   integers wrap.
///
/// ```
/// # use vyre::{Device, kernels};
/// # fn main() -> Result<(), vyre::Error> {
/// # let device = Device::auto()?;
/// let a = device.upload(&[1.0f32, 2.0, 3.0, 4.0])?;
/// let b = device.upload(&[5.0, 6.0])?;
/// let mut c = device.zeros(2)?;
/// kernels::matmul(&device, [2, 1, 2], &a, &b, &mut c)?;
/// assert_eq!(c.download()?, [17.0, 39.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A length does not match its matrix, or the launch fails: for example, if m and n, rounded up to multiples of 16, have a product of
/// 2³² or more (`GridTooLarge`), as for a single row or column of 2²⁸ elements.
pub fn matmul<T: Number + 'static>(
    device: &Device,
    [m, n, k]: [usize; 3],
    a: &Buffer<T>,
    b: &Buffer<T>,
    c: &mut Buffer<T>,
) -> Result<(), Error> {
    expect("a", a, m.saturating_mul(k))?;
    expect("b", b, k.saturating_mul(n))?;
    expect("c", c, m.saturating_mul(n))?;
    length("a", a)?;
    length("b", b)?;
    length("c", c)?;
    let launch = built("matmul", [GROUP[0], GROUP[1], 1], |program| {
        let k = program;
        let [rows, columns, depth] = ["m", "n", "k"].map(|name| k.uniform::<u32>(name).load());
        let (a, b, c) = (k.read::<T>("a"), k.read::<T>("b"), k.write::<T>("c"));
        let (a_tile, b_tile) =
            (k.workgroup::<T>("a_tile", TILE[1] * DEPTH), k.workgroup::<T>("b_tile", DEPTH * TILE[0]));
        let (left, top) = (k.group_id(Axis::X) * TILE[0], k.group_id(Axis::Y) * TILE[1]);
        let (x, y) = (k.local_id(Axis::X), k.local_id(Axis::Y));
        let negative_zero = T::from_bits(if T::TYPE.is_float() { 1 << (8 * size_of::<T>() - 1) } else { 0 });
        let sums: Vec<Var<'_, T>> = (0..OWN[0] * OWN[1]).map(|_| k.unset()).collect();
        k.for_range_step(0, depth, DEPTH, |start| {
            // Elements beyond the last row or column are never stored. Beyond the depth, A is padded with 0 and B with −0: their product,
            // −0, is the additive identity.
            for row in (0..TILE[1]).step_by(GROUP[1] as usize) {
                for column in (0..DEPTH).step_by(GROUP[0] as usize) {
                    let loaded = a.load((top + y + row) * depth + start + column + x);
                    let padded = (start + column + x).lt(depth).select(loaded, T::from_bits(0));
                    a_tile.store((y + row) * DEPTH + column + x, padded);
                }
            }
            for row in (0..DEPTH).step_by(GROUP[1] as usize) {
                for column in (0..TILE[0]).step_by(GROUP[0] as usize) {
                    let loaded = b.load((start + y + row) * columns + left + column + x);
                    let padded = (start + y + row).lt(depth).select(loaded, negative_zero);
                    b_tile.store((y + row) * TILE[0] + column + x, padded);
                }
            }
            k.workgroup_barrier();
            k.for_range(0, DEPTH, |p| {
                let b: Vec<_> = (0..OWN[0]).map(|i| b_tile.load(p * TILE[0] + i * GROUP[0] + x)).collect();
                for j in 0..OWN[1] {
                    let a = a_tile.load((y * OWN[1] + j) * DEPTH + p);
                    for (sum, &b) in sums[(j * OWN[0]) as usize..].iter().zip(&b) {
                        sum.set(T::multiply_add(a, b, sum.get()));
                    }
                }
            });
            k.workgroup_barrier();
        });
        for (number, sum) in (0..).zip(&sums) {
            let (column, row) = (left + number % OWN[0] * GROUP[0] + x, top + y * OWN[1] + number / OWN[0]);
            k.if_(column.lt(columns) & row.lt(rows), || c.store(row * columns + column, sum.get()));
        }
    });
    let launch = launch.__scalar("m", m).__scalar("n", n).__scalar("k", k);
    // The launch rounds up to whole workgroups.
    let grid = [n.div_ceil(OWN[0] as usize), m.div_ceil(OWN[1] as usize)];
    launch.__buffer("a", a).__buffer("b", b).__buffer("c", c).run(device, grid)?;
    Ok(())
}

/// Sparse matrix-vector product y = A × x, for A in compressed sparse rows (CSR): row r has the elements `values[i]` in columns `columns[i]`
/// for i in `starts[r]..starts[r + 1]`. In columns beyond its length, x is 0 (and infinity × 0 is NaN). Starts are clamped to the number of
/// values, and a row that ends before it starts is empty.
///
/// - Work: the stored elements, in one launch. Each invocation computes a row, so the lanes of a subgroup take as long as the longest row.
/// - Memory: none.
/// - Exactness: each element of y accumulates its products from 0 in storage order; floats are rounded once per product (`mul_add`), and
///   integers wrap.
///
/// ```
/// # use vyre::{Device, kernels};
/// # fn main() -> Result<(), vyre::Error> {
/// # let device = Device::auto()?;
/// // 2 0 1
/// // 0 3 0
/// let (starts, columns) = (device.upload(&[0, 2, 3])?, device.upload(&[0, 2, 1])?);
/// let values = device.upload(&[2.0f32, 1.0, 3.0])?;
/// let mut y = device.zeros(2)?;
/// kernels::spmv(&device, &starts, &columns, &values, &device.upload(&[1.0, 10.0, 100.0])?, &mut y)?;
/// assert_eq!(y.download()?, [102.0, 30.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `starts.len()` is not `y.len() + 1`, `columns.len()` is not `values.len()`, or the launch fails.
pub fn spmv<T: Number + 'static>(
    device: &Device,
    starts: &Buffer<u32>,
    columns: &Buffer<u32>,
    values: &Buffer<T>,
    x: &Buffer<T>,
    y: &mut Buffer<T>,
) -> Result<(), Error> {
    let n = length("y", y)?;
    expect("starts", starts, n + 1)?;
    expect("columns", columns, length("values", values)?)?;
    let launch = built("spmv", [64, 1, 1], |k| {
        let (starts, columns) = (k.read::<u32>("starts"), k.read::<u32>("columns"));
        let (values, x, y) = (k.read::<T>("values"), k.read::<T>("x"), k.write::<T>("y"));
        let row = k.global_index();
        k.if_(row.lt(y.len()), || {
            // Clamped, because a loop to a wrong end could take 2³² trips, or wrap and never end.
            let (sum, end) = (k.unset::<T>(), starts.load(row + 1).min(values.len()));
            if size_of::<T>() == 4 {
                // Wide loads of four consecutive elements per row.
                k.for_range_step(starts.load(row), end, 4, |i| {
                    let (values, columns) = (values.load_wide::<4>(i), columns.load_wide::<4>(i));
                    for (step, (value, column)) in (0..).zip(values.into_iter().zip(columns)) {
                        let next = T::multiply_add(value, x.load(column), sum.get());
                        sum.set((i + step).lt(end).select(next, sum.get()));
                    }
                });
            } else {
                k.for_range(starts.load(row), end, |i| {
                    sum.set(T::multiply_add(values.load(i), x.load(columns.load(i)), sum.get()));
                });
            }
            y.store(row, sum.get());
        });
    });
    let launch = launch.__buffer("starts", starts).__buffer("columns", columns).__buffer("values", values);
    launch.__buffer("x", x).__buffer("y", y).run(device, n)?;
    Ok(())
}
