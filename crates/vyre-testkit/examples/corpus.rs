//! Writes the seed corpus for fuzzing: the example kernels, the file tests and generated programs, in the format of
//! each fuzz target. `cargo xtask fuzz` runs this.
//!
//! Usage: `corpus FOLDER`, run in the root of the repository. It writes to `FOLDER/text`, `FOLDER/wire` and `FOLDER/lower`.

use std::path::{Path, PathBuf};

use vyre_foundation::ir::Module;
use vyre_foundation::{text, wire};
use vyre_testkit::{Features, files, generate};

/// Length of the `.vyreb` header, which the targets prepend again, with a valid hash.
const HEADER: usize = 40;

/// Number of generated programs.
const GENERATED: u16 = 200;

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("the folder to write to is given"));
    for target in ["text", "wire", "lower"] {
        std::fs::create_dir_all(folder.join(target))?;
    }
    let roots = ["examples", "tests/files", "crates/vyre-cli/tests/kernels"];
    for (number, path) in roots.iter().flat_map(|root| files::in_folder(Path::new(root))).enumerate() {
        let source = std::fs::read(path)?;
        std::fs::write(folder.join(format!("text/file-{number}")), &source)?;
        if let Some(module) = std::str::from_utf8(&source).ok().and_then(|source| text::parse(source).ok()) {
            write_module(&folder, &format!("file-{number}"), &module)?;
        }
    }
    for seed in 0..GENERATED {
        let size = 5 + (seed % 40) as u8;
        let features = Features { size: size.into(), ..Features::default() };
        let module = Module::from(generate(seed.into(), &features).program);
        std::fs::write(folder.join(format!("text/generated-{seed}")), text::print(&module))?;
        write_module(&folder, &format!("generated-{seed}"), &module)?;
        let [low, high] = seed.to_le_bytes();
        std::fs::write(folder.join(format!("lower/seed-{seed}")), [1, size, low, high])?;
    }
    Ok(())
}

fn write_module(folder: &Path, name: &str, module: &Module) -> std::io::Result<()> {
    let contents = &wire::encode(module)[HEADER..];
    std::fs::write(folder.join("wire").join(name), contents)?;
    std::fs::write(folder.join("lower").join(name), [&[0], contents].concat())
}
