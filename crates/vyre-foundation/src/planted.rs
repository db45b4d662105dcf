//! Planted bugs: mistakes that can be switched on, to see whether the tests notice them.
//!
//! Without the feature `planted-bugs` no bug is ever on: [`is`] is the constant `false`, and what stands behind it is not
//! compiled. With the feature, the environment variable `VYRE_PLANTED` names the one bug that is on. `cargo xtask mutants`
//! runs the tests with each of them and prints which test notices.

/// The part of vyre that a bug is in. It decides which tests should notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The evaluators of the op table.
    Evaluators,
    /// The validator.
    Validator,
    /// The uniformity analysis.
    Uniformity,
    /// The parser and printer.
    Text,
    /// The binary format.
    Wire,
    /// The passes.
    Optimizer,
    /// The oracle and its sanitizers.
    Oracle,
    /// Lowering to SPMD form and the portable executor.
    Cpu,
    /// The generator of machine code.
    X86,
    /// Lowering to naga.
    Wgpu,
}

/// One row of the table of bugs.
pub struct Row {
    /// What `VYRE_PLANTED` is set to.
    pub name: &'static str,
    /// Where the bug is.
    pub place: Place,
    /// What goes wrong.
    pub doc: &'static str,
}

macro_rules! bugs {
    ($( $place:ident { $( #[doc = $doc:literal] $bug:ident, )* } )*) => {
        /// A bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug { $( $( #[doc = $doc] $bug, )* )* }

        /// Every bug, in the order of [`Bug`].
        pub static TABLE: &[Row] =
            &[ $( $( Row { name: stringify!($bug), place: Place::$place, doc: $doc }, )* )* ];
    };
}

bugs! {
    Evaluators {
        /// `shr` fills with zeros whatever the sign.
        ShrUnsigned,
        /// `x % 0` is `x`.
        RemByZero,
        /// `MIN / -1` is 0.
        DivOfMinimum,
        /// `mul_high` keeps one bit too many.
        MulHighShift,
        /// `min` and `max` of a number and a NaN can be the NaN.
        MinOfNan,
        /// `min` and `max` do not tell zeros by their signs.
        MinOfZeros,
        /// `rotate_left` rotates to the right.
        RotateRight,
        /// `extract_bits` of a signed integer is not sign-extended.
        ExtractUnsigned,
        /// `insert_bits` keeps the old bits under the new.
        InsertOr,
        /// Numbers are cast through i64: floats do not saturate, and large u64s are negative.
        CastThroughI64,
        /// A negative number cast to bool is false.
        CastOfNegative,
        /// A conversion to f16 rounds twice.
        HalfRoundsTwice,
        /// `round` of an f16 takes ties away from zero.
        HalfTiesAway,
    }
    Validator {
        /// Barriers in divergent control flow are accepted.
        DivergentBarrier,
        /// Stores to objects that are only read are accepted.
        StoreToRead,
        /// Operands of a wrong type are accepted.
        OperandType,
        /// Blocks without a terminator are accepted.
        Unterminated,
        /// Several objects of one name are accepted.
        DuplicateName,
        /// A known index that is one past the end is accepted.
        KnownIndex,
        /// Exits that hand over values of wrong types are accepted.
        ExitType,
        /// Values are visible after the block that defines them.
        LeakingScope,
        /// Blocks may be nested one deeper than the limit.
        NestingLimit,
        /// Workgroup arrays may not reach the limit of workgroup memory.
        WorkgroupLimit,
        /// A case that a switch has twice is accepted.
        DuplicateCase,
    }
    Uniformity {
        /// What `continue` hands on does not make a loop's parameter differ.
        UniformParam,
        /// Values taken along from different trips of a loop count as the same.
        UniformBreak,
        /// Loads from storage that the program writes count as uniform.
        UniformLoad,
        /// Which arm gives a result does not matter.
        UniformChoice,
        /// After a `continue` that only some take, all are together.
        UniformContinue,
    }
    Text {
        /// The printer leaves out the suggested grid.
        LaunchNotPrinted,
        /// The parser takes negative hexadecimal numbers for positive ones.
        HexSign,
        /// The printer takes −0 for 0.
        MinusZeroPrinted,
    }
    Wire {
        /// Default values of uniforms are not encoded.
        WireDefault,
        /// A damaged file is not noticed by its hash.
        WireHash,
        /// Numbers that are not in their shortest form are accepted.
        WirePadding,
    }
    Optimizer {
        /// Arms that are merged all have the literals of the one that stays.
        MergedLiteral,
        /// Loads move out of an arm past stores before them.
        HoistedLoad,
        /// An atomic `or` is left out if any of its bits is there.
        AnyBitIsThere,
        /// An atomic that was done before is left out although the element was changed since.
        RepeatedAtomic,
    }
    Oracle {
        /// Exclusive scans are inclusive.
        OracleScan,
        /// The index of a wide access wraps at 2^32.
        OracleWideIndex,
        /// Workgroup arrays keep what the workgroup before wrote.
        OracleStaleArray,
        /// The parameters of a loop are handed on one after the other.
        OracleMoves,
        /// Of several traps the last invocation's is reported.
        OracleTrap,
        /// A shuffle from a lane beyond the subgroup takes lane 0.
        OracleShuffle,
        /// The sanitizer takes every barrier for one of both kinds of memory.
        SanitizerBarrier,
    }
    Cpu {
        /// Workgroups beyond the grid run in the last block.
        CpuTail,
        /// `break` gives its values to all lanes.
        CpuBreakMask,
        /// `yield` gives its values to all lanes.
        CpuYieldMask,
        /// Lanes that return go on behind the `if`.
        CpuReturnMask,
        /// `continue` hands values on one after the other.
        CpuMoves,
        /// An early `continue` changes parameters that other lanes still read.
        CpuStaging,
        /// Values from outside of a loop are overwritten in it once a trip has used them.
        CpuLoopLives,
        /// The last element of an array gathers as 0.
        CpuGatherBound,
        /// Wide stores leave out the last element of an array.
        CpuStoreBound,
        /// An index that goes down from lane to lane is taken for one that goes up.
        CpuDescending,
        /// `local_id.x` is taken for contiguous in workgroups of several dimensions.
        CpuLocalIdStride,
        /// A value is broadcast to all lanes only if lane 0 changes.
        CpuFill,
        /// A switch without a case for a number takes the first arm.
        CpuSwitchDefault,
        /// Atomic `min` and `max` of i32 compare as unsigned.
        CpuAtomicSign,
        /// A compare-exchange outside of its object may say that it happened.
        CpuExchangeOutside,
        /// Consecutive i8s are loaded without their signs.
        CpuByteSign,
        /// Private arrays keep what the workgroup before wrote.
        CpuStaleArray,
        /// `broadcast` takes the value of lane 0 although it has ended.
        CpuBroadcast,
        /// A shuffle from a lane beyond the subgroup wraps.
        CpuShuffle,
        /// The exclusive product starts with 0.
        CpuScanIdentity,
        /// Sums of floats count lanes that have ended as +0.
        CpuSumIdentity,
        /// The loop that ran out of fuel is not named.
        CpuFuelPlace,
        /// A trap replaces those that were reported before.
        CpuTrapCount,
        /// The trace is in the order of execution.
        CpuTraceOrder,
    }
    X86 {
        /// Scans of floats fill up with +0.
        X86ScanFill,
        /// Lanes that have ended count in reductions.
        X86ReduceEnded,
        /// A shuffle from a lane beyond the subgroup wraps.
        X86ShuffleWraps,
        /// Lanes that are not active count where an atomic is done once for all.
        X86CountAll,
        /// Runs are taken for inside if all but their last element are.
        X86RunBound,
        /// Gathers of several elements look at the first one only.
        X86GatherBound,
        /// Four elements of lanes are taken for next to each other, however far apart they are.
        X86QuadStride,
        /// Stores to consecutive elements store all lanes.
        X86StoreMask,
        /// Lanes of a value of 64 bits are chosen by the mask of the lower half.
        X86HalfMask,
        /// What is loaded before a store is read after it.
        X86FuseStale,
        /// A quotient by 0 is what the processor gives.
        X86ByZero,
        /// `min` and `max` of a number and a NaN can be the NaN.
        X86MinOfNan,
        /// `min` and `max` of zeros take the second one.
        X86MinOfZeros,
        /// Floats that are too large for an i32 become the least one.
        X86Saturation,
        /// Lanes that leave an `if` are those that entered it.
        X86ElseMask,
        /// Lanes that have ended come back behind a barrier.
        X86EndedReturn,
        /// Rows of a tile start at the same index.
        X86RowStart,
        /// Shifts by a variable count take it as it is.
        X86ShiftMask,
    }
    Wgpu {
        /// Counts of 64-bit shifts are taken modulo 32.
        GpuShiftMask,
        /// The operands of `select` are swapped.
        GpuSelect,
        /// `ne` of a NaN is false.
        GpuNotEqual,
        /// `mul_high` loses a carry.
        GpuCarry,
        /// `min` and `max` of a NaN and a number are the NaN.
        GpuMinOfNan,
        /// Floats that are too large for an integer do not saturate.
        GpuSaturation,
        /// A NaN cast to an integer is not 0.
        GpuCastOfNan,
        /// A float halfway between two f16s is rounded up.
        GpuHalfTies,
        /// Loads outside of an object give its first element.
        GpuLoadBound,
        /// Stores outside of an object are done.
        GpuStoreBound,
        /// A wide access reaches one element too far.
        GpuWideBound,
        /// A store of a small integer clears its neighbours in the word.
        GpuSubWord,
        /// A small signed integer is extended from one bit too high.
        GpuSubWordSign,
        /// Parts of buffers start at the buffer's first element.
        GpuOffset,
        /// Workgroup barriers are left out.
        GpuWorkgroupBarrier,
        /// Storage barriers are left out.
        GpuStorageBarrier,
        /// A second broadcast may overtake the first.
        GpuBroadcastBarrier,
        /// A broadcast takes what a dead invocation has.
        GpuBroadcastDead,
        /// Effects in shared blocks are done by the dead, too.
        GpuDeadEffects,
        /// `continue` forgets the last value that it hands on.
        GpuCarried,
        /// The first case of a switch is never taken.
        GpuSwitchCase,
        /// Leaving a loop from a switch leaves the switch only.
        GpuLeaveSwitch,
        /// The excess workgroups of a folded grid run.
        GpuFoldedTail,
        /// The code of a trap is lost.
        GpuTrapCode,
        /// A shuffle from a lane beyond the subgroup takes lane 0.
        GpuShuffle,
        /// Lanes that have ended count in reductions.
        GpuReduceDead,
        /// Exclusive scans are inclusive.
        GpuScan,
        /// Loops are counted that go around.
        GpuCountAround,
        /// A place in another binding than the first is looked for behind its end.
        GpuBindingPlace,
    }
}

/// Whether a bug is on.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}

/// Whether a bug is on.
#[cfg(feature = "planted-bugs")]
pub fn is(bug: Bug) -> bool {
    active() == Some(bug as usize)
}

/// The bug that is on, as a position in [`TABLE`].
#[cfg(not(feature = "planted-bugs"))]
pub const fn active() -> Option<usize> {
    None
}

/// The bug that is on, as a position in [`TABLE`].
#[cfg(feature = "planted-bugs")]
pub fn active() -> Option<usize> {
    use std::sync::LazyLock;
    static ACTIVE: LazyLock<Option<usize>> = LazyLock::new(|| {
        let name = std::env::var("VYRE_PLANTED").ok().filter(|name| !name.is_empty())?;
        let position = TABLE.iter().position(|row| row.name == name);
        Some(position.unwrap_or_else(|| panic!("VYRE_PLANTED: there is no bug `{name}`")))
    });
    *ACTIVE
}
