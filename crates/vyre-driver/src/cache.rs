//! Programs that were compiled before.
//!
//! ```text
//! compile → Key → Recent: of the device, in memory → Cache: a folder that processes share → the optimizer
//! ```
//!
//! A [`Key`] covers everything that an optimized program depends on, so what is found under a key is never out of date. The
//! passes are selected before anything is looked up: selecting is cheap, and it is the only way in which lengths, hints and
//! earlier compiles have any influence.
//!
//! A file of the cache holds an optimized program, never machine code:
//!
//! ```text
//! entry   = "vyrepgm" version:u8 key:[u8; 32] length:u64 program place… checksum:[u8; 32]     the checksum is blake3
//! program = as in the binary format, of that length
//! place   = start:u32 end:u32            of each constant, memory object and instruction, since the binary format has none
//! ```
//!
//! Reports of traps and of fuel name places, so a kept program has those of the program that was given. Names of values are
//! for people who read programs, and are not kept.
//!
//! Nothing of a file is trusted: it is decoded and validated like any program from outside. What is damaged counts as absent,
//! is deleted, and is reported once. Files are replaced in one step, so readers see all of an entry or none, whoever else
//! reads, writes or is killed. That a file may be lost when the machine is, is left to the checksum.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use vyre_foundation::ir::{Module, Program, Span};
use vyre_foundation::{Validated, optimizer, validate, wire};

use crate::{Error, backend, shared};

/// A folder of optimized programs, which processes may share.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// Bytes that all files together may take.
    most_bytes: u64,
    /// Bytes that were written since the folder was opened.
    written: AtomicU64,
    problems: Mutex<Vec<Error>>,
}

/// Bytes that all files together may take.
const MOST_BYTES: u64 = 64 << 20;
/// Files that there may be, so that listing them stays cheap.
const MOST_FILES: usize = 4096;
/// Larger programs are not kept.
const MOST_ENTRY_BYTES: u64 = 4 << 20;
/// How the names of entries end.
const EXTENSION: &str = "program";

