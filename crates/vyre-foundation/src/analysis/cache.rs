//! Analysis manager: analyses are computed on demand and cached until a pass invalidates them.

use std::rc::Rc;

use super::{Effects, Ranges, Structure, Uniformity, Uses};
use crate::ir::Program;

/// An analysis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Analysis {
    /// Nesting of blocks.
    Structure,
    /// Use counts of values.
    Uses,
    /// Divergence between the invocations of a dispatch.
    Uniformity,
    /// Ranges of integers.
    Ranges,
    /// Side effects of instructions and blocks.
    Effects,
}

impl Analysis {
    /// Every analysis.
    pub const ALL: [Analysis; 5] =
        [Analysis::Structure, Analysis::Uses, Analysis::Uniformity, Analysis::Ranges, Analysis::Effects];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Analysis::Structure => "structure",
            Analysis::Uses => "uses",
            Analysis::Uniformity => "uniformity",
            Analysis::Ranges => "ranges",
            Analysis::Effects => "effects",
        }
    }
}

/// Cached analyses of one program. A pass that changes the program invalidates those that no longer hold.
#[derive(Debug, Default)]
pub struct Analyses {
    structure: Option<Rc<Structure>>,
    uses: Option<Rc<Uses>>,
    uniformity: Option<Rc<Uniformity>>,
    ranges: Option<Rc<Ranges>>,
    effects: Option<Rc<Effects>>,
    requested: Vec<Analysis>,
    computed: Vec<Analysis>,
}

macro_rules! analyses {
    ($($(#[doc = $doc:literal])+ $name:ident, $variant:ident, $result:ty, $compute:expr;)*) => {
        impl Analyses {
            $(
                $(#[doc = $doc])+
                pub fn $name(&mut self, program: &Program) -> Rc<$result> {
                    if !self.requested.contains(&Analysis::$variant) {
                        self.requested.push(Analysis::$variant);
                    }
                    if self.$name.is_none() {
                        self.computed.push(Analysis::$variant);
                    }
                    self.$name.get_or_insert_with(|| Rc::new($compute(program))).clone()
                }
            )*

            /// Drops stale results. Returns those that were cached.
            pub fn invalidate(&mut self, stale: &[Analysis]) -> Vec<Analysis> {
                let known = |analysis: &Analysis| match analysis {
                    $( Analysis::$variant => self.$name.take().is_some(), )*
                };
                stale.iter().copied().filter(known).collect()
            }
        }
    };
}

analyses! {
    /// Nesting of blocks.
    structure, Structure, Structure, Structure::of;
    /// Use counts of values.
    uses, Uses, Uses, Uses::of;
    /// Divergence between the invocations of a dispatch.
    uniformity, Uniformity, Uniformity, Uniformity::of;
    /// Ranges of integers.
    ranges, Ranges, Ranges, Ranges::of;
    /// Side effects of instructions and blocks.
    effects, Effects, Effects, Effects::of;
}

impl Analyses {
    /// The analyses that were requested since the last call, and those of them that were computed.
    pub fn take_requests(&mut self) -> (Vec<Analysis>, Vec<Analysis>) {
        (std::mem::take(&mut self.requested), std::mem::take(&mut self.computed))
    }
}
