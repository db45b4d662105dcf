//! Fault table: one row for each diagnostic of the parser, the validator and the sanitizers.

use crate::analysis::Scope;
use crate::error_table;
use crate::ir::{Element, Literal, Type};

/// Documentation of a row, for `vyre check --explain`.
#[derive(Clone, Copy, Debug)]
pub struct FaultInfo {
    /// The stable code.
    pub code: &'static str,
    /// The rule.
    pub doc: &'static str,
    /// A text that breaks this rule and no other; `None` for rules about ids and links inside the IR, which no text can break.
    pub example: Option<&'static str>,
}

/// Inconsistencies between the arenas of a program. Text cannot express them; a builder or decoder with a bug can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformation {
    /// An id out of range of its arena.
    DanglingId,
    /// A block nested in two instructions, or in none although it is not the body.
    SharedBlock,
    /// An instruction listed twice.
    SharedInstruction,
    /// A value whose definition does not list it.
    DetachedValue,
    /// An instruction whose results do not match its operation.
    WrongResults,
    /// An instruction with too few or too many nested blocks.
    WrongBlocks,
    /// Parameters on a block that is not a loop's, or loop parameters that do not match the initial values.
    WrongParams,
    /// A block without a terminator.
    Unterminated,
    /// A literal with bits outside its type.
    BadLiteral,
    /// A uniform whose length is not 1, or a default on something else.
    BadUniform,
}

