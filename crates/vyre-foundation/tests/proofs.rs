//! Proofs of the rewrite rules with the SMT solver Z3, and tests of the SMT terms against the evaluators.
//!
//! For every rule and every type of its class, the solver searches for operands that distinguish the two sides; the
//! rule is proved if there are none (unsat). These tests require Z3 (the Debian package `z3`), and fail without it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use vyre_foundation::ir::ops::{Form, Kind, TABLE};
use vyre_foundation::ir::{Literal, Pure, Type, smt};
use vyre_foundation::optimizer::rules::{self, Instance, Node, Rule, SWAPPED, Term};

/// Resource limit of the solver for one proof, in Z3's deterministic unit. It stops rules that cannot be proved; the
/// longest proof takes 1/40 of it.
const STEPS: u32 = 100_000_000;

/// Claim, and the script that searches for a counterexample.
struct Query {
    claim: String,
    script: String,
}

#[test]
fn every_rule_is_proved() {
    let queries: Vec<Query> = rules::simplifying().iter().chain(rules::canonical()).flat_map(queries).collect();
    prove(&queries);
}

#[test]
fn swapped_operands_are_proved() {
    let mut queries = Vec::new();
    for (op, swapped, types) in SWAPPED {
        let Form::Plain(signature) = op.info().form else { panic!("{op:?} does not have operands alone") };
        for ty in types.iter() {
            let result = signature.results[0].of(ty);
            let apply =
                |op: &Pure, a: &str, b: &str| smt::term(*op, ty, result, &[a.into(), b.into()]).expect("a term");
            let (one, other) = (apply(op, "x", "y"), apply(swapped, "y", "x"));
            let script =
                format!("(declare-const x {0}) (declare-const y {0}) (assert (not (= {one} {other})))", smt::sort(ty));
            queries.push(Query { claim: format!("{op:?} x y is {swapped:?} y x for {ty}"), script });
        }
    }
    prove(&queries);
}

#[test]
fn wrong_rules_are_rejected() {
    let queries: Vec<Query> = rules::read(include_str!("wrong.rules")).unwrap().iter().flat_map(queries).collect();
    for (query, answer) in queries.iter().zip(solve(&queries)) {
        assert_eq!(answer, "sat", "{} is wrong", query.claim);
    }
}

/// Claims to prove for a rule.
fn queries(rule: &Rule) -> Vec<Query> {
    let mut queries = Vec::new();
    for ty in rule.class.iter() {
        let instance = rule.at(ty).unwrap_or_else(|error| panic!("{rule}: {error}"));
        let (from, to) = (term(&instance.from), term(&instance.to));
        let declare = |(name, &ty): (usize, &Type)| format!("(declare-const n{name} {})\n", smt::sort(ty));
        let mut script: String = instance.names.iter().enumerate().map(declare).collect();
        if let Some(when) = &instance.when {
            script += &format!("(assert {})\n", term(when));
        }
        script += &format!("(assert (not (= {from} {to})))\n");
        match cases(&instance) {
            None => queries.push(Query { claim: format!("{rule} for {ty}"), script }),
            Some((name, values)) => queries.extend(values.into_iter().map(|bits| {
                let value = smt::literal(Literal { ty: instance.names[name], bits });
                let script = format!("{script}(assert (= n{name} {value}))\n");
                Query { claim: format!("{rule} for {ty} and {value}"), script }
            })),
        }
    }
    queries
}

/// A literal that the condition restricts to a few values, and these values. Multiplication, division and nested shifts
/// are hard for the solver with symbolic operands, so such rules are proved for each literal (case split).
fn cases(instance: &Instance) -> Option<(usize, Vec<u64>)> {
    fn asked(term: &Term, names: &[Type]) -> Option<(usize, Vec<u64>)> {
        let Node::Apply(op, _, operands) = &term.node else { return None };
        let [a, b] = &operands[..] else { return None };
        match (op, &a.node, &b.node) {
            (Pure::And, _, _) => asked(a, names).or_else(|| asked(b, names)),
            // A power of two.
            (Pure::Eq, Node::Apply(Pure::CountOnes, _, counted), Node::Number(1)) => match counted[0].node {
                Node::Literal(name) => Some((name, (0..names[name].bits()).map(|bit| 1 << bit).collect())),
                _ => None,
            },
            // A shift count below the width.
            (Pure::Lt, Node::Literal(name), Node::Number(width @ (32 | 64))) => Some((*name, (0..*width).collect())),
            _ => None,
        }
    }
    instance.when.as_ref().and_then(|when| asked(when, &instance.names))
}

fn term(of: &Term) -> String {
    match &of.node {
        Node::Value(name) | Node::Literal(name) => format!("n{name}"),
        Node::Number(bits) => smt::literal(Literal { ty: of.ty, bits: *bits }),
        Node::Apply(op, class, operands) => {
            let operands: Vec<String> = operands.iter().map(term).collect();
            smt::term(*op, *class, of.ty, &operands)
                .unwrap_or_else(|| panic!("{op:?} has no term for {class}, so no rule can use it"))
        }
    }
}

