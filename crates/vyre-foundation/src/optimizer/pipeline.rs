//! Textual pass pipelines: `canonicalize,fold_constants` runs passes once, `fixpoint(…)` repeats them until none
//! changes the program.

use std::fmt;

use super::{Pass, Registry};
use crate::Error;

/// Passes in execution order.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// The passes.
    pub passes: Vec<&'static Pass>,
    /// Whether the list is repeated until none of them changes anything.
    pub to_fixed_point: bool,
}

impl Pipeline {
    /// Parses the printed form.
    ///
    /// # Errors
    /// A name is unknown, or the parentheses do not match.
    pub fn parse(text: &str, registry: &Registry) -> Result<Pipeline, Error> {
        let text = text.trim();
        let (list, to_fixed_point) = match text.strip_prefix("fixpoint(") {
            None => (text, false),
            Some(rest) => match rest.strip_suffix(')') {
                Some(list) => (list, true),
                None => return Err(Error::BadPipeline { text: text.into() }),
            },
        };
        let names = list.split(',').map(str::trim).filter(|_| !list.trim().is_empty());
        let passes = names.map(|name| match name {
            "" => Err(Error::BadPipeline { text: text.into() }),
            name => registry.named(name),
        });
        Ok(Pipeline { passes: passes.collect::<Result<_, _>>()?, to_fixed_point })
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.passes.iter().map(|pass| pass.metadata.name).collect();
        match self.to_fixed_point {
            true => write!(f, "fixpoint({})", names.join(",")),
            false => f.write_str(&names.join(",")),
        }
    }
}
