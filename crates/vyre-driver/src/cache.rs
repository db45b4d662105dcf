//! Program cache: a persistent cache of optimized programs, behind a cache in memory.
//!
//! ```text
//! compile → Key → Recent: of the device, in memory → Cache: a folder that processes share → the optimizer
//! ```
//!
//! A [`Key`] covers everything that an optimized program depends on, so entries never become stale. Passes are selected
//! before the lookup: selection is cheap, and lengths, hints and earlier compiles influence only the selection.
//!
//! A file of the cache holds an optimized program, never machine code:
//!
//! ```text
//! entry   = "vyrepgm" version:u8 length:u64 label length:u64 program place… checksum:[u8; 32]     blake3
//! label   = optimizer backend passes places:[u8; 32] source:[u8; 32]
//! program = as in the binary format, of that length
//! place   = start:u32 end:u32            span of each constant, memory object and instruction
//! ```
//!
//! The label identifies the inputs of the optimization: the fingerprints of the optimizer and of the backend and the
//! passes, each preceded by its length, then the hashes of the source positions and of the source program. The file
//! name is the hash of the label. An entry with another label than the key's is refused.
//!
//! Reports of traps and of fuel name source locations, so a loaded program gets the source map of the program being
//! compiled: passes preserve spans. Names of values are for readers, and are not kept.
//!
//! An entry is decoded and validated like any untrusted program, so that a damaged one cannot crash the process.
//! Damaged entries count as misses, are deleted, and are reported once. Files are replaced
//! [atomically](crate::atomic_file), so a reader sees a whole entry or none. Files that were incomplete on disk after a
//! system crash fail the checksum.
//!
//! Label and checksum detect mix-ups and damage, not attacks: anyone who can write an entry can compute both. The
//! [`PrivateFolder`] protects the cache from other users.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use vyre_foundation::ir::{Program, SourceMap, Span};
use vyre_foundation::optimizer::Pipeline;
use vyre_foundation::{Validated, optimizer, validate, wire};

use crate::{Damage, Error, PrivateFolder, atomic_file, backend};

/// A folder of optimized programs, which processes may share.
#[derive(Debug)]
pub struct Cache {
    folder: PrivateFolder,
    /// Maximum total size of the entries.
    most_bytes: u64,
    /// Bytes written since the folder was opened.
    written: AtomicU64,
    problems: Mutex<Vec<Error>>,
}

/// Default limit of the total size, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Limit of the number of files, so that listing them stays cheap.
const MAX_FILES: usize = 4096;
/// Largest entry that is stored.
const MAX_ENTRY_BYTES: u64 = 4 << 20;
/// Extension of entries.
const EXTENSION: &str = "program";

