//! Grids of voxels in space: extents and positions, and where the voxels of one grid lie on another.

use partita_formats::nifti::Affine;

/// Largest distance of two positions that count as one. Units: voxels.
pub(crate) const TOLERANCE: f64 = 1e-3;
/// Key, in the part of an index that says what was converted, of the positions of voxels as they are stored.
pub(crate) const AFFINES: &str = "affines";
/// Key of the grids of the images there, where these are not stored as they are.
pub(crate) const ORIGINALS: &str = "originals";
/// Key of the orientation there.
pub(crate) const ORIENTATION: &str = "orientation";
/// Its word for RAS+.
pub(crate) const CANONICAL: &str = "canonical";
/// All orders of three axes, that of the stored axes first.
const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

/// Voxels of a volume and their positions. Axes are x, y and z: x varies fastest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grid {
    /// Voxels along each axis, at least 1.
    pub(crate) extent: [usize; 3],
    /// Positions, in millimeters: to the right, to anterior, to superior.
    pub(crate) affine: Affine,
}

/// Where the voxels of a grid lie on another one: voxel `i` along axis `a` is at `starts[a] + i * steps[a]` along axis
/// `axes[a]` of the other. Units: voxels of the other grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Alignment {
    pub(crate) axes: [usize; 3],
    pub(crate) starts: [f64; 3],
    pub(crate) steps: [f64; 3],
}

impl Alignment {
    /// Whether each voxel lies on the voxel of the same number.
    pub(crate) fn is_identity(&self) -> bool {
        (self.axes, self.starts, self.steps) == ([0, 1, 2], [0.0; 3], [1.0; 3])
    }
}

impl Grid {
    /// `None` without voxels, or where different voxels have one position.
    pub(crate) fn new(extent: [usize; 3], affine: Affine) -> Option<Self> {
        let volume = determinant(&linear(&affine)).abs();
        let spacing = affine.spacing();
        let is_flat = volume <= 1e-6 * spacing.iter().product::<f64>();
        (!extent.contains(&0) && !is_flat).then_some(Self { extent, affine })
    }

    /// Distances between neighbors along each axis. Units: millimeters.
    pub(crate) fn spacing(&self) -> [f64; 3] {
        self.affine.spacing()
    }

    /// Extents as dims D, H, W of an array, of which z, y and x are the axes.
    pub(crate) fn dims(&self) -> [usize; 3] {
        let [x, y, z] = self.extent;
        [z, y, x]
    }

    /// The position of a point that is given in voxels.
    pub(crate) fn position(&self, at: [f64; 3]) -> [f64; 3] {
        self.affine
            .0
            .map(|row| row[3] + (0..3).map(|axis| row[axis] * at[axis]).sum::<f64>())
    }

    /// The same voxels, their axes in another order: axis `a` is `axes[a]` of before.
    pub(crate) fn permuted(&self, axes: [usize; 3]) -> Self {
        Self {
            extent: axes.map(|axis| self.extent[axis]),
            affine: Affine(
                self.affine
                    .0
                    .map(|row| [row[axes[0]], row[axes[1]], row[axes[2]], row[3]]),
            ),
        }
    }

    /// The same voxels, numbered from the other end along some axes.
    fn reversed(&self, axes: [bool; 3]) -> Self {
        let last = |axis: usize| (self.extent[axis] - 1) as f64;
        let first = [0, 1, 2].map(|axis| if axes[axis] { last(axis) } else { 0.0 });
        let signs = axes.map(|is_reversed| if is_reversed { -1.0 } else { 1.0 });
        self.restepped(self.extent, first, signs)
    }

    /// Voxels at `starts[a] + i * steps[a]` along each axis.
    fn restepped(&self, extent: [usize; 3], starts: [f64; 3], steps: [f64; 3]) -> Self {
        let origin = self.position(starts);
        let mut rows = self.affine.0;
        for (row, origin) in rows.iter_mut().zip(origin) {
            *row = [
                row[0] * steps[0],
                row[1] * steps[1],
                row[2] * steps[2],
                origin,
            ];
        }
        Self {
            extent,
            affine: Affine(rows),
        }
    }

    /// For each direction (right, anterior, superior) the axis nearest to it, and whether it runs the other way.
    pub(crate) fn directions(&self) -> [(usize, bool); 3] {
        let cosines = cosines(&self.affine);
        let axes = nearest_order(|direction, axis| cosines[direction][axis]);
        [0, 1, 2].map(|direction| (axes[direction], cosines[direction][axes[direction]] < 0.0))
    }

    /// The same voxels with x nearest to the right, y to anterior and z to superior, each running there: RAS+.
    ///
    /// Source: NiBabel, `as_closest_canonical`.
    pub(crate) fn canonical(&self) -> Self {
        let directions = self.directions();
        self.permuted(directions.map(|(axis, _)| axis))
            .reversed(directions.map(|(_, is_reversed)| is_reversed))
    }

