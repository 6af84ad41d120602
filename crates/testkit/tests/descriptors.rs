//! The descriptor of a kernel tells of everything that the kernel has.

use partita_program::descriptor::SumRole;
use partita_program::{Dtype, Kernel, View};
use partita_space::Mesh;
use partita_testkit::Maker;
use std::collections::BTreeMap;

fn kernels() -> Vec<Kernel> {
    let mesh = Mesh::new([2, 1, 2, 1, 1, 1, 1]);
    let of_seed = |seed| Maker::new(seed, Dtype::F64).all(&mesh, 1);
    (0..20).flat_map(of_seed).collect()
}

fn sorted(mut views: Vec<View>) -> Vec<String> {
    views.sort_by_key(|view| (view.buffer, view.start, view.extent));
    views.iter().map(View::to_string).collect()
}

/// What goes through the fields and what the descriptor lists are the same views.
#[test]
fn every_view_is_an_operand() {
    for kernel in kernels() {
        let mut fields = Vec::new();
        let mut copy = kernel.clone();
        copy.each_view_mut(&mut |view| fields.push(*view));
        let operands = kernel
            .descriptor()
            .operands
            .iter()
            .map(|operand| *operand.view)
            .collect();
        assert_eq!(sorted(operands), sorted(fields), "{kernel:?}");
    }
}

/// Names are keys of caches and reports: one for each kind and function.
#[test]
fn every_kind_has_a_name_of_its_own() {
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    let all = kernels();
    for part in all.iter().flat_map(Kernel::parts) {
        let mut text = format!("{part:?}");
        text.truncate(text.find(',').unwrap_or(text.len()));
        let is_plain = !text.contains("function");
        if is_plain {
            text.truncate(text.find(' ').unwrap_or(text.len()));
        }
        let known = names.entry(part.name()).or_insert_with(|| text.clone());
        assert_eq!(*known, text, "both are named {}", part.name());
    }
    assert_eq!(Maker::kinds(&all), Maker::KINDS);
}

/// What is said of sums agrees with how an operand is touched.
#[test]
fn results_are_written_and_the_rest_is_read() {
    let all = kernels();
    for part in all.iter().flat_map(Kernel::parts) {
        for operand in part.descriptor().operands {
            let agrees = match operand.sum_role {
                SumRole::Result(_) => operand.access.writes(),
                SumRole::Complete
                | SumRole::Statistics
                | SumRole::OfStep
                | SumRole::Linear
                | SumRole::Factor => operand.access.reads(),
            };
            assert!(agrees, "{} of {part:?}", operand.name);
        }
    }
}
