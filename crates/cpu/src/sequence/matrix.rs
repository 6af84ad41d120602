//! Products of small matrices that lie in boxes.

use crate::simd::{Op, Simd};

/// Rows of a register tile.
const ROWS: usize = 6;

/// A matrix that is read element by element: (i, j) lies at `i * row + j * column`.
///
/// Pointers: all elements.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    pub(crate) data: *const f32,
    pub(crate) row: usize,
    pub(crate) column: usize,
}

/// c (+)= scale * a b, b and c with columns one after the other.
///
/// Pointers: all elements of the matrices; no other thread accesses those of c.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub(crate) a: Factor,
    pub(crate) b: *const f32,
    /// Distance of the rows of b.
    pub(crate) b_row: usize,
    pub(crate) c: *mut f32,
    /// Distance of the rows of c.
    pub(crate) c_row: usize,
    pub(crate) rows: usize,
    /// Columns of a, rows of b.
    pub(crate) inner: usize,
    pub(crate) columns: usize,
    pub(crate) scale: f32,
    pub(crate) add: bool,
}

impl Op for Product {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let vectors = S::ACCUMULATORS / ROWS;
        for column in (0..self.columns).step_by(vectors * S::LANES) {
            let left = self.columns - column;
            let wide = left.div_ceil(S::LANES).min(vectors);
            // Of the last vector.
            let lanes = (left - (wide - 1) * S::LANES).min(S::LANES);
            for row in (0..self.rows).step_by(ROWS) {
                let high = (self.rows - row).min(ROWS);
                // SAFETY: the tile lies inside of the matrices.
                unsafe { self.tile::<S>((row, high), (column, wide), lanes) };
            }
        }
    }
}

impl Product {
    /// Picks the tile of this many rows and vectors.
    ///
    /// # Safety
    /// The processor has the features of `S`, what is said of the pointers holds, and the tile lies
    /// inside of the product.
    #[inline(always)]
    unsafe fn tile<S: Simd>(
        &self,
        (row, high): (usize, usize),
        (column, wide): (usize, usize),
        lanes: usize,
    ) {
        macro_rules! pick {
            ($($h:literal)*) => {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    match (high, wide) {
                        $(($h, 1) => self.add_up::<S, $h, 1>(row, column, lanes),
                        ($h, 2) => self.add_up::<S, $h, 2>(row, column, lanes),
                        ($h, 3) => self.add_up::<S, $h, 3>(row, column, lanes),
                        ($h, 4) => self.add_up::<S, $h, 4>(row, column, lanes),)*
                        _ => unreachable!("no tile of {high} rows and {wide} vectors"),
                    }
                }
            };
        }
        pick!(1 2 3 4 5 6)
    }

    /// One tile.
    ///
    /// # Safety
    /// As for `tile`.
    #[inline(always)]
    unsafe fn add_up<S: Simd, const H: usize, const W: usize>(
        &self,
        row: usize,
        column: usize,
        lanes: usize,
    ) {
        if const { H * W > S::ACCUMULATORS } {
            unreachable!("tile larger than the registers of its level");
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            let a = self.a.data.add(row * self.a.row);
            let b = self.b.add(column);
            let mut sums = [[S::splat(0.0); W]; H];
            for k in 0..self.inner {
                let b = b.add(k * self.b_row);
                let b: [S::V; W] = std::array::from_fn(|w| load::<S>(b, w, W, lanes));
                for (h, sums) in sums.iter_mut().enumerate() {
                    let a = S::splat(*a.add(h * self.a.row + k * self.a.column));
                    for w in 0..W {
                        sums[w] = S::fma(a, b[w], sums[w]);
                    }
                }
            }
            let scale = S::splat(self.scale);
            for (h, sums) in sums.iter().enumerate() {
                let c = self.c.add((row + h) * self.c_row + column);
                for (w, sum) in sums.iter().enumerate() {
                    let mut value = S::mul(*sum, scale);
                    if self.add {
                        value = S::add(value, load::<S>(c, w, W, lanes));
                    }
                    let c = c.add(w * S::LANES);
                    if w + 1 == W && lanes < S::LANES {
                        S::store_part(c, lanes, value)
                    } else {
                        S::store(c, value)
                    }
                }
            }
        }
    }
}

