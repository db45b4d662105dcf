//! Builder tests: random programs with variables behave like direct execution of their statements.

use Statement::{For, If, Loop, Print, Set, Switch};
use vyre_foundation::build::{Kernel, Var, kernel};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::Module;
use vyre_foundation::launch::{Grid, Limits};
use vyre_foundation::{text, validate};
use vyre_testkit::{Random, oracle, run};

enum Statement {
    /// `a = b * 3 + n`
    Set(usize, usize, u32),
    Print(usize),
    /// Branches on one bit of a variable.
    If(usize, Vec<Statement>, Vec<Statement>),
    /// Switches on the low bits of a variable; the default is last.
    Switch(usize, Vec<Vec<Statement>>),
    For(u32, Vec<Statement>),
    /// Breaks after a number of trips.
    Loop(Vec<Statement>),
    Exit(Exit),
}

#[derive(Clone, Copy, PartialEq)]
enum Exit {
    Break,
    Continue,
    Return,
}

const VARIABLES: usize = 3;
/// The last variable counts the trips of all loops.
const TRIPS: usize = VARIABLES;
const MAX_TRIPS: u32 = 20;

/// Generator of statements.
struct StatementGenerator(Random);

impl StatementGenerator {
    fn variable(&mut self) -> usize {
        self.0.below(VARIABLES as u32) as usize
    }

    fn block(&mut self, depth: u32, in_loop: bool) -> Vec<Statement> {
        let mut statements = Vec::new();
        for _ in 0..self.0.below(4) {
            let nested = if depth == 0 { 4 } else { 9 };
            statements.push(match self.0.below(nested) {
                0..=2 => Set(self.variable(), self.variable(), self.0.below(10)),
                3 => Print(self.variable()),
                4 | 5 => If(self.variable(), self.block(depth - 1, in_loop), self.block(depth - 1, in_loop)),
                6 => Switch(self.variable(), (0..=self.0.below(3)).map(|_| self.block(depth - 1, in_loop)).collect()),
                7 => For(self.0.below(4), self.block(depth - 1, true)),
                _ => Loop(self.block(depth - 1, true)),
            });
        }
        match self.0.below(8) {
            0 if in_loop => statements.push(Statement::Exit(Exit::Break)),
            1 if in_loop => statements.push(Statement::Exit(Exit::Continue)),
            2 if depth < 3 => statements.push(Statement::Exit(Exit::Return)),
            _ => {}
        }
        statements
    }
}

/// Executes statements directly.
fn execute(statements: &[Statement], variables: &mut [u32], printed: &mut Vec<u32>) -> Option<Exit> {
    for statement in statements {
        let exit = match statement {
            Set(a, b, n) => {
                variables[*a] = variables[*b].wrapping_mul(3).wrapping_add(*n);
                None
            }
            Print(a) => {
                printed.push(variables[*a]);
                None
            }
            If(a, then, otherwise) => {
                let block = if variables[*a] & 2 != 0 { then } else { otherwise };
                execute(block, variables, printed)
            }
            Switch(a, arms) => {
                let case = (variables[*a] & 3) as usize;
                execute(&arms[case.min(arms.len() - 1)], variables, printed)
            }
            For(_, body) | Loop(body) => {
                let mut exit = None;
                let mut trip = 0;
                while exit.is_none_or(|exit| exit == Exit::Continue) {
                    match statement {
                        For(n, _) if trip >= *n => break,
                        Loop(_) if variables[TRIPS] > MAX_TRIPS => break,
                        _ => {}
                    }
                    trip += 1;
                    variables[TRIPS] += 1;
                    exit = execute(body, variables, printed);
                }
                exit.filter(|exit| *exit == Exit::Return)
            }
            Statement::Exit(exit) => Some(*exit),
        };
        if exit.is_some() {
            return exit;
        }
    }
    None
}

/// Builds statements; returns whether their end is reachable.
fn emit<'k>(k: &'k Kernel, statements: &[Statement], variables: &[Var<'k, u32>]) -> bool {
    let body = |statements: &[Statement]| {
        variables[TRIPS].set(variables[TRIPS].get() + 1);
        emit(k, statements, variables);
    };
    for statement in statements {
        let completes = match statement {
            Set(a, b, n) => {
                variables[*a].set(variables[*b].get() * 3 + *n);
                true
            }
            Print(a) => {
                k.print("{}", variables[*a].get());
                true
            }
            If(a, then, otherwise) => {
                let mut completes = [true; 2];
                let [first, second] = &mut completes;
                k.if_else(
                    (variables[*a].get() & 2).ne(0),
                    || *first = emit(k, then, variables),
                    || *second = emit(k, otherwise, variables),
                );
                completes != [false; 2]
            }
            Switch(a, arms) => {
                let default = arms.len() as u32 - 1;
                let mut completes = false;
                k.switch_(variables[*a].get() & 3, 0..default, |case| {
                    completes |= emit(k, &arms[case.unwrap_or(default) as usize], variables);
                });
                completes
            }
            For(n, statements) => {
                k.for_range(0, *n, |_| body(statements));
                true
            }
            Loop(statements) => {
                k.while_(|| variables[TRIPS].get().le(MAX_TRIPS), || body(statements));
                true
            }
            Statement::Exit(exit) => {
                match exit {
                    Exit::Break => k.break_(),
                    Exit::Continue => k.continue_(),
                    Exit::Return => k.return_(),
                }
                false
            }
        };
        if !completes {
            return false;
        }
    }
    true
}

#[test]
fn built_variables_match_direct_execution() {
    let oracle = oracle(1);
    let mut maker = StatementGenerator(Random(1));
    let mut most_printed = 0;
    for _ in 0..3000 {
        let statements = maker.block(4, false);
        let initial = [8, 8, 8, 1].map(|bound| maker.0.below(bound));
        let mut expected = Vec::new();
        execute(&statements, &mut initial.clone(), &mut expected);

        let program = kernel("p", [1, 1, 1], |k| {
            emit(k, &statements, &initial.map(|value| k.var(value)));
        });
        let module = Module::from(program.unwrap());
        let text = text::print(&module);
        assert_eq!(text::parse(&text).as_ref(), Ok(&module), "{text}");
        let program = validate::module(module).unwrap().programs[0].clone();
        let grid = Grid::Groups([1, 1, 1]);
        let report = run(&oracle, &program, grid, &mut Inputs::default(), Limits::default()).unwrap();
        let printed: Vec<u32> = report.trace.iter().map(|line| line.text.parse().unwrap()).collect();
        assert_eq!(printed, expected, "{text}");
        most_printed = most_printed.max(expected.len());
    }
    assert!(most_printed > 10, "the programs do something");
}
