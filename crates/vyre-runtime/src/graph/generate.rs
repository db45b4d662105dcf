//! Random graphs, distributed as those of the GAP benchmark suite.

use super::{Edge, Edges, Weights, in_parts};
use crate::Error;

/// A kind of random graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Few nodes have most of the edges, as in social networks (R-MAT with 0.57, 0.19, 0.19).
    Kronecker,
    /// Every edge is as likely as any other.
    Uniform,
}

/// So many edges have a random number generator of their own, so that graphs do not depend on how many cores make them.
const BLOCK: usize = 1 << 16;

impl Edges {
    /// A symmetric graph of 2^`scale` nodes and, before those that are there twice are left out, `factor` edges for each. The same
    /// seed gives the same graph. Weights are 1 to 255.
    ///
    /// # Errors
    /// There are more edges than can be counted.
    pub fn generate(family: Family, scale: u32, factor: u32, seed: u64) -> Result<Edges, Error> {
        let _span = tracing::info_span!("generate edges", scale).entered();
        let too_large = Error::Overflow { field: "edges of the graph" };
        let count = 1u64.checked_shl(scale).and_then(|nodes| nodes.checked_mul(factor.into()));
        let count = count.filter(|count| scale < 31 && *count < 1 << 31).ok_or(too_large)? as usize;
        let nodes = 1u32 << scale;
        // Hubs would be next to each other otherwise.
        let renamed = shuffled(nodes, seed);
        let block = |block: usize| {
            let renamed = &renamed;
            let mut random = Random::new(seed, block as u64 + 1);
            (block * BLOCK..count.min((block + 1) * BLOCK)).map(move |_| {
                let (source, target) = match family {
                    Family::Kronecker => kronecker(&mut random, scale),
                    Family::Uniform => (random.below(nodes), random.below(nodes)),
                };
                let weight = 1 + random.below(255);
                Edge { source: renamed[source as usize], target: renamed[target as usize], weight }
            })
        };
        let blocks = count.div_ceil(BLOCK);
        let parts = in_parts("generating", blocks * BLOCK, |part| {
            let first = part.start.div_ceil(BLOCK)..part.end.div_ceil(BLOCK);
            first.flat_map(block).collect::<Vec<Edge>>()
        });
        Ok(Edges { nodes, list: parts.concat(), weights: Weights::Whole, symmetric: true })
    }
}

/// Descends through the quarters of the adjacency matrix.
fn kronecker(random: &mut Random, scale: u32) -> (u32, u32) {
    const A: f32 = 0.57;
    const AB: f32 = 0.76;
    const ABC: f32 = 0.95;
    let (mut source, mut target) = (0, 0);
    for _ in 0..scale {
        let point = random.unit();
        source = source << 1 | u32::from(point >= AB);
        target = target << 1 | u32::from(if point < AB { point > A } else { point > ABC });
    }
    (source, target)
}

fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed, 0);
    let mut list: Vec<u32> = (0..count).collect();
    for at in (1..count).rev() {
        list.swap(at as usize, random.below(at + 1) as usize);
    }
    list
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(seed ^ stream.wrapping_mul(0xA24B_AED4_963E_E407));
        random.0 = random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, count: u32) -> u32 {
        (((self.next() >> 32) * u64::from(count)) >> 32) as u32
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }
}
