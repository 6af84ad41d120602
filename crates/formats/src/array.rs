//! What a format implements to be read: [`ArrayFile`] and [`StoredArray`].
//!
//! What all formats share is checked in `source_file`.

use crate::element::{Element, Elements};
use crate::read_error::ReadError;
use serde::Serialize;
use std::path::PathBuf;

/// The key of the array of a file that has one, without a name.
pub(crate) const ONLY: &str = "array";

/// How an array lies in its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "layout")]
pub enum StorageLayout {
    /// All values one after the other.
    Contiguous,
    /// In boxes of one size.
    Chunked {
        /// Extents of a chunk.
        chunk: Vec<usize>,
        /// What was done to each chunk, in order.
        filters: Vec<String>,
    },
    /// In the header of the array.
    Compact,
    /// In other arrays.
    Virtual,
    /// Compressed from end to end, so that a region costs all that lies before it.
    Stream {
        /// The compression.
        filter: &'static str,
    },
}

/// What is read for values that a file does not hold itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Values that were never written are the fill value that the file states (default: refused).
    pub fill: bool,
    /// Values may lie in any other file of this machine that the file names (default: refused).
    pub external: bool,
}

/// A file of arrays in one of the formats. Every rank opens its own.
pub(crate) trait ArrayFile: Send {
    /// All arrays of the file.
    fn keys(&self, _access: Access) -> Vec<String> {
        vec![ONLY.to_owned()]
    }
    /// Whether the file has one array, which has no name: any key is answered with it.
    fn is_nameless(&self) -> bool {
        true
    }
    /// Whether a key that is none of the [`keys`](Self::keys) is, or leads through, a link of the file.
    fn is_link(&self, _key: &str) -> bool {
        false
    }
    /// An array by one of the [`keys`](Self::keys). Values that were never written are read as the fill value that the
    /// file states if `access` says so, and refused else, where the format leaves open what they are.
    ///
    /// Errors: why it cannot be read.
    fn array(&self, key: &str, access: Access) -> Result<Opened, ReadError>;
}

/// An array as its format finds it.
pub(crate) struct Opened {
    pub(crate) shape: Vec<usize>,
    pub(crate) element: Element,
    pub(crate) stored: StorageLayout,
    /// Bytes of an element in the file, uncompressed.
    pub(crate) stored_size: usize,
    /// Files that are read by permission alone.
    pub(crate) external: Vec<PathBuf>,
    pub(crate) array: Box<dyn StoredArray>,
}

/// An array of a file.
pub(crate) trait StoredArray: Send {
    /// Reads a box, of which no extent is 0, into `out`, which has the array's element type and the box's
    /// size.
    ///
    /// Errors: what the format finds wrong with the file.
    fn read(&self, starts: &[usize], counts: &[usize], out: &mut Elements)
    -> Result<(), ReadError>;
}
