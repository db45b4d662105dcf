//! The builder: programs equal their expected text, and errors name the location of the call.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::mem::offset_of;

use vyre_foundation::build::{Field, Kernel, Object, ReadWrite, Stored, Val, kernel};
use vyre_foundation::ir::ops::TABLE;
use vyre_foundation::ir::{Axis, Control, Element, Module, Op, Program, Terminator};
use vyre_foundation::{Error, text, validate};

/// Builds a program, and checks that it is valid and round-trips through text.
#[track_caller]
fn build(name: &str, workgroup_size: [u32; 3], body: impl FnOnce(&Kernel)) -> Program {
    let program = kernel(name, workgroup_size, body).unwrap();
    let module = Module::from(program.clone());
    let printed = text::print(&module);
    assert_eq!(text::parse(&printed).as_ref(), Ok(&module), "{printed}");
    validate::program(program).unwrap_or_else(|error| panic!("{error}\n{printed}")).into_inner()
}

/// Builds a program and compares its text with the program of the same name in `build.vyre`.
#[track_caller]
fn check(name: &str, body: impl FnOnce(&Kernel)) {
    let printed = build(name, [64, 1, 1], body).to_string();
    let all = include_str!("build.vyre");
    let start = all.find(&format!("program {name} ")).expect("the program is in build.vyre");
    let end = all[start..].find("\n}\n").expect("the program has an end");
    assert_eq!(printed, all[start..start + end + 3]);
}

/// Defines a test that builds the program with its name.
macro_rules! built {
    ($name:ident, $body:expr) => {
        #[test]
        fn $name() {
            check(stringify!($name), $body);
        }
    };
}

#[track_caller]
fn parse(source: &str) -> Program {
    text::parse(source).unwrap().programs.remove(0)
}

#[test]
fn the_first_debug_name_of_a_value_is_kept() {
    let program = build("named", [64, 1, 1], |k| {
        let y = k.read_write::<u32>("y");
        let i = k.debug_name("i", k.global_index());
        k.debug_name("j", i);
        // Literals take no names, and names that are invalid in text are ignored.
        k.debug_name("two", k.lit(2u32));
        let pair = k.debug_name("größe", (y.load(i), y.load(i + 1)));
        k.debug_name("pair", pair);
        let sum = k.var(0u32).debug_name("sum").debug_name("f32");
        sum.set(pair.0 + pair.1);
        sum.set(sum.get() * 2);
        y.store(i, sum.get());
    });
    let expected = "\
program named workgroup(64) {
    read_write y: [u32]

    %i = global_index
    %pair = load y[%i]
    %0 = add %i, 1
    %pair.1 = load y[%0]
    %sum = add %pair, %pair.1
    %sum.1 = mul %sum, 2
    store y[%i], %sum.1
}
";
    assert_eq!(program.to_string(), expected);
    assert_eq!(Module::from(program).to_string(), expected);
}

// Whole kernels.

#[test]
fn built_saxpy_equals_the_example() {
    let program = kernel("saxpy", [256, 1, 1], |k| {
        let a = k.uniform::<f32>("a");
        let x = k.read::<f32>("x");
        let y = k.read_write::<f32>("y");
        let i = k.global_index();
        k.if_(i.lt(y.len()), || {
            let (a, x, old) = (a.load(), x.load(i), y.load(i));
            y.store(i, a * x + old);
        });
    });
    assert_eq!(program, Ok(parse(include_str!("../../../examples/kernels/saxpy.vyre"))));
}

