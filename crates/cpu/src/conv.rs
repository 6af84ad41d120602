//! Convolutions on f32: what one is, and its kernels in three directions.
//!
//! The direct convolution ([`direct`], tiles in [`tile`]) serves forward and backward-data; the gradient of weights
//! has its own tiles ([`weight`]). Winograd and Fourier share the frame in [`transformed`]. Linear layers are
//! convolutions of one tap.

pub(crate) mod convolution;
pub(crate) mod data;
pub(crate) mod depthwise;
pub(crate) mod direct;
pub(crate) mod dot;
pub(crate) mod epilogue;
pub(crate) mod forward;
pub(crate) mod fourier;
pub(crate) mod linear;
pub(crate) mod loose_weights;
pub(crate) mod tile;
pub(crate) mod tiles;
pub(crate) mod transformed;
pub(crate) mod transpose;
pub(crate) mod values;
pub(crate) mod walk;
pub(crate) mod weight;
pub(crate) mod weight_panels;
pub(crate) mod weight_parts;
pub(crate) mod weight_plan;
pub(crate) mod weight_walk;
pub(crate) mod winograd;
