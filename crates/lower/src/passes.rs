//! The passes of lowering, in their order.

use std::str::FromStr;

/// A pass from a model to the program of every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoweringPass {
    /// Chooses the distribution of every layer, and inserts redistributions where readers need another one.
    LayOut,
    /// Emits the buffers and tasks of every rank: kernels, messages, collectives, loads.
    Emit,
    /// Fuses elementwise kernels and reductions into the kernels before them.
    Fuse,
    /// Packs weights once for several kernels.
    Pack,
    /// Selects the implementation and workspace of every kernel from the menu.
    Select,
    /// Plans memory: offsets of buffers in the arena, and dependencies of tasks.
    Arena,
    /// Sizes the staging pools of the lanes.
    Staging,
}

/// An unknown pass.
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
        Self::Staging,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::LayOut => "lay-out",
            Self::Emit => "emit",
            Self::Fuse => "fuse",
            Self::Pack => "pack",
            Self::Select => "select",
            Self::Arena => "arena",
            Self::Staging => "stage",
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
