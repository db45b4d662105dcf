//! Random graph generators, with the distributions of the GAP benchmark suite.

use super::memory::{self, collected, zeroed};
use super::{Edge, Edges, Weights, in_blocks};
use crate::Error;

/// Family of random graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Skewed degrees, as in social networks: R-MAT with A = 0.57, B = C = 0.19.
    Kronecker,
    /// Uniformly distributed edges (Erdős–Rényi).
    Uniform,
}

/// Edges of one random stream: the graph does not depend on the number of cores.
const BLOCK: usize = 1 << 16;

impl Edges {
    /// Generates a symmetric graph of 2^`scale` nodes and `factor` · 2^`scale` edges, duplicates included, with weights from 1 to 255. The
    /// graph is determined by the arguments.
    ///
    /// # Errors
    /// `scale` is at least 31, there are at least 2³¹ edges, or they take more memory than the [limit](super::limited).
    pub fn generate(family: Family, scale: u32, factor: u32, seed: u64) -> Result<Edges, Error> {
        let _span = tracing::info_span!("generate edges", scale).entered();
        let too_large = vyre_driver::Error::Overflow { field: "edges of the graph" };
        let count = 1u64.checked_shl(scale).and_then(|nodes| nodes.checked_mul(factor.into()));
        let count = count.filter(|count| scale < 31 && *count < 1 << 31).ok_or(too_large)? as usize;
        let nodes = 1u32 << scale;
        let required = 4 * u64::from(nodes) + (size_of::<Edge>() * count) as u64;
        memory::check(required, || format!("a random graph of {nodes} nodes and {count} edges"))?;
        // Permutes the nodes: R-MAT places hubs next to each other.
        let permutation = shuffled(nodes, seed)?;
        let mut list: Vec<Edge> = zeroed("edges of the graph", count)?;
        in_blocks("generating", &mut list, BLOCK, |number, block| {
            let mut random = Random::new(seed, number as u64 + 1);
            for edge in block {
                let (source, target) = match family {
                    Family::Kronecker => kronecker(&mut random, scale),
                    Family::Uniform => (random.below(nodes), random.below(nodes)),
                };
                let weight = 1 + random.below(255);
                *edge = Edge { source: permutation[source as usize], target: permutation[target as usize], weight };
            }
        });
        Ok(Edges { nodes, list, weights: Weights::Whole, symmetric: true })
    }
}

/// R-MAT: descends recursively into a quadrant of the adjacency matrix.
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

fn shuffled(count: u32, seed: u64) -> Result<Vec<u32>, Error> {
    let mut random = Random::new(seed, 0);
    let mut list = collected("nodes of the graph", 0..count)?;
    for at in (1..count).rev() {
        list.swap(at as usize, random.below(at + 1) as usize);
    }
    Ok(list)
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
