//! Shards of tensors, cut out of the whole and put together again.

use partita_program::{AVERAGE, Buffer, Role, TensorRegion};
use partita_space::{Coord, Mesh, Region};

/// The shard of a tensor that the rank at `coord` holds in a buffer.
///
/// Shapes: `whole` has the elements of the buffer's tensor, the last dim fastest; the shard
/// those that the rank owns. A buffer that holds no tensor keeps all.
pub fn shard_of(whole: &[f64], buffer: &Buffer, mesh: &Mesh, coord: &Coord) -> Vec<f64> {
    let Some(tensor) = &buffer.tensor else {
        return whole.to_vec();
    };
    let mut shard = Vec::new();
    for_shard_rows(tensor, mesh, coord, |from, length| {
        shard.extend_from_slice(&whole[from..from + length]);
    });
    shard
}

/// Copies the shard of a rank into the whole tensor.
///
/// Shapes: as for [`shard_of`].
pub fn put_shard<T: Copy>(
    whole: &mut [T],
    shard: &[T],
    tensor: &TensorRegion,
    mesh: &Mesh,
    coord: &Coord,
) {
    let mut rest = shard;
    for_shard_rows(tensor, mesh, coord, |from, length| {
        let (row, after) = rest.split_at(length);
        whole[from..from + length].copy_from_slice(row);
        rest = after;
    });
    assert!(
        rest.is_empty(),
        "a shard of {} elements too many",
        rest.len()
    );
}

/// Calls `visit` with the start and the length of each run of elements that a rank owns, in order.
pub(crate) fn for_shard_rows(
    tensor: &TensorRegion,
    mesh: &Mesh,
    coord: &Coord,
    mut visit: impl FnMut(usize, usize),
) {
    let shape = tensor.distribution.shape;
    let Region([n, d, h, w, c]) = tensor.distribution.owned(mesh, coord);
    for n in n.start..n.end {
        for d in d.start..d.end {
            for h in h.start..h.end {
                for w in w.start..w.end {
                    let at = [n, d, h, w, c.start];
                    let step = |offset, dim: usize| offset * shape[dim] + at[dim] as usize;
                    visit((0..5).fold(0, step), c.len());
                }
            }
        }
    }
}

/// The name of the tensor that a persistent buffer is a copy of: where several groups of ranks hold it, all but
/// the first append `@` and a number.
pub fn persistent_name(buffer: &str) -> &str {
    buffer.split_once('@').map_or(buffer, |(name, _)| name)
}

/// The name in the model of the tensor of a persistent buffer: of the average of a parameter that of the parameter.
pub fn model_name(buffer: &str, role: Role) -> &str {
    let name = persistent_name(buffer);
    let averaged = (role == Role::Average).then(|| name.strip_suffix(AVERAGE));
    averaged.flatten().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_program::{Distribution, Dtype};
    use partita_space::{Axis, AxisList, Bytes};

    #[test]
    fn all_shards_make_up_the_whole() {
        let mesh = Mesh::new([2, 1, 1, 1, 3, 1, 1]);
        let mut distribution = Distribution::replicated([1, 2, 1, 5, 7]);
        distribution.axes[3] = AxisList::of([Axis::Data]);
        distribution.axes[4] = AxisList::of([Axis::Filter]);
        let tensor = TensorRegion {
            id: 0,
            distribution,
            halo_low: [0; 5],
            redundant: false,
        };
        let whole: Vec<f64> = (0..70).map(f64::from).collect();
        let mut again = vec![-1.0; 70];
        for rank in 0..mesh.ranks() {
            let coord = mesh.coord(rank);
            let buffer = Buffer {
                name: "w".to_owned(),
                role: Role::Parameter,
                dtype: Dtype::F32,
                dims: distribution.owned(&mesh, &coord).shape(),
                tensor: Some(tensor),
                offset: Bytes(0),
            };
            let shard = shard_of(&whole, &buffer, &mesh, &coord);
            assert_eq!(shard.len(), buffer.dims.iter().product::<usize>());
            put_shard(&mut again, &shard, &tensor, &mesh, &coord);
        }
        assert_eq!(again, whole);
    }
}
