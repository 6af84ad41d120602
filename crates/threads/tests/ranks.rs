//! Bodies played on ranks that are threads.

mod hand;

use hand::bodies::{add_buffer, add_task, all_reduce, compute, exchange};
use hand::rank::{IntoElement, addend, data_mesh, get, no_samples, part, runner, set, whole};
use partita_program::{
    Body, BufferId, Collective, CollectiveKind, Distribution, Dtype, Exchange, Item, Kernel, Load,
    Receive, Send, Staging, TaskId, View, When, Work,
};
use partita_run::{Arena, Clock, Element, Inputs, RunError, StepReport, SystemClock, Transport};
use partita_space::{Axis, AxisList, AxisSet, Bytes, Mesh, Offset, Seconds};
use partita_testkit::{Samples, Stored};
use partita_threads::{LaunchError, connect, launch};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn along(axis: Axis, steps: i32) -> Offset {
    let mut offset = Offset::default();
    offset.0[axis.index()] = steps;
    offset
}

#[test]
fn a_ring_of_exchanges_runs_many_steps() {
    const RANKS: usize = 4;
    const STEPS: u64 = if cfg!(miri) { 4 } else { 200 };
    let mesh = data_mesh(RANKS);
    let bodies: Vec<Body> = (0..RANKS).map(|rank| ring_body(rank, RANKS)).collect();
    let cancel = AtomicBool::new(false);
    let sums = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
        let body = &bodies[rank];
        let mut runner = runner(mesh, rank, body, transport, no_samples(), &cancel);
        let (value, seen) = (whole(body, 0), whole(body, 1));
        set(&mut runner, body, &value, &[rank as f32, 10.0]);
        for step in 0..STEPS {
            if (rank as u64 + step).is_multiple_of(7) {
                // Unequal speeds: peers get a step ahead.
                std::thread::sleep(Duration::from_micros(300));
            }
            runner.step(body, &Inputs::default())?;
        }
        Ok(get::<f32>(&mut runner, body, &seen))
    })
    .unwrap();
    for (rank, seen) in sums.iter().enumerate() {
        // Each step adds what the left neighbor holds, which is the value of a rank that moves on.
        let left = (0..STEPS as usize).map(|step| (rank + RANKS * 100 - 1 - step) % RANKS);
        let expected = left.sum::<usize>() as f32;
        assert_eq!(seen, &[expected, 10.0 * STEPS as f32], "rank {rank}");
    }
}

/// Sends the value to the right and adds what comes to `seen`, then takes it over as its own value.
fn ring_body(rank: usize, ranks: usize) -> Body {
    let mut body = Body::default();
    let dims = [1, 1, 1, 1, 2];
    for _ in 0..3 {
        add_buffer(&mut body, Dtype::F32, dims);
    }
    let [value, seen, incoming] = [0, 1, 2].map(|at| whole(&body, at));
    let step = |here: usize, there: usize| along(Axis::Data, there as i32 - here as i32);
    let work = exchange(Exchange {
        sequence: 1,
        sends: vec![Send {
            to: step(rank, (rank + 1) % ranks),
            part: 0,
            view: value,
        }],
        receives: vec![Receive {
            from: step(rank, (rank + ranks - 1) % ranks),
            part: 0,
            view: incoming,
            accumulate: false,
        }],
    });
    let first = add_task(&mut body, "ring", &[], work);
    for (target, accumulate) in [(seen, true), (value, false)] {
        let kernel = Kernel::Copy {
            source: incoming,
            target,
            accumulate,
        };
        add_task(&mut body, "ring", &[first], compute(kernel));
    }
    body
}

