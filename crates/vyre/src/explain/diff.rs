//! Line diff by unique common lines (patience diff).
//!
//! Lines that occur exactly once in both lists are anchors, and the ranges between anchors are compared recursively. Most lines of a
//! program are unique, because they define a value, so the time is linear in the number of lines.

use std::collections::HashMap;
use std::ops::Range;

/// A range of the old list, and the range of the new list that replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hunk {
    pub(super) old: Range<usize>,
    pub(super) new: Range<usize>,
}

/// Ranges at a greater recursion depth are replaced as a whole.
const MAX_DEPTH: usize = 64;

/// Returns the differing ranges in order, separated by equal lines.
pub(super) fn diff(old: &[u32], new: &[u32]) -> Vec<Hunk> {
    let mut hunks = Vec::new();
    compare(old, new, Hunk { old: 0..old.len(), new: 0..new.len() }, 0, &mut hunks);
    hunks
}

fn compare(old: &[u32], new: &[u32], within: Hunk, depth: usize, hunks: &mut Vec<Hunk>) {
    let Hunk { old: mut a, new: mut b } = within;
    while !a.is_empty() && !b.is_empty() && old[a.start] == new[b.start] {
        (a.start, b.start) = (a.start + 1, b.start + 1);
    }
    while !a.is_empty() && !b.is_empty() && old[a.end - 1] == new[b.end - 1] {
        (a.end, b.end) = (a.end - 1, b.end - 1);
    }
    if a.is_empty() && b.is_empty() {
        return;
    }
    let fixed = if depth < MAX_DEPTH { fixed(&old[a.clone()], &new[b.clone()]) } else { Vec::new() };
    if fixed.is_empty() {
        return hunks.push(Hunk { old: a, new: b });
    }
    let (mut from, end) = ((a.start, b.start), (a.end, b.end));
    for (x, y) in fixed.into_iter().map(|(x, y)| (a.start + x, b.start + y)).chain([end]) {
        compare(old, new, Hunk { old: from.0..x, new: from.1..y }, depth + 1, hunks);
        from = (x + 1, y + 1);
    }
}

/// Returns the anchors: positions of lines that occur once in both lists, as a longest subsequence of the same order in both.
fn fixed(old: &[u32], new: &[u32]) -> Vec<(usize, usize)> {
    // Number of occurrences of a line in each list, and its last position.
    let mut lines: HashMap<u32, [(u32, usize); 2]> = HashMap::new();
    for (side, list) in [old, new].into_iter().enumerate() {
        for (position, line) in list.iter().enumerate() {
            let (times, last) = &mut lines.entry(*line).or_default()[side];
            (*times, *last) = (*times + 1, position);
        }
    }
    let unique = |line: &u32| match lines[line] {
        [(1, x), (1, y)] => Some((x, y)),
        _ => None,
    };
    // Longest increasing subsequence: the best last pair of each length, and the predecessor of each pair.
    let pairs: Vec<(usize, usize)> = old.iter().filter_map(unique).collect();
    let mut ends: Vec<usize> = Vec::new();
    let mut before = Vec::with_capacity(pairs.len());
    for (index, (_, y)) in pairs.iter().enumerate() {
        let length = ends.partition_point(|&end| pairs[end].1 < *y);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(end) => *end = index,
            None => ends.push(index),
        }
    }
    let mut found: Vec<(usize, usize)> =
        std::iter::successors(ends.last().copied(), |&at| before[at]).map(|at| pairs[at]).collect();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: &str, new: &str, expected: &[(&str, &str)]) {
        let lines = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
        let hunks = diff(&lines(old), &lines(new));
        let parts: Vec<(&str, &str)> =
            hunks.iter().map(|hunk| (&old[hunk.old.clone()], &new[hunk.new.clone()])).collect();
        assert_eq!(parts, expected, "{old} {new}");
        let mut made = String::new();
        let mut from = 0;
        for hunk in hunks {
            made += &old[from..hunk.old.start];
            made += &new[hunk.new];
            from = hunk.old.end;
        }
        assert_eq!(made + &old[from..], new);
    }

    #[test]
    fn only_differing_ranges_are_replaced() {
        check("", "", &[]);
        check("abc", "abc", &[]);
        check("", "abc", &[("", "abc")]);
        check("abc", "", &[("abc", "")]);
        check("abcdef", "abXdef", &[("c", "X")]);
        check("abcdef", "bcdXef", &[("a", ""), ("", "X")]);
        // Repeated lines are matched by their context.
        check("a}b}c}d", "a}b}c}e}d", &[("", "e}")]);
        check("}}a}}b}}", "}}b}}", &[("a}}", "")]);
        // Of two swapped ranges, the longer one is kept.
        check("abcdXYef", "efabcd", &[("", "ef"), ("XYef", "")]);
    }

    #[test]
    fn large_lists_take_linear_time() {
        let old: Vec<u32> = (0..200_000).collect();
        let new: Vec<u32> = old.iter().map(|line| if line % 3 == 0 { line + 1_000_000 } else { *line }).collect();
        assert_eq!(diff(&old, &new).len(), 66_667);
        assert_eq!(diff(&[7; 100_000], &[8; 100_000]).len(), 1);
    }
}
