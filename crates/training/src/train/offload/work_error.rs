//! Why a loader or a validator turns a connection away, or ends it.

use super::super::error::TrainError;
use partita_formats::DataError;
use partita_graph::GraphError;
use partita_lower::StrategyError;
use partita_offload::Role;
use partita_space::Help;
use std::io;
use std::sync::Arc;

/// The work of a connection cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// A trainer of another role.
    #[error(
        "it is a {own}, and the trainer wants a {wanted}; correct the addresses under [offload]"
    )]
    Role {
        /// Its role.
        own: Role,
        /// That which the trainer wants.
        wanted: Role,
    },
    /// The trainer has other settings.
    #[error("{0}")]
    Settings(String),
    /// Too many credits, or none.
    #[error("{credits} credits{}", Help::possible("1 to 1024"))]
    Credits {
        /// Their number.
        credits: usize,
    },
    /// Statistics of other samples.
    #[error("the statistics of `transform` are not of this dataset")]
    Statistics,
    /// A rank beyond the others.
    #[error("rank {rank} of {ranks}")]
    Rank {
        /// The rank.
        rank: usize,
        /// Their number.
        ranks: usize,
    },
    /// A part of the validation that does not exist.
    #[error("part {part} of {parts}, and there are {batches} mini-batch(es) of validation samples")]
    Part {
        /// The part.
        part: usize,
        /// Their number.
        parts: usize,
        /// Mini-batches of the validation.
        batches: usize,
    },
    /// A tensor that the model does not have.
    #[error("a tensor `{0}` that the model does not have")]
    Tensor(String),
    /// A tensor that did not arrive.
    #[error("`{0}`: {1}")]
    Shard(String, io::Error),
    /// Shards that do not fit each other.
    #[error("shards of `{0}` of two types")]
    Types(String),
    /// The strategy cannot be read.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// The class weights are not those of the model.
    #[error(transparent)]
    Graph(#[from] Box<GraphError>),
    /// The dataset is another.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The validation failed.
    #[error(transparent)]
    Training(#[from] Arc<TrainError>),
}
