//! Datasets of simulated universes.

use super::error::DatasetError;
use super::maker::{DatasetMaker, MakeRequest, integer};
use partita_data::{DatasetSpec, DatasetSummary, Kind};
use partita_formats::{DType, Layout, Samples};
use partita_site::Context;
use partita_synth::{CHANNELS, CosmologySpec, ParameterRange, Universe, make_universe};

/// Names of the parameters of a universe, in the order of the published targets.
const TARGETS: [&str; 4] = ["Omega_m", "sigma_8", "n_s", "H_0"];

/// A dataset of universes whose four cosmological parameters are known.
#[derive(Clone, Debug, PartialEq)]
pub struct CosmologyRequest {
    /// Folder, seed and splits.
    pub make: MakeRequest,
    /// Number of universes over all splits, one sample each.
    pub universes: usize,
    /// Voxels per side: a power of two from 16 to 512.
    pub grid: usize,
    /// Half-width of the range of n_s around 0.96, as a fraction of it, at most 0.1.
    pub n_s_spread: f64,
    /// Half-width of the range of H_0 around 70, as a fraction of it, at most 0.1.
    pub h_0_spread: f64,
}

/// Makes a dataset of universes, and summarizes it.
///
/// Errors: a request that cannot be met; a folder that cannot be written; a cancellation, which removes all files.
pub fn make_cosmology(
    context: &Context,
    request: &CosmologyRequest,
) -> Result<DatasetSummary, DatasetError> {
    let mut spec = CosmologySpec {
        seed: request.make.seed,
        ..CosmologySpec::small(request.grid)
    };
    for (range, spread) in [
        (&mut spec.ranges.n_s, request.n_s_spread),
        (&mut spec.ranges.h_0, request.h_0_spread),
    ] {
        *range = ParameterRange::around(range.center, spread);
    }
    spec.validate().map_err(DatasetError::Spec)?;
    let maker = DatasetMaker::new(&request.make, "universes", request.universes)?;
    let dataset = dataset_spec(&maker, &spec);
    maker.make(
        context,
        &dataset,
        move |universe| make_universe(&spec, universe),
        |writer, split, universe: Universe| {
            let counts = Samples::I16(universe.counts);
            let (unit, physical) = (universe.unit_parameters, universe.physical_parameters);
            writer.append(split, &counts, &unit, &physical)
        },
    )
}

fn dataset_spec(maker: &DatasetMaker<'_>, spec: &CosmologySpec) -> DatasetSpec {
    let [train, validation, test] = maker.splits();
    let mut asked = maker.asked("cosmology");
    asked.insert("grid".to_owned(), integer(spec.grid as u64));
    asked.insert("box_mpc_h".to_owned(), spec.box_mpc_h.into());
    asked.insert(
        "particles_per_dim".to_owned(),
        integer(spec.particles_per_dim as u64),
    );
    asked.insert("redshifts".to_owned(), spec.redshifts.to_vec().into());
    let ranges = &spec.ranges;
    let ranges = [ranges.omega_m, ranges.sigma_8, ranges.n_s, ranges.h_0];
    for (name, range) in TARGETS.iter().zip(ranges) {
        let bounds = [
            range.center - range.half_width,
            range.center + range.half_width,
        ];
        asked.insert(format!("{name}_range"), bounds.to_vec().into());
    }
    DatasetSpec {
        kind: Kind::Cosmology,
        shape: [CHANNELS, spec.grid, spec.grid, spec.grid],
        dtype: DType::Int16,
        targets: TARGETS.map(str::to_owned).to_vec(),
        labels: None,
        layout: Layout::Contiguous,
        train,
        validation,
        test,
        spec: asked,
    }
}