#[test]
fn built_mandelbrot_equals_the_example() {
    let program = kernel("mandelbrot", [16, 16, 1], |k| {
        k.launch([1024, 1024, 1]);
        let [width, height, max_trips] =
            [("WIDTH", 1024), ("HEIGHT", 1024), ("MAX_TRIPS", 256)].map(|(name, default)| k.constant(name, default));
        let center_x = k.uniform::<f32>("center_x").with_default(-0.75);
        let center_y = k.uniform::<f32>("center_y").with_default(0.0);
        let span = k.uniform::<f32>("span").with_default(2.5);
        let image = k.write::<u8>("image").with_length(1 << 20);

        let (px, py) = (k.global_id(Axis::X), k.global_id(Axis::Y));
        let inside = px.lt(width) & py.lt(height);
        k.if_(inside, || {
            let (span, center_x, center_y) = (span.load(), center_x.load(), center_y.load());
            let [fx, fy, width_f, height_f] = [px, py, width, height].map(Val::cast::<f32>);
            let (mx, my) = (fx + 0.5, fy + 0.5);
            let (rx, ry) = (mx / width_f, my / height_f);
            let (ox, oy) = (rx - 0.5, ry - 0.5);
            let (cx, cy) = (ox.fma(span, center_x), oy.fma(span, center_y));

            let trips = k.var(0u32);
            let (x, y) = (k.var(0.0f32), k.var(0.0f32));
            k.loop_(|| {
                let (xx, yy) = (x.get() * x.get(), y.get() * y.get());
                let escaped = (xx + yy).gt(4.0);
                k.if_(escaped | trips.get().ge(max_trips), || k.break_());
                let next_x = xx - yy + cx;
                y.set((x.get() * y.get()).fma(2.0, cy));
                x.set(next_x);
                trips.set(trips.get() + 1);
            });

            let trips = trips.get();
            let bounded = trips.ge(max_trips);
            let light = (trips * 5).min(255);
            let shade = bounded.select(0, light);
            image.store(py * width + px, shade);
        });
    });
    assert_eq!(program, Ok(parse(include_str!("../../../examples/kernels/mandelbrot.vyre"))));
}

#[test]
fn views_access_elements_of_other_types() {
    check("typed_views", |k| {
        let rows = k.mutable::<u32>("rows");
        let (i, mass, flags) = (k.global_index(), rows.view::<f32>(), rows.view::<i8>());
        k.if_(i.lt(rows.view::<u64>().len()), || {
            mass.store(i * 2, mass.load(i * 2) * 2.0);
            rows.atomics().add(i * 2 + 1, 1);
            flags.store(i, flags.load(flags.len() - 1));
            rows.view::<i32>().atomics().min(1, -1);
        });
    });
}

