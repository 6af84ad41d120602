//! The four parameters that a network is to recover, and the box they are drawn from.

use crate::error::SynthError;
use crate::random::{CounterRng, Stream};

/// Baryon density in units of the critical density, the same in every universe.
///
/// Source: the generator of the CosmoFlow data, as in [`ParameterRanges::cosmoflow_2019`].
pub const OMEGA_B: f64 = 0.045;

/// A flat universe of matter and a cosmological constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cosmology {
    /// Density of all matter today, in units of the critical density.
    pub omega_m: f64,
    /// Root mean square of the linear density contrast in spheres of 8 Mpc/h today.
    pub sigma_8: f64,
    /// Exponent of the primordial power spectrum.
    pub n_s: f64,
    /// Hubble constant, km/s/Mpc.
    pub h_0: f64,
}

impl Cosmology {
    /// Hubble constant in units of 100 km/s/Mpc.
    pub fn little_h(&self) -> f64 {
        self.h_0 / 100.0
    }

    /// The parameters in the order of the published targets: Omega_m, sigma_8, n_s, H_0.
    pub fn to_array(self) -> [f64; 4] {
        [self.omega_m, self.sigma_8, self.n_s, self.h_0]
    }
}

/// The interval `center +- half_width`, which maps onto the unit parameter [-1, 1].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterRange {
    /// Middle of the interval, unit parameter 0.
    pub center: f64,
    /// Distance from the middle to either end, unit parameters -1 and +1.
    pub half_width: f64,
}

impl ParameterRange {
    /// The range that reaches `fraction` of `center` to either side.
    pub fn around(center: f64, fraction: f64) -> Self {
        Self {
            center,
            half_width: center * fraction,
        }
    }

    /// Physical value of a unit parameter.
    pub fn physical(&self, unit: f64) -> f64 {
        self.center + self.half_width * unit
    }
}

/// The box from which the parameters of a universe are drawn, uniformly and independently.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterRanges {
    /// Range of Omega_m.
    pub omega_m: ParameterRange,
    /// Range of sigma_8.
    pub sigma_8: ParameterRange,
    /// Range of n_s.
    pub n_s: ParameterRange,
    /// Range of H_0, km/s/Mpc.
    pub h_0: ParameterRange,
}

impl ParameterRanges {
    /// 10 % to either side of Omega_m = 0.3, sigma_8 = 0.8, n_s = 0.96, H_0 = 70 km/s/Mpc.
    ///
    /// Source: the generator of the CosmoFlow universes, repository NERSC/cosmoflow-sims,
    /// `janWorkflow/prepMusic_4par.sh` of 26 March 2019, whose universes carry the same names
    /// (`ics_2019-03_a...`) as those of the dataset 2019_05_4parE.
    pub fn cosmoflow_2019() -> Self {
        Self {
            omega_m: ParameterRange::around(0.3, 0.1),
            sigma_8: ParameterRange::around(0.8, 0.1),
            n_s: ParameterRange::around(0.96, 0.1),
            h_0: ParameterRange::around(70.0, 0.1),
        }
    }

    /// Unit parameters of universe `index`, each in [-1, 1).
    ///
    /// They are multiples of 2^-23, so that single precision holds them exactly.
    pub fn draw_unit(&self, seed: u64, index: u64) -> [f64; 4] {
        let rng = CounterRng::new(seed, index);
        rng.words(Stream::Parameters, 0)
            .map(|word| f64::from(word >> 8) / f64::from(1 << 23) - 1.0)
    }

    /// The cosmology of a point of the unit box.
    pub fn cosmology(&self, unit: [f64; 4]) -> Cosmology {
        Cosmology {
            omega_m: self.omega_m.physical(unit[0]),
            sigma_8: self.sigma_8.physical(unit[1]),
            n_s: self.n_s.physical(unit[2]),
            h_0: self.h_0.physical(unit[3]),
        }
    }

    /// Errors: `InvalidSpec` for a corner of the box where linear theory has no meaning.
    pub fn validate(&self) -> Result<(), SynthError> {
        let positive = |range: &ParameterRange| {
            range.center.is_finite()
                && range.half_width >= 0.0
                && range.center - range.half_width > 0.0
        };
        let named = [
            ("ranges.omega_m", &self.omega_m),
            ("ranges.sigma_8", &self.sigma_8),
            ("ranges.n_s", &self.n_s),
            ("ranges.h_0", &self.h_0),
        ];
        if let Some((field, range)) = named.into_iter().find(|(_, range)| !positive(range)) {
            let expected = "a finite interval of positive numbers";
            return Err(SynthError::InvalidSpec {
                field,
                expected,
                got: format!("{range:?}"),
            });
        }
        let (low, high) = (self.omega_m.physical(-1.0), self.omega_m.physical(1.0));
        if low <= OMEGA_B || high > 1.0 {
            return Err(SynthError::InvalidSpec {
                field: "ranges.omega_m",
                expected: "more than the baryons (0.045) and at most 1",
                got: format!("{low} to {high}"),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_parameters_fill_the_box_evenly() {
        let ranges = ParameterRanges::cosmoflow_2019();
        let draws: Vec<[f64; 4]> = (0..4000).map(|index| ranges.draw_unit(11, index)).collect();
        for axis in 0..4 {
            let mean = draws.iter().map(|d| d[axis]).sum::<f64>() / 4000.0;
            let square = draws.iter().map(|d| d[axis] * d[axis]).sum::<f64>() / 4000.0;
            // Standard errors of a uniform variable on [-1, 1]: 0.0091 and 0.0047.
            assert!(mean.abs() < 0.04, "axis {axis}: mean {mean}");
            assert!(
                (square - 1.0 / 3.0).abs() < 0.02,
                "axis {axis}: mean square {square}"
            );
            assert!(draws.iter().all(|d| (-1.0..1.0).contains(&d[axis])));
            assert!(draws.iter().all(|d| f64::from(d[axis] as f32) == d[axis]));
        }
    }

    #[test]
    fn refuses_impossible_ranges() {
        let good = ParameterRanges::cosmoflow_2019();
        assert!(good.validate().is_ok());
        let no_dark_matter = ParameterRanges {
            omega_m: ParameterRange::around(0.05, 0.2),
            ..good
        };
        assert!(no_dark_matter.validate().is_err());
        let negative = ParameterRanges {
            n_s: ParameterRange::around(1.0, 1.5),
            ..good
        };
        assert!(negative.validate().is_err());
        let not_a_number = ParameterRanges {
            h_0: ParameterRange::around(f64::NAN, 0.1),
            ..good
        };
        assert!(not_a_number.validate().is_err());
    }
}
