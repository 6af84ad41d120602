//! Implementations of kernels by name, and the micro-batches of a configuration.

use partita_program::{Algorithm, Configuration, Kernel, KernelShape};
use std::borrow::Cow;

/// How the sums of a convolution are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// In parts in the workspace, where the results alone do not keep the device busy, and from weights turned there
    /// for gradients of data. The only method of all other kernels.
    Parts,
    /// Each by one work-item, from weights as they are, without a workspace.
    Serial,
}

impl Method {
    /// All methods.
    pub(crate) const ALL: [Self; 2] = [Self::Parts, Self::Serial];

    /// Its name in algorithms.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Parts => "gpu",
            Self::Serial => "serial",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }
}

/// The kernels that compute a kernel one after the other, each by its method; none for an algorithm of another backend,
/// or micro-batches that do not cover the kernel.
pub(crate) fn pieces<'k>(
    shape: &KernelShape<'k>,
    algorithm: &Algorithm,
) -> Option<Vec<(Cow<'k, Kernel>, Method)>> {
    match Configuration::of(algorithm).ok()? {
        Configuration::Undivided { method } => {
            Some(vec![(Cow::Borrowed(shape.kernel), Method::named(&method)?)])
        }
        configuration @ Configuration::Divided { dim, .. } => {
            let all = configuration.micro_batches();
            let covered: usize = all.map(|(_, extent, _)| extent).sum();
            let is_whole = shape.cut_extents()?[dim] == covered;
            let piece = |(start, extent, name)| {
                let piece = shape.piece(dim, start, extent)?;
                Some((Cow::Owned(piece), Method::named(name)?))
            };
            let all = configuration.micro_batches().map(piece);
            is_whole.then(|| all.collect())?
        }
    }
}
