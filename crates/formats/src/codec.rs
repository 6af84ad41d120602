//! Decompression of whole chunks.

mod blosc;

use std::io::Read;

use flate2::read::{MultiGzDecoder, ZlibDecoder};

use crate::checksum::{crc32, crc32c};
use crate::decode_memory;
use crate::flat::DEFLATE_FACTOR;
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
            Codec::Gzip => {
                let limit = limit.min(deflated_max(&bytes));
                take(MultiGzDecoder::new(bytes.as_slice()), limit)
            }
            Codec::Zlib => {
                let limit = limit.min(deflated_max(&bytes));
                take(ZlibDecoder::new(bytes.as_slice()), limit)
            }
            Codec::Zstd => zstd(&bytes, limit),
            Codec::Lz4 => {
                let (word, rest) = bytes
                    .split_first_chunk::<4>()
                    .ok_or("an lz4 chunk is cut off")?;
                let length = (u32::from_le_bytes(*word) as usize).min(limit);
                lz4_flex::block::decompress(rest, length).map_err(|error| error.to_string().into())
            }
            Codec::Blosc => blosc::decode(&bytes, limit),
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

/// Most bytes that a deflated stream can hold.
fn deflated_max(bytes: &[u8]) -> usize {
    bytes.len().saturating_mul(DEFLATE_FACTOR as usize)
}

/// Reads to the end. Where more than `limit` bytes come, one of these comes out with them, by which it is known.
fn take(from: impl Read, limit: usize) -> Result<Vec<u8>, ReadError> {
    let most = limit.saturating_add(1);
    let mut out = Vec::new();
    out.try_reserve_exact(most)?;
    let read = from.take(most as u64).read_to_end(&mut out);
    read.map_err(|error| error.to_string())?;
    Ok(out)
}

/// Decodes a frame of zstd, at most `limit` bytes of it.
fn zstd(bytes: &[u8], limit: usize) -> Result<Vec<u8>, ReadError> {
    let _claim = decode_memory::claim(zstd_window(bytes).unwrap_or(0))?;
    let mut decoder =
        ruzstd::decoding::StreamingDecoder::new(bytes).map_err(|error| error.to_string())?;
    let out = take(&mut decoder, limit)?;
    let stored = decoder.decoder.get_checksum_from_data();
    let is_other = |sum| decoder.decoder.get_calculated_checksum() != Some(sum);
    if out.len() <= limit && stored.is_some_and(is_other) {
        return Err("its checksum (of zstd) does not match".into());
    }
    Ok(out)
}

/// Bytes that a frame of zstd keeps to refer to.
///
/// Source: RFC 8878, section 3.1.1.1.
fn zstd_window(frame: &[u8]) -> Option<u64> {
    let &[_, _, _, _, descriptor, window, ..] = frame else {
        return None;
    };
    let is_single = descriptor >> 5 & 1 == 1;
    if !is_single {
        let base = 1u64 << (10 + (window >> 3));
        return Some(base + base / 8 * u64::from(window & 7));
    }
    // The window is all of the contents, whose size stands behind the number of a dictionary.
    let at = 5 + [0, 1, 2, 4][usize::from(descriptor & 3)];
    let length = 1 << (descriptor >> 6);
    let size = frame.get(at..at + length)?;
    let size = size
        .iter()
        .rev()
        .fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
    Some(if length == 2 { size + 256 } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_zstd_stand_in_its_header() {
        let frame = |descriptor: u8, rest: &[u8]| {
            let head = [0x28, 0xb5, 0x2f, 0xfd, descriptor];
            zstd_window(&[&head, rest].concat())
        };
        assert_eq!(frame(0, &[0x51, 0]), Some((1 << 20) + (1 << 17)));
        assert_eq!(frame(0x20, &[200, 0]), Some(200));
        assert_eq!(frame(0x60, &[0, 1]), Some(512));
        assert_eq!(frame(0xa1, &[9, 0, 0, 0, 1]), Some(1 << 24));
        assert_eq!(frame(0, &[]), None);
    }

    #[test]
    fn streams_end_a_byte_behind_their_limit() {
        let zeros = vec![0u8; 1 << 20];
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
        std::io::Write::write_all(&mut packed, &zeros).expect("room");
        let packed = packed.finish().expect("room");
        let decoded = Codec::Zlib.decode(packed, 1000).expect("a stream");
        assert_eq!((decoded.len(), decoded.capacity()), (1001, 1001));
    }
}
