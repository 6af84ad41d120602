//! Linear equations with a symmetric positive definite matrix, by Cholesky decomposition.

/// `L` with `L L' = A`, row by row.
pub(crate) struct Cholesky {
    rows: Vec<f64>,
    size: usize,
}

impl Cholesky {
    /// None if the matrix of `size` rows is not positive definite.
    pub fn new(mut matrix: Vec<f64>, size: usize) -> Option<Self> {
        for a in 0..size {
            for b in 0..=a {
                let (before, row) = matrix.split_at(a * size);
                let other = if a == b { row } else { &before[b * size..] };
                let sum: f64 = row[..b].iter().zip(&other[..b]).map(|(x, y)| x * y).sum();
                let left = row[b] - sum;
                matrix[a * size + b] = if a == b {
                    if left <= 0.0 || !left.is_finite() {
                        return None;
                    }
                    left.sqrt()
                } else {
                    left / matrix[b * size + b]
                };
            }
        }
        Some(Self { rows: matrix, size })
    }

    /// `x` with `A x = right`.
    pub fn solve(&self, mut right: Vec<f64>) -> Vec<f64> {
        let at = |a: usize, b: usize| self.rows[a * self.size + b];
        for a in 0..self.size {
            let sum: f64 = (0..a).map(|b| at(a, b) * right[b]).sum();
            right[a] = (right[a] - sum) / at(a, a);
        }
        for a in (0..self.size).rev() {
            let sum: f64 = (a + 1..self.size).map(|b| at(b, a) * right[b]).sum();
            right[a] = (right[a] - sum) / at(a, a);
        }
        right
    }
}

/// `x` with `matrix x = right`; none if the matrix is not positive definite.
pub(crate) fn solve(matrix: Vec<f64>, right: Vec<f64>) -> Option<Vec<f64>> {
    let size = right.len();
    Cholesky::new(matrix, size).map(|factor| factor.solve(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_equations() {
        let matrix = vec![4.0, 2.0, 0.0, 2.0, 5.0, 1.0, 0.0, 1.0, 3.0];
        let x = solve(matrix, vec![8.0, 15.0, 11.0]).unwrap();
        for (found, expected) in x.iter().zip([1.0, 2.0, 3.0]) {
            assert!((found - expected).abs() < 1e-12, "{x:?}");
        }
        assert!(solve(vec![1.0, 2.0, 2.0, 1.0], vec![1.0, 1.0]).is_none());
    }
}
