//! Reduce-scatters and all-to-alls on ranks that are threads, against sums and parts made by hand.

mod hand;

use hand::bodies::{add_buffer, add_task, all_reduce};
use hand::rank::{IntoElement, addend, data_mesh, get, no_samples, part, runner, set, whole};
use partita_program::{Body, Collective, CollectiveKind, Dtype, Staging, TaskId, View, Work};
use partita_run::{Arena, Element, Inputs, Transport};
use partita_space::{Axis, AxisSet, Mesh, Seconds};
use partita_threads::{connect, launch};
use std::fmt::Debug;
use std::ops::AddAssign;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const STEPS: usize = if cfg!(miri) { 2 } else { 3 };

/// Where the elements of the collectives lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lay {
    /// Side by side.
    Dense,
    /// With gaps between them.
    Gaps,
    /// The sources with gaps, the targets side by side.
    Gathered,
}

fn group() -> AxisSet {
    AxisSet::of([Axis::Data])
}

fn collective(sequence: u32, kind: CollectiveKind) -> Work {
    Work::Collective(Collective {
        sequence,
        group: group(),
        submesh: None,
        kind,
    })
}

/// A view of this many elements along dim 3, in a buffer of its own.
fn row(body: &mut Body, dtype: Dtype, length: usize, has_gaps: bool) -> View {
    let (rows, columns) = if has_gaps { (2, 3) } else { (1, 1) };
    let id = add_buffer(body, dtype, [1, 1, rows, length, columns]);
    let all = body.buffer(id).view(id);
    part(&part(&all, 2, rows / 2, 1), 4, columns / 2, 1)
}

/// Consecutive parts of a row.
fn parts(row: &View, sizes: &[usize]) -> Vec<View> {
    let mut start = 0;
    let one = |&size: &usize| {
        start += size;
        part(row, 3, start - size, size)
    };
    sizes.iter().map(one).collect()
}

/// A sum of all shares by an allreduce, and of each member's by a reduce-scatter.
fn sum_body(rank: usize, shares: &[usize], dtype: Dtype, lay: Lay, in_place: bool) -> Body {
    let mut body = Body::default();
    let length = shares.iter().sum();
    let whole = row(&mut body, dtype, length, lay != Lay::Dense);
    let addends = row(&mut body, dtype, length, lay != Lay::Dense);
    let apart = row(&mut body, dtype, shares[rank], lay == Lay::Gaps);
    add_task(&mut body, "sum", &[], all_reduce(3, group(), whole));
    let sources = parts(&addends, shares);
    let target = if in_place { sources[rank] } else { apart };
    let sources = sources.into();
    let scatter = CollectiveKind::ReduceScatter { sources, target };
    add_task(&mut body, "share", &[], collective(4, scatter));
    body
}

fn views(body: &Body, task: usize) -> &CollectiveKind {
    match &body.tasks[task].work {
        Work::Collective(collective) => &collective.kind,
        other => panic!("{} is no collective", other.name()),
    }
}

/// In every step, another rank is late.
fn be_late(rank: usize, ranks: usize, step: usize) {
    if rank == step % ranks {
        std::thread::sleep(Duration::from_micros(300));
    }
}

fn check_sum<T>(shares: &[usize], dtype: Dtype, lay: Lay, in_place: bool)
where
    T: Element + AddAssign + PartialEq + Debug,
    f64: IntoElement<T>,
{
    let (ranks, length) = (shares.len(), shares.iter().sum());
    let of_step = |rank: usize, step: usize| addend::<T>(10 * step + rank, length);
    let mesh = data_mesh(ranks);
    let cancel = AtomicBool::new(false);
    let what = format!("{shares:?} {dtype:?} {lay:?} in place: {in_place}");
    launch(connect(mesh, Seconds(1e-4)), &cancel, |rank, transport| {
        let body = sum_body(rank, shares, dtype, lay, in_place);
        let (sum, sources, target) = match (views(&body, 0), views(&body, 1)) {
            (
                CollectiveKind::AllReduce { views },
                CollectiveKind::ReduceScatter { sources, target },
            ) => (&views[0], sources, target),
            other => panic!("{other:?}"),
        };
        let mut runner = runner(mesh, rank, &body, transport, no_samples(), &cancel);
        let start = shares[..rank].iter().sum();
        for step in 0..STEPS {
            let values = of_step(rank, step);
            let mut rest = values.as_slice();
            for source in sources.views().iter() {
                let (mine, after) = rest.split_at(source.volume());
                set(&mut runner, &body, &source, mine);
                rest = after;
            }
            set(&mut runner, &body, sum, &values);
            be_late(rank, ranks, step);
            runner.step(&body, &Inputs::default())?;
            let mut expected = of_step(0, step);
            for other in 1..ranks {
                let pairs = expected.iter_mut().zip(of_step(other, step));
                pairs.for_each(|(sum, value)| *sum += value);
            }
            let share = &expected[start..start + shares[rank]];
            let got = get::<T>(&mut runner, &body, target);
            assert!(got == share, "rank {rank}, {what}: {got:?}");
            assert!(get::<T>(&mut runner, &body, sum) == expected, "{what}");
            for (place, source) in sources.views().iter().enumerate() {
                let start: usize = shares[..place].iter().sum();
                let kept = &values[start..start + shares[place]];
                let is_kept = get::<T>(&mut runner, &body, &source) == kept;
                assert!(is_kept || source == *target, "{what}: source {place}");
            }
        }
        // What lies in the gaps is left alone.
        let all = get::<T>(&mut runner, &body, &whole(&body, target.buffer.0));
        let filled = all.iter().filter(|&&value| value != T::default()).count();
        assert!(filled <= if in_place { length } else { shares[rank] });
        Ok(())
    })
    .expect("every rank ends well");
}

