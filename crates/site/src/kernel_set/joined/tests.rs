//! Kernels with parts by oneDNN equal the reference kernels, where the library is found.

use super::*;
use crate::context::Context;
use crate::environment::Environment;
use crate::kernel_set::KernelSet;
use crate::local_ranks::{Ranks, setting};
use partita_cpu::{Level, Team};
use partita_onednn::LibrarySearch;
use partita_program::Dtype;
use partita_space::{Mesh, Seconds};
use partita_testkit::{
    DrawnMenu, Features, Maker, ReferenceMenu, distance, onednn_search, reference_kernels,
};
use partita_tune::Measurements;
use std::collections::BTreeMap;

/// The gradient of a bias may cancel, and is rounded after each micro-batch.
const TOLERANCE: f64 = 1e-4;

fn processing(search: LibrarySearch, threads: usize) -> Processing {
    let context = Context::new(Environment {
        onednn: search,
        ..Environment::default()
    });
    context.processing(threads)
}

fn kernels(processing: &Processing) -> JoinedKernels {
    let team = Team::new(processing.threads, processing.level).unwrap();
    let cpu = CpuKernels::new(Mesh::new([1; 7]), 0, team);
    JoinedKernels::new(0, cpu, processing.clone(), Vec::new())
}

/// A menu of one choice.
struct Only(Choice);

impl Menu for Only {
    fn choose(&self, _shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        Ok(self.0.clone())
    }
}

fn compare(maker: &Maker, kernel: &Kernel, choice: &Choice, processing: &Processing) {
    let (inputs, go) = (Maker::inputs(), &mut || true);
    let (bench, mut reference) = (
        &maker.bench,
        reference_kernels(Dtype::F32)(Mesh::new([1; 7]), 0),
    );
    let only = Only(choice.clone());
    let got = bench.run(kernel, &only, &mut kernels(processing), &inputs, go);
    let got = got.unwrap_or_else(|error| panic!("{kernel:?}: {error}"));
    let expected = bench.run(kernel, &ReferenceMenu, &mut *reference, &inputs, go);
    let expected = expected.unwrap();
    assert_eq!(got.worked, KernelTally::expected(kernel, bench.buffers()));
    for (id, (got, expected)) in got.contents.iter().zip(&expected.contents).enumerate() {
        let floor = 1e-2 * (got.len() as f64).sqrt().max(1.0);
        let far = distance(got, expected, floor);
        assert!(
            far <= TOLERANCE,
            "{} of {kernel:?}: {far:.2e} in buffer {id}",
            choice.algorithm
        );
    }
}

#[test]
fn kernels_with_parts_by_onednn_equal_their_reference() {
    let Some(search) = onednn_search("kernels_with_parts_by_onednn_equal_their_reference") else {
        return;
    };
    let mut seen: BTreeMap<bool, usize> = BTreeMap::new();
    for seed in 0..40 {
        println!("seed {seed}");
        let processing = processing(search.clone(), 1 + seed as usize % 2);
        let menu = KernelSet::CPU.menu_with(&processing);
        let mut maker = Maker::new(seed, Dtype::F32);
        for kernel in maker.all(&Mesh::new([1; 7]), 0) {
            let buffers = maker.bench.buffers();
            let shape = KernelShape {
                kernel: &kernel,
                buffers,
            };
            let drawn = DrawnMenu { menu: &*menu, seed }.draw(&shape);
            let undivided = Configuration::undivided(NAME);
            for configuration in [Some(undivided), drawn].into_iter().flatten() {
                let choice = menu.configured(&shape, &configuration);
                let Some(choice) = choice.filter(|_| configuration.uses(NAME)) else {
                    continue;
                };
                *seen.entry(configuration.count() > 1).or_default() += 1;
                compare(&maker, &kernel, &choice, &processing);
            }
        }
    }
    assert!(seen[&false] > 150 && seen[&true] > 20, "{seen:?}");
}

/// A program that names the library where there is none.
#[test]
fn what_cannot_be_computed_is_refused_with_what_can() {
    let mut maker = Maker::new(1, Dtype::F32);
    let all = maker.all(&Mesh::new([1; 7]), 0);
    let kernel = all
        .iter()
        .find(|kernel| kernel.name() == "convolution_forward")
        .unwrap();
    let choice = Only(Choice {
        algorithm: Algorithm(NAME.to_owned()),
        workspace: Bytes(0),
        packed_weights: 0,
    });
    let mut kernels = kernels(&processing(LibrarySearch::Off, 1));
    let (inputs, go) = (Maker::inputs(), &mut || true);
    let error = maker
        .bench
        .run(kernel, &choice, &mut kernels, &inputs, go)
        .err();
    assert_eq!(
        error.unwrap().to_string(),
        "rank 0: algorithm `onednn` of convolution_forward is not offered by the CPU kernels (oneDNN is switched off; \
         PARTITA_ONEDNN=/path/to/libdnnl.so.3 names it); possible are cpu, winograd2, winograd4, winograd24, fourier"
    );
}

/// Times of the library are known where it is found in the same version, and nowhere else.
#[test]
fn times_of_a_library_belong_to_its_version() {
    let Some(search) = onednn_search("times_of_a_library_belong_to_its_version") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let context = |onednn: LibrarySearch| {
        Context::new(Environment {
            measured_times: Some(folder.path().join("measured.sqlite")),
            onednn,
            level: Level::detect(),
            ..Environment::default()
        })
    };
    let (with, without) = (context(search), context(LibrarySearch::Off));
    let setting = setting(with.level(), KernelSet::CPU, &Ranks::threads(1, 1));
    let times: BTreeMap<String, Seconds> =
        [("cpu", 2.0), ("onednn", 1.0), ("onednn:n1,cpu:n2", 3.0)]
            .map(|(name, seconds)| (name.to_owned(), Seconds(seconds)))
            .into();
    let features = Features {
        family: "a kernel".to_owned(),
        flops: 1.0,
        bytes: 1.0,
        shape: [0.0; Features::NAMES.len()],
    };
    let new = Measurements {
        kernels: [("k1 a kernel".to_owned(), times.clone())].into(),
        shapes: [("k1 a kernel".to_owned(), features)].into(),
        ..Measurements::default()
    };
    with.keep_measurements(&setting, &new);
    assert_eq!(with.measurements(&setting).kernels["k1 a kernel"], times);
    let rest = without.measurements(&setting);
    assert_eq!(
        rest.kernels["k1 a kernel"],
        [("cpu".to_owned(), Seconds(2.0))].into()
    );
    let version = with.processing(1).onednn.library().unwrap().version;
    let own = partita_tune::Conditions {
        backend: format!("{}, oneDNN {version}", setting.backend),
        ..setting
    };
    assert_eq!(without.measurements(&own).kernels["k1 a kernel"].len(), 2);
}
