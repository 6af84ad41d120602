//! Arenas and the claims of their blocks.

use super::{Arena, Dtype, View};
use crate::{PacketPool, RunError};
use partita_program::{Body, Buffer, BufferId, Role, Staging};
use partita_space::Bytes;

fn buffer(dims: [usize; 5]) -> Buffer {
    Buffer {
        name: "x".to_owned(),
        role: Role::Activation,
        dtype: Dtype::F32,
        dims,
        tensor: None,
        offset: Bytes(0),
    }
}

fn body(buffers: Vec<Buffer>) -> Body {
    Body {
        buffers,
        arena: Bytes(64),
        ..Body::default()
    }
}

/// Of a buffer of (1, 1, 1, 4, 4) elements.
fn rows(first: usize, count: usize) -> View {
    View {
        buffer: BufferId(0),
        start: [0, 0, 0, first, 0],
        extent: [1, 1, 1, count, 4],
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri ends the process where memory is refused")]
fn a_failed_allocation_is_an_error_of_the_rank() {
    // More than the address space.
    let bytes = Bytes(1 << 62);
    let Err(error) = Arena::of_rank(3, bytes) else {
        panic!("an arena of {bytes}");
    };
    assert!(matches!(error, RunError::Memory { rank: 3, .. }));
    let staging = Staging {
        exchange: bytes,
        ..Staging::default()
    };
    let Err(error) = PacketPool::default().allocate(3, &staging) else {
        panic!("packets of {bytes}");
    };
    assert!(matches!(error, RunError::Memory { rank: 3, .. }));
}

#[test]
fn an_empty_view_conflicts_with_no_claim() {
    let mut body = body(vec![buffer([1, 0, 1, 2, 2]), buffer([1, 1, 1, 4, 4])]);
    let none = View {
        buffer: BufferId(0),
        start: [0, 0, 1, 1, 1],
        extent: [1, 0, 0, 1, 1],
    };
    let all = body.buffers[1].view(BufferId(1));
    for offset in [0, 32] {
        body.buffers[0].offset = Bytes(offset);
        let mut arena = Arena::new(body.arena);
        let memory = arena.memory(&body);
        let block = memory.write::<f32>(&all);
        assert!(memory.read::<f32>(&none).data().is_empty());
        assert_eq!(block.data().len(), 16);
    }
}

#[test]
fn readers_and_cells_share_memory_among_themselves() {
    let body = body(vec![buffer([1, 1, 1, 4, 4])]);
    let mut arena = Arena::new(body.arena);
    let memory = arena.memory(&body);
    {
        let (a, b) = (
            memory.cells::<f32>(&rows(0, 2)),
            memory.cells::<f32>(&rows(1, 2)),
        );
        a.set([0, 0, 0, 1, 3], 5.0);
        b.set([0, 0, 0, 1, 0], 7.0);
        assert_eq!(b.get([0, 0, 0, 0, 3]), 5.0);
    }
    let mut writer = memory.write::<f32>(&rows(3, 1));
    let (a, b) = (
        memory.read::<f32>(&rows(0, 3)),
        memory.read::<f32>(&rows(1, 2)),
    );
    writer.data_mut()[0] = a.data()[7] + b.data()[4];
    assert_eq!(writer.data()[..2], [12.0, 0.0]);
}

#[test]
#[should_panic(expected = "overlap in memory: bytes 16 to 48 are held (Cells)")]
fn no_block_is_taken_while_cells_are_in_use() {
    let body = body(vec![buffer([1, 1, 1, 4, 4])]);
    let mut arena = Arena::new(body.arena);
    let memory = arena.memory(&body);
    let cells = memory.cells::<f32>(&rows(1, 2));
    let mut block = memory.write::<f32>(&rows(2, 1));
    let first = &mut block.data_mut()[0];
    cells.set([0, 0, 0, 1, 0], 1.0);
    *first += 1.0;
}

#[test]
#[should_panic(expected = "overlap in memory: bytes 16 to 48 are held (Read)")]
fn no_cells_are_taken_while_a_block_is_in_use() {
    let body = body(vec![buffer([1, 1, 1, 4, 4])]);
    let mut arena = Arena::new(body.arena);
    let memory = arena.memory(&body);
    let block = memory.read::<f32>(&rows(1, 2));
    memory.cells::<f32>(&rows(2, 1)).set([0; 5], 1.0);
    assert_eq!(block.data()[4], 0.0);
}

#[test]
#[should_panic(expected = "overlap in memory: bytes 0 to 32 are held (Write)")]
fn two_writers_do_not_share_memory() {
    let body = body(vec![buffer([1, 1, 1, 4, 4])]);
    let mut arena = Arena::new(body.arena);
    let memory = arena.memory(&body);
    let _first = memory.write::<f32>(&rows(0, 2));
    let _second = memory.write::<f32>(&rows(1, 1));
}

#[test]
#[should_panic(expected = "leaves buffer x")]
fn the_end_of_a_view_does_not_wrap() {
    let body = body(vec![buffer([1, 1, 1, 4, 4])]);
    let mut arena = Arena::new(body.arena);
    let memory = arena.memory(&body);
    // One position before the buffer: start and extent add up to 1 in 64 bits.
    let mut view = rows(usize::MAX, 2);
    view.extent[4] = 1;
    memory.write::<f32>(&view).data_mut().fill(1.0);
}

#[test]
#[should_panic(expected = "does not lie in the arena")]
fn the_size_of_a_buffer_does_not_wrap() {
    // 2^64 bytes and 16 more.
    let body = body(vec![buffer([1, 1, 1, (1 << 60) + 1, 4])]);
    Arena::new(body.arena).memory(&body);
}

#[test]
#[should_panic(expected = "does not lie in the arena")]
fn the_end_of_a_buffer_does_not_wrap() {
    let mut body = body(vec![buffer([1, 1, 1, 1, 4])]);
    body.buffers[0].offset = Bytes(u64::MAX - 15);
    Arena::new(body.arena).memory(&body);
}
