//! The fault table: every mistake that the parser or the validator can report, one row each.

use crate::analysis::Scope;
use crate::error_table;
use crate::ir::{Element, Literal, Type};

/// The documentation of one row, for `vyre check --explain`.
#[derive(Clone, Copy, Debug)]
pub struct FaultInfo {
    /// The stable code.
    pub code: &'static str,
    /// What the rule is.
    pub doc: &'static str,
    /// A text that breaks this rule, and no other. Rules about ids and links inside the IR, which no text can break, have
    /// none.
    pub example: Option<&'static str>,
}

/// How a program's arenas can contradict each other. Text cannot express these; a builder or a decoder with a bug can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformation {
    /// An id that its arena does not have.
    DanglingId,
    /// A block that is nested in two instructions, or in none but is not the body.
    SharedBlock,
    /// An instruction that stands in two places.
    SharedInstruction,
    /// A value whose definition does not list it.
    DetachedValue,
    /// An instruction whose results are not what its operation gives.
    WrongResults,
    /// An instruction with too few or too many nested blocks.
    WrongBlocks,
    /// Parameters on a block that is not a loop's, or loop parameters that do not match the initial values.
    WrongParams,
    /// A block without a terminator.
    Unterminated,
    /// A literal with bits that its type does not have.
    BadLiteral,
    /// A uniform whose length is not 1, or a default on something else.
    BadUniform,
}

