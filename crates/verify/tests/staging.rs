//! Pools of packets: what tasks take of them, what a program must give, how it is written.

use crate::hand;

use hand::*;
use partita_program::*;
use partita_space::{Axis, AxisSet, Bytes, Mesh};
use partita_verify::{Fault, Faults, verify};

const FACE: u64 = 64;

#[test]
fn a_pool_holds_its_largest_task_where_packets_are_copied_and_two_where_they_are_moved() {
    let program = line(5);
    // The middle sends to both sides and receives from both, of which each is less than a line of memory.
    assert_eq!(program.bodies[2].staging.exchange, Bytes(4 * FACE));
    assert_eq!(program.bodies[0].staging.exchange, Bytes(2 * FACE));
    // The gather of the line: a packet for each of four others, four that come, and the own part is kept.
    let gathered = 8 * 64;
    let library = 64 + (4 * CHANNELS * SHARE * 5) as u64;
    assert!(gathered > library);
    assert_eq!(program.bodies[2].staging.collective, Bytes(gathered));
    let body = &program.bodies[2];
    assert_eq!(body.memory(), body.arena + body.staging.total());
    assert_eq!(
        program.memory_max(),
        body.memory().max(program.bodies[1].memory())
    );

    // Sums of one element, alone with nothing before or after them.
    let mut body = program.bodies[2].clone();
    let is_sum =
        |task: &Task| matches!(&task.work, Work::Collective(it) if it.kind.name() == "allreduce");
    body.tasks.retain(is_sum);
    body.tasks.iter_mut().for_each(|task| task.after.clear());
    // Each sends its addend to four others, and receives four.
    assert_eq!(Staging::of(&body, &program.mesh).collective, Bytes(8 * 64));
    let moved = Packets::of(&body.tasks[0], &body, &program.mesh);
    assert_eq!(moved.bytes(BufferTransfer::Moved), Bytes(4 * 64));
    assert_eq!(moved.bytes(BufferTransfer::Copied), Bytes(8 * 64));
}

#[test]
fn large_sums_go_in_chunks_and_come_back() {
    const ELEMENTS: usize = 10_001;
    let mut body = line(3).bodies[0].clone();
    body.buffers[DW as usize].dims = [1, 1, 1, 1, ELEMENTS];
    let view = body.buffers[DW as usize].view(BufferId(DW));
    let collective = |kind| Collective {
        sequence: 0,
        group: AxisSet::of([Axis::Data]),
        submesh: None,
        kind,
    };
    let mesh = Mesh::new([3, 1, 1, 1, 1, 1, 1]);
    let sum = Packets::of_collective(
        &collective(CollectiveKind::AllReduce { views: vec![view] }),
        &body,
        &mesh,
    );
    let chunk = (Dtype::F32, ELEMENTS.div_ceil(3));
    // Two others get an addend each; theirs come, and later their sums.
    assert_eq!(
        sum.taken(BufferTransfer::Moved).collect::<Vec<_>>(),
        [chunk; 2]
    );
    assert_eq!(sum.taken(BufferTransfer::Copied).count(), 2 + 4);
    // Elements apart are packed first.
    let mut apart = view;
    apart.extent[4] = 5_000;
    body.buffers[DW as usize].dims = [1, 1, 1, 2, ELEMENTS];
    apart.extent[3] = 2;
    let packed = Packets::of_collective(
        &collective(CollectiveKind::AllReduce { views: vec![apart] }),
        &body,
        &mesh,
    );
    let sizes: Vec<PacketSize> = packed.taken(BufferTransfer::Moved).collect();
    assert_eq!(sizes[0], (Dtype::F32, 10_000));
    assert_eq!(sizes.len(), 3);
}

#[test]
fn pools_that_lack_a_byte_are_refused_with_the_task() {
    type Pool = fn(&mut Staging) -> &mut Bytes;
    let pools: [(Pool, &str, &str); 3] = [
        (|it| &mut it.exchange, "exchange", "exchange of conv"),
        (|it| &mut it.collective, "collective", "allgather of line"),
        (|it| &mut it.io, "io", "load of input"),
    ];
    for (pool, lane, site) in pools {
        let mut program = line(5);
        assert_eq!(verify(&program), Ok(()));
        let bytes = pool(&mut program.bodies[2].staging);
        // Both loads are held at a time, so that one alone needs less.
        bytes.0 = if lane == "io" { 1 } else { bytes.0 - 1 };
        let Faults(faults) = verify(&program).unwrap_err();
        let only = |fault: &Fault| matches!(fault, Fault::StagingSmall { .. });
        assert!(faults.iter().all(only), "{faults:?}");
        let text = Faults(faults).to_string();
        assert!(
            text.contains(site) && text.contains(&format!("the {lane} lane")),
            "{text}"
        );
    }
}

#[test]
fn texts_and_digests_hold_the_pools() {
    let program = line(3);
    let text = program.to_text();
    let Staging {
        exchange,
        collective,
        io,
    } = program.bodies[0].staging;
    let expected = format!(
        "  staging exchange={} collective={} io={}\n",
        exchange.0, collective.0, io.0
    );
    assert!(text.contains(&expected), "{text}");
    let mut other = program.clone();
    other.bodies[0].staging.io.0 += 1;
    assert_ne!(other.digest(), program.digest());
    // A text without them says that there are none.
    let without: String = text
        .lines()
        .filter(|line| !line.starts_with("  staging"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let read = Program::parse(&without).unwrap();
    assert_eq!(read.bodies[0].staging, Staging::default());
    assert!(verify(&read).is_err());
    for wrong in [
        "exchange=1 collective=2",
        "exchange=1 collective=-2 io=3",
        "io=1 exchange=2 collective=3",
        "exchange=1 collective=2 io=3 more=4",
    ] {
        let text = text.replacen(expected.trim(), &format!("staging {wrong}"), 1);
        let error = Program::parse(&text).unwrap_err();
        let line = text.lines().position(|line| line.contains(wrong));
        assert_eq!(Some(error.line - 1), line, "{error}");
    }
}
