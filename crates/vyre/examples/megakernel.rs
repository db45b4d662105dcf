//! Megakernel: 200 000 work items on 64 bytes to 64 KiB each, with dependencies, drained from one queue in few launches.

use vyre::megakernel::ring::Pushed;
use vyre::megakernel::{Config, Handle, Segment, Session, WorkItem, op};
use vyre::{Device, kernel};

#[kernel(workgroup = 64)]
fn scale(input: &[u32], output: &mut [u32], param: u32) {
    let i = global_index();
    output[i] = input[i] * param;
}

/// An op on three buffers: `param` is the handle of a buffer, not a scalar as in `scale`.
#[kernel(workgroup = 64)]
fn sum(input: &[u32], output: &mut [u32], param: &[u32]) {
    let i = global_index();
    output[i] = input[i] + param[i];
}

/// An op that reads and writes its output.
#[kernel(workgroup = 64)]
fn accumulate(input: &[u32], output: &mut [u32]) {
    let i = global_index();
    output[i] += input[i];
}

/// An op with a barrier: each element becomes the sum over its workgroup.
#[kernel(workgroup = 64)]
fn group_sum(input: &[u32], output: &mut [u32]) {
    #[shared]
    let tile: [u32; 64];
    let i = global_index();
    let lane = local_index();
    tile[lane] = input[i];
    workgroup_barrier();
    let mut total = 0;
    for k in 0..64 {
        total += tile[k];
    }
    output[i] = total;
}

fn main() -> Result<(), vyre::Error> {
    let device = Device::auto()?;
    let config = Config { plain_words: 1 << 22, ..Config::of(device.driver()) };
    let mut session = Session::new(device.driver(), config)?;
    let scale = session.register(op(&scale::program()?)?);
    let sum = session.register(op(&sum::program()?)?);
    let accumulate = session.register(op(&accumulate::program()?)?);
    let group_sum = session.register(op(&group_sum::program()?)?);

    // Four allocations of 16 to 16 384 words for each of 1000 chains.
    let mut chains: Vec<[Handle; 4]> = Vec::new();
    for chain in 0..1000u32 {
        let words = if chain % 100 == 0 { 16_384 } else { 16 << (chain % 4) };
        let mut part = || session.allocate(Segment::Plain, words);
        let parts = [part()?, part()?, part()?, part()?];
        session.write(parts[0], &1u32.to_le_bytes().repeat(words as usize))?;
        chains.push(parts);
    }
    let item = |op_handle, input: Handle, output: Handle, param| WorkItem {
        op_handle,
        input_handle: input.0,
        output_handle: output.0,
        param,
    };
    let mut items = Vec::new();
    for _ in 0..50 {
        for [a, b, c, d] in &chains {
            // Dependencies: `b` and `c` read `a`, `d` reads both, and `a` is updated at the end of the round.
            let round = [item(scale, *a, *b, 2), item(group_sum, *a, *c, 0), item(sum, *b, *d, c.0)];
            items.extend(round);
            items.push(item(accumulate, *b, *a, 0));
        }
    }
    assert_eq!(session.submit(&items), Pushed::All);
    let report = session.drain()?;
    assert!(report.failures.is_empty());

    let (launches, groups) = (report.launches, report.groups);
    println!("{} items in {launches} launches between {groups} barriers: {:?}", report.items, report.elapsed);
    println!("{} were interpreted until kernels were compiled", report.interpreted);
    // Each round triples `a`.
    let first = session.read(chains[1][0])?[0];
    assert_eq!(first, 3u32.wrapping_pow(50));
    Ok(())
}
