//! Expected times of convolutions by each implementation, to choose one where none was measured.
//!
//! A time is linear in the vectors that the parts of an implementation compute: products, and transforms of tiles and of
//! weights; and in the bytes that pass beyond the caches. The constants are fitted to times of convolutions of networks.
//! That suffices to compare implementations; as seconds they are rough.

use super::layer::Layer;
use super::method::Method;
use super::native::is_native;
use crate::conv::data::{packs_backward_data, positions_of_tap};
use crate::conv::fourier::fourier_multiply_adds;
use crate::conv::transformed::Direction;
use crate::conv::winograd::WinogradTile;
use crate::conv::winograd::work::{WinogradWork, filter_work, gradient_work};
use crate::grid::product;
use crate::simd::Level;
use crate::team::TeamKind;
use partita_program::KernelShape;
use partita_program::descriptor::Pass;
use partita_space::Seconds;

/// Picoseconds that a byte takes from or to memory beyond the caches, or that caches hold no longer: about what a core of
/// a server has while others are at work.
const BYTE: f64 = 50.0;

/// What the parts of an implementation take: of computing, picoseconds of a vector on one thread; of memory, bytes that
/// pass for each byte of a vector.
struct Rates {
    /// Of filters: forward, and gradients of inputs.
    filter: PassRates,
    /// Of gradients of weights.
    gradient: PassRates,
    /// Products of pairs of bf16, beside those of f32.
    pairs: f64,
}

struct PassRates {
    /// Picoseconds of multiply-adds, and of sums that a loop over channels begins.
    direct: [f64; 2],
    /// Picoseconds of products, and of points of inputs, outputs and weights.
    winograd: [f64; 4],
    /// Picoseconds of multiply-adds in which the transforms are counted, too.
    fourier: f64,
    traffic: &'static Traffic,
}

/// Bytes that pass for each byte of the parts.
struct Traffic {
    direct_activations: f64,
    direct_weights: f64,
    winograd_activations: f64,
    /// For each dim that is transformed.
    winograd_weights: f64,
    winograd_far: f64,
    fourier_activations: f64,
}

/// Vectors that a direct convolution computes and reads.
#[derive(Clone, Copy, Debug)]
struct DirectWork {
    /// Multiply-adds.
    products: f64,
    /// Sums that a loop over channels begins.
    sums: f64,
    weights: f64,
}

impl Rates {
    /// None for levels of which no processor was measured.
    fn of(level: Level) -> Option<&'static Self> {
        match level {
            Level::Avx2 => Some(&AVX2),
            Level::Avx512 | Level::Avx512Bf16 => Some(&AVX512),
            Level::Portable | Level::Neon => None,
        }
    }
}

impl Layer {
    /// Vectors of inputs and outputs.
    fn activations(&self, level: Level) -> f64 {
        (self.input.elements() + self.output.elements()) as f64 / level.lanes() as f64
    }

    fn direct(&self, level: Level) -> DirectWork {
        let ((c, f), groups, lanes) = (self.channels(), self.conv.groups, level.lanes());
        let vectors = |channels: usize| groups * (channels / groups).div_ceil(lanes);
        let taps = self.conv.window.volume();
        let (inputs, outputs) = (self.input.positions(), self.output.positions());
        // Positions with their taps, vectors of channels that are written, and rows that are summed over.
        let (positions, columns, rows, read) = match self.pass {
            Pass::Forward => (product([outputs, taps]), vectors(f), c / groups, 1.0),
            Pass::BackwardWeight => (outputs, vectors(f), taps * (c / groups), 1.0),
            Pass::BackwardData => {
                let positions = product([positions_of_tap(&self.conv, inputs), taps]);
                if packs_backward_data(level, &self.conv, c, f, inputs) > 0 {
                    (positions, vectors(c), f / groups, 1.0)
                } else {
                    // Vectors of output channels are summed over, and weights are not packed.
                    (positions, vectors(f), c / groups, 0.5)
                }
            }
        };
        let sums = product([positions, columns]) as f64;
        DirectWork {
            products: sums * rows as f64,
            sums,
            weights: read * self.conv.weight_elements(c, f) as f64 / lanes as f64,
        }
    }

    fn winograd(&self, team: TeamKind, tile: WinogradTile) -> WinogradWork {
        let (conv, channels) = (&self.conv, self.channels());
        let filter = |direction| filter_work(team, tile, direction, conv, channels, self.written());
        match self.pass {
            Pass::Forward => filter(Direction::Forward),
            Pass::BackwardData => filter(Direction::BackwardData),
            Pass::BackwardWeight => gradient_work(team, tile, conv, channels.0, &self.output),
        }
    }