/// Sums of random parts, with the values of every member.
fn sum_of<T>(ranks: usize, dtype: Dtype, length: usize, has_gaps: bool) -> Vec<Vec<T>>
where
    T: Element + std::ops::AddAssign + PartialEq + std::fmt::Debug,
    f64: IntoElement<T>,
{
    let mesh = data_mesh(ranks);
    let mut body = Body::default();
    // With gaps the view must be packed; without, the sum is taken where it lies.
    let (rows, columns) = if has_gaps { (2, 3) } else { (1, 1) };
    let dims = [1, 1, rows, length, columns];
    let whole_view = {
        let id = add_buffer(&mut body, dtype, dims);
        body.buffer(id).view(id)
    };
    let view = part(&part(&whole_view, 2, rows / 2, 1), 4, columns / 2, 1);
    let group = AxisSet::of([Axis::Data]);
    add_task(&mut body, "sum", &[], all_reduce(0, group, view));
    let cancel = AtomicBool::new(false);
    let body = &body;
    launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
        let mut runner = runner(mesh, rank, body, transport, no_samples(), &cancel);
        let values = addend::<T>(rank, length);
        set(&mut runner, body, &view, &values);
        runner.step(body, &Inputs::default())?;
        let all = get::<T>(&mut runner, body, &whole_view);
        let outside = all.iter().filter(|&&value| value != T::default()).count();
        assert!(outside <= length, "only the view changes");
        Ok(get::<T>(&mut runner, body, &view))
    })
    .expect("every rank ends well")
}

fn check_sums<T>(dtype: Dtype)
where
    T: Element + std::ops::AddAssign + PartialEq + std::fmt::Debug,
    f64: IntoElement<T>,
{
    // Below and above the size from which chunks are shared out, and beyond a block of additions;
    // 1023, 3001 and 12345 do not divide. Under Miri sums are large, and blocks full, sooner.
    let (ranks_most, lengths): (usize, &[usize]) = if cfg!(miri) {
        (3, &[7, 67])
    } else {
        (5, &[1, 3, 7, 1023, 3001, 12345])
    };
    for ranks in 1..=ranks_most {
        for (length, has_gaps) in lengths
            .iter()
            .copied()
            .flat_map(|n| [(n, false), (n, true)])
        {
            let mut expected: Vec<T> = addend(0, length);
            for rank in 1..ranks {
                let sums = expected.iter_mut().zip(addend::<T>(rank, length));
                sums.for_each(|(sum, value)| *sum += value);
            }
            for (rank, sum) in sum_of::<T>(ranks, dtype, length, has_gaps)
                .iter()
                .enumerate()
            {
                assert!(
                    sum == &expected,
                    "rank {rank} of {ranks}, {length}, {has_gaps}"
                );
            }
        }
    }
}

#[test]
fn sums_are_those_of_rank_order_bit_by_bit() {
    check_sums::<f32>(Dtype::F32);
    check_sums::<f64>(Dtype::F64);
}

#[test]
fn an_allgather_with_parts_of_unequal_size() {
    const RANKS: usize = 4;
    let mesh = data_mesh(RANKS);
    let sizes = [2, 0, 3, 1];
    let body_of = |rank: usize| {
        let mut body = Body::default();
        let all = add_buffer(&mut body, Dtype::F64, [1, 1, 1, 6, 2]);
        let mine = add_buffer(&mut body, Dtype::F64, [1, 1, 1, 3, 2]);
        let (all, mine) = (body.buffer(all).view(all), body.buffer(mine).view(mine));
        let mut start = 0;
        let targets = sizes.map(|size| {
            start += size;
            part(&all, 3, start - size, size)
        });
        let work = Work::Collective(Collective {
            sequence: 9,
            group: AxisSet::of([Axis::Data]),
            submesh: None,
            kind: CollectiveKind::AllGather {
                source: part(&mine, 3, 0, sizes[rank]),
                targets: targets.to_vec().into(),
            },
        });
        add_task(&mut body, "gather", &[], work);
        body
    };
    let bodies: Vec<_> = (0..RANKS).map(body_of).collect();
    let cancel = AtomicBool::new(false);
    let gathered = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
        let body = &bodies[rank];
        let mut runner = runner(mesh, rank, body, transport, no_samples(), &cancel);
        for step in 0..3 {
            let values =
                [0., 1., 2., 3., 4., 5.].map(|i| 100.0 * step as f64 + 10.0 * rank as f64 + i);
            set(&mut runner, body, &whole(body, 1), &values);
            runner.step(body, &Inputs::default())?;
        }
        Ok(get::<f64>(&mut runner, body, &whole(body, 0)))
    })
    .unwrap();
    let expected = [0., 1., 2., 3., 20., 21., 22., 23., 24., 25., 30., 31.].map(|x| x + 200.0);
    for values in gathered {
        assert_eq!(values, expected);
    }
}