/// Vector `at` of a row of `of` vectors, the last of which has `lanes` lanes.
///
/// # Safety
/// The processor has the features of `S`, and the vector can be read.
#[inline(always)]
unsafe fn load<S: Simd>(row: *const f32, at: usize, of: usize, lanes: usize) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let p = row.add(at * S::LANES);
        if at + 1 == of && lanes < S::LANES {
            S::load_part(p, lanes)
        } else {
            S::load(p)
        }
    }
}

/// `to` becomes the transposed of `from`.
///
/// Pointers: all elements of both; no other thread accesses those of `to`.
#[derive(Clone, Copy)]
pub(crate) struct Transpose {
    pub(crate) from: *const f32,
    /// Distance of the rows of `from`.
    pub(crate) from_row: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) to: *mut f32,
    /// Distance of the rows of `to`.
    pub(crate) to_row: usize,
}

impl Op for Transpose {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let whole = (self.rows / 4 * 4, self.columns / S::LANES * S::LANES);
        // SAFETY: inside of both matrices.
        unsafe {
            for row in (0..whole.0).step_by(4) {
                let from = self.from.add(row * self.from_row);
                for column in (0..whole.1).step_by(S::LANES) {
                    let rows: [S::V; 4] =
                        std::array::from_fn(|i| S::load(from.add(i * self.from_row + column)));
                    S::store_columns(rows, self.to.add(column * self.to_row + row), self.to_row);
                }
            }
            for row in 0..self.rows {
                let first = if row < whole.0 { whole.1 } else { 0 };
                for column in first..self.columns {
                    let value = *self.from.add(row * self.from_row + column);
                    *self.to.add(column * self.to_row + row) = value;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Level;

    fn numbers(count: usize, step: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * step + 3) % 13) as f32 - 6.0)
            .collect()
    }

    #[test]
    fn products_are_those_of_plain_loops() {
        for level in Level::ALL.into_iter().filter(|level| level.available()) {
            for (rows, inner, columns) in
                [(1, 1, 1), (7, 5, 3), (6, 9, 33), (13, 4, 70), (5, 3, 16)]
            {
                // a is read transposed, b and c have gaps.
                let (a, b) = (
                    numbers(inner * (rows + 2), 5),
                    numbers(inner * (columns + 3), 7),
                );
                let mut c = numbers(rows * (columns + 1), 3);
                let mut expected = c.clone();
                for i in 0..rows {
                    for j in 0..columns {
                        let terms =
                            (0..inner).map(|k| a[k * (rows + 2) + i] * b[k * (columns + 3) + j]);
                        expected[i * (columns + 1) + j] += 0.5 * terms.sum::<f32>();
                    }
                }
                let product = Product {
                    a: Factor {
                        data: a.as_ptr(),
                        row: 1,
                        column: rows + 2,
                    },
                    b: b.as_ptr(),
                    b_row: columns + 3,
                    c: c.as_mut_ptr(),
                    c_row: columns + 1,
                    rows,
                    inner,
                    columns,
                    scale: 0.5,
                    add: true,
                };
                // SAFETY: the level is available, and the matrices have their elements.
                unsafe { level.run(product) };
                assert_eq!(c, expected, "{level:?} {rows} {inner} {columns}");
                let mut turned = vec![0.0; columns * (rows + 1)];
                let transpose = Transpose {
                    from: c.as_ptr(),
                    from_row: columns + 1,
                    rows,
                    columns,
                    to: turned.as_mut_ptr(),
                    to_row: rows + 1,
                };
                // SAFETY: as above.
                unsafe { level.run(transpose) };
                for i in 0..rows {
                    for j in 0..columns {
                        assert_eq!(turned[j * (rows + 1) + i], c[i * (columns + 1) + j]);
                    }
                }
            }
        }
    }
}
