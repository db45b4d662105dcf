//! Lists the planted bugs for `cargo xtask mutants`: name, place and what goes wrong, with tabs in between.

use vyre_foundation::planted::TABLE;

fn main() {
    for row in TABLE {
        println!("{}\t{:?}\t{}", row.name, row.place, row.doc.trim());
    }
}
