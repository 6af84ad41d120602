//! What passes between a device and the host in a step: the boxes of messages, and no whole tensors.

use crate::device;
use partita_gpu::{Device, DeviceTraffic, GpuKernels, GpuMenu};
use partita_program::{Body, Dtype, ProgramKind, Role, Work};
use partita_run::Kernels;
use partita_space::{Mesh, Rank};
use partita_testkit::{Case, Setup, any_random_case, run_programs, seeds};
use std::sync::Arc;

const CASES: u64 = 24;

/// Traffic of all ranks in a step.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    /// Bytes of messages, outputs, and the parameters that the test looks at after each step.
    read: u64,
    /// What may come on top: gaps between the boxes of a message, and checks of classes.
    slack: u64,
    /// Bytes of received messages and of samples.
    written: u64,
    /// The most: one for each message, whatever its boxes and what is received, and one for each load, output and parameter.
    waits: u64,
}

fn add_body(expected: &mut Expected, body: &Body, names: &[&str]) {
    let is_read = |buffer: &&partita_program::Buffer| {
        let name = buffer.name.split('@').next().unwrap_or_default();
        buffer.role.is_persistent() && buffer.role != Role::Staging && names.contains(&name)
    };
    let read: Vec<u64> = body
        .buffers
        .iter()
        .filter(is_read)
        .map(|buffer| buffer.bytes().0)
        .collect();
    let outputs: usize = body.outputs.iter().map(|output| output.view.volume()).sum();
    let count = body.count();
    expected.read += count.message_bytes.0 + count.collective_bytes.0 + 8 * outputs as u64;
    expected.read += read.iter().sum::<u64>();
    expected.written += count.load_bytes.0;
    // Two at the end: for the kernels, and for failures after the outputs. Either may ask for classes.
    expected.waits += (read.len() + body.outputs.len() + 4) as u64;
    for task in &body.tasks {
        let boxes = match &task.work {
            Work::Exchange(exchange) => {
                for receive in &exchange.receives {
                    expected.written += receive.view.bytes(&body.buffers).0;
                }
                exchange.sends.len()
            }
            Work::Collective(collective) => {
                for view in collective.kind.targets().iter() {
                    expected.written += view.bytes(&body.buffers).0;
                }
                collective.kind.sources().len()
            }
            Work::Load(_) | Work::Store(_) => 0,
            Work::Compute { .. } => continue,
        };
        expected.slack += 8 * boxes as u64;
        expected.waits += 1;
    }
    expected.slack += 16 * expected.waits;
}

/// Traffic of a training of this many steps, on a device that nobody else uses.
fn traffic(case: &Case, steps: usize) -> Option<(DeviceTraffic, Expected)> {
    let kind = device::device("only_boxes_of_messages_leave_a_device")?
        .facts()
        .kind;
    let device = Arc::clone(&Device::open_all(kind).unwrap()[0]);
    let menu = GpuMenu {
        units: device.facts().units,
    };
    let kernels = |mesh: Mesh, rank: Rank| -> Box<dyn Kernels> {
        Box::new(GpuKernels::new(Arc::clone(&device), mesh, rank).unwrap())
    };
    let setup = Setup {
        dtype: Dtype::F32,
        menu: &menu,
        steps,
        ..Setup::of_case(case, &kernels)
    };
    let kinds = [
        ProgramKind::Fetch,
        ProgramKind::Train,
        ProgramKind::Evaluate,
    ];
    let programs = kinds.map(|kind| setup.program(kind).unwrap());
    run_programs(&setup, &programs).unwrap();
    let names: Vec<&str> = case
        .graph
        .parameters
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    let mut expected = Expected::default();
    for rank in 0..programs[1].mesh.ranks() {
        add_body(&mut expected, programs[1].body(rank), &names);
    }
    Some((device.traffic(), expected))
}

#[test]
fn only_boxes_of_messages_leave_a_device() {
    for seed in seeds(CASES, 4, CASES) {
        let case = any_random_case(seed);
        let (Some((one, _)), Some((mut two, expected))) = (traffic(&case, 1), traffic(&case, 2))
        else {
            return;
        };
        // On a busy machine messages come late, and ranks wait more often.
        for _ in 0..3 {
            if two.waits.saturating_sub(one.waits) <= expected.waits {
                break;
            }
            two.waits = traffic(&case, 2).map_or(two.waits, |(again, _)| again.waits);
        }
        let read = two.read.0 - one.read.0;
        let written = two.written.0 - one.written.0;
        let waits = two.waits.saturating_sub(one.waits);
        let is_expected = (expected.read..=expected.read + expected.slack).contains(&read)
            && written == expected.written
            && waits <= expected.waits;
        assert!(
            is_expected,
            "seed {seed}, strategy {}: {read} bytes read, {written} written, {waits} waits; {expected:?}",
            case.strategy
        );
    }
}
