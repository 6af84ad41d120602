//! Sums over ranks that are not taken, taken over others, or of what are no addends.

mod hand;

use hand::*;
use partita_program::verify::{Fault, verify};
use partita_program::{BufferId, CollectiveKind, Kernel, Program};
use partita_space::{Axis, AxisList, AxisSet};

/// Faults of the program over three ranks after a change to all of its bodies, but those of members
/// and parts.
fn found(change: fn(&mut Program, usize)) -> Vec<String> {
    let mut program = line(3);
    (0..3).for_each(|class| change(&mut program, class));
    let faults = verify(&program).map_or_else(|faults| faults.0, |()| Vec::new());
    let sums = faults.iter().filter_map(|fault| match fault {
        Fault::Due { .. } | Fault::OutputDue { .. } => Some(fault.to_string()),
        _ => None,
    });
    sums.collect()
}

fn assert_found(change: fn(&mut Program, usize), expected: &str) {
    let found = found(change);
    assert!(
        found.iter().any(|fault| fault.contains(expected)),
        "{expected}: {found:?}"
    );
}

#[test]
fn whole_programs_have_no_sum_due() {
    assert!(found(|_, _| ()).is_empty());
}

#[test]
fn sums_that_are_missing() {
    assert_found(
        |p, class| collective(p, class, SUM_WEIGHT).group = AxisSet::NONE,
        "b9[0:1,0:1,0:3,0:2,0:2] (dw) holds addends of a sum due along width, read as if",
    );
    assert_found(
        |p, class| collective(p, class, SUM_LOSS).group = AxisSet::NONE,
        "output `loss`, b10[0:1,0:1,0:1,0:1,0:1] (loss), is an addend of a sum still due",
    );
}

#[test]
fn sums_of_what_are_no_addends() {
    assert_found(
        |p, class| {
            if let CollectiveKind::AllReduce { view } = &mut collective(p, class, SUM_TOTAL).kind {
                view.buffer = BufferId(LOSS);
            }
        },
        "(loss) holds no addends, and is summed along width",
    );
    assert_found(
        |p, class| {
            if let Kernel::SumOfSquares { sources, .. } = kernel_of(p, class, NORM) {
                sources.push(part(LINE, 0, 12));
            }
        },
        "(total) gets addends of different sums",
    );
}

#[test]
fn weights_that_lie_another_way_than_what_they_multiply() {
    // The channels that the weights read are on the ranks of the line, those of x are not.
    fn split(program: &mut Program, class: usize) {
        let mut home = program.bodies[class].buffers[X as usize].home;
        if let Some(home) = &mut home {
            home.place.axes = Default::default();
            home.place.axes[3] = AxisList::of([Axis::Width]);
        }
        program.bodies[class].buffers[W as usize].home = home;
    }
    assert_found(split, "the weights are on `width` and");
}
