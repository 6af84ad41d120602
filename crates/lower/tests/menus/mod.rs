//! Menus that offer what no single processor does, so that texts are the same on all.

#![allow(dead_code, reason = "not every test uses every menu")]

use partita_program::{
    Algorithm, Choice, Kernel, KernelShape, Menu, MenuError, Role, UnpinnedMenu, View,
};
use partita_space::Bytes;

/// Offers every kernel, fused ones too.
pub struct Everything;

impl Menu for Everything {
    fn choose(&self, _shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        Ok(Choice {
            algorithm: Algorithm("any".to_owned()),
            workspace: Bytes(0),
            packed_weights: 0,
        })
    }
}

/// As well, and packs the weights of forward convolutions into rows of eight.
pub struct Packer;

impl Menu for Packer {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        let choice = Everything.choose(shape)?;
        let is_packed = |w: &View| shape.buffers[w.buffer.0 as usize].role == Role::PackedWeights;
        let first = &shape.kernel.parts()[0];
        let packed_weights = if let Kernel::ConvolutionForward { w, .. } = first
            && !is_packed(w)
        {
            w.volume() / w.extent[4] * 8
        } else {
            0
        };
        Ok(Choice {
            packed_weights,
            ..choice
        })
    }
}

/// Nothing fused, and every kernel with a kibibyte of scratch.
pub struct Workspaces;

impl Menu for Workspaces {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        Ok(Choice {
            algorithm: Algorithm("scratch".to_owned()),
            workspace: Bytes(1024),
            ..UnpinnedMenu.choose(shape)?
        })
    }

    fn fuses(&self) -> bool {
        false
    }
}
