//! Decompression of whole chunks.

mod blosc;

use std::io::Read;

use flate2::read::{MultiGzDecoder, ZlibDecoder};

use crate::checksum::{crc32, crc32c};
use crate::read_error::ReadError;

/// How the bytes of a chunk were encoded.
#[derive(Clone, Debug)]
pub(crate) enum Codec {
    Gzip,
    Zlib,
    Zstd,
    Lz4,
    Blosc,
    /// Bytes of equal significance together, elements of this many bytes.
    Shuffle(usize),
    /// A checksum of four bytes beside the others.
    Checksum {
        /// Its name.
        name: &'static str,
        /// Its function.
        sum: fn(&[u8]) -> u32,
        /// Whether it lies in front of the bytes.
        is_first: bool,
    },
}

impl Codec {
    /// The codec of a name of Zarr; `None` if it is not read.
    pub(crate) fn by_name(name: &str, size: usize) -> Option<Self> {
        Some(match name {
            "gzip" => Codec::Gzip,
            "zlib" | "numcodecs.zlib" => Codec::Zlib,
            "zstd" | "numcodecs.zstd" => Codec::Zstd,
            "lz4" | "numcodecs.lz4" => Codec::Lz4,
            "blosc" | "numcodecs.blosc" => Codec::Blosc,
            "shuffle" | "numcodecs.shuffle" => Codec::Shuffle(size),
            "crc32c" | "numcodecs.crc32c" => Codec::Checksum {
                name: "crc32c",
                sum: crc32c,
                is_first: false,
            },
            // Numcodecs puts it first by default.
            "crc32" | "numcodecs.crc32" => Codec::Checksum {
                name: "crc32",
                sum: crc32,
                is_first: true,
            },
            _ => return None,
        })
    }

    /// The same with the place of a checksum, where the metadata say it.
    pub(crate) fn located(self, location: Option<&str>) -> Self {
        match (self, location) {
            (Codec::Checksum { name, sum, .. }, Some(location)) => Codec::Checksum {
                name,
                sum,
                is_first: location == "start",
            },
            (codec, _) => codec,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Codec::Gzip => "gzip",
            Codec::Zlib => "zlib",
            Codec::Zstd => "zstd",
            Codec::Lz4 => "lz4",
            Codec::Blosc => "blosc",
            Codec::Shuffle(_) => "shuffle",
            Codec::Checksum { name, .. } => name,
        }
    }

    /// Undoes the codec; at most `limit` bytes come out.
    pub(crate) fn decode(&self, bytes: Vec<u8>, limit: usize) -> Result<Vec<u8>, ReadError> {
        match self {
            Codec::Gzip => take(MultiGzDecoder::new(bytes.as_slice()), limit),
            Codec::Zlib => take(ZlibDecoder::new(bytes.as_slice()), limit),
            Codec::Zstd => zstd(&bytes, limit),
            Codec::Lz4 => {
                let (word, rest) = bytes
                    .split_first_chunk::<4>()
                    .ok_or("an lz4 chunk is cut off")?;
                let length = (u32::from_le_bytes(*word) as usize).min(limit);
                lz4_flex::block::decompress(rest, length).map_err(|error| error.to_string().into())
            }
            Codec::Blosc => blosc::decode(&bytes),
            Codec::Shuffle(size) => Ok(blosc::unshuffle(&bytes, (*size).max(1))),
            Codec::Checksum {
                name,
                sum,
                is_first,
            } => {
                let split = if *is_first {
                    bytes.split_first_chunk::<4>()
                } else {
                    bytes
                        .split_last_chunk::<4>()
                        .map(|(data, word)| (word, data))
                };
                let (word, data) = split.ok_or("it is cut off")?;
                if sum(data).to_le_bytes() != *word {
                    return Err(format!("its checksum ({name}) does not match").into());
                }
                Ok(data.to_vec())
            }
        }
    }
}

fn take(from: impl Read, limit: usize) -> Result<Vec<u8>, ReadError> {
    let mut out = Vec::new();
    let read = from.take(limit as u64 + 1).read_to_end(&mut out);
    read.map_err(|error| error.to_string())?;
    Ok(out)
}

/// Decodes a frame of zstd, at most `limit` bytes of it.
fn zstd(bytes: &[u8], limit: usize) -> Result<Vec<u8>, ReadError> {
    let decoder =
        ruzstd::decoding::StreamingDecoder::new(bytes).map_err(|error| error.to_string())?;
    take(decoder, limit)
}
