//! Convolutions by the library equal the reference kernels, on random geometries, where the library is found.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use partita_onednn::{Instructions, Library, LibrarySearch, NAME, OneDnnKernels, OneDnnMenu};
use partita_program::{
    Algorithm, Choice, Dtype, Kernel, KernelShape, Menu, MenuError, Role, Taps, View,
};
use partita_run::{Inputs, KernelTally, Kernels, Memory, RunError};
use partita_space::Mesh;
use partita_testkit::{Bench, Draws, Maker, ReferenceMenu, onednn_search, reference_kernels};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rounding of f32 and the sums of a few hundred products.
const TOLERANCE: f64 = 1e-5;
/// The same of the gradient of a bias, which may cancel and is added up in f32.
const TOLERANCE_BIAS: f64 = 1e-4;
const SEEDS: u64 = 60;
const SEEDS_LONG: u64 = 1000;

/// The library of the environment or of the loader; what is missing is written past the capture of outputs.
fn library(test: &str) -> Option<Arc<Library>> {
    let search = onednn_search(test)?;
    Some(Arc::new(Library::load(&search, Instructions::All).unwrap()))
}

/// Offers what the library does; panics where it offers nothing.
struct Offered(OneDnnMenu);

impl Menu for Offered {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        let offer = self.0.offer(shape.kernel.parts(), shape.buffers).unwrap();
        Ok(Choice {
            algorithm: Algorithm(NAME.to_owned()),
            workspace: offer.workspace,
            packed_weights: 0,
        })
    }
}

/// Kernels that the library computes whole.
struct Whole(OneDnnKernels);

impl Kernels for Whole {
    fn execute(
        &mut self,
        kernel: &Kernel,
        _algorithm: &Algorithm,
        workspace: Option<&View>,
        memory: &Memory<'_>,
        _inputs: &Inputs,
        _progress: &mut dyn FnMut() -> bool,
    ) -> Result<KernelTally, RunError> {
        let done = self.0.execute(kernel.parts(), workspace, memory);
        assert_eq!(done, Ok(Some(kernel.parts().len())));
        Ok(KernelTally::default())
    }
}

/// The first parts of a kernel.
fn first_parts(kernel: &Kernel, count: usize) -> Kernel {
    let mut parts = kernel.parts()[..count].to_vec();
    if count == 1 {
        parts.remove(0)
    } else {
        Kernel::Fused { parts }
    }
}

/// The kernel on contiguous operands.
fn contiguous(bench: &mut Bench, kernel: &Kernel, draws: &mut Draws) -> Kernel {
    let (mut kernel, mut made) = (kernel.clone(), BTreeMap::new());
    kernel.each_view_mut(&mut |view| {
        let key = (view.buffer.0, view.start, view.extent);
        let buffer = &bench.buffers()[view.buffer.0 as usize];
        if buffer.role == Role::Activation {
            *view = *made
                .entry(key)
                .or_insert_with(|| bench.drawn(Dtype::F32, view.extent, 1.0, draws));
        }
    });
    kernel
}

/// A gradient of an input whose windows read some zeros before and after it, in place of one with any offsets.
fn padded(maker: &mut Maker, kernel: &Kernel, draws: &mut Draws) -> Option<Kernel> {
    let mut kernel = kernel.clone();
    let Kernel::ConvolutionBackwardData {
        dy,
        bias,
        dx,
        taps,
        shift,
        ..
    } = &mut kernel
    else {
        return None;
    };
    let mut extent = dx.extent;
    for dim in 0..3 {
        let reach = (taps.kernel[dim] - 1) * taps.dilation[dim];
        let read = (dy.extent[dim + 1] - 1) * taps.stride[dim] + reach + 1;
        let (before, after) = (draws.between(0, reach), draws.between(0, reach));
        let unread = draws.between(0, taps.stride[dim] - 1);
        shift[dim] = before as i64;
        extent[dim + 1] = (read + unread).saturating_sub(before + after).max(1);
    }
    (*bias, *dx) = (None, maker.view(extent));
    Some(kernel)
}

/// Runs a kernel by the library and by the reference, and compares every buffer.
fn compare(bench: &Bench, kernel: &Kernel, library: &Arc<Library>, (seed, threads): (u64, usize)) {
    let (inputs, go) = (Maker::inputs(), &mut || true);
    let menu = Offered(OneDnnMenu::new(Arc::clone(library), threads));
    let mut whole = Whole(OneDnnKernels::new(Arc::clone(library), threads, &[]).unwrap());
    let mesh = Mesh::new([1; 7]);
    let mut reference = reference_kernels(Dtype::F32)(mesh, 0);
    let got = bench.run(kernel, &menu, &mut whole, &inputs, go).unwrap();
    let expected = bench.run(kernel, &ReferenceMenu, &mut *reference, &inputs, go);
    let expected = expected.unwrap();
    let has_bias = kernel.parts().len() > 1;
    let tolerance = if has_bias { TOLERANCE_BIAS } else { TOLERANCE };
    let far = bench.compare(kernel, [&got, &expected], tolerance);
    if let Err(what) = far {
        panic!("PARTITA_SEED={seed} {kernel:?} on {threads} threads: {what}");
    }
}

