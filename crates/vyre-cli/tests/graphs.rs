//! Cached graphs across processes.

mod folder;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use vyre_runtime::graph::cache;

/// A folder with a cache and a list of edges.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = Folder(folder::empty(name));
        folder.write_list(20_000, 1000);
        folder
    }

    /// Writes a path graph of `nodes` nodes, modified `seconds` after 1970.
    fn write_list(&self, nodes: u32, seconds: u64) {
        let lines: String = (1..nodes).map(|node| format!("{} {node} 0.5\n", node - 1)).collect();
        fs::write(self.0.join("path.el"), lines).expect("a file can be written");
        let file = fs::File::options().append(true).open(self.0.join("path.el")).expect("the file");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("a time");
        // Files modified within two seconds are not cached.
        while cache::origin(&self.0.join("path.el")).is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Standard error of a command that fails with exit code 2.
    fn fails(&self, command: &mut Command) -> String {
        let output = command.current_dir(&self.0).env_remove("VYRE_DEVICE").output().expect("the command can be run");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{:?}: {stderr}", output.status);
        stderr
    }

    /// Runs `bfs`; returns `from_cache`, the number of edges, and standard error.
    fn run(&self, more: &[&str]) -> (bool, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vyre"));
        command
            .current_dir(&self.0)
            .args(["graph", "cc", "path.el", "--verify", "--json", "--device", "cpu"])
            .args(more);
        command.env("XDG_CACHE_HOME", self.0.join("cache")).env_remove("VYRE_DEVICE");
        let output = command.output().expect("the command can be run");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        let object: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        (object["from_cache"].as_bool().expect("it is said"), object["edges"].to_string(), stderr)
    }

    fn graphs(&self) -> Vec<PathBuf> {
        let listed = fs::read_dir(self.0.join("cache/vyre/graphs")).into_iter().flatten();
        listed.map(|entry| entry.expect("a file").path()).collect()
    }
}

#[test]
fn graphs_are_built_once() {
    let folder = Folder::new("graphs");
    let result = |from_cache: bool, edges: u32| (from_cache, edges.to_string(), String::new());
    assert_eq!(folder.run(&["--no-cache"]), result(false, 19_999));
    assert!(folder.graphs().is_empty());
    assert_eq!(folder.run(&[]), result(false, 19_999));
    assert_eq!(folder.run(&[]), result(true, 19_999));
    assert_eq!(folder.run(&["--no-cache"]), result(false, 19_999));
    assert_eq!(folder.run(&["--symmetric"]), result(false, 39_998));
    assert_eq!(folder.run(&["--symmetric"]), result(true, 39_998));
    folder.write_list(20_001, 1001);
    assert_eq!(folder.run(&[]), result(false, 20_000));
    assert_eq!(folder.graphs().len(), 3);
    // Different contents of equal length and modification time.
    let list = fs::read_to_string(folder.0.join("path.el")).expect("the list");
    fs::write(folder.0.join("path.el"), list.replace("19999 20000 ", "20000 20000 ")).expect("a file can be written");
    let file = fs::File::options().append(true).open(folder.0.join("path.el")).expect("the file");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1001)).expect("a time");
    assert_eq!(folder.run(&[]), result(false, 19_999), "a loop is left out");
}

#[test]
fn damaged_cached_graphs_are_reported_and_replaced() {
    let folder = Folder::new("damaged-graphs");
    folder.run(&[]);
    let file = folder.graphs().remove(0);
    let mut bytes = fs::read(&file).expect("the graph");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).expect("a file can be written");
    let (from_cache, edges, stderr) = folder.run(&[]);
    assert_eq!((from_cache, &*edges), (false, "19999"));
    assert!(stderr.contains("warning[D039]") && stderr.contains("checksum"), "{stderr}");
    assert_eq!(folder.run(&[]), (true, edges, String::new()));
}

#[test]
fn an_unwritable_graph_cache_is_a_warning() {
    let folder = Folder::new("no-graphs");
    fs::create_dir_all(folder.0.join("cache/vyre")).expect("a folder");
    fs::write(folder.0.join("cache/vyre/graphs"), "a file where a folder should be").expect("a file");
    for _ in 0..2 {
        assert_eq!(folder.run(&[]), (false, "19999".into(), String::new()));
    }
}

fn vyre() -> Command {
    Command::new(env!("CARGO_BIN_EXE_vyre"))
}

#[test]
fn memory_for_graphs_is_limited() {
    let folder = Folder(folder::empty("limited-graphs"));
    fs::write(folder.0.join("huge-node.el"), "0 2147483646\n").expect("a file");
    let header = "%%MatrixMarket matrix coordinate pattern general\n";
    fs::write(folder.0.join("huge-nodes.mtx"), format!("{header}2147483647 2147483647 1\n1 2\n")).expect("a file");
    for graph in ["huge-node.el", "huge-nodes.mtx", "kron:30"] {
        let mut command = vyre();
        command.args(["graph", "cc", graph, "--symmetric", "--memory-limit", "1000000000"]);
        if graph.contains(':') {
            command.args(["--factor", "1"]);
        }
        let stderr = folder.fails(&mut command);
        assert!(stderr.starts_with("error[D048]: ") && stderr.contains("the limit is 1000000000"), "{stderr}");
    }
}

/// The address space limit is below the memory limit.
#[cfg(unix)]
#[test]
fn failed_graph_allocations_are_errors() {
    let folder = Folder(folder::empty("no-memory"));
    fs::write(folder.0.join("huge-node.el"), "0 2147483646\n").expect("a file");
    for graph in ["huge-node.el", "kron:29"] {
        let mut command = Command::new("sh");
        let limited = "ulimit -v 2000000 && exec \"$0\" graph cc \"$@\" --memory-limit 1000000000000000";
        command.args(["-c", limited, env!("CARGO_BIN_EXE_vyre"), graph]);
        if graph.contains(':') {
            command.args(["--factor", "1"]);
        }
        let stderr = folder.fails(&mut command);
        assert!(stderr.starts_with("error[D020]: ") || stderr.starts_with("error[D006]: "), "{stderr}");
    }
}

#[test]
fn contradictory_gap_rows_are_refused() {
    let folder = Folder(folder::empty("gap-graphs"));
    let write = |name: &str, directed: u8, words: &[u64], rows: &[(&[u64], &[u32])]| {
        let mut bytes = vec![directed];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        for (offsets, targets) in rows {
            bytes.extend(offsets.iter().flat_map(|word| word.to_le_bytes()));
            bytes.extend(targets.iter().flat_map(|word| word.to_le_bytes()));
        }
        fs::write(folder.0.join(name), bytes).expect("a file");
    };
    let outgoing: (&[u64], &[u32]) = (&[0, 1, 2, 3, 4], &[1, 2, 3, 0]);
    write("incoming-differs.sg", 1, &[4, 4], &[outgoing, (&[0, 1, 2, 3, 4], &[3, 0, 0, 2])]);
    write("undirected-lies.sg", 0, &[2, 3], &[(&[0, 1, 2, 2], &[1, 2])]);
    for name in ["incoming-differs.sg", "undirected-lies.sg"] {
        for algorithm in ["bfs", "sssp", "pagerank", "cc", "tc"] {
            let stderr = folder.fails(vyre().args(["graph", algorithm, name, "--verify"]));
            assert!(stderr.starts_with(&format!("error[D032]: {name}: ")), "{stderr}");
        }
    }
}