#[test]
fn every_operation_can_be_built() {
    let program = build("p", [64, 1, 1], |k| {
        let x = k.read_write::<f32>("x");
        let counts = k.atomic::<u32>("counts").with_length(64);
        let f = x.load(k.global_index()) - 1.5;
        let n = counts.load(0) + x.len() * 2 / 3 % 5;
        let b = n.eq(0) ^ f.ne(1.0) & n.lt(1) | n.le(2) & n.gt(3) & !n.ge(4);
        let _ = (-f).abs().min(1.0).max(f).fma(f, 2.0).ldexp(n.cast::<i32>()).sqrt().floor().ceil().trunc().round();
        let _ = f.exp().exp2().log().log2().sin().cos().tan().asin().acos().atan().atan2(1.0);
        let _ = f.sinh().cosh().tanh().pow(n.cast::<f32>()).cbrt().hypot(f);
        let _ = (n.mul_high(3) << 1 >> 2).rotate_left(n).reverse_bits().extract_bits(1, n).insert_bits(7, n, 4);
        let _ = n.count_ones() + n.leading_zeros() + n.trailing_zeros();
        let packed = f.pack_f16(0.5);
        let _ = f.frexp_fraction().modf_fraction().quantize_f16().asinh().acosh().atanh().frexp_exponent();
        let _ = f.pack_snorm16(f).unpack_snorm16(1) + f.pack_unorm16(f).unpack_unorm16(n);
        let _ = f.pack_snorm8(f, 0.5, 1.0).unpack_snorm8(2) + f.pack_unorm8(f, 0.5, 1.0).unpack_unorm8(n);
        let sum = packed.dot4_i8(n, packed.dot4_i8u8(n, 5));
        let _ = n.add_u8x4(7).min_u8x4(n).max_u8x4(packed).min_i8x4(n).max_i8x4(packed).eq_u8x4(n).lt_u8x4(packed);
        let _ = n.lookup_u8x4(1, n, 3, 4).pack_u8_clamp(5, n, 7).dot4_u8(n, sum.pack_i8_clamp(sum, -1, 2));
        let _ = packed.unpack_f16_low() + packed.unpack_f16_high() + b.select(1.0, f) + n.cast::<f32>() + n.bitcast();
        for axis in Axis::ALL {
            let _ = k.global_id(axis) + k.local_id(axis) + k.group_id(axis) + k.group_count(axis) + k.group_size(axis);
        }
        let _ = k.local_index() + k.group_index();
        let _ = counts.add(0, 1) + counts.sub(1, n) + counts.min(2, n) + counts.max(3, n) + counts.and(4, n);
        let _ = counts.or(5, n) + counts.xor(6, n) + counts.exchange(7, n);
        let (old, exchanged) = counts.compare_exchange(8, 0, 1);
        k.workgroup_barrier();
        k.storage_barrier();
        let _ = f.broadcast();
        let _ = k.subgroup_size() + k.subgroup_id() + k.subgroup_lane() + b.subgroup_ballot()[3];
        let _ = f.subgroup_shuffle(1).subgroup_add().subgroup_mul().subgroup_min().subgroup_max();
        let _ = n.subgroup_and().subgroup_or().subgroup_xor();
        let _ = f.subgroup_shuffle_up(1).subgroup_shuffle_down(2).subgroup_shuffle_xor(3).subgroup_broadcast_first();
        let (_kept, _count) = n.subgroup_compact(b.subgroup_all() | b.subgroup_any());
        let _ = n.subgroup_inclusive_add().subgroup_exclusive_add().subgroup_inclusive_mul().subgroup_exclusive_mul();
        k.print("{} {}", (old, exchanged));
        k.region("test.op", || x.store_wide(0, [f, f]));
        k.switch_(n, [0], |case| case.map_or((), |_| k.return_()));
        k.loop_(|| {
            k.if_(b, || k.break_());
            k.if_(exchanged, || k.continue_());
            k.trap(7);
        });
    });
    let mut built = BTreeSet::new();
    program.walk(|inst, _| {
        built.insert(program.inst(inst).op.info().name);
    });
    let missing: Vec<&str> = TABLE.iter().map(|row| row.name).filter(|name| !built.contains(name)).collect();
    assert_eq!(missing, [""; 0]);
}

// Values and memory.

built!(literals_stand_on_either_side, |k| {
    let i = k.global_index().named("i");
    let x = i.cast::<f32>().named("x");
    let _ = 1 - i;
    let _ = 1.0 / x + 2.0;
    let _ = 1u64 << i;
    let _ = true & i.eq(7);
    let _ = half::f16::ONE * x.cast();
});

built!(elements_below_a_word_are_seen_as_words, |k| {
    let image = k.read_write::<u8>("image");
    let deltas = k.read::<i16>("deltas");
    let i = k.global_index();
    let [low, high] = deltas.load_wide(i);
    image.store_wide(i, [image.load(i), (low + high).cast(), k.lit(255)]);
});

built!(workgroup_memory_between_barriers, |k| {
    let x = k.read::<f32>("x");
    let sums = k.write::<f32>("sums");
    let tile = k.workgroup::<f32>("tile", 64);
    let lane = k.local_index().named("lane");
    tile.store(lane, x.load(k.global_index()));
    k.workgroup_barrier();
    let width = k.var(32u32).named("width");
    k.while_(
        || width.get().gt(0),
        || {
            k.if_(lane.lt(width.get()), || tile.store(lane, tile.load(lane) + tile.load(lane + width.get())));
            k.workgroup_barrier();
            width.set(width.get() >> 1);
        },
    );
    k.if_(lane.eq(0), || sums.store(k.group_index(), tile.load(0)));
});

