//! Tests of the book's blocks, apart from Rust (doctests of `vyre`), commands (`commands.rs`) and WGSL (`application.rs` of `vyre-wgpu`).

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use vyre_foundation::ir::ops::{Exactness, Form, Kind, OpInfo, Signature, Slot, TABLE};
use vyre_foundation::ir::{Literal, Type};
use vyre_foundation::{text, validate};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

const OP_TABLE: &str = "crates/vyre-foundation/src/ir/ops.rs";

/// A fenced code block.
struct Block {
    /// Chapter and line.
    place: String,
    language: String,
    text: String,
}

fn blocks() -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for entry in fs::read_dir(root().join("docs/src")).expect("the book has chapters") {
        let path = entry.expect("a folder that can be listed").path();
        let mut inside = false;
        for (line, text) in fs::read_to_string(&path).expect("a chapter is text").lines().enumerate() {
            if let Some(language) = text.strip_prefix("```") {
                inside = !inside;
                if inside {
                    let place = format!("{}:{}", path.display(), line + 1);
                    blocks.push(Block { place, language: language.into(), text: String::new() });
                }
            } else if let Some(block) = blocks.last_mut().filter(|_| inside) {
                block.text += &format!("{text}\n");
            }
        }
        assert!(!inside, "{}: a block does not end", path.display());
    }
    blocks
}

/// A program without comments and empty lines.
fn bare(program: &str) -> String {
    let lines = program.lines().map(|line| line.split("//").next().unwrap_or(line).trim_end());
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

/// Lines without indentation.
fn flush(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.trim_start())).collect()
}

