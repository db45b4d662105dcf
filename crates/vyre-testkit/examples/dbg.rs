use vyre_foundation::{optimizer::*, text, validate};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let s = std::fs::read_to_string(&a[1]).unwrap();
    for p in text::parse(&s).unwrap().programs {
        let p = validate::program(p).unwrap();
        let pl = match a.get(2) {
            Some(t) => Pipeline::parse(t, Registry::standard()).unwrap(),
            None => Pipeline { passes: Registry::standard().schedule_all(), to_fixed_point: true },
        };
        let (p, r) = run(p, &pl, &Options::default(), &mut |_| {}).unwrap();
        for m in &r.metrics {
            if m.changed() || matches!(m.verdict, Verdict::Refused { .. }) {
                println!("// {} {} {:?} {:?}", m.iteration, m.pass, m.verdict, m.best_reduction());
            }
        }
        println!(
            "// cost {} -> {}, instructions {} -> {}",
            r.cost_before, r.cost_after, r.before.instructions, r.after.instructions
        );
        println!("{}", text::print(&vyre_foundation::ir::Module { programs: vec![p.into_inner()] }));
    }
}
