//! Datasets on disk: volumes with their targets, labels and names; conversion of files of others to them.
//!
//! Does: opens, reads, writes, converts and inspects datasets; orders samples; keeps where voxels lie.
//! Knows: the index of a dataset, splits, targets and classes, geometry of volumes.
//! Must not know: models, strategies, what a network sees of a sample, how ranks run or talk, machines, time, printing.

mod channels;
mod classes;
mod convert;
mod dataset;
mod disk;
mod external;
mod feature_table;
mod features;
mod files;
mod grid;
mod index;
mod inspect;
mod keys;
mod meaning;
mod moments;
pub mod names;
mod opened;
pub mod order;
mod picture;
mod placement;
mod reader;
mod resample;
mod sample_source;
mod split;
mod target_map;
mod target_record;
pub mod valid;
mod voxel_record;
mod writer;

pub use classes::{ClassSet, Classes, Occurrence, SampleLocation, SplitLabels};
pub use convert::{
    Conversion, ConvertSpec, GeometrySpec, LabelPair, NoLabelPair, VoxelOrientation,
    check_unconverted,
};
pub use dataset::Dataset;
pub use external::external_note;
pub use feature_table::{WrittenFeatures, write_features};
pub use index::{FORMAT_VERSION, INDEX_FILE, Kind};
pub use inspect::{
    ArraySummary, ClassSummary, DatasetSummary, FileArray, FileSummary, Inspected, SplitSummary,
    ValueScope, ValueSummary, inspect, inspect_path,
};
pub use keys::Keys;
pub use moments::{Moments, ValueCount, ValueStatistics};
pub use partita_formats::StorageLayout;
pub use picture::picture;
pub use placement::Placement;
pub use reader::{ReadTally, Reader};
pub use resample::Interpolation;
pub use sample_source::{
    Answers, ArraySource, SampleSource, SourceError, SourceTargets, SplitArrays,
};
pub use split::Split;
pub use target_record::{TargetRecord, same_names};
pub use voxel_record::VoxelRecord;
pub use writer::{DatasetSpec, DatasetWriter};