built!(atomics, |k| {
    let hits = k.atomic::<u32>("hits").with_length(2);
    let best = k.workgroup_atomic::<i32>("best", 1);
    let sum = k.atomic::<f32>("sum");
    let i = k.global_index();
    sum.add(0, i.cast::<f32>());
    let _ = sum.max(1, 2.0);
    hits.add(0, 1);
    best.max(0, i.cast::<i32>());
    let (old, exchanged) = hits.compare_exchange(1, 0, i);
    k.if_(!exchanged, || k.print("taken by {}, not {}", (old, i)));
    best.store(0, -1);
});

#[derive(Clone, Copy)]
#[repr(C)]
struct Particle {
    position: [f32; 3],
    kind: u32,
    charge: i32,
}

impl Stored for Particle {
    const ELEMENT: Element = Element::U32;
    const WIDTH: u32 = 5;
    type Value = Self;
}

#[test]
fn records_are_adjacent_elements_with_bitcast_fields() {
    let position = Field::new(offset_of!(Particle, position), |particle: &Particle| particle.position);
    let kind = Field::new(offset_of!(Particle, kind), |particle: &Particle| particle.kind);
    let charge = Field::new(offset_of!(Particle, charge), |particle: &Particle| particle.charge);
    check("records_are_neighbours_and_their_fields_are_bits", |k| {
        let x = k.mutable::<Particle>("x").with_length(8);
        let y = k.mutable::<Particle>("y");
        let tile = k.workgroup::<Particle>("tile", 2);
        let i = k.global_index().named("i");
        let record = x.load_record(i);
        let [first, ..] = record.get(position);
        let other = k.record().with(kind, record.get(kind)).with(position, [first; 3]).with(charge, k.lit(-1));
        y.store_record(i, &other);
        x.field(0, charge).store(x.field(i, position).at(2).load().cast::<i32>());
        tile.field(y.len(), kind).store(7);
    });
}

built!(arrays_of_one_name_get_numbers, |k| {
    k.private::<f32>("a", 1);
    k.workgroup::<f32>("a", 2);
    k.private::<u32>("a", 3);
});

#[test]
fn functions_can_take_handles() {
    fn double<'k>(y: Object<'k, f32, ReadWrite>, i: Val<'k, u32>) {
        y.store(i, 2.0 * y.load(i));
    }
    check("functions_can_take_handles", |k| double(k.private("y", 4), k.lit(3)));
}

// Control flow and variables.

built!(branches_give_what_their_closures_return, |k| {
    let y = k.write::<f32>("y");
    let i = k.global_index().named("i");
    let x = k.if_else(i.lt(4), || i.cast::<f32>(), || k.lit(1.0));
    let (a, [b, c]) = k.switch_(i, [1, 2], |case| match case {
        Some(1) => (x, [i, i + 1]),
        Some(_) => (-x, [i * 2, i]),
        None => {
            k.trap(3);
            (x, [i, i])
        }
    });
    let d = k.region("sum", || b + c);
    y.store(d, a);
});

built!(switches_of_signed_selectors_change_variables, |k| {
    let y = k.read_write::<i32>("y");
    let [a, b, c] = [1, 2, 3].map(|value| k.var(value));
    k.switch_(y.load(0), [-1, 7], |case| match case {
        Some(-1) => {
            a.set(10);
            b.set(20);
            c.set(5);
        }
        Some(_) => c.set(5),
        None => {
            a.set(0);
            k.return_();
        }
    });
    y.store(1, a.get());
    y.store(2, b.get() + c.get());
});

built!(reductions_over_a_range, |k| {
    let x = k.read::<f32>("x");
    let y = k.write::<f32>("y");
    let (sum, last, fixed) = (k.var(0.0f32).named("sum"), k.var(0u32), k.var(2.0f32));
    k.for_range(0, x.len(), |i| {
        i.named("i");
        sum.set(sum.get() + fixed.get() * x.load(i));
        last.set(i);
    });
    k.for_range_step(-8i64, 8, 4, |_| ());
    y.store(0, sum.get());
});