impl Cache {
    /// Opens the cache in a folder. The folder need not exist; if it cannot be read or written, nothing is cached.
    pub fn kept_in(folder: PrivateFolder) -> Cache {
        let (written, problems) = (AtomicU64::new(0), Mutex::default());
        Cache { folder, most_bytes: MAX_BYTES, written, problems }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the damaged files found since the last call.
    pub fn take_problems(&self) -> Vec<Error> {
        std::mem::take(&mut self.problems.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Loads the program of a cache file, which is kept even if damaged; `None` if it has been deleted.
    ///
    /// # Errors
    /// [`Error::CachedProgram`] with the damage.
    pub fn inspect(file: &Path) -> Result<Option<Validated<Program>>, Error> {
        let hash = file.file_stem().and_then(|name| blake3::Hash::from_hex(name.as_encoded_bytes()).ok());
        let program = match hash {
            Some(hash) => match atomic_file::read(file, MAX_ENTRY_BYTES + 1) {
                Ok(bytes) => decode(&bytes, &SourceMap::default(), |label| blake3::hash(label) == hash).map(Some),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error.into()),
            },
            None => Err(Damage::Name("program")),
        };
        program.map_err(|reason| Error::CachedProgram { file: file.into(), reason })
    }

    /// Loads the optimized program of a key. Its spans refer to `sources`, those of the program being compiled.
    pub(crate) fn load(&self, key: &Key, sources: &SourceMap) -> Option<Validated<Program>> {
        let name = key.file_name();
        let reason = match self.folder.read(&name, MAX_ENTRY_BYTES + 1) {
            Ok(bytes) => match decode(&bytes, sources, |label| *label == *key.label) {
                Ok(program) => return Some(program),
                Err(reason) => reason,
            },
            // The folder is inaccessible: nothing is cached.
            Err(_) => return None,
        };
        // Only the process that wins the delete reports it.
        if self.folder.remove(&name).is_ok() {
            let problem = Error::CachedProgram { file: self.folder().join(name), reason };
            self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
        }
        None
    }

    pub(crate) fn store(&self, key: &Key, program: &Validated<Program>) {
        let entry = encode(key, program);
        let bytes = entry.len() as u64;
        // A failed write only costs another optimization.
        if bytes > MAX_ENTRY_BYTES || self.folder.replace(&key.file_name(), &[&entry]).is_err() {
            return;
        }
        // Other processes write as well, so the folder is listed at the first write, and whenever an eighth of the
        // limit has been added.
        let step = self.most_bytes / 8;
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        if before == 0 || before / step != (before + bytes) / step {
            self.folder.evict(EXTENSION, self.most_bytes, MAX_FILES);
        }
    }
}

/// Cache key: everything that an optimized program depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    label: Arc<[u8]>,
}

impl Key {
    /// Key of a program by its content hash, the backend's fingerprint, and the passes, if any. Programs with different
    /// source positions have different keys, because reports contain positions.
    pub(crate) fn new(program: &Program, hash: [u8; 32], backend: &str, passes: Option<&Pipeline>) -> Key {
        let passes = passes.map(Pipeline::to_string);
        let mut label = Vec::new();
        for text in [&optimizer::fingerprint(), backend, passes.as_deref().unwrap_or_default()] {
            push_sized(&mut label, text.as_bytes());
        }
        label.extend(blake3::hash(&places(program)).as_bytes());
        label.extend(hash);
        Key { label: label.into() }
    }

    fn file_name(&self) -> String {
        format!("{}.{EXTENSION}", blake3::hash(&self.label).to_hex())
    }
}

/// A recently compiled program.
#[derive(Clone)]
pub(crate) struct Compiled {
    /// The program as executed.
    pub(crate) program: Validated<Program>,
    /// Report of the passes, if they ran.
    pub(crate) report: Option<Arc<optimizer::Report>>,
    /// Weak: shared while in use, but not kept alive, because drivers become slow when they hold many pipelines.
    pub(crate) kernel: Weak<dyn backend::Kernel>,
}

/// LRU cache of the programs compiled by a device.
#[derive(Default)]
pub(crate) struct Recent {
    /// Least recently used first, each with the size of its program. Linear search suffices for at most
    /// [`Recent::MAX_PROGRAMS`].
    programs: VecDeque<(Key, Compiled, u64)>,
}

impl Recent {
    const MAX_PROGRAMS: usize = 64;
    /// Limit of the total size, in bytes.
    const MAX_BYTES: u64 = 64 << 20;

    /// Looks up a program, and marks it as the most recently used.
    pub(crate) fn get(&mut self, key: &Key) -> Option<Compiled> {
        let position = self.programs.iter().position(|(known, ..)| known == key)?;
        let entry = self.programs.remove(position)?;
        let compiled = entry.1.clone();
        self.programs.push_back(entry);
        Some(compiled)
    }

