//! Analyses that are computed when somebody asks, and kept until the program changes.

use std::rc::Rc;

use super::{Effects, Ranges, Scope, Structure, Uniformity, Uses};
use crate::ir::Program;

/// An analysis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Analysis {
    /// Which block an instruction stands in, and which instruction owns a block.
    Structure,
    /// How often values are used.
    Uses,
    /// Which values are the same for all invocations of a workgroup.
    Uniformity,
    /// Which numbers values can be.
    Ranges,
    /// What instructions read, write and do otherwise.
    Effects,
}

impl Analysis {
    /// Every analysis.
    pub const ALL: [Analysis; 5] =
        [Analysis::Structure, Analysis::Uses, Analysis::Uniformity, Analysis::Ranges, Analysis::Effects];

    /// The name in reports.
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

/// The analyses of one program. Whoever changes the program says which of them still hold.
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

            /// Forgets what does not hold any more, and says what of that was known.
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
    /// Which block an instruction stands in, and which instruction owns a block.
    structure, Structure, Structure, Structure::of;
    /// How often values are used.
    uses, Uses, Uses, Uses::of;
    /// Which values are the same for all invocations of a workgroup.
    uniformity, Uniformity, Uniformity, |program| Uniformity::of(program, Scope::Workgroup);
    /// Which numbers values can be.
    ranges, Ranges, Ranges, Ranges::of;
    /// What instructions read, write and do otherwise.
    effects, Effects, Effects, Effects::of;
}

impl Analyses {
    /// The analyses that were asked for since this was last called, and those of them that had to be computed.
    pub fn take_requests(&mut self) -> (Vec<Analysis>, Vec<Analysis>) {
        (std::mem::take(&mut self.requested), std::mem::take(&mut self.computed))
    }
}