#[test]
fn literal_ranges_have_the_type_of_their_use() {
    let program = build("p", [1, 1, 1], |k| {
        let y = k.write::<u32>("y");
        k.for_range(0, 10, |i| y.store(i, i));
    });
    assert_eq!(program.stats().memory_ops, 1);
}

built!(exits_hand_over_what_variables_are_there, |k| {
    let x = k.read::<u32>("x");
    let y = k.write::<u32>("y");
    let n = x.len().named("n");
    let found = k.var(0u32).named("found");
    let steps = k.var(0u32).named("steps");
    k.for_range(0, n, |row| {
        row.named("row");
        let column = k.var(row).named("column");
        k.loop_(|| {
            steps.set(steps.get() + 1);
            let value = x.load(column.get()).named("value");
            k.if_(value.eq(0), || {
                found.set(100);
                k.return_();
            });
            k.if_(value.eq(1), || {
                found.set(found.get() + value);
                k.break_();
            });
            column.set(value);
            k.if_(value.eq(2), || {
                steps.set(0);
                k.continue_();
            });
            column.set(column.get() + 1);
        });
        k.if_(found.get().gt(5), || k.continue_());
        y.store(row, found.get());
    });
    y.store(0, steps.get());
});

built!(what_is_never_reached_hands_nothing_over, |k| {
    let y = k.write::<u32>("y");
    let i = k.global_index().named("i");
    let v = k.var(1u32).named("v");
    k.loop_(|| {
        k.if_else(
            i.eq(v.get()),
            || {
                v.set(2);
                k.if_else(i.eq(0), || k.break_(), || k.return_());
            },
            || v.set(v.get() + 1),
        );
    });
    y.store(0, v.get());
    k.loop_(|| k.if_(i.eq(3), || k.trap(1)));
});

built!(variables_that_do_not_change_leave_no_trace, |k| {
    let y = k.write::<u32>("y");
    let i = k.global_index().named("i");
    let (a, b) = (k.var(i), k.var(7u32));
    k.loop_(|| {
        k.for_range(0, i, |j| {
            j.named("j");
            k.if_else(j.eq(3), || a.set(a.get()), || b.set(b.get()));
            k.if_(j.eq(6), || {
                a.set(99);
                k.return_();
            });
            k.if_(j.eq(5), || k.continue_());
            k.region("nothing", || a.set(a.get()));
        });
        k.if_(a.get().eq(b.get()), || k.break_());
        b.set(7);
    });
    y.store(a.get(), b.get());
});

// Errors.

/// Records the line of the error.
macro_rules! here {
    ($line:ident, $mistake:expr) => {{
        $line.set(line!());
        $mistake
    }};
}

/// Builds a program with an error on the line that the closure records, and checks location and message.
#[track_caller]
fn check_mistake(said: &str, body: impl FnOnce(&Kernel, &Cell<u32>)) {
    let line = Cell::new(0);
    let error = kernel("p", [64, 1, 1], |k| body(k, &line)).unwrap_err();
    let Error::Build { location, mistake } = &error else { panic!("{error}") };
    assert_eq!((location.file(), location.line()), (file!(), line.get()), "{mistake}");
    assert!(mistake.contains(said), "{mistake}");
    assert_eq!(error.code(), "F001");
}