#[test]
fn code_blocks_of_the_book_are_valid() {
    for Block { place, language, text } in blocks() {
        let included = text.trim().strip_prefix("{{#include ../../").and_then(|text| text.strip_suffix("}}"));
        match language.as_str() {
            // A diagram, or tested elsewhere.
            "text" | "rust" | "console" | "wgsl" => {}
            // Run by `python_scripts_run`.
            "python" => assert!(included.is_some_and(|file| root().join(file).is_file()), "{place}: no included file"),
            // A file that is compiled with its crate, or rows of the op table.
            "rs" => match included {
                Some(file) => assert!(root().join(file).is_file(), "{place}: no file `{file}`"),
                None => assert!(flush(&read(OP_TABLE)).contains(&flush(&text)), "{place}: not in the op table"),
            },
            // Crates of the repository, and its dependencies in the same version.
            "toml" => {
                for line in text.lines() {
                    let path = line.split("path = \"../vyre/").nth(1).and_then(|rest| rest.split('"').next());
                    assert!(path.is_none_or(|path| root().join(path).join("Cargo.toml").is_file()), "{place}: {line}");
                    let used = line.split(", features").next().unwrap_or(line).replace("{ version = ", "");
                    assert!(!line.contains("version") || read("Cargo.toml").contains(&used), "{place}: {line}");
                }
            }
            "vyre" => {
                let text = included.map_or(text.clone(), read);
                let module = text::parse(&text).unwrap_or_else(|error| panic!("{place}: {error}"));
                assert_eq!(bare(&text), bare(&text::print(&module)), "{place}: not in canonical form");
                validate::module(module).unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            // Existing examples and files.
            "sh" => {
                for command in text.lines() {
                    let words: Vec<&str> = command.split(' ').collect();
                    assert!(["cargo", "git", "cd"].contains(&words[0]), "{place}: {command}");
                    for pair in words.windows(2) {
                        let example = root().join(format!("crates/vyre/examples/{}.rs", pair[1]));
                        assert!(pair[0] != "--example" || example.is_file(), "{place}: no example `{}`", pair[1]);
                        let is_file = pair[1].contains('/') && !pair[1].contains('=') && !pair[1].contains("://");
                        assert!(!is_file || root().join(pair[1]).exists(), "{place}: no file `{}`", pair[1]);
                    }
                }
            }
            _ => panic!("{place}: blocks of `{language}` are not tested"),
        }
    }
}

/// Runs the included scripts with the command in `PATH`.
#[cfg(unix)]
#[test]
fn python_scripts_run() {
    let command = Path::new(env!("CARGO_BIN_EXE_vyre")).parent().expect("a folder");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(command.to_owned()).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(folders).expect("folders without colons");
    for block in blocks().iter().filter(|block| block.language == "python") {
        let script = block.text.trim().trim_start_matches("{{#include ../../").trim_end_matches("}}");
        let mut python = std::process::Command::new("python3");
        python.arg(root().join(script)).env("PATH", &path).env("VYRE_DEVICE", "reference");
        python.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/python"));
        let output = python.output().expect("scripts are tested with python3");
        assert!(output.status.success(), "{}: {}", block.place, String::from_utf8_lossy(&output.stderr));
    }
}

/// Section of the list of operations: title and filter.
type Group = (&'static str, fn(&OpInfo) -> bool);

const GROUPS: [Group; 8] = [
    ("Pure operations", |row| row.kind == Kind::Pure && row.exactness != Exactness::Composed),
    ("The math library", |row| row.exactness == Exactness::Composed),
    ("Per-invocation values", |row| row.kind == Kind::PerInvocation),
    ("Workgroup-uniform values", |row| row.kind == Kind::PerGroup),
    ("Memory", |row| matches!(row.kind, Kind::Access | Kind::Atomic)),
    ("Barriers and subgroup operations", |row| row.kind == Kind::Collective),
    ("Control flow", |row| row.kind == Kind::Control),
    ("Effects on the report", |row| row.kind == Kind::Effect),
];

const INTRODUCTION: &str = "\
# Operations

This chapter is generated from the op table, `crates/vyre-foundation/src/ir/ops.rs`, which defines parsing, printing, validation and evaluation
of operations. `vyre check --explain ops` prints the same list.

*Floats* is the maximum error on devices without exact floats, in units in the last place (ULP). Operations without an entry have the same
bits on every device. On devices with exact floats (the oracle, `cpu`, and GPUs that pass the tests of the backend), all rows have the same bits,
except subgroup sums and products marked *any order*, whose order of additions is the GPU's. Atomic sums of floats are also
marked *any order*: on every device, their order is that in which the invocations arrive.

Operations on packed bytes (`dot4_…`, `…_u8x4`) treat a u32 as a vector of four bytes, the first in the lowest bits. `extract_bits w, 8 × k, 8`
unpacks byte k of a word, sign-extended if `w` is an i32, and `insert_bits w, b, 8 × k, 8` replaces it by the low 8 bits of `b`.

Error bounds in the rows of the math library are those of f32 and f64. `cargo xtask soak math` measures the errors: for f32 over all operands
or 2³⁰ pairs, and for f64 over 10⁸ operands or pairs against double-double arithmetic. Functions of f16 are computed in f32 and rounded once;
their maximum error is 0.501 ULP.
";

fn operations() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (title, belongs) in GROUPS {
        let _ = write!(page, "\n## {title}\n\n| operation | types | meaning | floats |\n|---|---|---|---|\n");
        for row in TABLE.iter().filter(|row| belongs(row)) {
            let (written, types) = row.written();
            let floats = match row.exactness {
                Exactness::Exact => String::new(),
                Exactness::Rounded { ulp } => format!("{ulp} ULP"),
                Exactness::Ordered => "any order".into(),
                Exactness::Composed => "no bound".into(),
            };
            let _ = writeln!(page, "| `{written}` | {types} | {} | {floats} |", row.doc.trim());
        }
    }
    page += "\n## Corner cases\n\nResults of the evaluators for edge values.\n";
    let integers = [[7, 2], [-7, 2], [7, 0], [i32::MIN, -1], [i32::MAX, 1]];
    corner_cases(&mut page, "Two i32", &integers.map(|pair| pair.map(Literal::from)));
    let shifts = [(-8i32, 1u32), (1, 31), (1, 32), (-1, 33)];
    corner_cases(&mut page, "An i32 and a count", &shifts.map(|(a, count)| [a.into(), count.into()]));
    let floats = [[1.0, 0.0], [0.0, 0.0], [0.0, -0.0], [1.0, f32::NAN], [f32::INFINITY, f32::INFINITY]];
    corner_cases(&mut page, "Two f32", &floats.map(|pair| pair.map(Literal::from)));
    let floats = [2.5f32, -0.5, -0.0, f32::MAX, f32::INFINITY, f32::NAN];
    corner_cases(&mut page, "One f32", &floats.map(|float| [float.into()]));

    let targets = [Type::I32, Type::U32, Type::F16, Type::Bool];
    let head = targets.map(|ty| format!("to {ty} |")).join(" ");
    let _ = write!(page, "\n| `cast` | {head}\n|---|{}\n", "---|".repeat(targets.len()));
    for float in [1.9f32, -1.9, 3e9, 1e-9, f32::NEG_INFINITY, f32::NAN] {
        let from = Literal::from(float);
        let cast = |ty| {
            let evaluate =
                OpInfo::named("cast").and_then(|row| row.evaluator(from.ty, ty)).expect("all types can be cast");
            format!("{} |", Literal { ty, bits: evaluate(&[from.bits]) }.plain())
        };
        let _ = writeln!(page, "| {} | {}", from.plain(), targets.map(cast).join(" "));
    }
    page
}

/// A table of the operations on the operand types of `columns`, with a column for each operand tuple.
fn corner_cases<const N: usize>(page: &mut String, title: &str, columns: &[[Literal; N]]) {
    let plain = |literals: &[Literal]| literals.iter().map(|literal| literal.plain()).collect::<Vec<_>>().join(", ");
    let head: Vec<String> = columns.iter().map(|operands| plain(operands)).collect();
    let _ = write!(page, "\n| {title} | {} |\n|---|{}\n", head.join(" | "), "---|".repeat(columns.len()));
    let types = columns[0].map(|literal| literal.ty);
    for row in TABLE {
        let Form::Plain(Signature { class, operands, results }) = row.form else { continue };
        let takes = operands.contains(&Slot::T) && operands.iter().map(|slot| slot.of(types[0])).eq(types);
        let Some(evaluate) = row.evaluator(types[0], types[0]).filter(|_| takes && class.contains(types[0])) else {
            continue;
        };
        let _ = write!(page, "| `{}` |", row.name);
        for operands in columns {
            let ty = results[0].of(types[0]);
            let bits = evaluate(&operands.map(|operand| operand.bits));
            let _ = write!(page, " {} |", Literal { ty, bits }.plain());
        }
        page.push('\n');
    }
}

#[test]
fn the_chapter_on_operations_is_generated_from_the_op_table() {
    let (path, made) = (root().join("docs/src/operations.md"), operations());
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        fs::write(&path, &made).expect("the chapter can be written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == made, "docs/src/operations.md is not generated from this op table (UPDATE=1 rewrites it)");
}