error_table! {
    /// A diagnostic of a text or program, with its data.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Fault listed in FAULTS;

    /// Text consists of names, numbers, strings and punctuation.
    P001 UnexpectedCharacter {
        /// The character.
        found: char,
    } ("unexpected character `{found}`"), help "remove it",
    example "program p workgroup(1) {\n    ? = global_index\n}";

    /// A string ends on the line it starts on.
    P002 UnterminatedString {} ("this string does not end"), help "close it with `\"` on the same line",
    example "program p workgroup(1) {\n    print \"no end\n}";

    /// A number is a literal of its suffix type (without a suffix: u32, or f32 with a point) and fits that type.
    P003 BadNumber {
        /// The text of the number.
        text: String,
        /// Reason.
        reason: &'static str,
    } ("`{text}` is not a number: {reason}"),
    help "write 7 (u32), 7i32, 0xffu64, 1.5 (f32), 1.5f64, or f32(0x7f800000) for an infinity or NaN",
    example "program p workgroup(1) {\n    %a = add 1, 4294967296\n}";

    /// The text follows the grammar.
    P004 Expected {
        /// Tokens allowed here.
        expected: String,
        /// Token found.
        found: String,
    } ("expected {expected}, found {found}"), help "`vyre check --explain ops` shows the syntax of each operation",
    example "program p workgroup(1) {\n    read x [f32]\n}";

    /// Operations are those of the op table.
    P005 UnknownOp {
        /// The name.
        name: String,
        /// The operation with the most similar name.
        nearest: Option<&'static str>,
    } ("there is no operation `{name}`"),
    help nearest.map_or_else(|| "`vyre check --explain ops` lists the operations".into(), |nearest| format!("did you mean `{nearest}`?")),
    example "program p workgroup(1) {\n    %a = plus 1, 2\n}";

    /// A value is defined before it is used.
    P006 UnknownValue {
        /// The name.
        name: String,
    } ("there is no value `%{name}` before this use"),
    help "define it earlier; a loop carries values to its next iteration with `continue`",
    example "program p workgroup(1) {\n    %b = add %a, 1\n}";

    /// An access names a declared memory object.
    P007 UnknownMemory {
        /// The name.
        name: String,
    } ("there is no memory object `{name}`"), help "declare it at the top: `read x: [f32]` in a program, `in x: [f32; 1024]` in a pipeline",
    example "program p workgroup(1) {\n    %a = load x[0]\n}";

    /// A bare name as an operand is a declared constant.
    P008 UnknownConstant {
        /// The name.
        name: String,
    } ("there is no constant `{name}`"), help "declare it (`const N: u32 = 4`), or write `%name` for a value",
    example "program p workgroup(1) {\n    %a = add 1, N\n}";

    /// A name is defined once in its scope.
    P009 Redefined {
        /// The name.
        name: String,
    } ("`%{name}` is already defined here"), help "values are immutable: rename the new one",
    example "program p workgroup(1) {\n    %a = global_index\n    %a = add %a, 1\n}";

    /// An instruction names all results of its operation, or none.
    P010 ResultCount {
        /// The operation.
        op: &'static str,
        /// Number of results.
        expected: usize,
        /// Number of names.
        found: usize,
    } ("`{op}` has {expected} results, but {found} are named"), help "name each result, or none",
    example "program p workgroup(1) {\n    %a, %b = add 1, 2\n}";

    /// Types of values are bool, i32, u32, f32, i64, u64, f64 and f16.
    P011 UnknownType {
        /// The name.
        name: String,
    } ("there is no type `{name}`"), help "value types are bool, i32, u32, f32, i64, u64, f64, f16",
    example "program p workgroup(1) {\n    %a = cast 1 to float\n}";

    /// Elements of memory are the number types, and integers of 8 and 16 bits.
    P012 UnknownElement {
        /// The name.
        name: String,
    } ("memory has no element type `{name}`"),
    help "elements are i8, u8, i16, u16, i32, u32, f32, i64, u64, f64, f16; keep a bool as a u8 of 0 or 1",
    example "program p workgroup(1) {\n    read flags: [bool]\n}";

    /// Blocks nest at most 128 deep when parsed (64 in a valid program, see V027).
    P013 TooDeep {
        /// Maximum depth.
        limit: usize,
    } ("blocks are nested more than {limit} deep"), help "split the program, or join nested conditions with `and`";

    /// A program declares its workgroup size.
    P014 NoWorkgroupSize {} ("the program does not declare its workgroup size"),
    help "write `workgroup(64)`, `workgroup(8, 8)` or `workgroup(4, 4, 4)` after the name",
    example "program p {\n}";

    /// Offsets into a text are 32-bit.
    P015 SourceTooLarge {
        /// The size of the text.
        bytes: usize,
    } ("a text of {bytes} bytes exceeds 4 GiB"), help "split it into several files";

    /// Data race: two invocations access an element without synchronization, and at least one of them writes it. The result depends on
    /// the device. Found by running with `vyre check --run`.
    S001 Race {
        /// The object.
        memory: String,
        /// Index of the element.
        index: u64,
        /// Invocation of the earlier access.
        first: u32,
        /// Invocation of this access.
        second: u32,
        /// Number of races between these two instructions.
        count: u64,
    } ("invocations {first} and {second} race for element {index} of `{memory}` ({count} in all)"),
    help "put a barrier between the two, make both accesses atomic, or let only one invocation access the element";

    /// Data race of stores of equal values: well-defined, but often unintended.
    S002 SameValueRace {
        /// The object.
        memory: String,
        /// Index of the element.
        index: u64,
        /// Invocation of the earlier store.
        first: u32,
        /// Invocation of this store.
        second: u32,
        /// Number of races between these two instructions.
        count: u64,
    } ("invocations {first} and {second} both write the same value to element {index} of `{memory}` ({count} in all)"),
    help "let only one invocation store, unless all are meant to";

    /// Access out of bounds: a load gives 0, a store has no effect.
    S003 AccessOutside {
        /// The object.
        memory: String,
        /// Index of the element.
        index: u64,
        /// Length of the object.
        length: u64,
        /// First invocation.
        invocation: u32,
        /// Number of occurrences at this instruction.
        count: u64,
    } ("invocation {invocation} accesses element {index} of `{memory}`, which has {length} elements ({count} in all)"),
    help "compare the index with `length` first";

    /// Load of uninitialized workgroup or private memory, which gives 0.
    S004 ReadOfUnwritten {
        /// The object.
        memory: String,
        /// Index of the element.
        index: u64,
        /// First invocation.
        invocation: u32,
        /// Number of occurrences at this instruction.
        count: u64,
    } ("invocation {invocation} reads element {index} of `{memory}` before it is written ({count} in all)"),
    help "initialize it, for example with 0";

    /// Subgroup shuffle from a lane that does not exist or has ended, which gives 0.
    S005 AbsentLane {
        /// The lane.
        lane: u64,
        /// First invocation.
        invocation: u32,
        /// Number of occurrences at this instruction.
        count: u64,
    } ("invocation {invocation} reads lane {lane}, which does not exist or has ended ({count} in all)"),
    help "use lanes below `subgroup_size`, and no `return` or `trap` before the shuffle";

    /// The arenas of a program are consistent.
    V001 Malformed {
        /// Kind of inconsistency.
        what: Malformation,
        /// Inconsistent entity.
        entity: String,
    } ("the program is malformed: {what:?} at {entity}"), help "this is a bug in the tool that made the program";

    /// An operation has the number of operands in its row of the op table.
    V002 OperandCount {
        /// The operation.
        op: &'static str,
        /// Number of operands that it takes, in words.
        expected: &'static str,
        /// Number of operands.
        found: usize,
    } ("`{op}` takes {expected} operands, but has {found}"), help format!("pass {expected} operands"),
    example "program p workgroup(1) {\n    %a = add 1\n}";

    /// An operation is defined for the types of its operands.
    V003 OperandType {
        /// The operation.
        op: &'static str,
        /// Index of the operand.
        position: usize,
        /// Expected type, in words.
        expected: String,
        /// Actual type.
        found: Type,
    } ("operand {position} of `{op}` is {found}, but must be {expected}"),
    help "convert it with `cast`; a literal takes a suffix, as in 1i32 or 1.0f64",
    example "program p workgroup(1) {\n    %i = global_index\n    %a = add %i, 1.0\n}";

    /// A bitcast preserves the width.
    V004 BitcastWidth {
        /// Type of the operand.
        from: Type,
        /// Type of the result.
        to: Type,
    } ("`bitcast` from {from} to {to} changes the width"), help "convert the value with `cast`, or use a type of the same width",
    example "program p workgroup(1) {\n    %a = bitcast 1.0 to u64\n}";

    /// The definition of a value dominates its uses: it precedes them in the same block or in an enclosing block.
    V005 OutOfScope {
        /// The value.
        value: String,
    } ("{value} is not in scope here"), help "yield it from the block that defines it",
    example "program p workgroup(1) {\n    if true {\n        %a = global_index\n    }\n    %b = add %a, 1\n}";

    /// The terminator is the last instruction of its block.
    V006 AfterTerminator {
        /// The terminator.
        op: &'static str,
    } ("unreachable code after `{op}`"), help "remove the code after it, or put the terminator into an `if`",
    example "program p workgroup(1) {\n    return\n    %a = global_index\n}";

    /// `yield` ends blocks of `if`, `switch` and `region`; `break` and `continue` need a loop around them.
    V007 MisplacedTerminator {
        /// The terminator.
        op: &'static str,
        /// Kind of block, in words.
        place: &'static str,
    } ("`{op}` cannot end {place}"),
    help "the body ends in `return`, a loop in `continue` or `break`, other blocks in `yield`; `return` and `trap` may end any",
    example "program p workgroup(1) {\n    break\n}";

    /// An exit passes as many values as its target takes.
    V008 ExitCount {
        /// The terminator.
        op: &'static str,
        /// Number of values that the target takes.
        expected: usize,
        /// Number of values passed.
        found: usize,
    } ("`{op}` passes {found} values, but its target takes {expected}"),
    help "`yield` and `break` pass the results declared after `->`, `continue` the loop parameters",
    example "program p workgroup(1) {\n    %a = if true -> u32 {\n        yield\n    } else {\n        yield 1\n    }\n}";

    /// The values that an exit passes have the types of its target.
    V009 ExitType {
        /// The terminator.
        op: &'static str,
        /// Index of the value.
        position: usize,
        /// Type that the target takes.
        expected: Type,
        /// Type passed.
        found: Type,
    } ("value {position} of `{op}` is {found}, but its target takes {expected}"), help "convert it with `cast`",
    example "program p workgroup(1) {\n    %a = if true -> u32 {\n        yield 1.0\n    } else {\n        yield 1\n    }\n}";

    /// The cases of a switch are distinct.
    V010 DuplicateCase {
        /// The duplicate.
        case: u32,
    } ("duplicate case {case}"), help "remove one of the two",
    example "program p workgroup(1) {\n    switch 1 {\n        case 0 {\n        }\n        case 0 {\n        }\n        default {\n        }\n    }\n}";

    /// The object of a store is writable.
    V011 NotWritable {
        /// The object.
        memory: String,
    } ("`{memory}` is read-only"), help "declare it `read_write` or `write`",
    example "program p workgroup(1) {\n    read x: [f32]\n    store x[0], 1.0\n}";

    /// The object of a load is readable.
    V012 NotReadable {
        /// The object.
        memory: String,
    } ("`{memory}` is write-only"), help "declare it `read_write`",
    example "program p workgroup(1) {\n    write x: [f32]\n    %a = load x[0]\n}";

    /// Atomic accesses are to `read_write` storage or workgroup arrays.
    V014 AtomicSpace {
        /// The object.
        memory: String,
    } ("`{memory}` cannot be accessed atomically"), help "declare it as `read_write` storage or as a `workgroup` array",
    example "program p workgroup(1) {\n    private atomic x: [u32; 4]\n}";

    /// Atomic accesses are to numbers of 32 or 64 bits.
    V015 AtomicElement {
        /// The object.
        memory: String,
        /// The element type of the access.
        element: Element,
    } ("elements of type {element} of `{memory}` cannot be accessed atomically"), help "atomic elements are i32, u32, f32, i64, u64 and f64",
    example "program p workgroup(1) {\n    read_write atomic x: [f16]\n}";

    /// Atomic accesses are not wide.
    V016 WideAtomic {
        /// The object.
        memory: String,
    } ("an atomic access to `{memory}` takes a single element"), help "write one access for each element",
    example "program p workgroup(1) {\n    read_write atomic x: [u32]\n    %a, %b = load x[0]\n}";

    /// A uniform scalar is loaded without an index.
    V017 IndexedUniform {
        /// The object.
        memory: String,
    } ("`{memory}` is a uniform: one scalar, without an index"),
    help format!("write `load {memory}`, or declare an array: `uniform {memory}: [f32; 4]`"),
    example "program p workgroup(1) {\n    uniform a: f32\n    %a = load a[0]\n}";

    /// An access to an array has an index.
    V018 MissingIndex {
        /// The object.
        memory: String,
    } ("an access to `{memory}` needs an index"), help format!("write `{memory}[index]`"),
    example "program p workgroup(1) {\n    read x: [f32]\n    %a = load x\n}";

    /// A wide access is to two to four elements.
    V019 TooWide {
        /// Number of elements.
        width: usize,
    } ("an access to {width} elements is wider than 4"), help "write several accesses",
    example "program p workgroup(1) {\n    read x: [f32]\n    %a, %b, %c, %d, %e = load x[0]\n}";

    /// A constant index is in bounds of an object of known length.
    V020 OutOfBounds {
        /// The object.
        memory: String,
        /// Last element of the access.
        index: u64,
        /// Length of the object.
        length: u64,
    } ("element {index} of `{memory}` is out of bounds: the length is {length}"),
    help format!("use an index below {length}; a load out of bounds gives 0, a store has no effect"),
    example "program p workgroup(1) {\n    workgroup x: [f32; 4]\n    %a = load x[4]\n}";

    /// Workgroup and private arrays have a declared length; only storage can take its length from the argument.
    V021 NeedsLength {
        /// The object.
        memory: String,
    } ("`{memory}` needs a length"), help "declare it with a length, as in `[f32; 64]`",
    example "program p workgroup(1) {\n    workgroup x: [f32]\n}";

    /// A declared length is at least 1.
    V022 ZeroLength {
        /// The object.
        memory: String,
    } ("`{memory}` has no elements"), help "give it a length of at least 1",
    example "program p workgroup(1) {\n    workgroup x: [f32; 0]\n}";

    /// A workgroup has 1 to 1024 invocations in x and y, and 1 to 64 in z.
    V023 WorkgroupSize {
        /// The size.
        size: [u32; 3],
        /// Maximum of each dimension.
        limit: [u32; 3],
    } ("a workgroup of {size:?} is outside [1, 1, 1] to {limit:?}"),
    help "write `workgroup(64)`, `workgroup(8, 8)` or `workgroup(4, 4, 4)`",
    example "program p workgroup(0) {\n}";

    /// A workgroup has at most 1024 invocations.
    V024 WorkgroupInvocations {
        /// Number of invocations.
        count: u64,
        /// Maximum number.
        limit: u32,
    } ("a workgroup of {count} invocations exceeds {limit}"), help "reduce a dimension of the workgroup",
    example "program p workgroup(64, 64) {\n}";

    /// The workgroup arrays of a program take at most 32 KiB.
    V025 WorkgroupMemory {
        /// Bytes of all workgroup arrays.
        bytes: u64,
        /// Maximum bytes.
        limit: u64,
    } ("the workgroup arrays take {bytes} bytes, more than {limit}"), help "use smaller arrays or narrower elements",
    example "program p workgroup(1) {\n    workgroup x: [f32; 100000]\n}";

    /// The private arrays of a program take at most 16 KiB.
    V026 PrivateMemory {
        /// Bytes of all private arrays.
        bytes: u64,
        /// Maximum bytes.
        limit: u64,
    } ("the private arrays take {bytes} bytes, more than {limit} per invocation"), help "use smaller arrays, or storage",
    example "program p workgroup(1) {\n    private x: [f32; 100000]\n}";

    /// Blocks nest at most 64 deep.
    V027 NestingDepth {
        /// Nesting depth of the program.
        depth: usize,
        /// Maximum depth.
        limit: usize,
    } ("blocks are nested {depth} deep, more than {limit}"), help "split the program, or join nested conditions with `and`";

    /// Memory objects and constants of a program have distinct names.
    V028 DuplicateName {
        /// The name.
        name: String,
    } ("`{name}` is declared twice"), help "rename one of the two",
    example "program p workgroup(1) {\n    read x: [f32]\n    read x: [u32]\n}";

    /// Names are identifiers, and not `true`, `false` or a type.
    V029 BadName {
        /// The name.
        name: String,
    } ("`{name}` cannot be a name"), help "use letters, digits and `_`, not starting with a digit, and not `true`, `false` or a type",
    example "program p workgroup(1) {\n    const true: u32 = 1\n}";

    /// Barriers and broadcasts are in workgroup-uniform control flow, subgroup operations in subgroup-uniform control flow.
    V030 Divergent {
        /// The operation.
        op: &'static str,
        /// Workgroup or subgroup.
        scope: Scope,
    } ("`{op}` needs {scope}-uniform control flow: some invocations of a {scope} may reach it and others not"),
    help match scope {
        Scope::Subgroup => "move it out of the divergent branch or loop, or make the condition uniform with `subgroup_any` or `subgroup_all`",
        _ => "move it out of the divergent branch or loop, or make the condition uniform with `broadcast`",
    },
    example "program p workgroup(64) {\n    %i = local_index\n    %c = lt %i, 32\n    if %c {\n        workgroup_barrier\n    }\n}";

    /// The default of a uniform has the type of the uniform.
    V031 DefaultType {
        /// The uniform or constant.
        name: String,
        /// Its type.
        expected: Type,
        /// The type of the default.
        found: Type,
    } ("the default of `{name}` is {found}, but must be {expected}"), help "give the literal a suffix, as in 1i32 or 1.0f64",
    example "program p workgroup(1) {\n    uniform a: f32 = 1\n}";

    /// A print has as many `{}` as operands.
    V032 PrintPlaceholders {
        /// Number of `{}`.
        placeholders: usize,
        /// Number of operands.
        operands: usize,
    } ("the text has {placeholders} `{{}}`, but there are {operands} operands"), help "write one `{}` for each operand",
    example "program p workgroup(1) {\n    print \"i = {}\"\n}";

    /// A default grid has at least one invocation in each dimension and fewer than 2³² in all.
    V033 LaunchSize {
        /// The grid, in invocations.
        elements: [u32; 3],
    } ("a launch of {elements:?} invocations is empty or has 2^32 or more"),
    help "use dimensions of at least 1 that, in whole workgroups, make fewer than 2^32 invocations",
    example "program p workgroup(1) launch(65536, 65536) {\n}";

    /// Programs and pipelines of a module have distinct names.
    V034 DuplicateProgram {
        /// The name.
        name: String,
    } ("there are two programs or pipelines named `{name}`"), help "rename one of the two",
    example "program p workgroup(1) {\n}\nprogram p workgroup(1) {\n}";

    /// The default of a uniform is in the range of its element type.
    V035 DefaultRange {
        /// The uniform.
        name: String,
        /// Its element type.
        element: Element,
        /// The default.
        value: Literal,
    } ("the default of `{name}` is {value}, which is not a value of {element}"), help format!("use a value in the range of {element}"),
    example "program p workgroup(1) {\n    uniform a: u8 = 300\n}";

    /// A dispatch of a pipeline names a program of its module.
    V036 UnknownProgram {
        /// The name.
        name: String,
    } ("there is no program `{name}` in this module"), help "write the program into the same file",
    example "pipeline p {\n    run q grid(1)\n}";

    /// The arguments and the grid of a dispatch in a pipeline are valid for its program.
    V037 Misfit {
        /// The program.
        program: String,
        /// Error of the binding or the grid.
        error: Box<crate::Error>,
    } ("invalid dispatch of `{program}`: {error}"), help error.help(),
    example "program q workgroup(1) {\n    read x: [f32; 2]\n}\npipeline p {\n    in x: [f32; 1]\n    run q grid(1) x = x\n}";

    /// A uniform scalar is loaded as its declared type.
    V038 UniformType {
        /// The object.
        memory: String,
        /// Its type.
        element: Element,
        /// Type of the access.
        found: Element,
    } ("`{memory}` is a uniform of type {element}, and is loaded as {found}"),
    help format!("write `load {memory}`, and convert the value with `bitcast` or `cast`"),
    example "program p workgroup(1) {\n    uniform x: u32\n    %a = load x as f32\n}";

    /// Bitwise read-modify-writes and compare-exchanges are of integers.
    V039 AtomicClass {
        /// The operation.
        op: &'static str,
        /// The object.
        memory: String,
        /// The element type of the access.
        element: Element,
    } ("`{op}` changes integers, but the elements of `{memory}` are accessed as {element}"),
    help "access the bits as an integer of the same size: `as u32` or `as u64`, with `bitcast` for the values",
    example "program p workgroup(1) {\n    read_write atomic x: [f32]\n    atomic_or x[0], 1.0\n}";
}

impl Fault {
    /// Returns true if the program is valid despite this diagnostic.
    pub fn is_warning(&self) -> bool {
        matches!(self, Fault::SameValueRace { .. })
    }
}