#[test]
fn code_after_an_exit_is_rejected() {
    let after = "unreachable code";
    check_mistake("unreachable code after `return`", |k, line| {
        k.return_();
        here!(line, k.global_index());
    });
    check_mistake("unreachable code after `break`", |k, line| {
        k.loop_(|| {
            k.break_();
            here!(line, k.continue_());
        });
    });
    check_mistake("unreachable code after `trap`", |k, line| {
        k.trap(1);
        here!(line, k.if_(true, || ()));
    });
    check_mistake("unreachable code after `if`", |k, line| {
        k.loop_(|| {
            k.if_else(true, || k.break_(), || k.continue_());
            here!(line, k.workgroup_barrier());
        });
    });
    check_mistake("unreachable code after `loop`", |k, line| {
        k.loop_(|| k.if_(true, || k.return_()));
        here!(line, k.print("", ()));
    });
    check_mistake(after, |k, line| {
        let v = k.var(1u32);
        k.return_();
        here!(line, v.set(2));
    });
    check_mistake(after, |k, line| {
        k.region("op", || k.return_());
        here!(line, k.var(1u32));
    });
    check_mistake(after, |k, line| {
        let done = || {
            k.return_();
            k.lit(true)
        };
        here!(line, k.while_(done, || ()));
    });
}

#[test]
fn loop_exits_outside_of_loops_are_rejected() {
    check_mistake("there is no loop around this `break`", |k, line| here!(line, k.break_()));
    check_mistake("there is no loop around this `continue`", |k, line| {
        k.if_(true, || here!(line, k.continue_()));
    });
}

#[test]
fn values_out_of_scope_are_rejected() {
    let ended = "this value is out of scope";
    check_mistake(ended, |k, line| {
        let inside = Cell::new(None);
        k.if_(true, || inside.set(Some(k.global_index())));
        let _ = here!(line, inside.get().unwrap() + 1);
    });
    check_mistake(ended, |k, line| {
        let inside = Cell::new(k.lit(0));
        k.if_else(true, || inside.set(k.global_index()), || here!(line, k.print("{}", inside.get())));
    });
    check_mistake(ended, |k, line| {
        let counter = Cell::new(k.lit(0));
        k.for_range(0, 4, |i| counter.set(i));
        let _ = here!(line, 1 + counter.get());
    });
    check_mistake(ended, |k, line| {
        let inside = Cell::new(k.lit(false));
        k.loop_(|| {
            inside.set(k.global_index().eq(0));
            k.break_();
        });
        here!(line, k.if_(inside.get(), || k.break_()));
    });
    check_mistake(ended, |k, line| {
        let inside = k.local_index();
        let escaped = Cell::new(inside);
        k.region("op", || escaped.set(k.local_index()));
        here!(line, k.if_else(true, || escaped.get(), || inside));
    });
}

#[test]
fn variables_out_of_scope_are_rejected() {
    let ended = "this variable is out of scope";
    check_mistake(ended, |k, line| {
        let outside = Cell::new(k.var(0u32));
        k.if_(true, || outside.set(k.var(1)));
        let _ = here!(line, outside.get().get());
    });
    check_mistake(ended, |k, line| {
        let outside = Cell::new(k.var(0u32));
        k.loop_(|| {
            outside.set(k.var(1));
            k.break_();
        });
        // Another variable of the same block does not take its index.
        k.var(2u32);
        here!(line, outside.get().set(3));
    });
}

#[test]
fn values_of_other_kernels_are_rejected() {
    let other = "this value belongs to another kernel";
    check_mistake(other, |k, line| {
        let mine = k.global_index();
        let inner = kernel("inner", [1, 1, 1], |k| {
            let _ = here!(line, mine + k.global_index());
        });
        assert!(inner.is_ok(), "the error belongs to the kernel that takes the value");
    });
    let line = Cell::new(0);
    let outer = kernel("outer", [1, 1, 1], |outer| {
        // An id out of range of the inner kernel.
        let theirs = outer.global_index() + 1 + 2 + 3 + 4;
        check_mistake(other, |k, at| {
            let v = k.var(0);
            here!(at, v.set(theirs));
            k.loop_(|| k.if_(v.get().eq(0), || k.break_()));
            line.set(at.get());
        });
    });
    assert!(outer.is_ok() && line.get() > 0);
}

