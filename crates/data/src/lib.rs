//! Datasets on disk: HDF5 volumes with their targets, sample order, weights as safetensors, and checkpoints.
//!
//! Does: opens, reads by hyperslab, writes atomically and inspects datasets; feeds ranks; saves weights.
//! Knows: the two file shapes of a dataset, its index, HDF5 and safetensors, the loads of programs.
//! Must not know: models, strategies, how ranks run or talk, machines, time, printing.
//! The HDF5 library is named in one module, `hdf5`, and in no public type.

mod array;
mod augment;
mod axes;
mod channels;
pub mod checkpoint;
mod class_counts;
mod classes;
mod convert;
mod crop_names;
mod data_check;
mod data_record;
mod dataset;
mod element;
mod error;
mod files;
mod formats;
mod grid;
mod index;
mod inspect;
mod keys;
mod layout;
mod meaning;
mod moments;
mod names;
pub mod order;
mod picture;
mod prediction_sink;
mod predictions;
mod prepare;
mod preprocessing;
mod read_error;
mod reader;
mod resample;
mod samples;
mod sieve;
mod slab;
mod source;
mod split;
pub mod state_dict;
mod store;
mod valid;
mod voxel_record;
pub mod weights;
mod writer;

pub use augment::{
    Augmentation, Crops, Elastic, EvaluationCrops, Foreground, Sampling, Tile, TileWeights, Tiling,
    TrainingCrops,
};
pub use axes::DimOrder;
pub use class_counts::class_counts;
pub use convert::{Conversion, ConvertSpec, GeometrySpec, LabelPair, VoxelOrientation};
pub use data_check::{CheckScope, DataCheck, DataChecked};
pub use data_record::{DataRecord, TargetRecord};
pub use dataset::Dataset;
pub use error::{DataError, NoClass};
pub use index::{FORMAT_VERSION, INDEX_FILE, Kind};
pub use inspect::{
    ArraySummary, ClassSummary, DatasetSummary, FileArray, FileSummary, Inspected, SplitSummary,
    StorageSummary, ValueScope, ValueSummary, inspect, inspect_path,
};
pub use keys::Keys;
pub use layout::Layout;
pub use moments::ValueStatistics;
pub use picture::picture;
pub use prediction_sink::PredictionSink;
pub use predictions::{
    NAMES_KEY, PREDICTIONS_KEY, Placement, PredictionFormat, PredictionKind, PredictionScratch,
    PredictionShape, TilePlan, is_folder, is_prediction, predictions_key, volume_paths,
};
pub use prepare::{FittedStep, Preparation, STATISTICS_FILE, Step, chain_text, fit};
pub use preprocessing::Preprocessing;
pub use reader::{ReadTally, Reader};
pub use resample::Interpolation;
pub use samples::{DType, Samples, VolumeShape};
pub use source::{
    Accepted, HyperslabSource, Loading, PieceMaker, PieceReader, PieceRequest, PieceSupply,
    PieceValues, PredictionSource, Waker, first_sample,
};
pub use split::Split;
pub use store::{EpochLoads, LoadTally, SampleStore};
pub use voxel_record::VoxelRecord;
pub use writer::{DatasetSpec, DatasetWriter};
