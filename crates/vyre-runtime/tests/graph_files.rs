//! Readers and generators of graphs, malformed files, and the graph cache.
#![cfg(not(loom))]

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use vyre_driver::PrivateFolder;
use vyre_runtime::Error;
use vyre_runtime::graph::cache::{self, Cache, Lookup};
use vyre_runtime::graph::{self, BadFile, BadRows, Edge, Edges, Family, Graph, Weights};

/// A temporary file.
struct File(PathBuf);

impl File {
    fn new(name: &str, bytes: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("vyre-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn read(name: &str, bytes: &[u8]) -> Graph {
    Graph::read(&File::new(name, bytes).0).unwrap()
}

#[track_caller]
fn fails(name: &str, bytes: &[u8], expected_line: Option<u64>, expected: impl Into<BadFile>) {
    let error = Graph::read(&File::new(name, bytes).0).unwrap_err();
    assert_eq!(error.code(), "D032");
    let Error::GraphFile { line, reason, .. } = error else { panic!("{error}") };
    assert_eq!((line, reason), (expected_line, expected.into()));
}

fn bad_node(word: &str, first: u32) -> BadFile {
    BadFile::Node { word: word.into(), first, last: u64::from(first) + 2_147_483_646 }
}

fn bad_weight(word: &str, real: bool) -> BadFile {
    BadFile::Weight { word: word.into(), real }
}

fn edges(nodes: u32, list: &[(u32, u32)], symmetric: bool) -> Edges {
    let edge = |&(source, target): &(u32, u32)| Edge { source, target, weight: 1 };
    Edges { nodes, list: list.iter().map(edge).collect(), weights: Weights::None, symmetric }
}

#[test]
fn edge_lists() {
    let graph = read("a.txt", b"# comment\n0 1\n\n1\t2\r\n0 1\n2 2\n% end\n0 3");
    assert_eq!(graph.outgoing().offsets, [0, 2, 3, 3, 3]);
    assert_eq!(graph.outgoing().targets, [1, 3, 2], "no duplicates and self-loops");
    assert_eq!(graph.incoming().targets, [0, 1, 0]);
    assert!(!graph.is_symmetric() && !graph.is_weighted());
    let both = graph.symmetric().unwrap();
    assert_eq!((both.outgoing().of(0), both.outgoing().of(2)), ([1, 3].as_slice(), [1].as_slice()));
    let weighted = read("b.el", b"0 1 7\n0 1 3\n1 0 3\n");
    assert_eq!(weighted.outgoing().weights, [3, 3], "the lightest one");
    assert!(weighted.is_symmetric(), "both directions are listed");
    assert_eq!(read("c.el", b"").nodes(), 0);

    fails("d.el", b"0 1\n1\n", Some(2), BadFile::OneNumber);
    fails("e.el", b"0 1\n# x\n1 -2\n", Some(3), bad_node("-2", 0));
    fails("f.el", b"0 1\n0 4294967296\n", Some(2), bad_node("4294967296", 0));
    fails("f.el", b"0 2147483647\n", Some(1), bad_node("2147483647", 0));
    fails("g.el", b"0 1 2\n0 2\n", Some(2), BadFile::MissingWeight);
    fails("h.el", b"0 1 2 3\n", Some(1), BadFile::ManyNumbers);
    fails("i.el", b"0 1 0.5\n1 2 -1\n", Some(2), bad_weight("-1", true));
    fails("j.el", b"\x00\xff\n", Some(1), BadFile::OneNumber);
    // Parts of a file are parsed in parallel.
    let mut long = "12 13\n".repeat(10_000);
    assert_eq!(read("k.el", long.as_bytes()).edges(), 1);
    long.push_str("x 1\n");
    fails("l.el", long.as_bytes(), Some(10_001), bad_node("x", 0));
    let missing = Graph::read(&std::env::temp_dir().join("vyre-no-such-graph")).unwrap_err();
    assert_eq!(missing.code(), "D032");
}

#[test]
fn matrix_market() {
    let header = "%%MatrixMarket matrix coordinate integer symmetric\n% about it\n\n";
    let graph = read("a.mtx", format!("{header}4 3 2\n2 1 5\n4 3 6\n").as_bytes());
    assert_eq!((graph.nodes(), graph.edges()), (4, 4));
    assert_eq!(graph.outgoing().targets, [1, 0, 3, 2]);
    assert_eq!(graph.outgoing().weights, [5, 5, 6, 6]);
    let real = read("b.mtx", b"%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 3.0\n");
    assert_eq!(real.weights(), Weights::Real);
    assert_eq!(real.outgoing().weights, [3f32.to_bits()]);

    let fails =
        |rest: &str, line, expected: BadFile| fails("c.mtx", format!("{header}{rest}").as_bytes(), line, expected);
    fails("4 4\n", Some(4), BadFile::Size);
    fails("4 4 1\n0 1 1\n", Some(5), bad_node("0", 1));
    fails("4 4 1\n1 2\n", Some(5), BadFile::MissingWeight);
    fails("4 4 1\n1 2 0.5\n", Some(5), bad_weight("0.5", false));
    fails("4 4 1\n1 5 1\n", None, BadFile::Entry { row: 1, column: 5, height: 4, width: 4 });
    fails("4 4 2\n1 2 1\n", None, BadFile::EntryCount { line: 4, announced: 2, found: 1 });
    fails("99999999999 4 1\n", Some(4), BadFile::ManyNodes);
    fails("", None, BadFile::NoSize);
    super_fails("%%MatrixMarket matrix array real general\n", BadFile::Dense);
    super_fails("%%MatrixMarket matrix coordinate complex general\n", BadFile::Values);
    super_fails("%%MatrixMarket matrix coordinate real hermitian\n", BadFile::Symmetry);
    super_fails("1 2\n", BadFile::Header);
}

fn super_fails(text: &str, expected: BadFile) {
    fails("d.mtx", text.as_bytes(), Some(1), expected);
}

#[test]
fn real_weights() {
    let graph = read("real.el", b"0 1 2\n0 2 .25\n0 2 1e-3\n0 3 -0.0\n0 4 1e-40\n0 5 3000000000\n");
    let expected = [2.0, 1e-3, 0.0, 0.0, 3e9];
    assert_eq!(graph.weights(), Weights::Real);
    assert_eq!(graph.outgoing().weights, expected.map(f32::to_bits), "subnormals and -0 become 0");
    let both = graph.symmetric().unwrap();
    assert_eq!((both.weights(), both.edges()), (Weights::Real, 10));
    let header = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 2 0.5\n";
    for weight in ["-0.5", "nan", "inf", "1e39", "-inf", "0,5", "x"] {
        fails("real.mtx", format!("{header}2 1 {weight}\n").as_bytes(), Some(4), bad_weight(weight, true));
    }
}

/// Serializes rows as GAP's `converter`.
fn serialized(directed: u8, rows: &[(&[u64], &[i32])]) -> Vec<u8> {
    let mut bytes = vec![directed];
    let (offsets, entries) = rows[0];
    bytes.extend(offsets.last().unwrap().to_le_bytes());
    bytes.extend((offsets.len() as u64 - 1).to_le_bytes());
    for (offsets, words) in rows {
        bytes.extend(offsets.iter().flat_map(|offset| offset.to_le_bytes()));
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    assert!(!entries.is_empty());
    bytes
}

#[test]
fn gap_files() {
    let graph = read("a.sg", &serialized(0, &[(&[0, 1, 3, 4], &[1, 0, 2, 1])]));
    assert_eq!(graph, Graph::new(&edges(3, &[(0, 1), (1, 2)], true)).unwrap());
    let directed = read("b.sg", &serialized(1, &[(&[0, 1, 2, 2], &[1, 2]), (&[0, 0, 1, 2], &[0, 1])]));
    assert_eq!(directed, Graph::new(&edges(3, &[(0, 1), (1, 2)], false)).unwrap());
    let weighted = read("c.wsg", &serialized(0, &[(&[0, 1, 2], &[1, 9, 0, 9])]));
    assert_eq!(weighted.outgoing().targets, [1, 0]);
    assert_eq!(weighted.outgoing().weights, [9, 9]);

    let whole = serialized(0, &[(&[0, 1, 3, 4], &[1, 0, 2, 1])]);
    for length in 0..whole.len() {
        let error = Graph::read(&File::new("d.sg", &whole[..length]).0).unwrap_err();
        assert!(matches!(error, Error::GraphFile { line: None, reason: BadFile::CutOff(_), .. }), "{error}");
    }
    fails("e.sg", &[whole.as_slice(), b"x"].concat(), None, BadFile::Trailing(1));
    fails("f.sg", &serialized(2, &[(&[0, 1], &[0])]), None, BadFile::Direction(2));
    fails(
        "g.sg",
        &serialized(0, &[(&[0, 2, 1, 2], &[1, 0])]),
        None,
        BadRows::Offset { row: 2, nodes: 3, offset: 1, edges: 2 },
    );
    fails("h.sg", &serialized(0, &[(&[0, 1, 2], &[1, 7])]), None, BadRows::NoSuchNode { node: 7, nodes: 2 });
    fails("i.sg", &serialized(0, &[(&[0, 2, 2, 2], &[2, 1])]), None, BadRows::Unsorted { node: 0 });
    fails("j.wsg", &serialized(0, &[(&[0, 1, 1], &[1, -4])]), None, BadFile::NegativeWeight(-4));
    let mut huge = whole;
    huge[9..17].fill(0xff);
    fails("k.sg", &huge, None, BadFile::TooLarge { nodes: u64::MAX, edges: 4 });
}

#[test]
fn gap_files_whose_directions_differ() {
    let outgoing: (&[u64], &[i32]) = (&[0, 1, 2, 3], &[1, 2, 0]);
    assert_eq!(read("a.sg", &serialized(1, &[outgoing, (&[0, 1, 2, 3], &[2, 0, 1])])).edges(), 3);
    let fails = |rows: &[(&[u64], &[i32])], directed, name, expected: BadFile| {
        fails(name, &serialized(directed, rows), None, expected);
    };
    let incoming: (&[u64], &[i32]) = (&[0, 1, 2, 3], &[1, 0, 1]);
    fails(&[outgoing, incoming], 1, "b.sg", BadFile::Directions(BadRows::Missing { from: 2, to: 0 }));
    fails(&[outgoing, outgoing], 1, "c.sg", BadFile::Directions(BadRows::Missing { from: 0, to: 1 }));
    fails(&[(&[0, 1, 2, 2], &[1, 2])], 0, "d.sg", BadFile::NotUndirected(BadRows::Missing { from: 0, to: 1 }));
    let heavier: (&[u64], &[i32]) = (&[0, 0, 1], &[0, 6]);
    let differs = |weight, reversed| BadRows::Weight { from: 0, to: 1, weight, reversed };
    fails(&[(&[0, 1, 1], &[1, 5]), heavier], 1, "e.wsg", BadFile::Directions(differs(5, 6)));
    fails(&[(&[0, 1, 2], &[1, 9, 0, 8])], 0, "f.wsg", BadFile::NotUndirected(differs(9, 8)));
}

#[cfg(feature = "gz")]
#[test]
fn gzip_edge_lists() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, b"0 1\n1 2\n").unwrap();
    let packed = packed.finish().unwrap();
    assert_eq!(read("a.txt.gz", &packed).outgoing().targets, [1, 2]);
    for (name, bytes) in [("b.txt.gz", &packed[..packed.len() - 4]), ("c.txt.gz", &b"0 1\n"[..])] {
        let error = Graph::read(&File::new(name, bytes).0).unwrap_err();
        assert!(matches!(error, Error::GraphFile { line: None, reason: BadFile::Io(_), .. }), "{error}");
    }
}

#[test]
fn generators() {
    for family in [Family::Kronecker, Family::Uniform] {
        let made = Edges::generate(family, 12, 16, 7).unwrap();
        assert_eq!((made.nodes, made.list.len()), (4096, 65_536));
        assert_eq!(made, Edges::generate(family, 12, 16, 7).unwrap());
        assert_ne!(made.list, Edges::generate(family, 12, 16, 8).unwrap().list);
        assert!(made.list.iter().all(|edge| (1..=255).contains(&edge.weight)));
        let graph = Graph::new(&made).unwrap();
        let longest = (0..4096).map(|node| graph.outgoing().of(node).len()).max().unwrap();
        let isolated = (0..4096).filter(|node| graph.outgoing().of(*node).is_empty()).count();
        match family {
            // R-MAT of this size: hubs have hundreds of neighbours, and a fifth of the nodes is isolated.
            Family::Kronecker => assert!(longest > 500 && (400..1400).contains(&isolated), "{longest} {isolated}"),
            Family::Uniform => assert!(longest < 70 && isolated == 0, "{longest} {isolated}"),
        }
        for node in 0..4096 {
            assert!(
                graph.outgoing().of(node).iter().all(|other| graph.outgoing().of(*other).binary_search(&node).is_ok())
            );
        }
    }
    assert_eq!(Edges::generate(Family::Uniform, 0, 16, 1).unwrap().nodes, 1);
    assert_eq!(Edges::generate(Family::Uniform, 31, 1, 1).unwrap_err().code(), "D019");
    assert_eq!(Edges::generate(Family::Kronecker, 28, 16, 1).unwrap_err().code(), "D019");
}

#[test]
fn progress_is_reported_while_watched() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let list = File::new("watched.el", "0 1\n1 2\n".repeat(40_000).as_bytes());
    let told = seen.clone();
    graph::watched(move |progress| told.borrow_mut().push(progress), || Graph::read(&list.0)).unwrap();
    let count = seen.borrow().len();
    Graph::read(&list.0).unwrap();
    assert_eq!(seen.borrow().len(), count, "the callback is removed");
    assert!(seen.borrow().iter().all(|progress| progress.done <= progress.all));
    for stage in ["reading", "parsing", "counting", "placing"] {
        assert!(seen.borrow().iter().any(|progress| progress.stage == stage), "{stage}: {seen:?}");
    }
}

