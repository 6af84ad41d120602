use super::making::{Making, integer};
use crate::args::CosmologyArgs;
use crate::error::CliError;
use partita_data::{DType, DatasetSpec, Kind, Layout, Samples};
use partita_synth::{CHANNELS, CosmologySpec, ParameterRange, Universe, make_universe};
use std::io::Write;

/// Names of the parameters of a universe, in the order of the published targets.
const TARGETS: [&str; 4] = ["Omega_m", "sigma_8", "n_s", "H_0"];

/// Makes a dataset of universes.
pub fn make_cosmology(args: &CosmologyArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let mut spec = CosmologySpec {
        seed: args.making.seed,
        ..CosmologySpec::small(args.grid)
    };
    for (range, spread) in [
        (&mut spec.ranges.n_s, args.n_s_spread),
        (&mut spec.ranges.h_0, args.h_0_spread),
    ] {
        *range = ParameterRange::around(range.center, spread);
    }
    spec.validate().map_err(|error| CliError::user(&error))?;
    let making = Making::new(&args.making, "universes", args.universes)?;
    let dataset = dataset_spec(&making, &spec);
    making.make(
        &dataset,
        move |universe| make_universe(&spec, universe),
        |writer, split, universe: Universe| {
            let counts = Samples::I16(universe.counts);
            let (unit, physical) = (universe.unit_parameters, universe.physical_parameters);
            writer.append(split, &counts, &unit, &physical)
        },
        out,
    )
}

fn dataset_spec(making: &Making<'_>, spec: &CosmologySpec) -> DatasetSpec {
    let [train, validation, test] = making.splits();
    let mut asked = making.asked("cosmology");
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