error_table! {
    /// A mistake in a text or program, with the data that describes it.
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

    /// A number has a suffix that names its type, or none (u32 without a point, f32 with one), and fits its type.
    P003 BadNumber {
        /// The text of the number.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    } ("`{text}` is not a number: {reason}"),
    help "write 7 (u32), 7i32, 0xffu64, 1.5 (f32), 1.5f64, or f32(0x7f800000) for an infinity or NaN",
    example "program p workgroup(1) {\n    %a = add 1, 4294967296\n}";

    /// The grammar wants something else here.
    P004 Expected {
        /// What may stand here.
        expected: String,
        /// What does.
        found: String,
    } ("expected {expected}, found {found}"), help "`vyre check --explain ops` shows how operations are written, and `vyre print` how programs are",
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
    } ("there is no value `%{name}` before this"), help "define it earlier; a loop hands values to its next trip by `continue`",
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

    /// A name stands for one value wherever it can be seen.
    P009 Redefined {
        /// The name.
        name: String,
    } ("`%{name}` is already defined here"), help "values never change: give the new one another name",
    example "program p workgroup(1) {\n    %a = global_index\n    %a = add %a, 1\n}";

    /// As many values are named as the operation gives, or none.
    P010 ResultCount {
        /// The operation.
        op: &'static str,
        /// How many it gives.
        expected: usize,
        /// How many are named.
        found: usize,
    } ("`{op}` gives {expected} results, but {found} are named"), help "name each result, or none",
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

    /// Blocks nest only so deep that a reader can still follow.
    P013 TooDeep {
        /// The deepest nesting that is read.
        limit: usize,
    } ("blocks are nested more than {limit} deep"), help "split the program";

    /// A program says how large its workgroups are.
    P014 NoWorkgroupSize {} ("the program does not say how large a workgroup is"),
    help "write `workgroup(64)`, `workgroup(8, 8)` or `workgroup(4, 4, 4)` after the name",
    example "program p {\n}";

    /// Offsets into a text are 32-bit.
    P015 SourceTooLarge {
        /// The size of the text.
        bytes: usize,
    } ("a text of {bytes} bytes is too large"), help "split it into several files, each below 4 GiB";

    /// Two invocations access an element, one of them writes it, and nothing orders them: what is read, or what remains, depends on
    /// the device. Found by running with `vyre check --run`.
    S001 Race {
        /// The object.
        memory: String,
        /// The element.
        index: u64,
        /// The invocation that accessed it before.
        first: u32,
        /// The invocation that accesses it here.
        second: u32,
        /// How often this happened at these two places.
        count: u64,
    } ("invocations {first} and {second} race for element {index} of `{memory}` ({count} in all)"),
    help "put a barrier between the two, make both accesses atomic, or let only one invocation do it";

    /// Two invocations write the same value to an element, and nothing orders them. The result is certain; the intention may not be.
    S002 SameValueRace {
        /// The object.
        memory: String,
        /// The element.
        index: u64,
        /// The invocation that wrote it before.
        first: u32,
        /// The invocation that writes it here.
        second: u32,
        /// How often this happened at these two places.
        count: u64,
    } ("invocations {first} and {second} both write the same value to element {index} of `{memory}` ({count} in all)"),
    help "let only one invocation do it, if all are not meant to";

    /// An access is outside of its object: a load gives 0, a store is dropped.
    S003 AccessOutside {
        /// The object.
        memory: String,
        /// The element.
        index: u64,
        /// How many elements there are.
        length: u64,
        /// The first invocation that did it.
        invocation: u32,
        /// How often it happened here.
        count: u64,
    } ("invocation {invocation} accesses element {index} of `{memory}`, which has {length} ({count} in all)"),
    help "compare the index with `length` first";

    /// Workgroup or private memory is read before anybody has written it: it reads as 0.
    S004 ReadOfUnwritten {
        /// The object.
        memory: String,
        /// The element.
        index: u64,
        /// The first invocation that did it.
        invocation: u32,
        /// How often it happened here.
        count: u64,
    } ("invocation {invocation} reads element {index} of `{memory}` before it is written ({count} in all)"),
    help "store to it first, if only 0";

    /// A shuffle asks for the value of a lane that does not exist or has ended: it gives 0.
    S005 AbsentLane {
        /// The lane.
        lane: u64,
        /// The first invocation that did it.
        invocation: u32,
        /// How often it happened here.
        count: u64,
    } ("invocation {invocation} asks for the value of lane {lane}, which is not there ({count} in all)"),
    help "keep the lane below `subgroup_size`, and do not end invocations before";

    /// The arenas of a program agree with each other.
    V001 Malformed {
        /// What does not agree.
        what: Malformation,
        /// The entity where it was seen.
        entity: String,
    } ("the program is malformed: {what:?} at {entity}"), help "this is a bug in the tool that made the program";

    /// An operation has as many operands as its row of the op table says.
    V002 OperandCount {
        /// The operation.
        op: &'static str,
        /// How many it takes, in words.
        expected: &'static str,
        /// How many it has.
        found: usize,
    } ("`{op}` takes {expected} operands, but has {found}"), help format!("give it {expected}"),
    example "program p workgroup(1) {\n    %a = add 1\n}";

    /// Operands have the types that the operation is defined for, and agree with each other.
    V003 OperandType {
        /// The operation.
        op: &'static str,
        /// Which operand, from 0.
        position: usize,
        /// What it should be, in words.
        expected: String,
        /// What it is.
        found: Type,
    } ("operand {position} of `{op}` is {found}, but must be {expected}"),
    help "convert it with `cast`; a literal takes a suffix, as in 1i32 or 1.0f64",
    example "program p workgroup(1) {\n    %i = global_index\n    %a = add %i, 1.0\n}";

    /// A bitcast keeps the width.
    V004 BitcastWidth {
        /// The operand's type.
        from: Type,
        /// The type asked for.
        to: Type,
    } ("{from} and {to} have different widths"), help "`cast` converts the number; `bitcast` only reinterprets its bits",
    example "program p workgroup(1) {\n    %a = bitcast 1.0 to u64\n}";

    /// A value is used only where its definition has been executed: after it, in its block or in blocks nested there.
    V005 OutOfScope {
        /// The value.
        value: String,
    } ("{value} is not visible here"), help "yield it from the block that defines it",
    example "program p workgroup(1) {\n    if true {\n        %a = global_index\n    }\n    %b = add %a, 1\n}";

    /// Nothing follows the terminator of a block.
    V006 AfterTerminator {
        /// The terminator.
        op: &'static str,
    } ("nothing can follow `{op}` in its block"), help "remove what follows, or put the terminator into an `if`",
    example "program p workgroup(1) {\n    return\n    %a = global_index\n}";

    /// `yield` ends blocks of `if`, `switch` and `region`; `break` and `continue` need a loop around them.
    V007 MisplacedTerminator {
        /// The terminator.
        op: &'static str,
        /// Where it stands, in words.
        place: &'static str,
    } ("`{op}` cannot end {place}"),
    help "the body ends in `return`, a loop in `continue` or `break`, other blocks in `yield`; `return` and `trap` may end any",
    example "program p workgroup(1) {\n    break\n}";

    /// An exit gives as many values as its target takes.
    V008 ExitCount {
        /// The terminator.
        op: &'static str,
        /// How many the target takes.
        expected: usize,
        /// How many are given.
        found: usize,
    } ("`{op}` gives {found} values, but {expected} are expected"),
    help "`yield` and `break` give the results written after `->`, `continue` the parameters of the loop",
    example "program p workgroup(1) {\n    %a = if true -> u32 {\n        yield\n    } else {\n        yield 1\n    }\n}";

    /// The values an exit gives have the types its target takes.
    V009 ExitType {
        /// The terminator.
        op: &'static str,
        /// Which value, from 0.
        position: usize,
        /// The type the target takes.
        expected: Type,
        /// The type that is given.
        found: Type,
    } ("value {position} of `{op}` is {found}, but {expected} is expected"), help "convert it with `cast`",
    example "program p workgroup(1) {\n    %a = if true -> u32 {\n        yield 1.0\n    } else {\n        yield 1\n    }\n}";

    /// The cases of a switch are distinct.
    V010 DuplicateCase {
        /// The case that stands twice.
        case: u32,
    } ("case {case} stands twice"), help "remove one of the two",
    example "program p workgroup(1) {\n    switch 1 {\n        case 0 {\n        }\n        case 0 {\n        }\n        default {\n        }\n    }\n}";

    /// Only writable objects are stored to.
    V011 NotWritable {
        /// The object.
        memory: String,
    } ("`{memory}` can only be read"), help "declare it `read_write` or `write`",
    example "program p workgroup(1) {\n    read x: [f32]\n    store x[0], 1.0\n}";

    /// Only readable objects are loaded from.
    V012 NotReadable {
        /// The object.
        memory: String,
    } ("`{memory}` can only be written"), help "declare it `read_write`",
    example "program p workgroup(1) {\n    write x: [f32]\n    %a = load x[0]\n}";

    /// Objects that several invocations can write can be accessed atomically: workgroup arrays and read_write storage.
    V014 AtomicSpace {
        /// The object.
        memory: String,
    } ("`{memory}` cannot be accessed atomically"), help "only `read_write` storage and `workgroup` arrays can be",
    example "program p workgroup(1) {\n    private atomic x: [u32; 4]\n}";

    /// Atomic accesses are to integers of 32 or 64 bits.
    V015 AtomicElement {
        /// The object.
        memory: String,
        /// The element type of the access.
        element: Element,
    } ("elements of type {element} of `{memory}` cannot be accessed atomically"), help "atomic elements are i32, u32, i64 and u64",
    example "program p workgroup(1) {\n    read_write atomic x: [f32]\n}";

    /// An atomic access touches one element.
    V016 WideAtomic {
        /// The object.
        memory: String,
    } ("an atomic access to `{memory}` touches one element"), help "write one access for each element",
    example "program p workgroup(1) {\n    read_write atomic x: [u32]\n    %a, %b = load x[0]\n}";

    /// A uniform is one scalar, and is loaded as one.
    V017 IndexedUniform {
        /// The object.
        memory: String,
    } ("`{memory}` is a uniform: one scalar, without an index"), help format!("write `load {memory}`, or declare an array: `uniform {memory}: [f32; 4]`"),
    example "program p workgroup(1) {\n    uniform a: f32\n    %a = load a[0]\n}";

    /// An access to an array has an index.
    V018 MissingIndex {
        /// The object.
        memory: String,
    } ("an access to `{memory}` needs an index"), help format!("write `{memory}[index]`"),
    example "program p workgroup(1) {\n    read x: [f32]\n    %a = load x\n}";

    /// A wide access touches two to four elements.
    V019 TooWide {
        /// How many elements it touches.
        width: usize,
    } ("an access touches at most 4 elements, not {width}"), help "write several accesses",
    example "program p workgroup(1) {\n    read x: [f32]\n    %a, %b, %c, %d, %e = load x[0]\n}";

    /// An index that is known lies inside an object whose length is known.
    V020 OutOfBounds {
        /// The object.
        memory: String,
        /// The last element that is touched.
        index: u64,
        /// The number of elements there are.
        length: u64,
    } ("element {index} of `{memory}` does not exist: it has {length}"), help "it would read as 0, and a store would be dropped; use a smaller index",
    example "program p workgroup(1) {\n    workgroup x: [f32; 4]\n    %a = load x[4]\n}";

    /// Only storage can have a length that is known at dispatch.
    V021 NeedsLength {
        /// The object.
        memory: String,
    } ("`{memory}` needs a length"), help "workgroup and private arrays have a fixed length, as in `[f32; 64]`",
    example "program p workgroup(1) {\n    workgroup x: [f32]\n}";

    /// Objects are not empty.
    V022 ZeroLength {
        /// The object.
        memory: String,
    } ("`{memory}` has no elements"), help "give it a length of at least 1",
    example "program p workgroup(1) {\n    workgroup x: [f32; 0]\n}";

    /// A workgroup has a size in each dimension that devices can run.
    V023 WorkgroupSize {
        /// The size.
        size: [u32; 3],
        /// The largest in each dimension.
        limit: [u32; 3],
    } ("a workgroup of {size:?} is not possible"), help format!("use 1 to {limit:?} in the three dimensions"),
    example "program p workgroup(0) {\n}";

    /// A workgroup has no more invocations than devices can run.
    V024 WorkgroupInvocations {
        /// How many it has.
        count: u64,
        /// How many it can have.
        limit: u32,
    } ("a workgroup of {count} invocations is too large"), help format!("the product of the sizes is at most {limit}"),
    example "program p workgroup(64, 64) {\n}";

    /// The workgroup arrays of a program fit into the memory of a workgroup.
    V025 WorkgroupMemory {
        /// Bytes of all workgroup arrays.
        bytes: u64,
        /// Bytes there are.
        limit: u64,
    } ("the workgroup arrays take {bytes} bytes"), help format!("there are {limit}; use smaller tiles"),
    example "program p workgroup(1) {\n    workgroup x: [f32; 100000]\n}";

    /// The private arrays of a program fit into the memory of an invocation.
    V026 PrivateMemory {
        /// Bytes of all private arrays.
        bytes: u64,
        /// Bytes there are.
        limit: u64,
    } ("the private arrays take {bytes} bytes"), help format!("there are {limit} for an invocation; use storage"),
    example "program p workgroup(1) {\n    private x: [f32; 100000]\n}";

    /// Blocks nest only so deep that every device can compile them.
    V027 NestingDepth {
        /// How deep the program is.
        depth: usize,
        /// How deep it can be.
        limit: usize,
    } ("blocks are nested {depth} deep"), help format!("at most {limit} are possible; split the program");

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

    /// Barriers and broadcasts are executed by all invocations of a workgroup together, subgroup operations by all of a subgroup.
    V030 Divergent {
        /// The operation.
        op: &'static str,
        /// The workgroup or the subgroup.
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
        /// How many `{}` there are.
        placeholders: usize,
        /// How many operands there are.
        operands: usize,
    } ("the text has {placeholders} `{{}}`, but there are {operands} operands"), help "write one `{}` for each operand",
    example "program p workgroup(1) {\n    print \"i = {}\"\n}";

    /// A suggested grid has at least one invocation in each dimension and fewer than 2³² in all.
    V033 LaunchSize {
        /// The grid, in invocations.
        elements: [u32; 3],
    } ("a launch of {elements:?} is not possible"), help "each dimension is at least 1, and whole workgroups make fewer than 2^32 invocations",
    example "program p workgroup(1) launch(65536, 65536) {\n}";

    /// Programs and pipelines of a module have distinct names.
    V034 DuplicateProgram {
        /// The name.
        name: String,
    } ("there are two programs or pipelines named `{name}`"), help "rename one of the two",
    example "program p workgroup(1) {\n}\nprogram p workgroup(1) {\n}";

    /// The default of a uniform is a value that its element type has.
    V035 DefaultRange {
        /// The uniform.
        name: String,
        /// Its element type.
        element: Element,
        /// The default.
        value: Literal,
    } ("the default of `{name}` is {value}, which is not a value of {element}"), help "use a value in its range",
    example "program p workgroup(1) {\n    uniform a: u8 = 300\n}";

    /// A pipeline runs programs of its module.
    V036 UnknownProgram {
        /// The name.
        name: String,
    } ("there is no program `{name}` in this module"), help "write the program into the same file",
    example "pipeline p {\n    run q grid(1)\n}";

    /// The arguments of a dispatch fit the objects of its program, and its grid is one that can be run.
    V037 Misfit {
        /// The program.
        program: String,
        /// What does not fit.
        error: Box<crate::Error>,
    } ("`{program}` cannot be run like this: {error}"), help error.help(),
    example "program q workgroup(1) {\n    read x: [f32; 2]\n}\npipeline p {\n    in x: [f32; 1]\n    run q grid(1) x = x\n}";

    /// A uniform scalar is loaded as what it is declared.
    V038 UniformType {
        /// The object.
        memory: String,
        /// Its type.
        element: Element,
        /// The type of the access.
        found: Element,
    } ("`{memory}` is a uniform of type {element}, and is loaded as {found}"),
    help format!("write `load {memory}`, and convert the value with `bitcast` or `cast`"),
    example "program p workgroup(1) {\n    uniform x: u32\n    %a = load x as f32\n}";
}

impl Fault {
    /// Whether the program is right all the same.
    pub fn is_warning(&self) -> bool {
        matches!(self, Fault::SameValueRace { .. })
    }
}