/// Creates a cache in an empty folder.
fn cache(name: &str) -> (PathBuf, Cache) {
    let folder = std::env::temp_dir().join(format!("vyre-graphs-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    (folder.clone(), Cache::kept_in(PrivateFolder::open(folder).unwrap()))
}

fn kept_files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn never() -> Result<Graph, Error> {
    panic!("the lookup must be a hit")
}

#[test]
fn graphs_are_cached() {
    let (folder, cache) = cache("kept");
    let mut directed = Edges::generate(Family::Uniform, 10, 20, 1).unwrap();
    directed.symmetric = false;
    let real = Edges { weights: Weights::Real, ..directed.clone() };
    let plain = Edges { weights: Weights::None, symmetric: true, ..directed.clone() };
    for (origin, edges) in [("directed", directed), ("real", real), ("plain", plain)] {
        let built = Graph::new(&edges).unwrap();
        assert_eq!(cache.graph(origin, || Ok(built.clone())).unwrap(), (built.clone(), Lookup::Miss));
        assert_eq!(cache.graph(origin, never).unwrap(), (built, Lookup::Hit));
    }
    assert_eq!(kept_files(&folder).len(), 3);
    let small = Graph::new(&edges(3, &[(0, 1)], true)).unwrap();
    for _ in 0..2 {
        assert_eq!(cache.graph("small", || Ok(small.clone())).unwrap().1, Lookup::Miss, "small graphs are not cached");
    }
    let (kept, _) = cache.graph("real", never).unwrap();
    for file in kept_files(&folder) {
        std::fs::write(file, "").unwrap();
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(kept.clone().symmetric().unwrap().nodes(), 1024, "a graph does not depend on its file");
    // A file where the folder should be.
    std::fs::write(&folder, "").unwrap();
    assert_eq!(cache.graph("real", || Ok(kept.clone())).unwrap(), (kept, Lookup::Miss));
    std::fs::remove_file(&folder).unwrap();
}

#[test]
fn damaged_graphs_are_built_again() {
    let (folder, cache) = cache("damaged");
    let built = Graph::new(&Edges::generate(Family::Uniform, 10, 16, 1).unwrap()).unwrap();
    cache.graph("it", || Ok(built.clone())).unwrap();
    let file = kept_files(&folder).remove(0);
    let good = std::fs::read(&file).unwrap();
    let mut bad: Vec<Vec<u8>> = Vec::new();
    for length in (0..200).chain((200..good.len()).step_by(9973)).chain([good.len() - 1, good.len() - 4]) {
        bad.push(good[..length].to_vec());
    }
    for at in (0..160).chain((160..good.len()).step_by(4999)).chain(good.len() - 32..good.len()) {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        bad.push(flipped);
    }
    bad.push([&good[..], &[0; 4]].concat());
    bad.push(vec![0xff; good.len()]);
    for bytes in bad {
        std::fs::write(&file, &bytes).unwrap();
        let (graph, found) = cache.graph("it", || Ok(built.clone())).unwrap();
        let Lookup::Damaged(Error::CachedGraph { file: reported, .. }) = found else { panic!("{found:?}") };
        assert!(graph == built && reported == file);
        assert_eq!(cache.graph("it", never).unwrap().1, Lookup::Hit);
    }
    // A file of another graph.
    cache.graph("other", || Ok(built.clone())).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::rename(kept_files(&folder).remove(0), &file).unwrap();
    assert!(matches!(cache.graph("it", || Ok(built.clone())).unwrap().1, Lookup::Damaged(_)));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Waits until the timestamps of a file are older than the clock tick of the file system.
fn settled(file: &Path) -> String {
    loop {
        if let Some(origin) = cache::origin(file) {
            return origin;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn versions_of_a_file_have_different_origins() {
    let list = File::new("origin.el", b"0 1\n");
    let (path, time) = (&list.0, SystemTime::UNIX_EPOCH + Duration::from_secs(1000));
    let set_time = |path: &Path| std::fs::File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
    set_time(path);
    assert_eq!(cache::origin(path), None, "it could change again in the same tick");
    let first = settled(path);
    assert_eq!(first, settled(path));

    // As after `cp -p`: other contents with the same inode, size and mtime.
    std::fs::write(path, b"1 0\n").unwrap();
    set_time(path);
    let second = settled(path);
    assert_ne!(first, second);

    // As after `mv`: another inode.
    let other = File::new("origin-other.el", b"0 0\n");
    set_time(&other.0);
    std::fs::rename(&other.0, path).unwrap();
    assert!(![first, second].contains(&settled(path)));

    assert_eq!(cache::origin(Path::new("no such file")), None);
    assert_eq!(cache::origin(&std::env::temp_dir()), None, "a directory");
}

#[track_caller]
fn exceeds(limit: u64, result: impl FnOnce() -> Result<Graph, Error>) {
    let error = graph::limited(limit, result).unwrap_err();
    assert_eq!(error.code(), "D048");
    let Error::OverMemoryLimit { required, limit: said, .. } = error else { panic!("{error}") };
    assert!(required > said && said == limit, "{required} of {said}");
}

#[test]
fn memory_for_graphs_is_limited() {
    // Short files that name large nodes.
    let list = File::new("huge-node.el", b"0 2147483646\n");
    exceeds(1 << 30, || Graph::read(&list.0));
    let header = "%%MatrixMarket matrix coordinate pattern general\n";
    let matrix = File::new("huge.mtx", format!("{header}2147483647 2147483647 1\n1 2\n").as_bytes());
    exceeds(1 << 30, || Graph::read(&matrix.0));
    exceeds(1 << 20, || Graph::new(&edges(1 << 20, &[], false)));
    exceeds(1 << 20, || Graph::new(&Edges::generate(Family::Kronecker, 18, 2, 1)?));
    exceeds(1 << 30, || Graph::new(&Edges::generate(Family::Uniform, 30, 1, 1)?));
    let path: Vec<(u32, u32)> = (1..10_000).map(|node| (node - 1, node)).collect();
    let directed = Graph::new(&edges(10_000, &path, false)).unwrap();
    exceeds(1 << 17, || directed.symmetric());

    // Files that exceed the limit, or whose graph does.
    let text = File::new("limited.el", "12 13\n".repeat(10_000).as_bytes());
    for limit in [1000, 59_999, 100_000] {
        exceeds(limit, || Graph::read(&text.0));
    }
    assert_eq!(graph::limited(1 << 20, || Graph::read(&text.0)).unwrap().edges(), 1);
    let rows = File::new("limited.sg", &serialized(0, &[(&[0, 1, 3, 4], &[1, 0, 2, 1])]));
    exceeds(60, || Graph::read(&rows.0));
    assert_eq!(graph::limited(200, || Graph::read(&rows.0)).unwrap().edges(), 4);

    // The outer limit is restored after an inner one.
    graph::limited(10, || {
        graph::limited(1 << 20, || Graph::read(&rows.0)).unwrap();
        exceeds(10, || Graph::read(&rows.0));
    });
}

#[test]
fn cached_graphs_are_limited() {
    let (folder, cache) = cache("limited");
    let built = Graph::new(&Edges::generate(Family::Uniform, 10, 20, 1).unwrap()).unwrap();
    cache.graph("it", || Ok(built)).unwrap();
    exceeds(1000, || cache.graph("it", never).map(|(graph, _)| graph));
    exceeds(1000, || cache::inspect(&kept_files(&folder)[0]));
    assert_eq!(cache.graph("it", never).unwrap().1, Lookup::Hit, "the file is not deleted");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[cfg(feature = "gz")]
#[test]
fn decompressed_files_are_limited() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..64 {
        std::io::Write::write_all(&mut packed, &[b' '; 1 << 20]).unwrap();
    }
    let packed = packed.finish().unwrap();
    assert!(packed.len() < 1 << 20);
    for name in ["bomb.el.gz", "bomb.mtx.gz", "bomb.sg.gz"] {
        let file = File::new(name, &packed);
        exceeds(1 << 24, || Graph::read(&file.0));
    }
}

#[cfg(unix)]
#[test]
fn devices_are_refused_and_pipes_are_limited() {
    for path in ["/dev/zero", "/dev/null", "/"] {
        let error = graph::limited(1 << 24, || Graph::read(Path::new(path))).unwrap_err();
        let Error::GraphFile { reason, .. } = error else { panic!("{error}") };
        assert_eq!(reason, BadFile::NotAFile);
    }
    let pipe = std::env::temp_dir().join(format!("vyre-{}-pipe.el", std::process::id()));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let read = |limit, text: &'static str| {
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                let mut pipe = std::fs::File::options().write(true).open(pipe).unwrap();
                // Until the reader closes the pipe, or all is written.
                for _ in 0..1 << 16 {
                    if std::io::Write::write_all(&mut pipe, text.as_bytes()).is_err() {
                        break;
                    }
                }
            }
        });
        let result = graph::limited(limit, || Graph::read(&pipe));
        writer.join().unwrap();
        result
    };
    assert_eq!(cache::origin(&pipe), None);
    assert_eq!(read(1 << 24, "0 1\n").unwrap().edges(), 1);
    exceeds(1 << 20, || read(1 << 20, "0 1000 this line is much longer than it has to be\n"));
    std::fs::remove_file(&pipe).unwrap();
}