#[test]
fn invalid_and_duplicate_names_are_rejected() {
    check_mistake("`7` cannot be a name", |k, line| {
        here!(line, k.global_index().named("7"));
    });
    check_mistake("`a b` cannot be a name", |k, line| {
        let _ = here!(line, k.var(0u32).named("a b"));
    });
    check_mistake("`true` cannot be a name", |k, line| {
        here!(line, k.read::<f32>("true"));
    });
    check_mistake("`x` is declared twice", |k, line| {
        k.read::<f32>("x");
        here!(line, k.constant("x", 1u32));
    });
    let (line, error) = (line!(), kernel("", [1, 1, 1], |_| ()).unwrap_err());
    assert!(matches!(error, Error::Build { location, .. } if location.line() == line), "{error}");
}

#[test]
fn declaration_errors_name_the_call() {
    check_mistake("`x` has no elements", |k, line| {
        let _ = here!(line, k.read::<u8>("x").with_length(0));
    });
    check_mistake("the workgroup arrays take 65536 bytes, more than 32768", |k, line| {
        k.workgroup::<f32>("a", 64);
        here!(line, k.workgroup::<f32>("b", 16320));
    });
    check_mistake("a launch of [0, 1, 1] invocations is empty or has 2^32 or more", |k, line| {
        here!(line, k.launch([0, 1, 1]));
    });
    let (line, error) = (line!(), kernel("p", [4096, 1, 1], |_| ()).unwrap_err());
    assert!(matches!(error, Error::Build { location, .. } if location.line() == line), "{error}");
}

#[test]
fn instruction_errors_name_the_call() {
    check_mistake("element 64 of `tile` is out of bounds", |k, line| {
        let tile = k.workgroup::<f32>("tile", 64);
        let _ = here!(line, tile.load_wide::<4>(61));
    });
    check_mistake("`bitcast` from u32 to u64 changes the width", |k, line| {
        let _ = here!(line, k.global_index().bitcast::<u64>());
    });
    check_mistake("the text has 1 `{}`, but there are 2 operands", |k, line| {
        let i = k.global_index();
        here!(line, k.print("{}", (i, i)));
    });
    check_mistake("duplicate case 3", |k, line| {
        here!(line, k.switch_(k.global_index(), [3, 3], |_| ()));
    });
    check_mistake("an atomic access to `hits` takes a single element", |k, line| {
        let hits = k.atomic::<u32>("hits");
        here!(line, hits.store_wide(0, [1, 2]));
    });
}

#[test]
fn nesting_errors_name_the_call() {
    fn nest(k: &Kernel, depth: usize, line: &Cell<u32>) {
        if depth < 64 {
            k.if_(true, || nest(k, depth + 1, line));
        } else {
            here!(line, k.if_(true, || ()));
        }
    }
    check_mistake("blocks are nested 65 deep, more than 64", |k, line| nest(k, 0, line));
}

#[test]
fn only_the_first_error_is_reported() {
    check_mistake("`1` cannot be a name", |k, line| {
        let v = k.var(0u32);
        let foreign = here!(line, k.global_index().named("1"));
        k.break_();
        k.loop_(|| v.set(foreign));
        k.if_(v.get().eq(k.read::<u8>("2").load(0)), || k.return_());
    });
}

#[test]
fn instructions_have_the_location_of_their_call() {
    let line = line!() + 2;
    let mut program = build("p", [1, 1, 1], |k| {
        k.loop_(|| {
            k.if_(k.global_index().eq(1), || k.trap(7));
        });
    });
    program.compact();
    let mut lines = Vec::new();
    program.walk(|id, _| {
        let inst = program.inst(id);
        if matches!(inst.op, Op::Control(Control::Loop) | Op::Terminator(Terminator::Trap)) {
            lines.push(program.locate(inst.span).map(|loc| (loc.file().to_owned(), loc.line())));
        }
    });
    assert_eq!(lines, [Some((file!().to_owned(), line)), Some((file!().to_owned(), line + 1))]);
}
