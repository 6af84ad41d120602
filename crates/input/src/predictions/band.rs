//! What a rank holds of a volume while its tiles are predicted: sums of the positions that tiles to come still reach.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use partita_files::NewFile;
use partita_formats::DataError;
use partita_space::Bytes;

use super::{temporary_file, unwritable};

/// Rows of a plane of a volume: the numbers of volume, plane and first row.
pub(super) type PieceKey = [usize; 3];

/// Sums of pieces in a scratch file, which has as many places as there are pieces at once. It is made with the first piece
/// and removed when this is dropped.
pub struct Band {
    /// How the names of its file begin.
    path: PathBuf,
    file: Option<(NewFile, File)>,
    /// Sums of the largest piece.
    piece: usize,
    places: HashMap<PieceKey, u64>,
    free: Vec<u64>,
    /// Places of the file.
    made: u64,
}

impl Band {
    /// An empty one, of pieces of at most this many sums.
    pub(super) fn new(path: PathBuf, piece: usize) -> Self {
        Self {
            path,
            file: None,
            piece,
            places: HashMap::new(),
            free: Vec::new(),
            made: 0,
        }
    }

    /// The most bytes that it has had.
    pub fn bytes_max(&self) -> Bytes {
        Bytes(self.made * (self.piece * size_of::<f64>()) as u64)
    }

    /// Takes the sums of a piece, this many.
    ///
    /// Errors: `Unwritable`. Panics where it has none.
    pub(super) fn take(&mut self, key: PieceKey, sums: usize) -> Result<Vec<f64>, DataError> {
        let place = self.places.remove(&key);
        let (Some(place), Some((_, file))) = (place, &self.file) else {
            panic!("no sums of {key:?}");
        };
        self.free.push(place);
        let mut bytes = vec![0; sums * size_of::<f64>()];
        let read = file.read_exact_at(&mut bytes, self.offset(place));
        read.map_err(|error| unwritable(&self.path, &error))?;
        let words = bytes.as_chunks::<8>().0.iter();
        Ok(words.map(|&word| f64::from_le_bytes(word)).collect())
    }

    /// Keeps the sums of a piece.
    ///
    /// Errors: `Unwritable`.
    pub(super) fn put(&mut self, key: PieceKey, sums: &[f64]) -> Result<(), DataError> {
        assert!(sums.len() <= self.piece, "{} sums", sums.len());
        let place = self.free.pop().unwrap_or_else(|| {
            self.made += 1;
            self.made - 1
        });
        self.places.insert(key, place);
        let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let at = self.offset(place);
        let written = self.open()?.write_all_at(&bytes, at);
        written.map_err(|error| unwritable(&self.path, &error))
    }

    fn offset(&self, place: u64) -> u64 {
        place * (self.piece * size_of::<f64>()) as u64
    }

    fn open(&mut self) -> Result<&File, DataError> {
        let file = match self.file.take() {
            Some(file) => file,
            None => temporary_file(&self.path)?,
        };
        Ok(&self.file.insert(file).1)
    }
}
