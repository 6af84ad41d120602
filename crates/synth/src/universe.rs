//! A universe: its specification, its parameters and its particles at four redshifts.

use crate::error::SynthError;
use crate::field::LinearModes;
use crate::growth::growth_factor;
use crate::parameters::ParameterRanges;
use crate::power::LinearPower;
use crate::random::CounterRng;
use crate::zeldovich::Displacement;

/// Channels of a universe, one per redshift.
pub const CHANNELS: usize = 4;

/// The redshifts of the CosmoFlow data, today first.
///
/// Source: `zRedShift` in the generator named at [`ParameterRanges::cosmoflow_2019`].
pub const PUBLISHED_REDSHIFTS: [f64; CHANNELS] = [0.0, 0.5, 1.5, 3.0];

/// What a dataset of universes is made from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CosmologySpec {
    /// Voxels a side, a power of two from 16 to 512.
    pub grid: usize,
    /// Side of the periodic box, Mpc/h, the same for all universes.
    pub box_mpc_h: f64,
    /// Particles a side, a multiple of `grid` up to 512.
    pub particles_per_dim: usize,
    /// Redshift of each channel.
    pub redshifts: [f64; CHANNELS],
    /// Box of the parameters.
    pub ranges: ParameterRanges,
    /// Names the dataset: with the index of a universe it determines every bit.
    pub seed: u64,
}

impl CosmologySpec {
    /// A dataset from which Omega_m and sigma_8 can be learned at a small `grid`.
    ///
    /// Voxels of 12.5 Mpc/h, whose linear variance is close to sigma_8 squared, and 27 particles
    /// in each (fewer where a side would exceed 512 particles). The particles stand 4.2 Mpc/h
    /// apart: counts from a lattice respond weakly to displacements far below its spacing, and
    /// 8 particles in such voxels would lose most of the signal at redshift 3. Redshifts and
    /// ranges as published, seed 2019.
    pub fn small(grid: usize) -> Self {
        let per_voxel = (512 / grid.max(1)).clamp(1, 3);
        Self {
            grid,
            box_mpc_h: 12.5 * grid as f64,
            particles_per_dim: per_voxel * grid,
            redshifts: PUBLISHED_REDSHIFTS,
            ranges: ParameterRanges::cosmoflow_2019(),
            seed: 2019,
        }
    }

    /// Mean number of particles in a voxel, the same in every universe and channel.
    pub fn mean_count(&self) -> f64 {
        (self.particles_per_dim as f64 / self.grid as f64).powi(3)
    }

    /// Errors: `InvalidSpec` with the first field that is out of its limits.
    pub fn validate(&self) -> Result<(), SynthError> {
        let invalid = |field, expected, got| {
            Err(SynthError::InvalidSpec {
                field,
                expected,
                got,
            })
        };
        if !self.grid.is_power_of_two() || !(16..=512).contains(&self.grid) {
            return invalid(
                "grid",
                "a power of two from 16 to 512",
                self.grid.to_string(),
            );
        }
        let particles = self.particles_per_dim;
        if particles == 0 || !particles.is_multiple_of(self.grid) || particles > 512 {
            let expected = "a multiple of grid, at most 512";
            return invalid("particles_per_dim", expected, particles.to_string());
        }
        if !(self.box_mpc_h.is_finite() && self.box_mpc_h > 0.0) {
            return invalid("box_mpc_h", "a positive length", self.box_mpc_h.to_string());
        }
        if let Some(z) = self
            .redshifts
            .iter()
            .find(|z| !(z.is_finite() && **z >= 0.0))
        {
            return invalid("redshifts", "redshifts of 0 or more", z.to_string());
        }
        self.ranges.validate()
    }
}

/// Particle counts of one universe and the parameters that made it.
#[derive(Debug, Clone, PartialEq)]
pub struct Universe {
    /// Counts in voxels, layout (C, D, H, W), channels in the order of the redshifts.
    pub counts: Vec<i16>,
    /// Omega_m, sigma_8, n_s, H_0, each mapped from its range to [-1, 1].
    pub unit_parameters: [f32; 4],
    /// Omega_m, sigma_8, n_s, H_0 (km/s/Mpc).
    pub physical_parameters: [f32; 4],
}

/// Makes universe `index` of a dataset; same specification and index, same bits.
///
/// The bits do not depend on threads or order of calls, but may on the processor, whose vector
/// width decides how transforms are rounded. The four channels show the same particles at four
/// times, moved in first order (Zel'dovich) where the published data use an N-body code. Runs on
/// the caller's thread and needs `24 * particles_per_dim^3 + 8 * grid^3` bytes.
/// Errors: `InvalidSpec`, or `CountOverflow` if a voxel exceeds 32767 particles.
pub fn make_universe(spec: &CosmologySpec, index: u64) -> Result<Universe, SynthError> {
    spec.validate()?;
    let unit = spec.ranges.draw_unit(spec.seed, index);
    let cosmology = spec.ranges.cosmology(unit);
    let power = LinearPower::new(&cosmology);
    let rng = CounterRng::new(spec.seed, index);
    let modes = LinearModes::new(spec.particles_per_dim, spec.box_mpc_h, &power, rng);
    let displacement = Displacement::new(&modes);
    let voxels = spec.grid.pow(3);
    let mut counts = vec![0i16; CHANNELS * voxels];
    for (channel, slab) in counts.chunks_exact_mut(voxels).enumerate() {
        let growth = growth_factor(cosmology.omega_m, spec.redshifts[channel]);
        if !displacement.count(growth, spec.grid, slab) {
            return Err(SynthError::CountOverflow { index, channel });
        }
    }
    Ok(Universe {
        counts,
        unit_parameters: unit.map(|value| value as f32),
        physical_parameters: cosmology.to_array().map(|value| value as f32),
    })
}
