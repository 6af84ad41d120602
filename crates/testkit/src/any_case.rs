//! Cases of all kinds in turn, and optimizers of all kinds.

use crate::cases::random_block;
use crate::{
    Case, Draws, random_branched_case, random_case, random_encoder_decoder, random_grouped_case,
    random_layer_case, random_sequence_case, random_staged_case, random_tied_case,
    random_two_stage_case,
};
use partita_lower::Shard;
use partita_program::Optimizer;

const DRAWS: [fn(u64) -> Case; 8] = [
    random_case,
    random_layer_case,
    random_grouped_case,
    random_encoder_decoder,
    random_branched_case,
    random_staged_case,
    random_tied_case,
    random_sequence_case,
];

/// A case of the kind whose turn it is by the seed.
pub fn any_random_case(seed: u64) -> Case {
    DRAWS[(seed % DRAWS.len() as u64) as usize](seed)
}

/// Draws tiles, an encoder and a decoder, halos that groups of layers share, or two stages on unequal meshes, all with
/// sharded training state, and most with a block of layers that is computed again.
pub fn random_saving_case(seed: u64) -> Case {
    const DRAWS: [fn(u64) -> Case; 4] = [
        random_case,
        random_encoder_decoder,
        random_grouped_case,
        random_two_stage_case,
    ];
    let mut draws = Draws::new(!seed);
    let mut case = DRAWS[(seed % DRAWS.len() as u64) as usize](seed);
    case.strategy.shard = draws.pick(&Shard::ALL[1..]);
    let plain = case.strategy.clone();
    let block = random_block(&mut draws, &case.graph);
    case.strategy.layers.push(block);
    // A layer is in one block at most.
    if case.strategy.check(&case.graph, case.batch).is_err() {
        case.strategy = plain;
    }
    case
}

/// One optimizer with a velocity and one with two moments, then the same with a trust ratio.
pub const OPTIMIZERS: [Optimizer; 4] = [
    Optimizer::Sgd {
        momentum: 0.9,
        weight_decay: 0.1,
    },
    Optimizer::Adam {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.1,
    },
    Optimizer::Lars {
        momentum: 0.9,
        weight_decay: 0.1,
        trust: 0.01,
        epsilon: 1e-9,
    },
    Optimizer::Lamb {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-6,
        weight_decay: 0.1,
    },
];
