//! Implementations of kernels by name, and the micro-batches of a configuration.

use crate::conv::convolution::Convolution;
use crate::conv::fourier::{fourier_error_bound, fourier_offers};
use crate::conv::winograd::{WinogradTile, winograd_error_bound, winograd_offers};
use partita_program::{Algorithm, Configuration};

/// The largest root mean square error of a convolution relative to its result: a fourth of what bf16 rounds away,
/// 400 times the rounding of f32.
const ERROR_MAX: f64 = 5e-5;

/// How a convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// By the definition; a kernel may choose its loops by shape. The only method of all other kernels.
    Direct,
    /// With fewer multiplications, and larger errors of rounding.
    Winograd(WinogradTile),
    /// By Fourier transforms of tiles, for many taps.
    Fourier,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 5] = [
        Method::Direct,
        Method::Winograd(WinogradTile::Two),
        Method::Winograd(WinogradTile::Four),
        Method::Winograd(WinogradTile::TwoFour),
        Method::Fourier,
    ];

    /// Its name in algorithms.
    pub fn name(self) -> &'static str {
        match self {
            Method::Direct => "cpu",
            Method::Winograd(WinogradTile::Two) => "winograd2",
            Method::Winograd(WinogradTile::Four) => "winograd4",
            Method::Winograd(WinogradTile::TwoFour) => "winograd24",
            Method::Fourier => "fourier",
        }
    }

    /// Whether it computes a convolution of C to F channels with an error that may pass for one of rounding.
    pub fn offers(self, conv: &Convolution, c: usize, f: usize) -> bool {
        match self {
            Method::Direct => true,
            Method::Winograd(tile) => {
                let is_own = tile != WinogradTile::TwoFour || conv.window.kernel == [3; 3];
                let is_near = winograd_error_bound(tile, conv) <= ERROR_MAX;
                is_own && is_near && winograd_offers(conv, c, f)
            }
            Method::Fourier => fourier_error_bound() <= ERROR_MAX && fourier_offers(conv, c, f),
        }
    }

    /// The method of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }
}

/// The methods that an algorithm names, and its micro-batches.
#[derive(Debug)]
pub(super) enum Plan {
    /// One kernel.
    Undivided(Method),
    /// One after the other along a dim.
    Divided {
        /// 0 to 3 for N, D, H, W.
        dim: usize,
        /// Start, extent and method of each.
        pieces: Vec<(usize, usize, Method)>,
    },
}

impl Plan {
    /// None for an algorithm of another backend.
    pub fn of(algorithm: &Algorithm) -> Option<Self> {
        if let Some(method) = Method::named(&algorithm.0) {
            return Some(Self::Undivided(method));
        }
        let configuration = Configuration::of(algorithm).ok()?;
        let piece = |(start, extent, name)| Some((start, extent, Method::named(name)?));
        let pieces: Option<Vec<_>> = configuration.micro_batches().map(piece).collect();
        match configuration {
            Configuration::Undivided { .. } => None,
            Configuration::Divided { dim, .. } => Some(Self::Divided {
                dim,
                pieces: pieces?,
            }),
        }
    }
}