    /// Inserts a program as the most recently used one, replacing that of the same key.
    pub(crate) fn insert(&mut self, key: Key, compiled: Compiled) {
        self.programs.retain(|(known, ..)| *known != key);
        let bytes = compiled.program.heap().bytes;
        self.programs.push_back((key, compiled, bytes));
        let total = |programs: &VecDeque<(Key, Compiled, u64)>| programs.iter().map(|(.., bytes)| bytes).sum::<u64>();
        while self.programs.len() > Self::MAX_PROGRAMS || total(&self.programs) > Self::MAX_BYTES {
            self.programs.pop_front();
        }
    }
}

// Entries.

/// First bytes of an entry; the last of them is the version.
const MAGIC: [u8; 8] = *b"vyrepgm\x02";
const CHECKSUM: usize = 32;

fn encode(key: &Key, program: &Program) -> Vec<u8> {
    let mut entry = MAGIC.to_vec();
    push_sized(&mut entry, &key.label);
    // The source map is that of the program being compiled, so only spans are stored.
    push_sized(&mut entry, &wire::encode_without_sources(program));
    entry.extend(places(program));
    let checksum = blake3::hash(&entry);
    entry.extend(checksum.as_bytes());
    entry
}

/// Decodes an entry with the expected label, or returns the reason why it cannot be used.
fn decode(
    bytes: &[u8],
    sources: &SourceMap,
    is_expected: impl FnOnce(&[u8]) -> bool,
) -> Result<Validated<Program>, Damage> {
    let (contents, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(Damage::CutOff)?;
    if blake3::hash(contents) != *checksum {
        return Err(Damage::Checksum);
    }
    let contents = contents.strip_prefix(&MAGIC).ok_or(Damage::Version)?;
    let (label, contents) = split_sized(contents).ok_or(Damage::CutOff)?;
    if !is_expected(label) {
        return Err(Damage::Key);
    }
    let (encoded, places) = split_sized(contents).ok_or(Damage::CutOff)?;
    let module = wire::decode(encoded)?;
    let [mut program] = <[Program; 1]>::try_from(module.programs).map_err(|_| Damage::ProgramCount)?;
    place(&mut program, places).ok_or(Damage::Places)?;
    program.set_sources(sources.clone());
    Ok(validate::program(program)?)
}

/// Appends bytes, preceded by their length.
fn push_sized(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as u64).to_le_bytes());
    to.extend(bytes);
}

/// Splits off bytes appended by [`push_sized`]; `None` if they are truncated.
fn split_sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

/// Serializes the spans of a program.
fn places(program: &Program) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut push = |span: Span| {
        bytes.extend(span.start.to_le_bytes());
        bytes.extend(span.end.to_le_bytes());
    };
    program.constants().values().for_each(|constant| push(constant.span));
    program.memories().values().for_each(|memory| push(memory.span));
    program.walk(|id, _| push(program.inst(id).span));
    bytes
}

