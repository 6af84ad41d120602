//! Decompression of whole chunks.

use std::io::Read;

use flate2::read::{MultiGzDecoder, ZlibDecoder};

use crate::formats::blosc;

/// How the bytes of a chunk were encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Gzip,
    Zlib,
    Zstd,
    Lz4,
    Blosc,
    /// Bytes of equal significance together, elements of so many bytes.
    Shuffle(usize),
    /// A checksum of so many bytes at the end.
    Checksum(usize),
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
            "crc32c" | "crc32" => Codec::Checksum(4),
            _ => return None,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Codec::Gzip => "gzip",
            Codec::Zlib => "zlib",
            Codec::Zstd => "zstd",
            Codec::Lz4 => "lz4",
            Codec::Blosc => "blosc",
            Codec::Shuffle(_) => "shuffle",
            Codec::Checksum(_) => "checksum",
        }
    }

    /// Undoes the codec; at most `limit` bytes come out.
    pub(crate) fn decode(&self, bytes: Vec<u8>, limit: usize) -> Result<Vec<u8>, String> {
        match self {
            Codec::Gzip => take(MultiGzDecoder::new(bytes.as_slice()), limit),
            Codec::Zlib => take(ZlibDecoder::new(bytes.as_slice()), limit),
            Codec::Zstd => zstd(&bytes, limit),
            Codec::Lz4 => {
                let (word, rest) = bytes
                    .split_first_chunk::<4>()
                    .ok_or("an lz4 chunk is cut off")?;
                let length = (u32::from_le_bytes(*word) as usize).min(limit);
                lz4_flex::block::decompress(rest, length).map_err(|error| error.to_string())
            }
            Codec::Blosc => blosc::decode(&bytes),
            Codec::Shuffle(size) => Ok(blosc::unshuffle(&bytes, (*size).max(1))),
            Codec::Checksum(length) => {
                let kept = bytes
                    .len()
                    .checked_sub(*length)
                    .ok_or("a chunk is cut off")?;
                let mut bytes = bytes;
                bytes.truncate(kept);
                Ok(bytes)
            }
        }
    }
}

fn take(from: impl Read, limit: usize) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let read = from.take(limit as u64 + 1).read_to_end(&mut out);
    read.map_err(|error| error.to_string())?;
    Ok(out)
}

/// Decodes a frame of zstd, at most `limit` bytes of it.
pub(crate) fn zstd(bytes: &[u8], limit: usize) -> Result<Vec<u8>, String> {
    let decoder =
        ruzstd::decoding::StreamingDecoder::new(bytes).map_err(|error| error.to_string())?;
    take(decoder, limit)
}