#[test]
fn collectives_of_overlapping_groups_run_together() {
    let mesh = Mesh::new([2, 3, 1, 1, 1, 1, 1]);
    let mut body = Body::default();
    let large = if cfg!(miri) { 50 } else { 5000 };
    let views: Vec<View> = [large, 3, large, 2]
        .into_iter()
        .map(|length| {
            let id = add_buffer(&mut body, Dtype::F64, [1, 1, 1, 1, length]);
            body.buffer(id).view(id)
        })
        .collect();
    let groups = [Axis::Data, Axis::Depth].map(|axis| AxisSet::of([axis]));
    // None waits for another: all four are under way at once.
    for (sequence, view) in views.iter().enumerate() {
        let work = all_reduce(sequence as u32, groups[sequence % 2], *view);
        add_task(&mut body, "overlap", &[], work);
    }
    let cancel = AtomicBool::new(false);
    let body = &body;
    let sums = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
        let mut runner = runner(mesh, rank, body, transport, no_samples(), &cancel);
        let mut sums = Vec::new();
        for step in 0..if cfg!(miri) { 2 } else { 20 } {
            for (at, view) in views.iter().enumerate() {
                let value = (10 * at + rank + step) as f64;
                set(&mut runner, body, view, &vec![value; view.volume()]);
            }
            runner.step(body, &Inputs::default())?;
            for view in &views {
                sums.push(get::<f64>(&mut runner, body, view));
            }
        }
        Ok(sums)
    })
    .unwrap();
    for (rank, sums) in sums.iter().enumerate() {
        for (at, sum) in sums.iter().enumerate() {
            let (step, at) = (at / 4, at % 4);
            let members = mesh.group(rank, groups[at % 2]);
            let expected: usize = members.iter().map(|member| 10 * at + member + step).sum();
            assert!(
                sum.iter().all(|&x| x == expected as f64),
                "rank {rank}, {at}"
            );
        }
    }
}

#[test]
fn sums_of_received_parts_do_not_depend_on_their_arrival() {
    // Rank 1 receives a part from each side into one place.
    const VALUES: [f32; 3] = [1e8, -1e8, 0.5];
    let mesh = data_mesh(3);
    let body_of = |rank: usize| {
        let mut body = Body::default();
        let id = add_buffer(&mut body, Dtype::F32, [1; 5]);
        let view = body.buffer(id).view(id);
        let send = |to| Send { to, part: 0, view };
        let receive = |from| Receive {
            from,
            part: 0,
            view,
            accumulate: true,
        };
        let (left, right) = (along(Axis::Data, -1), along(Axis::Data, 1));
        let work = Exchange {
            sequence: 0,
            sends: [vec![send(right)], vec![], vec![send(left)]][rank].clone(),
            receives: [vec![], vec![receive(right), receive(left)], vec![]][rank].clone(),
        };
        add_task(&mut body, "sum", &[], exchange(work));
        body
    };
    let bodies: Vec<_> = (0..3).map(body_of).collect();
    for slow in 0..3 {
        let cancel = AtomicBool::new(false);
        let values = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
            let body = &bodies[rank];
            let mut runner = runner(mesh, rank, body, transport, no_samples(), &cancel);
            set(&mut runner, body, &whole(body, 0), &[VALUES[rank]]);
            if rank == slow {
                std::thread::sleep(Duration::from_millis(5));
            }
            runner.step(body, &Inputs::default())?;
            Ok(get::<f32>(&mut runner, body, &whole(body, 0)))
        })
        .unwrap();
        // The right neighbor comes first in the task: its 0.5 is lost in -1e8.
        assert_eq!(values[1], [0.0], "rank {slow} is late");
    }
}