#[test]
fn shares_of_a_sum_are_the_bits_of_an_allreduce() {
    // Below and above a block of additions, none alike, and members without a share.
    // Blocks are small under Miri.
    let (sizes, ranks) = if cfg!(miri) {
        ([2, 0, 37, 1, 35], 3..=3)
    } else {
        ([2, 0, 3001, 1, 2100], 2..=5)
    };
    for ranks in ranks {
        let mut backwards = sizes[..ranks].to_vec();
        backwards.reverse();
        for shares in [vec![3; ranks], sizes[..ranks].to_vec(), backwards] {
            for lay in [Lay::Dense, Lay::Gaps, Lay::Gathered] {
                for in_place in [false, true] {
                    check_sum::<f32>(&shares, Dtype::F32, lay, in_place);
                    // Under Miri one type serves for all.
                    if !cfg!(miri) {
                        check_sum::<f64>(&shares, Dtype::F64, lay, in_place);
                    }
                }
            }
        }
    }
}

/// Elements that a member sends to another one.
type Size = fn(usize, usize) -> usize;

fn turn_body(rank: usize, ranks: usize, size: Size, dtype: Dtype, lay: Lay) -> Body {
    let mut body = Body::default();
    let sent: Vec<usize> = (0..ranks).map(|to| size(rank, to)).collect();
    let received: Vec<usize> = (0..ranks).map(|from| size(from, rank)).collect();
    let source = row(&mut body, dtype, sent.iter().sum(), lay != Lay::Dense);
    let target = row(&mut body, dtype, received.iter().sum(), lay == Lay::Gaps);
    let turn = CollectiveKind::AllToAll {
        sources: parts(&source, &sent).into(),
        targets: parts(&target, &received).into(),
    };
    add_task(&mut body, "turn", &[], collective(5, turn));
    body
}

fn check_turn<T>(ranks: usize, size: Size, dtype: Dtype, lay: Lay)
where
    T: Element + AddAssign + PartialEq + Debug,
    f64: IntoElement<T>,
{
    let part = |from: usize, to: usize, step: usize| -> Vec<T> {
        let number = |i: usize| (1000 * (10 * (10 * step + from) + to) + i + 1) as f64;
        (0..size(from, to))
            .map(|i| number(i).into_element())
            .collect()
    };
    let mesh = data_mesh(ranks);
    let cancel = AtomicBool::new(false);
    launch(connect(mesh, Seconds(1e-4)), &cancel, |rank, transport| {
        let body = turn_body(rank, ranks, size, dtype, lay);
        let CollectiveKind::AllToAll { sources, targets } = views(&body, 0) else {
            panic!("the body holds an all-to-all");
        };
        let mut runner = runner(mesh, rank, &body, transport, no_samples(), &cancel);
        for step in 0..STEPS {
            for (to, source) in sources.views().iter().enumerate() {
                set(&mut runner, &body, &source, &part(rank, to, step));
            }
            be_late(rank, ranks, step);
            runner.step(&body, &Inputs::default())?;
            for (from, target) in targets.views().iter().enumerate() {
                let got = get::<T>(&mut runner, &body, &target);
                assert_eq!(got, part(from, rank, step), "{from} to {rank} of {ranks}");
            }
        }
        let all = get::<T>(&mut runner, &body, &whole(&body, 1));
        let filled = all.iter().filter(|&&value| value != T::default()).count();
        assert_eq!(
            filled,
            targets
                .views()
                .iter()
                .map(|view| view.volume())
                .sum::<usize>()
        );
        Ok(())
    })
    .expect("every rank ends well");
}

#[test]
fn every_part_of_an_all_to_all_arrives_where_it_belongs() {
    let sizes: [Size; 4] = [
        |_, _| 4,
        // Uneven and some empty, other than back.
        |from, to| (3 * from + 2 * to) % 5,
        // Only to the next one, and none to itself.
        |from, to| match (to == from + 1, cfg!(miri)) {
            (true, true) => 20,
            (true, false) => 600,
            (false, _) => 0,
        },
        |_, _| 0,
    ];
    for ranks in if cfg!(miri) { 3..=3 } else { 2..=5 } {
        for size in sizes {
            for lay in [Lay::Dense, Lay::Gaps, Lay::Gathered] {
                check_turn::<f32>(ranks, size, Dtype::F32, lay);
                // As above.
                if !cfg!(miri) {
                    check_turn::<f64>(ranks, size, Dtype::F64, lay);
                }
            }
        }
    }
}