impl Cache {
    /// Programs in a folder. It need not exist, and where it cannot be read or written, nothing is kept.
    pub fn kept_in(folder: impl Into<PathBuf>) -> Cache {
        let (folder, written, problems) = (folder.into(), AtomicU64::new(0), Mutex::default());
        Cache { folder, most_bytes: MOST_BYTES, written, problems }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The damaged files that were found since this was last asked.
    pub fn take_problems(&self) -> Vec<Error> {
        std::mem::take(&mut self.problems.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The program of a file of such a folder, which stays as it is even if it is damaged.
    ///
    /// # Errors
    /// [`Error::CachedProgram`] with what is wrong with it.
    pub fn inspect(file: &Path) -> Result<Validated<Program>, Error> {
        let key = file.file_stem().and_then(|name| blake3::Hash::from_hex(name.as_encoded_bytes()).ok());
        let program = match key {
            Some(key) => shared::read(file, MOST_ENTRY_BYTES + 1)
                .map_err(|error| error.to_string())
                .and_then(|bytes| decode(&Key(key.into()), &bytes)),
            None => Err("its name is not that of a program".into()),
        };
        program.map_err(|reason| Error::CachedProgram { file: file.into(), reason })
    }

    pub(crate) fn load(&self, key: &Key) -> Option<Validated<Program>> {
        let file = self.file(key);
        fs::metadata(&file).ok().filter(fs::Metadata::is_file)?;
        let bytes = shared::read(&file, MOST_ENTRY_BYTES + 1).ok()?;
        match decode(key, &bytes) {
            Ok(program) => Some(program),
            Err(reason) => {
                // Of all who find it, the one who deletes it says so.
                if fs::remove_file(&file).is_ok() {
                    let problem = Error::CachedProgram { file, reason };
                    self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
                }
                None
            }
        }
    }

    pub(crate) fn store(&self, key: &Key, program: &Validated<Program>) {
        let entry = encode(key, program);
        let bytes = entry.len() as u64;
        if bytes > MOST_ENTRY_BYTES {
            return;
        }
        shared::replace(&self.file(key), &[&entry]);
        // Others write as well, so what is there is looked up: by the first write, and whenever an eighth has been added.
        let step = self.most_bytes / 8;
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        if before == 0 || before / step != (before + bytes) / step {
            shared::make_room(&self.folder, EXTENSION, self.most_bytes, MOST_FILES);
        }
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.folder.join(key.name()).with_extension(EXTENSION)
    }
}

/// The passes that a program is optimized with.
pub(crate) struct Passes {
    pub(crate) plan: optimizer::Plan,
    pub(crate) options: optimizer::Options,
}

/// Everything that an optimized program depends on, as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// The key of a program with this content hash, on a backend with this fingerprint, optimized with these passes if with
    /// any. Programs that are written in other places are others: reports say where something happened.
    pub(crate) fn new(program: &Program, hash: [u8; 32], backend: &str, passes: Option<&Passes>) -> Key {
        let passes = passes.map(|Passes { plan, options }| format!("{} {options:?}", plan.pipeline));
        let mut hasher = blake3::Hasher::new();
        hasher.update(&hash);
        for text in [&optimizer::fingerprint(), backend, passes.as_deref().unwrap_or_default()] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(&places(program));
        Key(*hasher.finalize().as_bytes())
    }

    fn name(&self) -> String {
        blake3::Hash::from(self.0).to_hex().to_string()
    }
}

/// What a device has of a program that it compiled.
#[derive(Clone)]
pub(crate) struct Compiled {
    /// As it is run.
    pub(crate) program: Arc<Validated<Program>>,
    /// What the passes did, if they ran.
    pub(crate) report: Option<Arc<optimizer::Report>>,
    /// Shared while somebody uses it, and not kept alive here: drivers become slow when they hold many.
    pub(crate) kernel: Weak<dyn backend::Kernel>,
}

/// The programs that a device compiled last.
#[derive(Default)]
pub(crate) struct Recent {
    /// The least recently used first, each with the bytes of its program. There are few, so a list is as good as anything.
    programs: VecDeque<(Key, Compiled, u64)>,
}

impl Recent {
    const MOST: usize = 64;
    /// Bytes of all together.
    const MOST_BYTES: u64 = 64 << 20;

    pub(crate) fn get(&self, key: &Key) -> Option<Compiled> {
        self.programs.iter().find(|(known, ..)| known == key).map(|(_, compiled, _)| compiled.clone())
    }

    /// Makes a program the most recent one.
    pub(crate) fn insert(&mut self, key: Key, compiled: Compiled) {
        self.programs.retain(|(known, ..)| *known != key);
        let bytes = compiled.program.heap().bytes;
        self.programs.push_back((key, compiled, bytes));
        let total = |programs: &VecDeque<(Key, Compiled, u64)>| programs.iter().map(|(.., bytes)| bytes).sum::<u64>();
        while self.programs.len() > Self::MOST || total(&self.programs) > Self::MOST_BYTES {
            self.programs.pop_front();
        }
    }
}

// Entries.

/// First bytes of an entry; the last one is the version.
const MAGIC: [u8; 8] = *b"vyrepgm\x01";
const CHECKSUM: usize = 32;

fn encode(key: &Key, program: &Program) -> Vec<u8> {
    let encoded = wire::encode(&Module::from(program.clone()));
    let mut entry = MAGIC.to_vec();
    entry.extend(key.0);
    entry.extend((encoded.len() as u64).to_le_bytes());
    entry.extend(encoded);
    entry.extend(places(program));
    let checksum = blake3::hash(&entry);
    entry.extend(checksum.as_bytes());
    entry
}

/// The program of an entry, or what is wrong with it.
fn decode(key: &Key, bytes: &[u8]) -> Result<Validated<Program>, String> {
    let (contents, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or("it is cut off")?;
    if blake3::hash(contents) != *checksum {
        return Err("it is damaged: its checksum is another".into());
    }
    let contents = contents.strip_prefix(&MAGIC).ok_or("it is of another version")?;
    let contents = contents.strip_prefix(&key.0).ok_or("it belongs to another program")?;
    let (length, contents) = contents.split_first_chunk().ok_or("it is cut off")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (encoded, places) = contents.split_at_checked(length).ok_or("it is cut off")?;
    let module = wire::decode(encoded).map_err(|error| error.to_string())?;
    let [mut program] = <[Program; 1]>::try_from(module.programs).map_err(|_| "it is not one program")?;
    place(&mut program, places).ok_or("it does not say where everything was written")?;
    validate::program(program).map_err(|error| error.to_string())
}

/// Where everything in a program was written, as bytes.
fn places(program: &Program) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut push = |span: Span| {
        bytes.extend(span.start.to_le_bytes());
        bytes.extend(span.end.to_le_bytes());
    };
    program.constants.values().for_each(|constant| push(constant.span));
    program.memory.values().for_each(|memory| push(memory.span));
    program.walk(|id, _| push(program.insts[id].span));
    bytes
}

/// Puts places back that [`places`] took; `None` if they are not as many as there must be.
fn place(program: &mut Program, places: &[u8]) -> Option<()> {
    let (places, rest) = places.as_chunks::<8>();
    let mut places = places.iter().map(|bytes| {
        let [a, b, c, d, e, f, g, h] = *bytes;
        Span { start: u32::from_le_bytes([a, b, c, d]), end: u32::from_le_bytes([e, f, g, h]) }
    });
    for id in program.constants.keys() {
        program.constants[id].span = places.next()?;
    }
    for id in program.memory.keys() {
        program.memory[id].span = places.next()?;
    }
    let mut insts = Vec::new();
    program.walk(|id, _| insts.push(id));
    for id in insts {
        program.insts[id].span = places.next()?;
    }
    (rest.is_empty() && places.next().is_none()).then_some(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, SystemTime};

    use vyre_foundation::text;

    use super::*;
    use crate::shared::ABANDONED;

    /// Programs that differ.
    fn program(number: u64) -> Validated<Program> {
        let stores = (0..20).map(|index| format!("    store y[{index}], {}\n", number * 100 + index));
        let source = format!("program p workgroup(1) {{\n    write y: [u32]\n{}}}", stores.collect::<String>());
        validate::program(text::parse(&source).unwrap().programs.remove(0)).unwrap()
    }

    fn key(number: u64) -> Key {
        Key(*blake3::hash(&number.to_le_bytes()).as_bytes())
    }

    /// A cache in an empty folder.
    fn cache(name: &str) -> Cache {
        let folder = std::env::temp_dir().join(format!("vyre-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Cache::kept_in(folder)
    }

    /// Whether a program is found; if it is, it is the right one in every respect.
    fn found(cache: &Cache, number: u64) -> bool {
        let Some(loaded) = cache.load(&key(number)) else { return false };
        assert!(encode(&key(number), &loaded) == encode(&key(number), &program(number)), "{number} is another program");
        true
    }

    #[test]
    fn what_is_damaged_or_foreign_is_deleted_and_reported_once() {
        let cache = cache("damaged");
        let small = validate::program(text::parse("program p workgroup(1) {\n}").unwrap().programs.remove(0)).unwrap();
        let good = encode(&key(0), &small);
        let sealed = |mut contents: Vec<u8>| {
            let checksum = blake3::hash(&contents);
            contents.extend(checksum.as_bytes());
            contents
        };
        let contents = &good[..good.len() - CHECKSUM];
        let mut bad: Vec<Vec<u8>> = (0..good.len()).map(|length| good[..length].to_vec()).collect();
        for bit in 0..good.len() * 8 {
            let mut flipped = good.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            bad.push(flipped);
        }
        // Damage that the checksum covers is found as well: nothing but the checksum vouches for it.
        bad.extend((0..contents.len()).map(|length| sealed(contents[..length].to_vec())));
        bad.extend([&b"\0"[..], &[0; 8]].map(|more| sealed([contents, more].concat())));
        let mut newer = contents.to_vec();
        newer[7] += 1;
        bad.push(sealed(newer));
        bad.push(encode(&key(1), &small));
        bad.push([&good[..], b"\0"].concat());
        bad.push(b"not a program at all".into());
        bad.push(vec![0; MOST_ENTRY_BYTES as usize + 10]);

        let file = cache.file(&key(0));
        fs::create_dir_all(cache.folder()).unwrap();
        for bytes in bad {
            fs::write(&file, &bytes).unwrap();
            assert!(cache.load(&key(0)).is_none(), "{bytes:?}");
            assert!(!file.exists());
            let problems = cache.take_problems();
            assert!(matches!(&problems[..], [Error::CachedProgram { file: reported, .. }] if *reported == file));
            assert!(cache.load(&key(0)).is_none() && cache.take_problems().is_empty());
        }
        fs::write(&file, &good).unwrap();
        assert!(cache.load(&key(0)).is_some_and(|program| program == small));
        // A program that the validator does not accept: the instruction that ends it is gone.
        let mut open = small.into_inner();
        open.blocks[open.body].insts.clear();
        fs::write(&file, encode(&key(0), &open)).unwrap();
        assert!(cache.load(&key(0)).is_none());
        assert_eq!(cache.take_problems().len(), 1);
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_used_does_no_harm() {
        let cache = cache("unusable");
        fs::write(cache.folder(), "a file where a folder should be").unwrap();
        cache.store(&key(0), &program(0));
        assert!(!found(&cache, 0));
        fs::remove_file(cache.folder()).unwrap();
        fs::create_dir_all(cache.file(&key(0))).unwrap();
        cache.store(&key(0), &program(0));
        assert!(!found(&cache, 0));
        assert!(cache.take_problems().is_empty());
        assert_eq!(fs::read_dir(cache.folder()).unwrap().count(), 1, "nothing unfinished is left");
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn the_oldest_make_room_and_what_was_abandoned_goes() {
        let entry = encode(&key(0), &program(0)).len() as u64;
        let cache = Cache { most_bytes: 8 * entry, ..cache("room") };
        fs::create_dir_all(cache.folder()).unwrap();
        let unfinished = |name: &str, age: Duration| {
            let path = cache.folder().join(name);
            fs::File::create(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
            path
        };
        let abandoned = unfinished("a.0.tmp", 2 * ABANDONED);
        let recent = unfinished("b.0.tmp", Duration::ZERO);
        for number in 0..20 {
            cache.store(&key(number), &program(number));
            let age = Duration::from_secs(1000 - number);
            let file = fs::File::options().append(true).open(cache.file(&key(number))).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        let kept: Vec<u64> = (0..20).filter(|&number| found(&cache, number)).collect();
        assert!(kept.len() <= 9 && kept.ends_with(&[17, 18, 19]), "{kept:?}");
        assert!(!abandoned.exists() && recent.exists());
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    /// The variable that makes `another_process` one, and names its folder.
    const FOLDER: &str = "VYRE_TEST_CACHE";
    /// Programs that the processes share.
    const SHARED: u64 = 8;

    /// Starts this test program as a process that reads and writes all the time. It says so in a line for each round.
    fn another(cache: &Cache) -> (Child, impl Iterator<Item = String> + use<>) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "cache::tests::another_process", "--nocapture"]).env(FOLDER, cache.folder());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        (child, lines.filter(|line| line.ends_with("round")))
    }

    /// Reads and writes every program.
    fn round(cache: &Cache) {
        for number in 0..SHARED {
            found(cache, number);
            cache.store(&key(number), &program(number));
        }
        assert_eq!(cache.take_problems(), []);
    }

    #[test]
    fn another_process() {
        let Some(folder) = std::env::var_os(FOLDER) else { return };
        let cache = Cache::kept_in(folder);
        loop {
            round(&cache);
            println!("round");
        }
    }

    #[test]
    fn threads_and_processes_share_a_folder() {
        let cache = cache("shared");
        let mut others = [another(&cache), another(&cache)];
        std::thread::scope(|scope| {
            for (_, rounds) in &mut others {
                let cache = &cache;
                scope.spawn(move || {
                    for _ in 0..20 {
                        rounds.next().expect("the process goes on");
                        round(cache);
                    }
                });
            }
        });
        for (other, _) in &mut others {
            other.kill().unwrap();
            other.wait().unwrap();
        }
        assert!((0..SHARED).all(|number| found(&cache, number)));
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn two_hundred_kills_leave_nothing_corrupt() {
        let cache = cache("killed");
        round(&cache);
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..200 {
            let (mut writer, mut rounds) = another(&cache);
            rounds.next().expect("the process goes on");
            // The writer is somewhere in its next rounds; how far it gets is left to chance.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (0..random >> 43).for_each(|step| _ = std::hint::black_box(step));
            writer.kill().unwrap();
            writer.wait().unwrap();
            assert!((0..SHARED).all(|number| found(&cache, number)));
            assert_eq!(cache.take_problems(), []);
        }
        fs::remove_dir_all(cache.folder()).unwrap();
    }
}