/// Elements of a sum that is large enough to be shared out.
const LARGE: usize = if cfg!(miri) { 50 } else { 4000 };
/// Time after which ranks of a failed launch have long ended; far less than their watchdogs wait.
const SOON: Duration = Duration::from_secs(20);

fn sum_body() -> Body {
    let mut body = Body::default();
    let id = add_buffer(&mut body, Dtype::F32, [1, 1, 1, 1, LARGE]);
    let view = body.buffer(id).view(id);
    let group = AxisSet::of([Axis::Data]);
    add_task(&mut body, "conv3", &[], all_reduce(17, group, view));
    body
}

#[test]
fn the_watchdog_names_the_rank_that_stands_still() {
    let (mesh, body) = (data_mesh(3), sum_body());
    let cancel = AtomicBool::new(false);
    let failed = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
        let mut runner = runner(mesh, rank, &body, transport, no_samples(), &cancel);
        if rank == 1 {
            while !cancel.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(if cfg!(miri) { 500 } else { 1 }));
            }
        }
        runner.step(&body, &Inputs::default())
    });
    match failed {
        Err(LaunchError::Rank {
            error:
                RunError::Stalled {
                    missing,
                    layer,
                    sequence,
                    ..
                },
            ..
        }) => assert_eq!((missing, layer.as_str(), sequence), (vec![1], "conv3", 17)),
        other => panic!("{other:?}"),
    }
}

/// The clock of a process that is stopped for five seconds.
struct StoppedClock<'s> {
    clock: SystemClock,
    has_stopped: &'s AtomicBool,
}

impl Clock for StoppedClock<'_> {
    fn now(&self) -> Seconds {
        let stopped = self.has_stopped.load(Ordering::Relaxed);
        self.clock.now() + Seconds(if stopped { 5.0 } else { 0.0 })
    }
}

#[test]
fn ranks_that_were_stopped_together_go_on() {
    let (mesh, body) = (data_mesh(3), sum_body());
    let (cancel, has_stopped) = (AtomicBool::new(false), AtomicBool::new(false));
    let clock = SystemClock::start();
    let ended = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
        let mut runner = runner(mesh, rank, &body, transport, no_samples(), &cancel);
        runner.clock = Box::new(StoppedClock {
            clock,
            has_stopped: &has_stopped,
        });
        runner.watchdog = Seconds(3.0);
        if rank == 1 {
            // The others wait already, and look at the clock before this rank has gone on.
            std::thread::sleep(Duration::from_millis(100));
            has_stopped.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(100));
        }
        runner.step(&body, &Inputs::default())
    });
    assert!(ended.is_ok(), "{ended:?}");
}

#[test]
fn a_rank_that_ends_early_is_named_at_once() {
    let (mesh, body) = (data_mesh(3), sum_body());
    let cancel = AtomicBool::new(false);
    let start = Instant::now();
    let failed = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
        if rank == 2 {
            return Ok(None);
        }
        let mut runner = runner(mesh, rank, &body, transport, no_samples(), &cancel);
        runner.watchdog = Seconds(60.0);
        runner.step(&body, &Inputs::default()).map(Some)
    });
    assert!(start.elapsed() < SOON);
    match failed {
        Err(LaunchError::Rank {
            error: RunError::Lost { peer: 2, .. },
            ..
        }) => {}
        other => panic!("{other:?}"),
    }
}

const MESSAGES: u32 = 50;