    /// The letters of the directions in which x, y and z run, such as `RAS` or `LPS`.
    ///
    /// Source: NiBabel, `aff2axcodes`.
    pub(crate) fn orientation(&self) -> String {
        let directions = self.directions();
        let letters = [["R", "L"], ["A", "P"], ["S", "I"]];
        let letter = |axis: usize| {
            let found = directions.iter().position(|&(other, _)| other == axis);
            let direction = found.unwrap_or(axis);
            letters[direction][usize::from(directions[direction].1)]
        };
        [0, 1, 2].map(letter).concat()
    }

    /// As many voxels as fill the same box at another spacing, around the same center. An axis of one voxel stays, as
    /// does one on which no voxel would move by more than the tolerance.
    ///
    /// Units: millimeters along x, y and z.
    pub(crate) fn resampled(&self, spacing: [f64; 3]) -> Self {
        let old = self.spacing();
        let mut extent = self.extent;
        let (mut starts, mut steps) = ([0.0; 3], [1.0; 3]);
        for axis in 0..3 {
            let voxels = self.extent[axis] as f64;
            let step = spacing[axis] / old[axis];
            if self.extent[axis] == 1 || (step - 1.0).abs() * (voxels - 1.0) <= TOLERANCE {
                continue;
            }
            // Of a half voxel more, however the files round it.
            let new = (voxels / step + TOLERANCE).round().max(1.0);
            extent[axis] = new as usize;
            steps[axis] = step;
            starts[axis] = ((voxels - 1.0) - (new - 1.0) * step) / 2.0;
        }
        self.restepped(extent, starts, steps)
    }

    /// Where its voxels lie on another grid; `None` where its axes are not parallel to those of the other.
    pub(crate) fn on(&self, other: &Grid) -> Option<Alignment> {
        let (to_voxels, origin) = self.in_voxels_of(other)?;
        let axes = self.nearest_axes(other);
        let mut found = Alignment {
            axes,
            starts: [0.0; 3],
            steps: [1.0; 3],
        };
        for axis in 0..3 {
            let row = to_voxels[axes[axis]];
            let last = |axis: usize| (self.extent[axis] - 1) as f64;
            let others = (0..3).filter(|&other| other != axis);
            let aside: f64 = others.map(|other| row[other].abs() * last(other)).sum();
            if aside > TOLERANCE {
                return None;
            }
            let start = origin[axes[axis]];
            (found.starts[axis], found.steps[axis]) = exact(start, row[axis], last(axis));
        }
        Some(found)
    }

    /// Whether its voxels are those of another grid, perhaps numbered in another order.
    pub(crate) fn is_same_voxels(&self, other: &Grid) -> Option<Alignment> {
        let found = self.on(other)?;
        let is_same = (0..3).all(|axis| {
            let voxels = other.extent[found.axes[axis]];
            let last = (voxels - 1) as f64;
            let runs = [(0.0, 1.0), (last, -1.0)];
            voxels == self.extent[axis] && runs.contains(&(found.starts[axis], found.steps[axis]))
        });
        is_same.then_some(found)
    }

    /// What differs from another grid, axes being those of the other.
    pub(crate) fn differences(&self, other: &Grid) -> Vec<String> {
        let mut axes = [0; 3];
        for (axis, of_other) in self.nearest_axes(other).into_iter().enumerate() {
            axes[of_other] = axis;
        }
        let turned = self.permuted(axes);
        let (own, others) = (cosines(&turned.affine), cosines(&other.affine));
        let cosine =
            |axis: usize| -> f64 { (0..3).map(|row| own[row][axis] * others[row][axis]).sum() };
        let turned = turned.reversed([0, 1, 2].map(|axis| cosine(axis) < 0.0));
        let angle = [0, 1, 2].map(|axis| {
            let sines = [[1, 2], [2, 0], [0, 1]];
            let sines =
                sines.map(|[a, b]| own[a][axis] * others[b][axis] - own[b][axis] * others[a][axis]);
            sines
                .iter()
                .map(|sine| sine * sine)
                .sum::<f64>()
                .sqrt()
                .min(1.0)
                .asin()
        });
        let mut found = Vec::new();
        if turned.extent != other.extent {
            let text = |extent: [usize; 3]| extent.map(|voxels| voxels.to_string()).join("x");
            let (own, others) = (text(turned.extent), text(other.extent));
            found.push(format!("extents (x, y, z) {own}, not {others}"));
        }
        let (own, others) = (turned.spacing(), other.spacing());
        let reach = |axis: usize| turned.extent[axis].max(other.extent[axis]) as f64;
        if (0..3).any(|axis| (own[axis] / others[axis] - 1.0).abs() * reach(axis) > TOLERANCE) {
            let (own, others) = (numbers(own, "x"), numbers(others, "x"));
            found.push(format!("spacing (x, y, z) {own} mm, not {others} mm"));
        }
        if (0..3).any(|axis| angle[axis] * reach(axis) > TOLERANCE) {
            let degrees = short(angle.into_iter().fold(0.0, f64::max).to_degrees());
            found.push(format!("axes turned by {degrees} degrees"));
        }
        let (own, others) = (turned.position([0.0; 3]), other.position([0.0; 3]));
        let distance = (0..3)
            .map(|dim| (own[dim] - others[dim]).powi(2))
            .sum::<f64>();
        let voxel = other.spacing().into_iter().fold(f64::INFINITY, f64::min);
        if distance.sqrt() > TOLERANCE * voxel {
            let (own, others) = (numbers(own, ", "), numbers(others, ", "));
            found.push(format!("first voxel at ({own}) mm, not ({others}) mm"));
        }
        if found.is_empty() {
            found.push(format!("positions by more than {TOLERANCE} of a voxel"));
        }
        found
    }

