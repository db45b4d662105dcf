//! Targets: device properties that decide whether a pass pays.
//!
//! The driver derives a [`Target`] from the device. [Selection](super::select()) rejects passes whose required
//! capabilities it lacks.

use std::fmt;

/// Property of a device that a pass may require.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// Workgroup memory is faster than cached storage, such as the scratchpad of a GPU.
    Scratchpad,
    /// The compiler of the device does not unroll loops, so the optimizer does.
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

    /// Reason for rejecting a pass that requires the capability.
    const fn rejection(self) -> &'static str {
        match self {
            Capability::Scratchpad => "workgroup memory of the device is no faster than its caches",
            Capability::LoopsAsWritten => "the compiler of the device unrolls loops itself",
        }
    }
}

impl fmt::Display for Capability {
    /// Reason for rejecting a pass that requires the capability.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rejection())
    }
}

/// Capabilities of the device that a program is optimized for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// [`Capability::Scratchpad`].
    pub scratchpad: bool,
    /// [`Capability::LoopsAsWritten`].
    pub loops_as_written: bool,
}

impl Default for Target {
    /// All capabilities: no pass is rejected.
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
