//! What a network reads and what it gives back: samples on their way to the ranks, and predictions on their way to files.
//!
//! Does: prepares and augments samples, loads a rank's part of them, keeps them in memory, checks data before a run, writes
//! predictions.
//! Knows: datasets, the loads of programs, the steps of `transform`, which rank owns a sample in memory.
//! Must not know: models, strategies, file formats (but those of predictions), machines, time, printing.

mod augment;
mod class_counts;
mod crop_names;
mod data_check;
mod data_record;
mod loader;
mod plain_files;
mod prediction_sink;
mod predictions;
mod prepare;
mod preprocessing;
mod source;
mod store;

pub use augment::{
    Augmentation, Crops, Elastic, EvaluationCrops, Foreground, Sampling, Tile, TileWeights, Tiling,
    TrainingCrops, Variants,
};
pub use class_counts::class_counts;
pub use data_check::{CheckScope, DataCheck, DataChecked};
pub use data_record::DataRecord;
pub use loader::Loading;
pub use prediction_sink::PredictionSink;
pub use predictions::{
    Band, PredictionFormat, PredictionKind, PredictionScratch, PredictionShape, Stored, TilePlan,
    is_folder, is_prediction, predictions_key, volume_paths,
};
pub use prepare::{FittedStep, Preparation, STATISTICS_FILE, Step, chain_text, fit};
pub use preprocessing::Preprocessing;
pub use source::{
    Accepted, HyperslabSource, PieceMaker, PieceReader, PieceRequest, PieceSupply, PieceValues,
    PredictionSource, Waker, first_sample,
};
pub use store::{EpochLoads, LoadTally, SampleStore};
