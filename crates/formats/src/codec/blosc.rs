//! Blosc 1, the container of compressed blocks that Zarr writes by default.
//!
//! Source: c-blosc, README_CHUNK_FORMAT.rst; the bit shuffle is that of `bitshuffle` without its tail.

use std::io::Read;

use super::zstd;
use crate::read_error::ReadError;

/// Length of the header.
const HEADER_BYTES: usize = 16;

/// Decodes a chunk of at most `limit` bytes.
pub(crate) fn decode(chunk: &[u8], limit: usize) -> Result<Vec<u8>, ReadError> {
    let header = Header::parse(chunk, limit)?;
    if header.is_stored {
        let stored = chunk.get(HEADER_BYTES..HEADER_BYTES + header.bytes);
        return Ok(stored.ok_or("a blosc chunk is cut off")?.to_vec());
    }
    let mut out = Vec::with_capacity(header.bytes.min(chunk.len().saturating_mul(300)));
    let blocks = header.bytes.div_ceil(header.block);
    for number in 0..blocks {
        let length = header.block.min(header.bytes - number * header.block);
        let at = word(chunk, HEADER_BYTES + 4 * number)?;
        let from = chunk
            .get(at..)
            .ok_or("a blosc block lies outside of its chunk")?;
        let block = header.block_at(from, length)?;
        out.extend_from_slice(&header.unfilter(block));
    }
    Ok(out)
}

struct Header {
    codec: u8,
    is_shuffled: bool,
    is_bit_shuffled: bool,
    is_stored: bool,
    is_split: bool,
    type_size: usize,
    bytes: usize,
    block: usize,
}

fn word(bytes: &[u8], at: usize) -> Result<usize, ReadError> {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
    Ok(u32::from_le_bytes(*word.ok_or("a blosc chunk is cut off")?) as usize)
}

impl Header {
    fn parse(chunk: &[u8], limit: usize) -> Result<Self, ReadError> {
        let (bytes, block) = (word(chunk, 4)?, word(chunk, 8)?);
        word(chunk, 12)?;
        let flags = chunk[2];
        if bytes > limit || (bytes > 0 && block == 0) {
            return Err(format!(
                "a blosc chunk states {bytes} bytes in blocks of {block}, and a chunk has {limit} at most"
            )
            .into());
        }
        Ok(Self {
            codec: flags >> 5,
            is_shuffled: flags & 1 != 0,
            is_stored: flags & 2 != 0,
            is_bit_shuffled: flags & 4 != 0,
            is_split: flags & 16 == 0,
            type_size: chunk[3].max(1).into(),
            bytes,
            block: block.max(1),
        })
    }

    /// Decompresses a block, which may be split in one stream per byte of an element.
    fn block_at(&self, from: &[u8], length: usize) -> Result<Vec<u8>, ReadError> {
        let is_whole = length == self.block;
        let streams = if self.is_split
            && is_whole
            && self.type_size <= 16
            && length.is_multiple_of(self.type_size)
        {
            self.type_size
        } else {
            1
        };
        let each = length / streams;
        let mut out = Vec::with_capacity(length.min(from.len().saturating_mul(300)));
        let mut at = 0;
        for _ in 0..streams {
            let packed = word(from, at)?;
            at += 4;
            let stream = from
                .get(at..at + packed)
                .ok_or("a blosc block is cut off")?;
            at += packed;
            if packed == each {
                out.extend_from_slice(stream)
            } else {
                out.extend_from_slice(&self.decompress(stream, each)?)
            }
        }
        Ok(out)
    }

    fn decompress(&self, stream: &[u8], length: usize) -> Result<Vec<u8>, ReadError> {
        let out = match self.codec {
            0 => blosclz(stream, length)?,
            1 => lz4_flex::block::decompress(stream, length).map_err(|error| error.to_string())?,
            3 => {
                let mut out = Vec::new();
                let decoder = flate2::read::ZlibDecoder::new(stream);
                let read = decoder.take(length as u64).read_to_end(&mut out);
                read.map_err(|error| error.to_string())?;
                out
            }
            4 => zstd(stream, length)?,
            codec => {
                return Err(ReadError::Unsupported(format!(
                    "blosc codec {codec} is not one of blosclz, lz4, zlib and zstd, which are read; write the \
                     chunks with one of them"
                )));
            }
        };
        if out.len() == length {
            return Ok(out);
        }
        Err(format!("a blosc block holds {} bytes, not {length}", out.len()).into())
    }

    fn unfilter(&self, block: Vec<u8>) -> Vec<u8> {
        let size = self.type_size;
        if self.is_bit_shuffled {
            return bit_unshuffle(&block, size);
        }
        if self.is_shuffled && size > 1 {
            return unshuffle(&block, size);
        }
        block
    }
}

/// Brings bytes of equal significance back to their elements.
pub(crate) fn unshuffle(bytes: &[u8], size: usize) -> Vec<u8> {
    let elements = bytes.len() / size;
    let mut out = vec![0; bytes.len()];
    for byte in 0..size {
        for element in 0..elements {
            out[element * size + byte] = bytes[byte * elements + element];
        }
    }
    let whole = elements * size;
    out[whole..].copy_from_slice(&bytes[whole..]);
    out
}

/// Brings bits of equal significance back to their elements; what is no multiple of 8 elements stays.
fn bit_unshuffle(bytes: &[u8], size: usize) -> Vec<u8> {
    let elements = bytes.len() / size / 8 * 8;
    let whole = elements * size;
    let mut out = vec![0; bytes.len()];
    for bit in 0..8 * size {
        for element in 0..elements {
            let at = bit * elements + element;
            if bytes[at / 8] >> (at % 8) & 1 == 1 {
                out[element * size + bit / 8] |= 1 << (bit % 8);
            }
        }
    }
    out[whole..].copy_from_slice(&bytes[whole..]);
    out
}

/// Decodes BloscLZ.
///
/// Source: the format of FastLZ, level 2, with distances beyond 8191 in two more bytes.
fn blosclz(input: &[u8], length: usize) -> Result<Vec<u8>, ReadError> {
    let mut bytes = input.iter().copied();
    let mut out: Vec<u8> = Vec::with_capacity(length.min(input.len().saturating_mul(300)));
    let short = || "a blosclz block is cut off".to_owned();
    let mut control = bytes.next().ok_or_else(short)? & 31;
    loop {
        if control < 32 {
            for _ in 0..=control {
                out.push(bytes.next().ok_or_else(short)?);
            }
        } else {
            let mut run = usize::from(control >> 5) - 1;
            if run == 6 {
                loop {
                    let more = bytes.next().ok_or_else(short)?;
                    run += usize::from(more);
                    if more != 255 {
                        break;
                    }
                }
            }
            let low = bytes.next().ok_or_else(short)?;
            let mut distance = (usize::from(control & 31) << 8) + usize::from(low) + 1;
            if low == 255 && control & 31 == 31 {
                let high = usize::from(bytes.next().ok_or_else(short)?);
                distance = (high << 8) + usize::from(bytes.next().ok_or_else(short)?) + 8192;
            }
            let from = out.len().checked_sub(distance).ok_or_else(short)?;
            for at in from..from + run + 3 {
                out.push(out[at]);
            }
        }
        if out.len() > length {
            return Err(format!("a blosclz block holds more than {length} bytes").into());
        }
        match bytes.next() {
            Some(next) => control = next,
            None => return Ok(out),
        }
    }
}