/// Rank 0 sends rank 1 this many messages and waits for nothing.
fn one_way(rank: usize) -> Body {
    let mut body = Body::default();
    let id = add_buffer(&mut body, Dtype::F32, [1, 1, 1, 1, 16]);
    let view = body.buffer(id).view(id);
    for sequence in 0..MESSAGES {
        let send = Send {
            to: along(Axis::Data, 1),
            part: 0,
            view,
        };
        let receive = Receive {
            from: along(Axis::Data, -1),
            part: 0,
            view,
            accumulate: true,
        };
        let work = Exchange {
            sequence,
            sends: if rank == 0 { vec![send] } else { Vec::new() },
            receives: if rank == 0 { Vec::new() } else { vec![receive] },
        };
        add_task(&mut body, "hand over", &[], exchange(work));
    }
    body
}

#[test]
fn a_rank_that_is_ahead_waits_for_its_packets() {
    const LATE: Duration = Duration::from_millis(100);
    let mesh = data_mesh(2);
    let bodies = [one_way(0), one_way(1)];
    // Two of them, as one task after the other may be under way.
    assert_eq!(Staging::of(&bodies[0], &mesh).exchange, Bytes(2 * 64));
    let cancel = AtomicBool::new(false);
    let sums = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
        let body = &bodies[rank];
        let mut runner = runner(mesh, rank, body, transport, no_samples(), &cancel);
        set(&mut runner, body, &whole(body, 0), &[(1 - rank) as f32; 16]);
        if rank == 1 {
            std::thread::sleep(LATE);
        }
        let report = runner.step(body, &Inputs::default())?;
        if rank == 0 {
            // All but two messages leave after the other has begun to take them.
            assert!(
                report.seconds.0 >= 0.5 * LATE.as_secs_f64(),
                "{}",
                report.seconds
            );
        }
        Ok(get::<f32>(&mut runner, body, &whole(body, 0)))
    });
    assert_eq!(sums.unwrap()[1], [MESSAGES as f32; 16]);
}

#[test]
fn who_keeps_packets_for_ever_is_named() {
    let mesh = data_mesh(2);
    let bodies = [one_way(0), one_way(1)];
    for leaves in [false, true] {
        let cancel = AtomicBool::new(false);
        let failed = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
            if rank == 1 && leaves {
                return Ok(());
            }
            let body = &bodies[rank];
            let mut runner = runner(mesh, rank, body, transport, no_samples(), &cancel);
            while rank == 1 && !cancel.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(if cfg!(miri) { 500 } else { 1 }));
            }
            runner.step(body, &Inputs::default()).map(drop)
        });
        match failed {
            Err(LaunchError::Rank {
                rank: 0,
                error:
                    RunError::Stalled {
                        missing,
                        sequence: 2,
                        ..
                    },
            }) if !leaves => assert_eq!(missing, [1]),
            Err(LaunchError::Rank {
                rank: 0,
                error:
                    RunError::Lost {
                        peer: 1,
                        sequence: 2,
                        ..
                    },
            }) if leaves => {}
            other => panic!("{leaves}: {other:?}"),
        }
    }
}

#[test]
fn what_was_sent_before_a_rank_ended_still_counts() {
    let (mesh, body) = (data_mesh(2), sum_body());
    let cancel = AtomicBool::new(false);
    let sums = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
        let mut runner = runner(mesh, rank, &body, transport, no_samples(), &cancel);
        set(&mut runner, &body, &whole(&body, 0), &[1.5f32; LARGE]);
        runner.step(&body, &Inputs::default())?;
        Ok(get::<f32>(&mut runner, &body, &whole(&body, 0)))
    });
    assert_eq!(sums.unwrap(), vec![vec![3.0; LARGE]; 2]);
}

