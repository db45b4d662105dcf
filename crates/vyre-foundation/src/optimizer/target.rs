//! Targets: properties of a device on which the benefit of a pass depends.
//!
//! The driver derives a [`Target`] from the device, and [selection](super::select()) rejects the passes that need what it lacks.

use std::fmt;

/// Property of a device that a pass may require.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// Workgroup memory is nearer than the caches of storage, as the scratchpad memory of a GPU is.
    Scratchpad,
    /// The compiler of the device leaves loops as they are, so that unrolling them is the task of the optimizer.
    LoopsAsWritten,
}

impl Capability {
    /// Every capability.
    pub const ALL: [Capability; 2] = [Capability::Scratchpad, Capability::LoopsAsWritten];

    /// Name in lists of passes.
    pub const fn name(self) -> &'static str {
        match self {
            Capability::Scratchpad => "a scratchpad",
            Capability::LoopsAsWritten => "loops as written",
        }
    }

    /// The reason for which a pass that requires the capability is rejected.
    const fn lack(self) -> &'static str {
        match self {
            Capability::Scratchpad => "workgroup memory of the device is no nearer than its caches",
            Capability::LoopsAsWritten => "the compiler of the device unrolls loops itself",
        }
    }
}

impl fmt::Display for Capability {
    /// The reason for which a pass that requires the capability is rejected.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.lack())
    }
}

/// Capabilities of the device that programs are optimized for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// [`Capability::Scratchpad`].
    pub scratchpad: bool,
    /// [`Capability::LoopsAsWritten`].
    pub loops_as_written: bool,
}

impl Default for Target {
    /// No device in particular: no pass is rejected for its target.
    fn default() -> Target {
        Target { scratchpad: true, loops_as_written: true }
    }
}

impl Target {
    /// Returns true if the device has the capability.
    pub const fn has(self, capability: Capability) -> bool {
        match capability {
            Capability::Scratchpad => self.scratchpad,
            Capability::LoopsAsWritten => self.loops_as_written,
        }
    }
}