    /// For each axis the one of the other grid that it is nearest to.
    pub(crate) fn nearest_axes(&self, other: &Grid) -> [usize; 3] {
        let (own, others) = (cosines(&self.affine), cosines(&other.affine));
        nearest_order(|axis, of_other| {
            (0..3)
                .map(|row| own[row][axis] * others[row][of_other])
                .sum()
        })
    }

    /// The map from its voxels to those of another grid: a matrix, and where the first one lies.
    fn in_voxels_of(&self, other: &Grid) -> Option<([[f64; 3]; 3], [f64; 3])> {
        let inverse = inverse(&linear(&other.affine))?;
        let (own, others) = (self.affine.0, other.affine.0);
        let column = |row: usize, axis: usize| -> f64 {
            let shift = if axis == 3 { 1.0 } else { 0.0 };
            (0..3)
                .map(|at| inverse[row][at] * (own[at][axis] - shift * others[at][3]))
                .sum()
        };
        Some((
            [0, 1, 2].map(|row| [0, 1, 2].map(|axis| column(row, axis))),
            [0, 1, 2].map(|row| column(row, 3)),
        ))
    }

    /// From what an index file has.
    pub(crate) fn of_toml(value: &toml::Value) -> Option<Self> {
        let extent: Option<Vec<usize>> = value
            .get("extent")?
            .as_array()?
            .iter()
            .map(|voxels| usize::try_from(voxels.as_integer()?).ok())
            .collect();
        let affine = Affine::of_toml(value.get("affine")?)?;
        Self::new(extent?.try_into().ok()?, affine)
    }

    pub(crate) fn to_toml(self) -> toml::Value {
        let extent = self
            .extent
            .map(|voxels| toml::Value::Integer(voxels as i64));
        let mut table = toml::Table::new();
        table.insert("extent".to_owned(), extent.to_vec().into());
        table.insert("affine".to_owned(), self.affine.to_toml());
        table.into()
    }
}

/// Start and step of an axis whose last voxel has the number `last`; whole numbers where the voxels of both grids are
/// the same.
fn exact(start: f64, step: f64, last: f64) -> (f64, f64) {
    let sign = step.signum();
    let is_whole = (start - start.round()).abs() <= TOLERANCE;
    if is_whole && last == 0.0 {
        return (start.round(), 1.0);
    }
    if is_whole && ((step - sign) * last).abs() <= TOLERANCE {
        return (start.round(), sign);
    }
    (start, step)
}

/// The numbers of a text, in the fewest digits that distinguish them.
fn numbers(values: [f64; 3], between: &str) -> String {
    values.map(short).join(between)
}

/// A number with at most four decimals.
pub(crate) fn short(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0" } else { text }.to_owned()
}

fn linear(affine: &Affine) -> [[f64; 3]; 3] {
    affine.0.map(|[x, y, z, _]| [x, y, z])
}

/// Cosines of the angles between directions (rows) and axes (columns).
fn cosines(affine: &Affine) -> [[f64; 3]; 3] {
    let spacing = affine.spacing();
    linear(affine).map(|row| [0, 1, 2].map(|axis| row[axis] / spacing[axis]))
}

/// The order of axes with the largest sum of the magnitudes of cosines; the first of equals.
fn nearest_order(cosine: impl Fn(usize, usize) -> f64) -> [usize; 3] {
    let sum = |order: &[usize; 3]| -> f64 {
        let each = order.iter().enumerate();
        each.map(|(at, &axis)| cosine(at, axis).abs()).sum()
    };
    let better = |best: [usize; 3], order: [usize; 3]| {
        if sum(&order) > sum(&best) + 1e-9 {
            order
        } else {
            best
        }
    };
    ORDERS.into_iter().fold(ORDERS[0], better)
}

fn determinant(m: &[[f64; 3]; 3]) -> f64 {
    m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
        - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
        + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
}

/// Source: Cramer's rule.
fn inverse(m: &[[f64; 3]; 3]) -> Option<[[f64; 3]; 3]> {
    let whole = determinant(m);
    let minor = |row: usize, column: usize| {
        let [r, s] = [(row + 1) % 3, (row + 2) % 3];
        let [c, d] = [(column + 1) % 3, (column + 2) % 3];
        m[r][c] * m[s][d] - m[r][d] * m[s][c]
    };
    (whole != 0.0).then(|| [0, 1, 2].map(|row| [0, 1, 2].map(|column| minor(column, row) / whole)))
}

#[cfg(test)]
mod tests;
