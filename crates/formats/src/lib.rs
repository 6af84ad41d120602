//! File formats of arrays: HDF5, NIfTI, NPY and NPZ, TFRecord, Zarr, PNG and JPEG.
//!
//! Does: recognizes formats by contents, lists and reads arrays by hyperslab, decodes, writes HDF5; checks what files say.
//! Knows: each format, element types, orders of dims; memory is bounded by what a file holds and by a budget.
//! Must not know: datasets, splits, targets, models, how ranks run or talk, printing.
//! The HDF5 library is named in one module, `hdf5`, and in no public type.

mod array;
mod axes;
pub mod checksum;
mod codec;
pub mod decode_memory;
mod detect;
mod element;
mod error;
mod flat;
pub mod hdf5;
pub mod image;
mod layout;
mod lfs;
pub mod nifti;
mod npy;
mod read_error;
mod samples;
mod shortage;
pub mod sieve;
pub mod slab;
mod source_file;
mod tfrecord;
mod zarr;

pub use array::{Access, StorageLayout};
pub use axes::{Axes, DimOrder, NoDimOrder, gather};
pub use detect::{is_image, is_store};
pub use element::{Element, Elements, Misfit};
pub use error::{DataError, NoClass};
pub use layout::Layout;
pub use lfs::{LFS, LFS_REMEDY};
pub use read_error::ReadError;
pub use samples::{DType, Samples, VolumeShape, read_values, slice_of, write_values};
pub use shortage::Shortage;
pub use source_file::{SourceArray, SourceFile};