#[test]
fn a_cancellation_ends_all_ranks_long_before_a_watchdog() {
    let (mesh, body) = (data_mesh(4), sum_body());
    let cancel = AtomicBool::new(false);
    let start = Instant::now();
    let failed: Result<Vec<StepReport>, _> = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            cancel.store(true, Ordering::Relaxed);
        });
        launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
            let mut runner = runner(mesh, rank, &body, transport, no_samples(), &cancel);
            runner.watchdog = Seconds(60.0);
            loop {
                runner.step(&body, &Inputs::default())?;
            }
        })
    });
    assert!(start.elapsed() < SOON);
    assert!(failed.is_err());
}

#[test]
fn a_panic_ends_all_ranks_and_is_what_is_reported() {
    let (mesh, body) = (data_mesh(3), sum_body());
    let cancel = AtomicBool::new(false);
    let failed = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
        let mut runner = runner(mesh, rank, &body, transport, no_samples(), &cancel);
        runner.watchdog = Seconds(60.0);
        assert!(rank != 1, "a deliberate panic");
        runner.step(&body, &Inputs::default())
    });
    match failed {
        Err(LaunchError::Panicked { rank: 1, message }) => {
            assert!(message.contains("deliberate"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unknown_algorithm_is_refused_with_its_name() {
    let mesh = data_mesh(1);
    let mut body = Body::default();
    let id = add_buffer(&mut body, Dtype::F32, [1; 5]);
    let target = body.buffer(id).view(id);
    let work = Work::Compute {
        kernel: Kernel::Fill { target, value: 0.0 },
        algorithm: partita_program::Algorithm("winograd".to_owned()),
        workspace: None,
    };
    add_task(&mut body, "fill", &[], work);
    let cancel = AtomicBool::new(false);
    let failed = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
        let mut runner = runner(mesh, rank, &body, transport, no_samples(), &cancel);
        runner.step(&body, &Inputs::default())
    });
    let text = failed.unwrap_err().to_string();
    assert!(text.contains("winograd") && text.contains("fill"), "{text}");
}

/// Four samples of [2, 1, 3, 2] elements, each element with the sample's number and its own.
fn numbered_samples() -> Arc<Samples> {
    let sample = |id: i16| (0..12).map(|i| 100 * id + i).collect();
    let target = |id: usize| (0..12).map(|i| (1000 * id + i) as f64).collect();
    Arc::new(Samples {
        shape: [2, 1, 3, 2],
        values: (0..4).map(|id| Stored::I16(sample(id))).collect(),
        targets: (0..4).map(target).collect(),
        features: vec![],
    })
}

/// Adds a load of an item into the whole of a buffer. The view of it.
fn add_load(
    body: &mut Body,
    id: BufferId,
    item: Item,
    when: When,
    distribution: Distribution,
) -> View {
    let target = body.buffer(id).view(id);
    let work = Work::Load(Load {
        item,
        when,
        distribution,
        target,
    });
    add_task(body, "input", &[], work);
    target
}

#[test]
fn each_rank_loads_its_part() {
    let mesh = Mesh::new([2, 1, 2, 1, 1, 1, 1]);
    let mut axes = [None; 5];
    (axes[0], axes[2]) = (Some(Axis::Data), Some(Axis::Height));
    let distribution = Distribution {
        shape: [2, 1, 3, 2, 2],
        axes: axes.map(AxisList::from),
        micro: None,
        submesh: None,
    };
    let samples = numbered_samples();
    let inputs = Inputs {
        loss_scale: None,
        skipped: 0,
        samples: vec![3, 1],
        ..Inputs::default()
    };
    let cancel = AtomicBool::new(false);
    launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
        let owned = distribution.owned(&mesh, &mesh.coord(rank));
        let [n, d, h, w, c] = owned.shape();
        let mut body = Body::default();
        let stored = add_buffer(&mut body, Dtype::I16, [n, c, d, h, w]);
        let targets = add_buffer(&mut body, Dtype::F32, owned.shape());
        let next = add_buffer(&mut body, Dtype::I16, [n, c, d, h, w]);
        let stored = add_load(&mut body, stored, Item::Sample, When::Now, distribution);
        let targets = add_load(&mut body, targets, Item::Target, When::Now, distribution);
        let next = add_load(&mut body, next, Item::Sample, When::Next, distribution);
        let samples = Arc::clone(&samples);
        let mut runner = runner(mesh, rank, &body, transport, samples, &cancel);
        set(&mut runner, &body, &next, &vec![7i16; next.volume()]);
        runner.step(&body, &inputs)?;
        let id = inputs.samples[owned.0[0].start as usize];
        let rows: Vec<usize> = owned.0[2]
            .start
            .try_into()
            .map(|a: usize| (a..a + h).collect())
            .unwrap();
        let of_channel = |c: usize| {
            rows.iter()
                .flat_map(move |&h| (0..2).map(move |w| (c * 3 + h) * 2 + w))
        };
        let expected: Vec<i16> = (0..2)
            .flat_map(of_channel)
            .map(|i| (100 * id + i) as i16)
            .collect();
        assert_eq!(get::<i16>(&mut runner, &body, &stored), expected);
        let elements = rows.iter().flat_map(|&h| (0..4).map(move |i| h * 4 + i));
        let expected: Vec<f32> = elements.map(|i| (1000 * id + i) as f32).collect();
        assert_eq!(get::<f32>(&mut runner, &body, &targets), expected);
        assert_eq!(
            get::<i16>(&mut runner, &body, &next),
            vec![0; next.volume()]
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn samples_of_another_shape_are_refused() {
    let mesh = data_mesh(1);
    let mut body = Body::default();
    let id = add_buffer(&mut body, Dtype::F32, [1, 1, 1, 1, 2]);
    let distribution = Distribution::replicated([1, 1, 1, 2, 1]);
    add_load(&mut body, id, Item::Sample, When::Now, distribution);
    let samples = Arc::new(Samples {
        shape: [1, 1, 1, 3],
        values: vec![Stored::F32(vec![0.0; 3])],
        targets: vec![],
        features: vec![],
    });
    let cancel = AtomicBool::new(false);
    for ids in [vec![0], vec![5]] {
        let failed = launch(connect(mesh, Seconds(0.0)), &cancel, |rank, transport| {
            let samples = Arc::clone(&samples);
            let mut runner = runner(mesh, rank, &body, transport, samples, &cancel);
            let inputs = Inputs {
                loss_scale: None,
                skipped: 0,
                samples: ids.clone(),
                ..Inputs::default()
            };
            cancel.store(false, Ordering::Relaxed);
            runner.step(&body, &inputs)
        });
        let text = failed.unwrap_err().to_string();
        assert!(text.contains("could not read"), "{text}");
    }
}

#[test]
fn missing_parts_are_listed_and_counted_from_what_was_sent() {
    let mesh = data_mesh(3);
    let mut transports = connect(mesh, Seconds(0.0));
    let body = sum_body();
    let Work::Collective(collective) = body.tasks[0].work.clone() else {
        panic!("the body holds one collective");
    };
    let mut done = Vec::new();
    for (rank, transport) in transports.iter_mut().enumerate() {
        transport.allocate(&Staging::of(&body, &mesh)).unwrap();
        let mut arena = Arena::new(body.arena);
        let memory = arena.memory(&body);
        transport
            .start_collective(TaskId(0), &collective, &memory)
            .unwrap();
        transport.poll(&memory, &mut done).unwrap();
        let later: Vec<usize> = (rank + 1..3).collect();
        // The last one has all parts, but not yet the sums of the others.
        let expected = if rank == 2 { vec![0, 1] } else { later };
        assert_eq!(transport.missing(TaskId(0)), expected);
        assert_eq!(transport.take_tally(), [0, 0, 1, 4 * LARGE as u64]);
        assert_eq!(transport.take_tally(), [0; 4]);
    }
    assert!(done.is_empty());
}