/// Restores the spans from [`places`]; `None` if their number is wrong.
fn place(program: &mut Program, places: &[u8]) -> Option<()> {
    let (places, rest) = places.as_chunks::<8>();
    let mut places = places.iter().map(|bytes| {
        let [a, b, c, d, e, f, g, h] = *bytes;
        Span { start: u32::from_le_bytes([a, b, c, d]), end: u32::from_le_bytes([e, f, g, h]) }
    });
    for id in program.constants().keys() {
        program.constant_mut(id).span = places.next()?;
    }
    for id in program.memories().keys() {
        program.memory_mut(id).span = places.next()?;
    }
    let mut insts = Vec::new();
    program.walk(|id, _| insts.push(id));
    for id in insts {
        program.inst_mut(id).span = places.next()?;
    }
    (rest.is_empty() && places.next().is_none()).then_some(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead as _, BufReader};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, SystemTime};

    use vyre_foundation::text;

    use super::*;
    use crate::atomic_file::ABANDONED;

    /// Distinct programs by number.
    fn program(number: u64) -> Validated<Program> {
        let stores = (0..20).map(|index| format!("    store y[{index}], {}\n", number * 100 + index));
        let source = format!("program p workgroup(1) {{\n    write y: [u32]\n{}}}", stores.collect::<String>());
        validate::program(text::parse(&source).unwrap().programs.remove(0)).unwrap()
    }

    fn key(number: u64) -> Key {
        Key { label: number.to_le_bytes().to_vec().into() }
    }

    /// Creates a cache in an empty folder.
    fn cache(name: &str) -> Cache {
        let folder = std::env::temp_dir().join(format!("vyre-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Cache::kept_in(PrivateFolder::open(folder).unwrap())
    }

    /// Creates the folder of a cache, like the first write.
    fn create(cache: &Cache) {
        cache.folder.replace("created", &[]).unwrap();
        cache.folder.remove("created").unwrap();
    }

    fn file(cache: &Cache, key: &Key) -> PathBuf {
        cache.folder().join(key.file_name())
    }

    /// Returns whether a program is cached, after comparing it with the expected one.
    fn found(cache: &Cache, number: u64) -> bool {
        let Some(loaded) = cache.load(&key(number), &SourceMap::default()) else { return false };
        assert!(encode(&key(number), &loaded) == encode(&key(number), &program(number)), "{number} is another program");
        true
    }

    #[test]
    fn damaged_or_foreign_entries_are_deleted_and_reported_once() {
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
        // Damage under a valid checksum.
        bad.extend((0..contents.len()).map(|length| sealed(contents[..length].to_vec())));
        bad.extend([&b"\0"[..], &[0; 8]].map(|more| sealed([contents, more].concat())));
        let mut newer = contents.to_vec();
        newer[7] += 1;
        bad.push(sealed(newer));
        bad.push(encode(&key(1), &small));
        bad.push([&good[..], b"\0"].concat());
        bad.push(b"not a program at all".into());
        bad.push(vec![0; MAX_ENTRY_BYTES as usize + 10]);

        let file = file(&cache, &key(0));
        create(&cache);
        for bytes in bad {
            fs::write(&file, &bytes).unwrap();
            assert!(cache.load(&key(0), &SourceMap::default()).is_none(), "{bytes:?}");
            assert!(!file.exists());
            let problems = cache.take_problems();
            assert!(matches!(&problems[..], [Error::CachedProgram { file: reported, .. }] if *reported == file));
            assert!(cache.load(&key(0), &SourceMap::default()).is_none() && cache.take_problems().is_empty());
        }
        fs::write(&file, &good).unwrap();
        assert!(cache.load(&key(0), &SourceMap::default()).is_some_and(|program| program == small));
        // An invalid program: without its terminator.
        let mut open = small.into_inner();
        open.block_mut(open.body()).insts.clear();
        fs::write(&file, encode(&key(0), &open)).unwrap();
        assert!(cache.load(&key(0), &SourceMap::default()).is_none());
        assert_eq!(cache.take_problems().len(), 1);
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn entries_of_other_sources_passes_or_optimizers_are_refused() {
        let cache = cache("labels");
        let (one, other) = (program(1), program(2));
        let passes =
            |target| optimizer::plan(&one, &optimizer::Request { target, ..optimizer::Request::default() }).pipeline;
        let usual = passes(optimizer::Target::default());
        let fewer = passes(optimizer::Target { loops_as_written: false, ..optimizer::Target::default() });
        let hash = |program: &Program| wire::content_hash(program);
        let wanted = Key::new(&one, hash(&one), "a", Some(&usual));
        let mut labels = vec![
            Key::new(&one, hash(&other), "a", Some(&usual)),
            Key::new(&one, hash(&one), "b", Some(&usual)),
            Key::new(&one, hash(&one), "a", Some(&fewer)),
            Key::new(&one, hash(&one), "a", None),
        ];
        // The label starts with the optimizer's fingerprint.
        let mut label = wanted.label.to_vec();
        label[8] ^= 1;
        labels.push(Key { label: label.into() });
        let place = file(&cache, &wanted);
        create(&cache);
        for label in labels {
            assert_ne!(label.file_name(), wanted.file_name());
            fs::write(&place, encode(&label, &other)).unwrap();
            assert!(Cache::inspect(&place).is_err());
            assert!(cache.load(&wanted, &SourceMap::default()).is_none());
            assert_eq!(cache.take_problems().iter().map(Error::code).collect::<Vec<_>>(), ["D014"]);
        }
        // The start of one entry and the rest of another, with a valid checksum.
        let (ours, theirs) =
            (encode(&wanted, &one), encode(&Key::new(&other, hash(&other), "a", Some(&usual)), &other));
        for cut in 0..MAGIC.len() + 8 + wanted.label.len() {
            let mut spliced = [&ours[..cut], &theirs[cut..theirs.len() - CHECKSUM]].concat();
            spliced.extend(blake3::hash(&spliced).as_bytes());
            fs::write(&place, spliced).unwrap();
            assert!(cache.load(&wanted, &SourceMap::default()).is_none(), "cut at {cut}");
        }
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn entries_in_a_folder_that_others_can_write_are_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let cache = cache("public");
        cache.store(&key(0), &program(0));
        assert!(found(&cache, 0));
        fs::set_permissions(cache.folder(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!found(&cache, 0));
        cache.store(&key(1), &program(1));
        assert_eq!(fs::read_dir(cache.folder()).unwrap().count(), 1, "nothing is written to it, either");
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn unusable_folder_disables_the_cache() {
        let cache = cache("unusable");
        fs::write(cache.folder(), "a file where a folder should be").unwrap();
        cache.store(&key(0), &program(0));
        assert!(!found(&cache, 0));
        fs::remove_file(cache.folder()).unwrap();
        create(&cache);
        fs::create_dir(file(&cache, &key(0))).unwrap();
        cache.store(&key(0), &program(0));
        assert!(!found(&cache, 0));
        assert!(cache.take_problems().is_empty());
        assert_eq!(fs::read_dir(cache.folder()).unwrap().count(), 1, "nothing unfinished is left");
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn eviction_removes_oldest_and_abandoned_files() {
        let entry = encode(&key(0), &program(0)).len() as u64;
        let cache = Cache { most_bytes: 8 * entry, ..cache("room") };
        create(&cache);
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
            let file = fs::File::options().append(true).open(file(&cache, &key(number))).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        let kept: Vec<u64> = (0..20).filter(|&number| found(&cache, number)).collect();
        assert!(kept.len() <= 9 && kept.ends_with(&[17, 18, 19]), "{kept:?}");
        assert!(!abandoned.exists() && recent.exists());
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    /// Environment variable that makes `child_process_entry` a child process, and names its folder.
    const FOLDER: &str = "VYRE_TEST_CACHE";
    /// Number of programs that the processes share.
    const SHARED: u64 = 8;

    /// Starts this test binary as a child that reads and writes continuously, and prints a line for each round.
    fn another(cache: &Cache) -> (Child, impl Iterator<Item = String> + use<>) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "cache::tests::child_process_entry", "--nocapture"]).env(FOLDER, cache.folder());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        (child, lines.filter(|line| line.ends_with("round")))
    }

    /// Looks up and stores every program.
    fn round(cache: &Cache) {
        for number in 0..SHARED {
            found(cache, number);
            cache.store(&key(number), &program(number));
        }
        assert_eq!(cache.take_problems(), []);
    }

    #[test]
    fn child_process_entry() {
        let Some(folder) = std::env::var_os(FOLDER) else { return };
        let cache = Cache::kept_in(PrivateFolder::open(folder).unwrap());
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
    fn kills_leave_no_corrupt_entries() {
        let cache = cache("killed");
        round(&cache);
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..200 {
            let (mut writer, mut rounds) = another(&cache);
            rounds.next().expect("the process goes on");
            // Kills the writer at a pseudo-random time in its next rounds.
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
