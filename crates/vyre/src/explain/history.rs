//! Texts of a program after each optimizer pass, stored as line diffs.

use std::collections::HashMap;

use serde_json::{Value, json};
use vyre_foundation::ir::entity::Entity as _;
use vyre_foundation::ir::{Control, Op, Program, Span, ValueId};
use vyre_foundation::optimizer::{Measures, Report, Verdict};
use vyre_foundation::text;

use super::Source;
use super::diff::{Hunk, diff};

/// Sequence of texts of a program.
pub(super) struct History<'s> {
    source: &'s Source,
    /// Number of lines of the source.
    lines_of_source: usize,
    /// Names of unnamed values. A value has the same name in all texts, so that diffs show changes only.
    numbers: HashMap<ValueId, Box<str>>,
    /// Interned lines: a number for each pair of text and source line.
    known: HashMap<(String, usize), u32>,
    lines: Vec<(String, usize)>,
    now: Vec<u32>,
    /// Hunks of each change, with their new lines.
    changes: Vec<Vec<(Hunk, Vec<u32>)>>,
}

impl<'s> History<'s> {
    /// Starts with the unoptimized program.
    pub(super) fn new(source: &'s Source, program: &Program) -> History<'s> {
        let mut history = History {
            source,
            lines_of_source: source.text.lines().count(),
            numbers: numbers(program),
            known: HashMap::new(),
            lines: Vec::new(),
            now: Vec::new(),
            changes: Vec::new(),
        };
        history.add(program);
        history
    }

    /// Appends the program after a pass.
    pub(super) fn add(&mut self, program: &Program) {
        let mut named = program.clone();
        for value in program.values().keys() {
            if program.value_name(value).is_none() {
                let number = self.numbers.get(&value);
                named.set_value_name(value, number.cloned().unwrap_or_else(|| format!("v{}", value.index()).into()));
            }
        }
        let mut text = Vec::with_capacity(self.now.len());
        for (line, inst) in text::lines(&named) {
            let place = inst.map_or(0, |inst| self.place(program, program.inst(inst).span));
            let next = self.lines.len() as u32;
            let number = *self.known.entry((line, place)).or_insert_with_key(|key| {
                self.lines.push(key.clone());
                next
            });
            text.push(number);
        }
        let change = diff(&self.now, &text).into_iter();
        self.changes.push(change.map(|hunk| (hunk.clone(), text[hunk.new].to_vec())).collect());
        self.now = text;
    }

    /// The line of the source, from 1, or 0 if there is none.
    fn place(&self, program: &Program, span: Span) -> usize {
        // Inlined functions may be in other files.
        let loc = program.locate(span).filter(|loc| loc.file().is_empty() || loc.file() == self.source.file);
        let line = loc.and_then(|loc| (loc.line() + 1).checked_sub(self.source.first_line));
        line.map(|line| line as usize).filter(|line| *line <= self.lines_of_source).unwrap_or(0)
    }

    /// Returns the view of the page: the texts, and verdict, time, cost and measures of each pass that ran.
    pub(super) fn object(&self, report: &Report, explained: &Value) -> Value {
        let change = |at: usize| -> Value {
            let hunk = |(hunk, lines): &(Hunk, Vec<u32>)| json!([hunk.old.start, hunk.old.len(), lines]);
            self.changes.get(at).map(|hunks| hunks.iter().map(hunk).collect()).unwrap_or_default()
        };
        let mut steps = vec![json!({
            "pass": "as written", "round": 0, "verdict": "written", "ns": 0, "cost": report.cost_before,
            "measures": report.before.values(), "change": change(0),
        })];
        let mut changes = 0;
        for metric in report.metrics.iter().filter(|metric| metric.ran()) {
            changes += usize::from(metric.changed());
            let (verdict, refused) = match metric.verdict {
                Verdict::Changed => ("changed", None),
                Verdict::Refused { after, .. } => ("refused", Some(after)),
                Verdict::Unchanged | Verdict::Skipped => ("unchanged", None),
            };
            steps.push(json!({
                "pass": metric.pass, "round": metric.iteration + 1, "verdict": verdict, "refused": refused,
                "ns": metric.runtime_ns, "cost": metric.cost, "measures": metric.after.values(),
                "change": if metric.changed() { change(changes) } else { Value::Null },
            }));
        }
        let (lines, places): (Vec<&String>, Vec<usize>) = self.lines.iter().map(|(line, place)| (line, place)).unzip();
        json!({
            "name": explained["program"],
            "file": self.source.file,
            "source": self.source.text,
            "measures": Measures::NAMES,
            "lines": lines,
            "places": places,
            "steps": steps,
            "explained": explained,
        })
    }
}

/// Returns the numbers that the printer gives to unnamed values.
fn numbers(program: &Program) -> HashMap<ValueId, Box<str>> {
    let mut values = Vec::new();
    program.walk(|inst, _| {
        let inst = program.inst(inst);
        if let (Op::Control(Control::Loop), Some(&body)) = (&inst.op, inst.blocks.first()) {
            values.extend(&program.block(body).params);
        }
        values.extend(&inst.results);
    });
    values.retain(|&value| program.value_name(value).is_none());
    values.into_iter().enumerate().map(|(number, value)| (value, number.to_string().into())).collect()
}