#[test]
fn smt_terms_agree_with_the_evaluators() {
    let mut claims = Vec::new();
    let mut script = String::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for row in TABLE.iter().filter(|row| row.kind == Kind::Pure) {
        let op = row.pure().expect("a function of its operands");
        for (class, operands, result) in row.uses() {
            let names = vec![String::new(); operands.len()];
            if smt::term(op, class, result, &names).is_none() {
                continue;
            }
            let evaluate = row.evaluator(class, result).expect("pure operations have evaluators");
            for literals in inputs(&operands, &mut random) {
                let bits: Vec<u64> = literals.iter().map(|literal| literal.bits).collect();
                let expected = Literal { ty: result, bits: evaluate(&bits) };
                let terms: Vec<String> = literals.iter().map(|&literal| smt::literal(literal)).collect();
                let applied = smt::term(op, class, result, &terms).expect("there is one for other operands");
                script += &format!("(simplify (= {applied} {}))\n", smt::literal(expected));
                claims.push(format!("{} {literals:?} = {expected}", row.name));
            }
        }
    }
    let answers = z3(&script);
    assert_eq!(answers.len(), claims.len(), "{}", answers.join("\n"));
    let wrong: Vec<String> = claims
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| *answer != "true")
        .map(|(claim, answer)| format!("{claim}: {answer}"))
        .collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), claims.len(), wrong.join("\n"));
}

/// Operands of these types: combinations of edge values, and random ones.
fn inputs(types: &[Type], random: &mut u64) -> Vec<Vec<Literal>> {
    let mut next = || {
        // xorshift64
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *random
    };
    let all: usize = types.iter().map(|&ty| edges(ty).len()).product();
    let mut inputs = Vec::new();
    for number in 0..all.min(60) {
        // All combinations if there are at most 60, otherwise a sample.
        let mut number = if all <= 60 { number } else { (next() % all as u64) as usize };
        let mut pick = |&ty: &Type| {
            let edges = edges(ty);
            let bits = edges[number % edges.len()];
            number /= edges.len();
            Literal { ty, bits }
        };
        inputs.push(types.iter().map(&mut pick).collect());
    }
    for _ in 0..30 {
        // Small numbers exercise counts and divisors.
        let mut pick = |&ty: &Type| {
            let shift = if ty.is_float() { 0 } else { (next() % u64::from(ty.bits())) as u32 };
            Literal { ty, bits: (next() & u64::MAX >> (64 - ty.bits())) >> shift }
        };
        inputs.push(types.iter().map(&mut pick).collect());
    }
    inputs
}

/// Edge values of a type.
fn edges(ty: Type) -> Vec<u64> {
    let mask = u64::MAX >> (64 - ty.bits());
    let sign = 1 << (ty.bits() - 1);
    match ty {
        Type::Bool => vec![0, 1],
        Type::I32 | Type::U32 => vec![0, 1, 2, 3, 31, 32, 33, 64, sign - 1, sign, sign + 1, mask - 1, mask],
        Type::I64 | Type::U64 => vec![0, 1, 2, 31, 63, 64, 65, 1 << 32, sign - 1, sign, sign + 1, mask - 1, mask],
        Type::F16 | Type::F32 | Type::F64 => {
            let to = Pure::Cast.info().evaluator(Type::F64, ty).expect("floats can be cast to each other");
            let numbers = [
                0.0,
                1.0,
                0.5,
                1.5,
                2.5,
                3.0,
                1e30,
                6e-8,
                65504.0,
                f64::from(1u32 << 31),
                4_294_967_295.0,
                18_446_744_073_709_551_615.0,
                f64::INFINITY,
            ];
            let positive = numbers.iter().map(|number: &f64| to(&[number.to_bits()])).chain([1, 2]);
            let mut edges: Vec<u64> = positive.flat_map(|bits| [bits, bits | sign]).collect();
            edges.push(to(&[f64::NAN.to_bits()]));
            edges
        }
    }
}

fn prove(queries: &[Query]) {
    let answers = solve(queries);
    let unproved: Vec<String> = queries
        .iter()
        .zip(answers)
        .filter(|(_, answer)| answer != "unsat")
        .map(|(query, answer)| format!("{answer}: {}", query.claim))
        .collect();
    assert!(unproved.is_empty(), "{} of {} are not proved:\n{}", unproved.len(), queries.len(), unproved.join("\n"));
}

/// Answers of the solver to the queries, with one process per core.
fn solve(queries: &[Query]) -> Vec<String> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let mut answers = vec![String::new(); queries.len()];
    // Adjacent queries are similar, so they are distributed round-robin.
    let shares: Vec<Vec<usize>> =
        (0..workers).map(|worker| (worker..queries.len()).step_by(workers).collect()).collect();
    std::thread::scope(|scope| {
        let running: Vec<_> = shares
            .iter()
            .map(|share| {
                scope.spawn(move || {
                    // After a reset, the solver uses the strategy for the logic, which is much stronger than the
                    // incremental one after `push`.
                    let script = |&query: &usize| {
                        let script = &queries[query].script;
                        let logic = if script.contains("to_fp") || script.contains("FloatingPoint") {
                            "QF_BVFP"
                        } else {
                            "QF_BV"
                        };
                        format!("(reset)\n(set-option :rlimit {STEPS})\n(set-logic {logic})\n{script}(check-sat)\n")
                    };
                    z3(&share.iter().map(script).collect::<String>())
                })
            })
            .collect();
        for (share, running) in shares.iter().zip(running) {
            let said = running.join().expect("the worker does not panic");
            assert_eq!(said.len(), share.len(), "{}", said.join("\n"));
            for (&query, answer) in share.iter().zip(said) {
                answers[query] = answer;
            }
        }
    });
    answers
}

/// The lines that Z3 prints for a script.
fn z3(script: &str) -> Vec<String> {
    let mut child =
        Command::new("z3").args(["-smt2", "-in"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap_or_else(
            |error| {
                panic!("z3 cannot be started ({error}): install it with `cargo xtask test` or `apt-get install z3`")
            },
        );
    let mut stdin = child.stdin.take().expect("it is piped");
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(script.as_bytes()).expect("z3 reads its input"));
        let output = child.wait_with_output().expect("z3 ends");
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    })
}