    fn fourier(&self, level: Level) -> f64 {
        let (c, f) = self.channels();
        let channels = match self.pass {
            Pass::Forward | Pass::BackwardWeight => (c, f),
            Pass::BackwardData => (f, c),
        };
        fourier_multiply_adds(&self.conv, channels, self.written()) / level.lanes() as f64
    }
}

/// How long a kernel that begins with a convolution is expected to take by a method that is offered for it. None for
/// levels without constants.
pub(super) fn expected(
    team: TeamKind,
    shape: &KernelShape<'_>,
    layer: &Layer,
    method: Method,
) -> Option<Seconds> {
    let rates = Rates::of(team.level)?;
    let pass = match layer.pass {
        Pass::Forward | Pass::BackwardData => &rates.filter,
        Pass::BackwardWeight => &rates.gradient,
    };
    let is_native = is_native(method, shape.kernel, shape.buffers);
    let activations = layer.activations(team.level);
    let (mut compute, mut vectors) = match method {
        Method::Direct => {
            let (work, [products, sums]) = (layer.direct(team.level), pass.direct);
            let products = if is_native {
                products * rates.pairs
            } else {
                products
            };
            let traffic = activations * pass.traffic.direct_activations
                + work.weights * pass.traffic.direct_weights;
            (work.products * products + work.sums * sums, traffic)
        }
        Method::Winograd(tile) => {
            let work = layer.winograd(team, tile);
            let [products, inputs, outputs, weights] = pass.winograd;
            let compute = work.products * products
                + work.inputs * inputs
                + work.outputs * outputs
                + work.weights * weights;
            let traffic = activations * pass.traffic.winograd_activations
                + work.weights * pass.traffic.winograd_weights
                + work.far * pass.traffic.winograd_far;
            (compute, traffic)
        }
        Method::Fourier => {
            let traffic = activations * pass.traffic.fourier_activations;
            (layer.fourier(team.level) * pass.fourier, traffic)
        }
    };
    if shape.computes_in_half() && !is_native {
        // Copies in another type, which are converted.
        compute += activations * CONVERSION;
        vectors += activations * COPIES;
    }
    let bytes = vectors * (size_of::<f32>() * team.level.lanes()) as f64;
    let picoseconds = compute + bytes * BYTE;
    Some(Seconds(picoseconds * 1e-12 / team.threads as f64))
}

/// Picoseconds to convert a vector between f32 and a type of two bytes.
const CONVERSION: f64 = 200.0;
/// Bytes that pass for each byte of a copy in f32: it is written and read.
const COPIES: f64 = 2.0;

/// Fitted to implementations of five networks, so that what is chosen takes little more time than the fastest: on a Xeon
/// of the fourth generation, whose memory is slow, and on an EPYC of the fifth, at both levels.
const FILTER_TRAFFIC: Traffic = Traffic {
    direct_activations: 1.0,
    direct_weights: 2.7,
    winograd_activations: 1.3,
    winograd_weights: 0.73,
    winograd_far: 0.26,
    fourier_activations: 0.8,
};

const GRADIENT_TRAFFIC: Traffic = Traffic {
    direct_activations: 1.55,
    direct_weights: 1.4,
    winograd_activations: 0.64,
    winograd_weights: 0.23,
    winograd_far: 0.13,
    fourier_activations: 0.6,
};

const AVX2: Rates = Rates {
    filter: PassRates {
        direct: [92.0, 135.0],
        winograd: [99.0, 326.0, 286.0, 575.0],
        fourier: 168.0,
        traffic: &FILTER_TRAFFIC,
    },
    gradient: PassRates {
        direct: [117.0, 0.0],
        winograd: [174.0, 45.0, 1070.0, 575.0],
        fourier: 100.0,
        traffic: &GRADIENT_TRAFFIC,
    },
    pairs: 1.0,
};

const AVX512: Rates = Rates {
    filter: PassRates {
        direct: [115.0, 64.0],
        winograd: [131.0, 679.0, 248.0, 715.0],
        fourier: 215.0,
        traffic: &FILTER_TRAFFIC,
    },
    gradient: PassRates {
        direct: [120.0, 0.0],
        winograd: [145.0, 1790.0, 27.0, 715.0],
        fourier: 185.0,
        traffic: &GRADIENT_TRAFFIC,
    },
    pairs: 0.55,
};
