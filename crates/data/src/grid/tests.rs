//! Orientations, comparison and spacing of grids, voxel by voxel.

use super::*;

/// A grid of 5x4x3 voxels of 0.5x1.25x2 mm, whose axes are turned by some degrees about two directions.
fn oblique(degrees: f64) -> Grid {
    let (s, c) = degrees.to_radians().sin_cos();
    let (spacing, origin) = ([0.5, 1.25, 2.0], [-40.0, 7.5, 12.0]);
    let turned = [[c, -s * c, s * s], [s, c * c, -s * c], [0.0, s, c]];
    let row = |row: usize| {
        let [x, y, z] = [0, 1, 2].map(|axis| turned[row][axis] * spacing[axis]);
        [x, y, z, origin[row]]
    };
    Grid::new([5, 4, 3], Affine([0, 1, 2].map(row))).unwrap()
}

fn voxels(extent: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    let [x, y, z] = extent;
    (0..x * y * z).map(move |at| [at % x, at / x % y, at / x / y])
}

fn float(at: [usize; 3]) -> [f64; 3] {
    at.map(|at| at as f64)
}

fn distance(a: [f64; 3], b: [f64; 3]) -> f64 {
    (0..3)
        .map(|dim| (a[dim] - b[dim]).powi(2))
        .sum::<f64>()
        .sqrt()
}

/// All 48 orders and directions of the axes.
fn orientations(grid: &Grid) -> Vec<Grid> {
    let flips = (0..8).map(|bits| [0, 1, 2].map(|axis| bits >> axis & 1 == 1));
    let each = flips.flat_map(|flips| ORDERS.map(|order| grid.permuted(order).reversed(flips)));
    each.collect()
}

#[test]
fn every_orientation_is_brought_to_the_canonical_one_voxel_by_voxel() {
    for degrees in [0.0, 3.0, -20.0, 30.0] {
        let straight = oblique(degrees);
        assert_eq!(straight.orientation(), "RAS");
        let mut names = std::collections::BTreeSet::new();
        for turned in orientations(&straight) {
            names.insert(turned.orientation());
            let canonical = turned.canonical();
            assert_eq!(canonical.extent, straight.extent, "{turned:?}");
            let alignment = canonical.on(&turned).expect("the same axes");
            assert_eq!(canonical.is_same_voxels(&turned), Some(alignment));
            for at in voxels(canonical.extent) {
                let mut other = [0.0; 3];
                for axis in 0..3 {
                    other[alignment.axes[axis]] =
                        alignment.starts[axis] + at[axis] as f64 * alignment.steps[axis];
                }
                let world = straight.position(float(at));
                assert!(distance(canonical.position(float(at)), world) < 1e-9);
                assert!(distance(turned.position(other), world) < 1e-9, "{at:?}");
            }
        }
        assert_eq!(names.len(), 48);
    }
    let named = oblique(0.0)
        .permuted([2, 0, 1])
        .reversed([true, false, true]);
    assert_eq!(named.orientation(), "IRP");
}

/// What differs by less than a thousandth of a voxel in the farthest corner is the same.
#[test]
fn grids_are_compared_to_a_thousandth_of_a_voxel_over_all_voxels() {
    let image = oblique(20.0);
    let changed = |change: &dyn Fn(&mut Grid)| {
        let mut grid = image.permuted([1, 2, 0]).reversed([true, false, false]);
        change(&mut grid);
        (
            image.is_same_voxels(&grid).is_some(),
            grid.differences(&image).join("; "),
        )
    };
    let scaled = |axis: usize, by: f64| {
        changed(&move |grid: &mut Grid| {
            grid.affine.0.iter_mut().for_each(|row| row[axis] *= by);
        })
    };
    assert!(changed(&|_| {}).0);
    // Axis 0 has four voxels, so that its last one moves by three times as much.
    assert!(scaled(0, 1.0 + 0.9e-3 / 3.0).0);
    let (is_same, says) = scaled(0, 1.0 + 1.1e-3 / 3.0);
    assert!(
        !is_same && says.contains("spacing (x, y, z) 0.5x1.2505x2 mm, not 0.5x1.25x2 mm"),
        "{says}"
    );
    let moved = |by: f64| changed(&move |grid: &mut Grid| grid.affine.0[0][3] += by);
    assert!(moved(0.0004).0);
    let (is_same, says) = moved(0.25);
    assert!(
        !is_same && says.contains("first voxel at (-39.75, 7.5, 12) mm, not (-40, 7.5, 12) mm"),
        "{says}"
    );
    let (is_same, says) = changed(&|grid: &mut Grid| grid.extent[1] = 5);
    assert!(
        !is_same && says.contains("extents (x, y, z) 5x4x5, not 5x4x3"),
        "{says}"
    );
    let turned = oblique(21.0);
    assert!(image.is_same_voxels(&turned).is_none() && image.on(&turned).is_none());
    let says = turned.differences(&image).join("; ");
    assert!(says.starts_with("axes turned by 1."), "{says}");
}

#[test]
fn another_spacing_fills_the_same_box_around_the_same_center() {
    let grid = oblique(10.0);
    let fine = grid.resampled([1.0, 0.5, 2.0]);
    // 5 voxels of 0.5 mm are 2 (or 3) of 1 mm, 4 of 1.25 mm are 10 of 0.5 mm.
    assert_eq!(fine.extent, [3, 10, 3]);
    let center = |grid: &Grid| grid.position(grid.extent.map(|voxels| (voxels - 1) as f64 / 2.0));
    assert!(distance(center(&grid), center(&fine)) < 1e-9);
    for (found, asked) in fine.spacing().into_iter().zip([1.0, 0.5, 2.0]) {
        assert!((found - asked).abs() < 1e-12);
    }
    assert_eq!(grid.resampled([0.5, 1.25, 2.0]), grid);
    // A single slice has no neighbors to compute others from.
    let flat = Grid::new([5, 4, 1], grid.affine).unwrap();
    assert_eq!(flat.resampled([0.5, 1.25, 0.1]), flat);
    let back = grid.on(&fine).unwrap();
    assert_eq!(back.axes, [0, 1, 2]);
    let first = [back.starts[0], back.starts[1], back.starts[2]];
    assert!(distance(fine.position(first), grid.position([0.0; 3])) < 1e-9);
}

#[test]
fn grids_without_a_place_for_each_voxel_are_none() {
    assert_eq!(Grid::new([2, 2, 2], Affine([[0.0; 4]; 3])), None);
    let flat = Affine([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0; 4]]);
    assert_eq!(Grid::new([2, 2, 2], flat), None);
    assert_eq!(Grid::new([2, 0, 2], oblique(0.0).affine), None);
    let grid = oblique(5.0);
    assert_eq!(Grid::of_toml(&grid.to_toml()), Some(grid));
}
