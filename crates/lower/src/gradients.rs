//! Gradients while a rank's tasks are emitted: of values by micro-batch, of parameters over the step.

mod activations;
mod parameter_gradient;
mod parameters;
mod submeshes;

pub(crate) use self::activations::ActivationGradients;
pub(crate) use self::parameters::ParameterGradients;
