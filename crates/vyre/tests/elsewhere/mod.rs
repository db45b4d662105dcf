//! A kernel in a separate file.

use vyre::kernel;

pub(crate) const CHECKED: u32 = line!();
#[kernel(workgroup = 64)]
pub(crate) fn checked(x: &[u32], y: &mut [u32]) {
    let i = global_index();
    if x[i] == 77 {
        trap(5);
    }
    y[i] = x[i];
}
