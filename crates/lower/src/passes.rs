//! The passes of lowering, in their order.

use std::str::FromStr;

/// A pass from a model to the program of every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoweringPass {
    /// Every layer gets its distribution, and a step that moves the tensor stands wherever a reader
    /// wants another one.
    LayOut,
    /// Every rank gets its buffers and tasks: kernels, messages, collectives, reads.
    Emit,
    /// Kernels that only read or change what another has computed become part of it.
    Fuse,
    /// Weights that several kernels read in another order are packed once.
    Pack,
    /// Every kernel gets its algorithm and workspace from the menu.
    Select,
    /// Every buffer gets its offset in the arena, and every task the tasks that it comes after.
    Arena,
    /// Every lane gets its pool: packets of messages and collectives, pieces of samples.
    Stage,
}

/// A word that names no pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{asked}` is no pass of lowering; the passes are {}", names())]
pub struct NoPass {
    asked: String,
}

fn names() -> String {
    LoweringPass::ALL.map(LoweringPass::name).join(", ")
}

impl LoweringPass {
    /// All passes, in their order.
    pub const ALL: [Self; 7] = [
        Self::LayOut,
        Self::Emit,
        Self::Fuse,
        Self::Pack,
        Self::Select,
        Self::Arena,
        Self::Stage,
    ];

    /// As written.
    pub fn name(self) -> &'static str {
        match self {
            Self::LayOut => "lay-out",
            Self::Emit => "emit",
            Self::Fuse => "fuse",
            Self::Pack => "pack",
            Self::Select => "select",
            Self::Arena => "arena",
            Self::Stage => "stage",
        }
    }
}

impl FromStr for LoweringPass {
    type Err = NoPass;

    fn from_str(text: &str) -> Result<Self, NoPass> {
        let found = Self::ALL.into_iter().find(|pass| pass.name() == text);
        found.ok_or_else(|| NoPass {
            asked: text.to_owned(),
        })
    }
}
