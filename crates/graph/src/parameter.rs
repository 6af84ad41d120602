//! Parameters: their roles, shapes and initialization.

use crate::ParameterId;
use std::fmt;

/// The role of a parameter in its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParameterRole {
    /// (Kd, Kh, Kw, C / groups, F) of a convolution, (Kd, Kh, Kw, F / groups, C) of a transposed one,
    /// (1, 1, 1, C, F) of a linear layer, or (1, 1, 1, rows, channels) of an embedding.
    Weight,
    /// (F).
    Bias,
    /// Scale of a batch or layer norm, (C).
    Gamma,
    /// Shift of a batch or layer norm, (C).
    Beta,
    /// Slopes of a PReLU for negative inputs, (C) or one.
    Slope,
    /// Running mean of a batch norm, (C); state, not trained.
    RunningMean,
    /// Running unbiased variance of a batch norm, (C); state, not trained.
    RunningVariance,
}

impl ParameterRole {
    /// The part of a parameter's name after the layer's, and its key in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Bias => "bias",
            Self::Gamma => "gamma",
            Self::Beta => "beta",
            Self::Slope => "slope",
            Self::RunningMean => "running_mean",
            Self::RunningVariance => "running_variance",
        }
    }

    /// Default initialization of parameters with this role.
    pub fn default_initialization(self) -> Initialization {
        match self {
            Self::Weight => Initialization::GlorotUniform,
            Self::Bias | Self::Beta | Self::RunningMean => Initialization::Constant(0.0),
            Self::Gamma | Self::RunningVariance => Initialization::Constant(1.0),
            Self::Slope => Initialization::Constant(0.25),
        }
    }

    /// Whether it is a matrix of weights, not a vector of biases, scales, shifts or slopes, which are often
    /// exempt from weight decay.
    pub fn is_weight(self) -> bool {
        match self {
            Self::Weight => true,
            Self::Bias
            | Self::Gamma
            | Self::Beta
            | Self::Slope
            | Self::RunningMean
            | Self::RunningVariance => false,
        }
    }

    /// Whether the optimizer updates it unless it is frozen.
    pub fn is_trained(self) -> bool {
        match self {
            Self::Weight | Self::Bias | Self::Gamma | Self::Beta | Self::Slope => true,
            Self::RunningMean | Self::RunningVariance => false,
        }
    }
}

/// Initialization of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initialization {
    /// Uniform in `+-sqrt(6 / (fan_in + fan_out))`, fans counted with the kernel's volume.
    GlorotUniform,
    /// Normal with variance `2 / fan_in`.
    HeNormal,
    /// Normal with variance `2 / fan_out`.
    HeNormalFanOut,
    /// Normal with this standard deviation.
    Normal(f64),
    /// Uniform in plus or minus this limit.
    Uniform(f64),
    /// A constant.
    Constant(f64),
    /// Of a transposed convolution: 1 where the tap is the channel's number within its group, else 0, so that each output is one
    /// input.
    Shuffle,
}

impl fmt::Display for Initialization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GlorotUniform => f.write_str("glorot_uniform"),
            Self::HeNormal => f.write_str("he_normal"),
            Self::HeNormalFanOut => f.write_str("he_normal_fan_out"),
            Self::Normal(deviation) => write!(f, "normal:{deviation:?}"),
            Self::Uniform(limit) => write!(f, "uniform:{limit:?}"),
            Self::Constant(value) => write!(f, "constant:{value:?}"),
            Self::Shuffle => f.write_str("shuffle"),
        }
    }
}

/// Where a parameter of a node comes from, if it does not start by its role's default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParameterSource {
    /// A parameter of its own that starts in this way.
    Own(Initialization),
    /// A parameter of an earlier node, of the same role and shape.
    Shared(ParameterId),
    /// None: a scale of 1 or an offset of 0, or the weight of a pixel shuffle, which training does not change.
    Constant,
}

/// A parameter, which several operations may share.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Unique, `layer.role`.
    pub name: String,
    /// Role in its operations.
    pub role: ParameterRole,
    /// (Kd, Kh, Kw, C, F); vectors are (1, 1, 1, 1, F).
    pub shape: [usize; 5],
    /// Initialization.
    pub initialization: Initialization,
    /// Whether training leaves it as it is; see [`Graph::with_frozen`](crate::Graph::with_frozen).
    pub is_frozen: bool,
    /// Whether it is always as it starts, as the scale of a norm without one: it is frozen, and files do not have it.
    pub is_constant: bool,
}

impl Parameter {
    /// Number of elements.
    pub fn volume(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the optimizer updates it: false for running statistics and frozen parameters.
    pub fn is_trained(&self) -> bool {
        self.role.is_trained() && !self.is_frozen
    }
}

/// Inputs per output and outputs per input of a parameter, (fan_in, fan_out), for initialization.
///
/// A weight (Kd, Kh, Kw, C / groups, F) has `K * C / groups` and `K * F`, K being the kernel's volume;
/// a vector of F elements has 1 and F. A transposed convolution counts as the convolution of which it is the
/// adjoint, as in PyTorch.
/// Source: Glorot and Bengio, AISTATS 2010, section 4.2.1, with a kernel's taps counted as units.
pub fn fans(parameter: &Parameter) -> (usize, usize) {
    let [d, h, w, channels, features] = parameter.shape;
    (d * h * w * channels, d * h * w * features)
}
