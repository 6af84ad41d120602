//! Partial sums that are not reduced, reduced over other ranks, or not partial at all.

use crate::hand;

use hand::*;
use partita_program::{BufferId, CollectiveKind, Kernel, Program};
use partita_space::{Axis, AxisList, AxisSet, Region};
use partita_verify::{BufferRegion, Fault, verify};

/// Faults of the program over three ranks after a change to all of its bodies.
fn faults(change: fn(&mut Program, usize)) -> Vec<Fault> {
    let mut program = line(3);
    (0..3).for_each(|class| change(&mut program, class));
    verify(&program).map_or_else(|faults| faults.0, |()| Vec::new())
}

fn assert_found(change: fn(&mut Program, usize), expected: fn(&Fault) -> bool) {
    let found = faults(change);
    assert!(found.iter().any(expected), "{found:#?}");
}

fn width() -> AxisSet {
    AxisSet::of([Axis::Width])
}

fn is_all_of(spot: &BufferRegion, name: &str, shape: [usize; 5]) -> bool {
    spot.name == name && spot.region == Region::all(shape)
}

#[test]
fn whole_programs_have_every_sum_reduced() {
    assert_eq!(faults(|_, _| ()), []);
}

#[test]
fn sums_that_are_missing() {
    assert_found(
        |p, class| collective(p, class, SUM_WEIGHT).group = AxisSet::NONE,
        |fault| {
            matches!(fault, Fault::PartialSumRead { spot, axes, .. }
                if is_all_of(spot, "dw", [1, 1, 3, CHANNELS, CHANNELS]) && *axes == width())
        },
    );
    assert_found(
        |p, class| collective(p, class, SUM_LOSS).group = AxisSet::NONE,
        |fault| {
            matches!(fault, Fault::OutputPartial { name, spot, .. }
                if name == "loss" && is_all_of(spot, "loss", [1; 5]))
        },
    );
}

#[test]
fn sums_of_what_is_not_partial() {
    assert_found(
        |p, class| {
            if let CollectiveKind::AllReduce { views } = &mut collective(p, class, SUM_TOTAL).kind {
                views[0].buffer = BufferId(LOSS);
            }
        },
        |fault| {
            matches!(fault, Fault::NotPartial { spot, group, .. }
                if spot.name == "loss" && *group == width())
        },
    );
    assert_found(
        |p, class| {
            if let Kernel::SumOfSquares { sources, .. } = kernel_of(p, class, NORM) {
                sources.push(part(LINE, 0, 12));
            }
        },
        |fault| matches!(fault, Fault::PartialSumsMixed { spot, .. } if spot.name == "total"),
    );
}

#[test]
fn weights_that_lie_another_way_than_what_they_multiply() {
    // The channels that the weights read are on the ranks of the line, those of x are not.
    fn split(program: &mut Program, class: usize) {
        let mut tensor = program.bodies[class].buffers[X as usize].tensor;
        if let Some(tensor) = &mut tensor {
            tensor.distribution.axes = Default::default();
            tensor.distribution.axes[3] = AxisList::of([Axis::Width]);
        }
        program.bodies[class].buffers[W as usize].tensor = tensor;
    }
    assert_found(split, |fault| {
        let is_width = |rows: AxisList| rows == AxisList::of([Axis::Width]);
        matches!(fault, Fault::WeightsMisplaced { rows, columns, .. }
            if is_width(*rows) && columns.is_empty())
    });
}