#[test]
fn groups_that_overlap_and_kinds_that_share_a_step() {
    let mesh = Mesh::new([2, 3, 1, 1, 1, 1, 1]);
    let mut body = Body::default();
    let groups = [Axis::Data, Axis::Depth].map(|axis| AxisSet::of([axis]));
    let mut all = Vec::new();
    // None waits for another: all are under way at once.
    for (sequence, group) in [0, 1, 0, 1].map(|at| groups[at]).into_iter().enumerate() {
        let members = mesh.group_size(group);
        let sizes = vec![2; members];
        let source = row(&mut body, Dtype::F64, 2 * members, false);
        let sources = parts(&source, &sizes).into();
        let kind = if sequence < 2 {
            let target = row(&mut body, Dtype::F64, 2, false);
            CollectiveKind::ReduceScatter { sources, target }
        } else {
            let target = row(&mut body, Dtype::F64, 2 * members, false);
            let targets = parts(&target, &sizes).into();
            CollectiveKind::AllToAll { sources, targets }
        };
        all.push((group, source, kind.targets().to_vec()));
        let work = Work::Collective(Collective {
            sequence: sequence as u32,
            group,
            submesh: None,
            kind,
        });
        add_task(&mut body, "together", &[], work);
    }
    let value = |rank: usize, step: usize, i: usize| (100 * rank + 10 * step + i) as f64;
    let cancel = AtomicBool::new(false);
    let (body, all) = (&body, &all);
    launch(connect(mesh, Seconds(1e-4)), &cancel, |rank, transport| {
        let mut runner = runner(mesh, rank, body, transport, no_samples(), &cancel);
        for step in 0..if cfg!(miri) { 2 } else { 10 } {
            for (_, source, _) in all {
                let values: Vec<f64> = (0..source.volume()).map(|i| value(rank, step, i)).collect();
                set(&mut runner, body, source, &values);
            }
            runner.step(body, &Inputs::default())?;
            for (group, _, targets) in all {
                let members = mesh.group(rank, *group);
                let me = members.iter().position(|&member| member == rank).unwrap();
                let of = |member: usize| [0, 1].map(|i| value(member, step, 2 * me + i));
                let parts: Vec<[f64; 2]> = members.into_iter().map(of).collect();
                let expected = match targets.len() {
                    1 => {
                        let [a, b] = [0, 1].map(|i| parts.iter().map(|part| part[i]).sum());
                        vec![[a, b]]
                    }
                    _ => parts,
                };
                for (target, expected) in targets.iter().zip(expected) {
                    assert_eq!(get::<f64>(&mut runner, body, target), expected);
                }
            }
        }
        Ok(())
    })
    .unwrap();
}

/// Three ranks start one after the other; tells who is missing at each, its tally, and whether it
/// has ended at once.
fn one_after_another(body: impl Fn(usize) -> Body) -> Vec<(Vec<usize>, u64, bool)> {
    let mesh = data_mesh(3);
    let mut transports = connect(mesh, Seconds(0.0));
    let mut seen = Vec::new();
    for (rank, transport) in transports.iter_mut().enumerate() {
        let body = body(rank);
        let work = body.tasks.last().map(|task| task.work.clone());
        let Some(Work::Collective(collective)) = work else {
            panic!("the body ends in a collective");
        };
        let allocated = transport.allocate(&Staging::of(&body, &mesh));
        allocated.expect("there is memory for packets");
        let mut arena = Arena::new(body.arena);
        let memory = arena.memory(&body);
        let mut done = Vec::new();
        let started = transport.start_collective(TaskId(0), &collective, &memory);
        started.expect("it starts");
        transport.poll(&memory, &mut done).expect("nobody has left");
        let tally = transport.take_tally();
        assert_eq!(tally[..3], [0, 0, 1]);
        seen.push((transport.missing(TaskId(0)), tally[3], !done.is_empty()));
    }
    seen
}

#[test]
fn those_who_are_waited_for_are_named_and_none_else() {
    let scatter = |shares: [usize; 3]| {
        one_after_another(|rank| sum_body(rank, &shares, Dtype::F32, Lay::Dense, false))
    };
    let bytes = 4 * 6;
    let expected = [
        (vec![1, 2], bytes, false),
        (vec![2], bytes, false),
        (vec![], bytes, true),
    ];
    assert_eq!(scatter([2, 2, 2]), expected);
    // A member without a share waits for nobody.
    let expected = [
        (vec![], bytes, true),
        (vec![2], bytes, false),
        (vec![], bytes, true),
    ];
    assert_eq!(scatter([0, 3, 3]), expected);

    // Each sends two elements to the one before it, and one to itself.
    let back: Size = |from, to| match (from + 3 - to) % 3 {
        0 => 1,
        1 => 2,
        _ => 0,
    };
    let turn = one_after_another(|rank| turn_body(rank, 3, back, Dtype::F64, Lay::Dense));
    let expected = [
        (vec![1], 24, false),
        (vec![2], 24, false),
        (vec![], 24, true),
    ];
    assert_eq!(turn, expected);
}
