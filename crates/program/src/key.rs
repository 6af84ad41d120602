//! Kernel keys: the texts under which caches keep measured times.
//!
//! ```text
//! key      = "k1 " kernel *( " + " kernel )          the parts of a fused kernel
//! kernel   = kind *( " " constant ) *( " " operand )
//! constant = name "=" value
//! operand  = name "=" [ "packed:" ] dtype ":" extents "/" extents
//! extents  = number *( "x" number )
//! ```
//!
//! As in `k1 pool_forward kind=max kernel=2x2x2 stride=2x2x2 dilation=1x1x1 shift=0,0,0
//! x=f32:1x8x8x8x16/1x10x10x10x16 y=f32:1x4x4x4x16/1x4x4x4x16`, on one line. Kinds, names and their order are
//! those of the [descriptor](crate::descriptor). The extents of an operand are those of the view and then
//! those of its buffer; packed weights have the prefix `packed:`. Extents along D, H and W or
//! N, D, H, W and C are joined with `x`, other lists with commas. A map of a resampling is its rule and the
//! distance between its positions, `linear:2/4`. Flags are `true` and `false`. A float has
//! the fewest digits that give it back, one of them before the point, and an exponent: `9e-1`.
//!
//! Keys are stored in users' caches. A change of the key of a kernel raises [`KernelShape::KEY_VERSION`], and
//! kernels are measured again.

use crate::descriptor::Constant;
use crate::{KernelShape, Optimizer, Role, Taps, Transform};
use partita_space::Resampling;
use std::fmt::{self, Display};

impl KernelShape<'_> {
    /// Number of the grammar and of all words in it.
    pub const KEY_VERSION: u32 = 1;

    /// The key under which caches keep the time of the kernel: version, kind, constants, and extents, dtype
    /// and pitches of every view, without offsets.
    pub fn signature(&self) -> String {
        format!("k{} {self}", Self::KEY_VERSION)
    }
}

/// The key without its version.
impl Display for KernelShape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.kernel.parts().iter().enumerate() {
            if at > 0 {
                f.write_str(" + ")?;
            }
            let descriptor = part.descriptor();
            f.write_str(descriptor.name)?;
            for constant in descriptor.constants.iter().flatten() {
                write!(f, " {constant}")?;
            }
            for operand in &descriptor.operands {
                let view = operand.view;
                let buffer = &self.buffers[view.buffer.0 as usize];
                // One row of packed weights may have the extents of plain ones.
                let form = if buffer.role == Role::PackedWeights {
                    "packed:"
                } else {
                    ""
                };
                let (name, dtype) = (operand.name, buffer.dtype.name());
                let [extent, dims] = [&view.extent, &buffer.dims].map(|dims| Joined(dims, "x"));
                write!(f, " {name}={form}{dtype}:{extent}/{dims}")?;
            }
        }
        Ok(())
    }
}

/// A list with a text between its entries.
struct Joined<'l, T>(&'l [T], &'static str);

impl<T: Display> Display for Joined<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(list, between) = self;
        for (at, entry) in list.iter().enumerate() {
            if at > 0 {
                f.write_str(between)?;
            }
            entry.fmt(f)?;
        }
        Ok(())
    }
}

fn write_taps(f: &mut fmt::Formatter<'_>, taps: &Taps) -> fmt::Result {
    let Taps {
        kernel,
        stride,
        dilation,
    } = taps;
    let [kernel, stride, dilation] = [kernel, stride, dilation].map(|taps| Joined(taps, "x"));
    write!(f, "kernel={kernel} stride={stride} dilation={dilation}")
}

/// Of the maps of a resampling.
fn rules_and_steps(maps: &[Resampling; 3]) -> String {
    let maps = maps.map(|map| {
        let (rule, step) = (map.rule.name(), map.numerator);
        format!("{rule}:{step}/{}", map.denominator)
    });
    maps.join(",")
}

impl Display for Constant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Constant::Taps(taps) => write_taps(f, taps),
            Constant::Number(name, number) => write!(f, "{name}={number}"),
            Constant::Maps(maps) => write!(f, "maps={}", rules_and_steps(maps)),
            Constant::Offsets(name, offsets) => write!(f, "{name}={}", Joined(*offsets, ",")),
            Constant::Flag(name, flag) => write!(f, "{name}={flag}"),
            Constant::Flags(name, flags) => write!(f, "{name}={}", Joined(*flags, ",")),
            Constant::Extents(name, extents) => write!(f, "{name}={}", Joined(*extents, "x")),
            Constant::Windows(window) => {
                let [extent, shift] = [&window.extent, &window.shift].map(|all| Joined(all, "x"));
                write!(f, "window={extent} shift={shift} mask={:e}", window.mask)
            }
            Constant::Word(name, word) => write!(f, "{name}={word}"),
            Constant::Transform(transform) => {
                write!(f, "transform={}", transform.name())?;
                match transform {
                    Transform::Identity | Transform::LogOnePlus => Ok(()),
                    Transform::Scale { factor } => write!(f, " factor={factor:e}"),
                }
            }
            Constant::Rule(rule) => {
                write!(f, "rule={}", rule.name())?;
                match rule {
                    Optimizer::Sgd {
                        momentum,
                        weight_decay,
                    }
                    | Optimizer::Nesterov {
                        momentum,
                        weight_decay,
                    } => write!(f, " momentum={momentum:e} weight_decay={weight_decay:e}"),
                    Optimizer::Lars {
                        momentum,
                        weight_decay,
                        trust,
                        epsilon,
                    } => write!(
                        f,
                        " momentum={momentum:e} weight_decay={weight_decay:e} trust={trust:e} \
                         epsilon={epsilon:e}"
                    ),
                    Optimizer::Adam {
                        beta1,
                        beta2,
                        epsilon,
                        weight_decay,
                    }
                    | Optimizer::AdamW {
                        beta1,
                        beta2,
                        epsilon,
                        weight_decay,
                    }
                    | Optimizer::Lamb {
                        beta1,
                        beta2,
                        epsilon,
                        weight_decay,
                    } => write!(
                        f,
                        " beta1={beta1:e} beta2={beta2:e} epsilon={epsilon:e} \
                         weight_decay={weight_decay:e}"
                    ),
                }
            }
        }
    }
}
