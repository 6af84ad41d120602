//! Kernels on floats of two bytes (bf16, f16), executed as kernels on f32.

use crate::element::Element;
use crate::memory::{Block, BlockMut, Memory};
use crate::{KernelTally, RunError};
use half::{bf16, f16};
use partita_program::{Dtype, Kernel, KernelShape, View, WideCopy};
use partita_space::Bytes;

/// What executes kernels on f32 in place of those on floats of two bytes, and converts what they read and write in bf16.
///
/// Functions from a kernel, a workspace and a memory convert element by element, as all do what is in f16.
pub trait WideExecutor {
    /// Executes a kernel with this workspace on this memory.
    ///
    /// Errors: those of the kernel.
    fn execute(
        &mut self,
        kernel: &Kernel,
        workspace: Option<&View>,
        memory: &Memory<'_>,
    ) -> Result<KernelTally, RunError>;

    /// Values of bf16 in f32; boxes of one extent.
    ///
    /// Errors: the step was canceled.
    fn widen(
        &mut self,
        from: &Block<'_, bf16>,
        to: &mut BlockMut<'_, f32>,
    ) -> Result<(), RunError> {
        convert(from, to, |x| x.into());
        Ok(())
    }

    /// Values that bf16 holds, rounded to nearest even; boxes of one extent.
    ///
    /// Errors: the step was canceled.
    fn round(&mut self, from: &Block<'_, f32>, to: &mut BlockMut<'_, f32>) -> Result<(), RunError> {
        convert(from, to, |x| bf16::from_f32(x).into());
        Ok(())
    }

    /// Values in bf16, rounded to nearest even; boxes of one extent.
    ///
    /// Errors: the step was canceled.
    fn narrow(
        &mut self,
        from: &Block<'_, f32>,
        to: &mut BlockMut<'_, bf16>,
    ) -> Result<(), RunError> {
        convert(from, to, bf16::from_f32);
        Ok(())
    }
}