#[test]
fn offered_convolutions_equal_their_reference() {
    let Some(library) = library("offered_convolutions_equal_their_reference") else {
        return;
    };
    let is_long = std::env::var("PARTITA_TEST_LONG").is_ok();
    let seeds = if is_long { SEEDS_LONG } else { SEEDS };
    let start: u64 = std::env::var("PARTITA_SEED").map_or(0, |seed| seed.parse().unwrap());
    let mesh = Mesh::new([1; 7]);
    // By kernel, and whether it has more parts than one.
    let mut seen: BTreeMap<(&str, bool), usize> = BTreeMap::new();
    for seed in start..start + seeds {
        let mut draws = Draws::new(seed);
        let mut maker = Maker::new(seed, Dtype::F32);
        let threads = draws.between(1, 3);
        let menu = OneDnnMenu::new(Arc::clone(&library), threads);
        for kernel in maker.all(&mesh, 0) {
            let kernel = padded(&mut maker, &kernel, &mut draws).unwrap_or(kernel);
            let kernel = if draws.one_in(2) {
                contiguous(&mut maker.bench, &kernel, &mut draws)
            } else {
                kernel
            };
            let offer = menu.offer(kernel.parts(), maker.bench.buffers());
            let Some(offer) = offer else {
                continue;
            };
            let first = first_parts(&kernel, offer.parts);
            let what = (seed, threads);
            compare(&maker.bench, &first, &library, what);
            let name = first.parts()[0].name();
            *seen.entry((name, offer.parts > 1)).or_default() += 1;
        }
    }
    println!("{seen:?}");
    if seeds >= SEEDS {
        let count = |name, has_more| seen.get(&(name, has_more)).copied().unwrap_or(0);
        for name in ["convolution_forward", "convolution_backward_weight"] {
            assert!(count(name, true) > 5 && count(name, false) > 20, "{seen:?}");
        }
        assert!(count("convolution_backward_data", false) > 20, "{seen:?}");
    }
}

/// A convolution of a padded volume to a volume with a halo, as programs have it.
fn convolution(bench: &mut Bench, draws: &mut Draws) -> Kernel {
    let taps = Taps {
        kernel: [3; 3],
        stride: [1; 3],
        dilation: [1; 3],
    };
    let mut drawn = |dims| bench.drawn(Dtype::F32, dims, 1.0, draws);
    let (x, halo) = (drawn([2, 10, 10, 10, 16]), drawn([2, 10, 10, 10, 32]));
    let (w, bias) = (drawn([3, 3, 3, 16, 32]), drawn([1, 1, 1, 1, 32]));
    let y = View {
        start: [0, 1, 1, 1, 0],
        extent: [2, 8, 8, 8, 32],
        ..halo
    };
    Kernel::ConvolutionForward {
        x,
        w,
        bias: Some(bias),
        y,
        taps,
        groups: 1,
        accumulate: false,
    }
}

#[test]
fn the_same_bits_come_from_the_same_threads() {
    let Some(library) = library("the_same_bits_come_from_the_same_threads") else {
        return;
    };
    let (mut bench, mut draws) = (Bench::default(), Draws::new(1));
    let kernel = convolution(&mut bench, &mut draws);
    for threads in [1, 2] {
        let menu = Offered(OneDnnMenu::new(Arc::clone(&library), threads));
        let run = || {
            let kernels = OneDnnKernels::new(Arc::clone(&library), threads, &[]).unwrap();
            let (mut whole, go) = (Whole(kernels), &mut || true);
            let ran = bench.run(&kernel, &menu, &mut whole, &Maker::inputs(), go);
            ran.unwrap().contents
        };
        assert_eq!(run(), run(), "{threads} threads");
    }
}

/// Threads of the library may use all cores of the rank, and the calling thread has its own again afterwards.
#[test]
fn a_pinned_thread_stays_pinned() {
    let Some(library) = library("a_pinned_thread_stays_pinned") else {
        return;
    };
    let cores = || -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list"));
        line.unwrap().to_owned()
    };
    let before = cores();
    let (mut bench, mut draws) = (Bench::default(), Draws::new(1));
    let kernel = convolution(&mut bench, &mut draws);
    let menu = Offered(OneDnnMenu::new(Arc::clone(&library), 2));
    let kernels = OneDnnKernels::new(Arc::clone(&library), 2, &[0]).unwrap();
    let (mut whole, go) = (Whole(kernels), &mut || true);
    let ran = bench.run(&kernel, &menu, &mut whole, &Maker::inputs(), go);
    assert!(ran.is_ok());
    assert_eq!(cores(), before);
}

#[test]
fn packed_weights_and_f64_are_not_offered() {
    let Some(library) = library("packed_weights_and_f64_are_not_offered") else {
        return;
    };
    let (mut bench, mut draws) = (Bench::default(), Draws::new(1));
    let kernel = convolution(&mut bench, &mut draws);
    let menu = OneDnnMenu::new(library, 1);
    let offer = |buffers: &[partita_program::Buffer]| menu.offer(kernel.parts(), buffers);
    assert!(offer(bench.buffers()).is_some());
    let mut buffers = bench.buffers().to_vec();
    // In the order of `convolution`: input, output, weights.
    buffers[2].role = Role::PackedWeights;
    assert_eq!(offer(&buffers), None);
    let mut buffers = bench.buffers().to_vec();
    buffers[0].dtype = Dtype::F64;
    assert_eq!(offer(&buffers), None);
}

#[test]
fn what_is_no_library_is_refused_with_its_name() {
    let load = |file: &str| {
        let search = LibrarySearch::File(file.into());
        Library::load(&search, Instructions::All)
            .unwrap_err()
            .to_string()
    };
    let missing = load("/nowhere/libdnnl.so.3");
    assert!(missing.contains("/nowhere/libdnnl.so.3"), "{missing}");
    let other = load("libc.so.6");
    assert_eq!(
        other,
        "libc.so.6 is not a supported oneDNN: it lacks dnnl_version"
    );
    let off = Library::load(&LibrarySearch::Off, Instructions::All);
    assert_eq!(off.unwrap_err().to_string(), "oneDNN is switched off");
}