impl<F> WideExecutor for F
where
    F: FnMut(&Kernel, Option<&View>, &Memory<'_>) -> Result<KernelTally, RunError>,
{
    fn execute(
        &mut self,
        kernel: &Kernel,
        workspace: Option<&View>,
        memory: &Memory<'_>,
    ) -> Result<KernelTally, RunError> {
        self(kernel, workspace, memory)
    }
}

/// Executes a kernel on floats of two bytes by others on f32, slab by slab, with copies in its workspace (see [`KernelShape::widened`]
/// and [`KernelShape::slabs`]).
///
/// `executor` runs the kernel that it is given, with what is left of the workspace, on the memory that it is given.
///
/// Errors: those of `executor`.
pub fn execute_widened(
    kernel: &Kernel,
    workspace: Option<&View>,
    memory: &Memory<'_>,
    executor: &mut dyn WideExecutor,
) -> Result<KernelTally, RunError> {
    let buffers = &memory.body().buffers;
    let shape = KernelShape { kernel, buffers };
    // Empty tensors need none.
    let space = workspace.map(|view| memory.body().buffer(view.buffer));
    let space = space.map_or((Bytes(0), Bytes(0)), |buffer| {
        (buffer.offset, buffer.bytes())
    });
    let (slabs, expected) = (shape.slabs(), KernelTally::expected(kernel, buffers));
    let mut flops = 0;
    for kernel in &slabs {
        let shape = KernelShape { kernel, buffers };
        flops += execute_slab(&shape, space, memory, executor)?.flops;
    }
    // What several slabs read counts once. The kernel moves values of two bytes, wherever they are in between.
    Ok(KernelTally {
        flops: if slabs.len() > 1 {
            expected.flops
        } else {
            flops
        },
        bytes: expected.bytes,
    })
}

fn execute_slab(
    shape: &KernelShape<'_>,
    (start, size): (Bytes, Bytes),
    memory: &Memory<'_>,
    executor: &mut dyn WideExecutor,
) -> Result<KernelTally, RunError> {
    let mut widened = shape.widened(start);
    assert!(
        widened.bytes <= size,
        "the workspace holds {size} of {} for copies in f32",
        widened.bytes
    );
    let rest = widened.rest(start, size);
    widened.body.arena = memory.body().arena;
    let wide = memory.of_body(&widened.body);
    for copy in widened.copies.iter().filter(|copy| copy.is_read) {
        widen(copy, memory, &wide, executor)?;
    }
    let tally = executor.execute(&widened.kernel, rest.as_ref(), &wide)?;
    for copy in widened.copies.iter().filter(|copy| copy.is_written) {
        let from = wide.read::<f32>(&copy.wide);
        match memory.body().buffer(copy.stored.buffer).dtype {
            Dtype::F16 => convert(&from, &mut memory.write(&copy.stored), f16::from_f32),
            Dtype::Bf16 => executor.narrow(&from, &mut memory.write(&copy.stored))?,
            other @ (Dtype::F32 | Dtype::F64 | Dtype::I16) => {
                panic!("values of {other:?} are not widened")
            }
        }
    }
    Ok(tally)
}

fn widen(
    copy: &WideCopy,
    memory: &Memory<'_>,
    wide: &Memory<'_>,
    executor: &mut dyn WideExecutor,
) -> Result<(), RunError> {
    let mut to = wide.write::<f32>(&copy.wide);
    match memory.body().buffer(copy.stored.buffer).dtype {
        Dtype::Bf16 => executor.widen(&memory.read(&copy.stored), &mut to)?,
        Dtype::F16 => convert(&memory.read(&copy.stored), &mut to, |x: f16| x.into()),
        Dtype::F32 if memory.half() == Some(Dtype::F16) => {
            convert(&memory.read(&copy.stored), &mut to, |x| {
                f16::from_f32(x).into()
            });
        }
        Dtype::F32 => executor.round(&memory.read(&copy.stored), &mut to)?,
        other @ (Dtype::F64 | Dtype::I16) => panic!("values of {other:?} are not widened"),
    }
    Ok(())
}

/// Element by element.
fn convert<A: Element, B: Element>(
    from: &Block<'_, A>,
    to: &mut BlockMut<'_, B>,
    value: impl Fn(A) -> B,
) {
    let pitches = [from.pitch, to.pitch];
    for_rows(from.extent, pitches, |[a, b], length| {
        let rows = from.data()[a..a + length].iter();
        let to = &mut to.data_mut()[b..b + length];
        to.iter_mut().zip(rows).for_each(|(to, &x)| *to = value(x));
    });
}

/// Calls `visit(first elements, length)` for every row that is contiguous in two boxes of one extent.
fn for_rows(
    extent: [usize; 5],
    pitches: [[usize; 5]; 2],
    mut visit: impl FnMut([usize; 2], usize),
) {
    if extent.contains(&0) {
        return;
    }
    let (mut dims, mut length) = (5, 1);
    while dims > 0
        && (extent[dims - 1] == 1 || pitches.iter().all(|pitch| pitch[dims - 1] == length))
    {
        dims -= 1;
        length *= extent[dims];
    }
    let rows: usize = extent[..dims].iter().product();
    let mut index = [0; 5];
    for _ in 0..rows {
        let first = pitches.map(|pitch| (0..dims).map(|dim| index[dim] * pitch[dim]).sum());
        visit(first, length);
        for dim in (0..dims).rev() {
            index[dim] += 1;
            if index[dim] < extent[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_as_long_as_both_boxes_allow() {
        let rows = |extent, pitches| {
            let mut all = Vec::new();
            for_rows(extent, pitches, |first, length| all.push((first, length)));
            all
        };
        let dense = [24, 24, 12, 4, 1];
        let gaps = [80, 80, 20, 5, 1];
        assert_eq!(rows([1, 1, 2, 3, 4], [dense, dense]), [([0, 0], 24)]);
        let split = rows([1, 1, 2, 3, 4], [dense, gaps]);
        assert_eq!(split.len(), 6);
        assert_eq!(split[4], ([16, 25], 4));
        assert_eq!(rows([1, 1, 2, 0, 4], [dense, gaps]), []);
        assert_eq!(
            rows([2, 1, 1, 3, 1], [[3, 3, 3, 1, 1], [5, 5, 5, 1, 1]]).len(),
            2
        );
    }
}
