//! JPEG images. The decoder fills up what is cut or damaged, so that each block is passed before it decodes.
//!
//! Source: ITU-T T.81, annex B (markers).

mod bits;
mod frame;
mod scan;

use std::io::Cursor;

use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use self::bits::{Codes, Fault};
use self::frame::{Frame, Scan, ScanComponent};
use self::scan::Nonzero;
use super::orientation::{of_exif, upright};
use super::{IMAGE_BYTES_MAX, Image, SIDE_MAX, image, seen_shape, too_large};
use crate::decode_memory;
use crate::element::{Element, Elements};
use crate::read_error::ReadError;

/// Scans of an image that are read.
const SCANS_MAX: usize = 100;

/// The decoder of a file, past the headers.
struct Opened<'a> {
    decoder: JpegDecoder<Cursor<&'a [u8]>>,
    shape: [usize; 3],
    orientation: u16,
}

fn open(bytes: &[u8]) -> Result<Opened<'_>, ReadError> {
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX);
    let mut decoder = JpegDecoder::new_with_options(Cursor::new(bytes), options);
    decoder.decode_headers().map_err(jpeg_error)?;
    let (width, height) = decoder.dimensions().ok_or("it states no size")?;
    // Otherwise gray becomes three equal channels.
    if decoder.input_colorspace() == Some(ColorSpace::Luma) {
        decoder.set_options(options.jpeg_set_out_colorspace(ColorSpace::Luma));
    }
    let size = decoder
        .output_buffer_size()
        .filter(|&size| size <= IMAGE_BYTES_MAX);
    let size = size.ok_or_else(|| too_large([height, width]))?;
    let orientation = decoder.exif().map_or(1, |metadata| of_exif(metadata));
    Ok(Opened {
        decoder,
        shape: [height, width, size / (height * width).max(1)],
        orientation,
    })
}

/// The shape of an image as it is to be seen, by its headers.
pub(super) fn header(bytes: &[u8]) -> Result<([usize; 3], Element), ReadError> {
    let Opened {
        shape, orientation, ..
    } = open(bytes)?;
    Ok((seen_shape(shape, orientation), Element::UInt8))
}

/// Decodes an image.
pub(super) fn read(bytes: &[u8]) -> Result<Image, ReadError> {
    let Opened {
        mut decoder,
        shape: [height, width, channels],
        orientation,
    } = open(bytes)?;
    let needed = check(bytes)?;
    let pixels = (height * width * channels) as u64;
    let copies = if orientation == 1 { 1 } else { 2 };
    let _decoded = decode_memory::claim(needed + copies * pixels)?;
    let pixels = decoder.decode().map_err(jpeg_error)?;
    drop(decoder);
    Ok(upright(
        image([height, width], Elements::U8(pixels))?,
        orientation,
    ))
}

/// The decoder's messages may end in a line break.
fn jpeg_error(error: DecodeErrors) -> ReadError {
    let reason = error.to_string().trim().to_owned();
    match error {
        DecodeErrors::Unsupported(_) => {
            ReadError::Unsupported(format!("{reason}; write it as PNG or as another JPEG"))
        }
        DecodeErrors::LargeDimensions(_) => ReadError::Unsupported(reason),
        _ => ReadError::Damaged(reason),
    }
}

/// What tables of a file are in force.
#[derive(Default)]
pub(super) struct Tables {
    first: [Option<Codes>; 4],
    other: [Option<Codes>; 4],
    /// Units between restart markers; 0 if there are none.
    interval: usize,
}

impl Tables {
    fn first(&self, number: usize) -> Result<&Codes, Fault> {
        let codes = self.first.get(number).and_then(Option::as_ref);
        codes.ok_or(Fault::Invalid)
    }

    fn other(&self, number: usize) -> Result<&Codes, Fault> {
        let codes = self.other.get(number).and_then(Option::as_ref);
        codes.ok_or(Fault::Invalid)
    }

    /// Reads the codes of a segment.
    fn define(&mut self, mut segment: &[u8]) -> Result<(), ReadError> {
        const INVALID: &str = "its Huffman tables are not valid";
        while let Some((&place, rest)) = segment.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>().ok_or(INVALID)?;
            let length = counts.iter().copied().map(usize::from).sum();
            let (symbols, rest) = rest.split_at_checked(length).ok_or(INVALID)?;
            let all = match place >> 4 {
                0 => &mut self.first,
                1 => &mut self.other,
                _ => return Err(INVALID.into()),
            };
            let codes = Codes::new(counts, symbols).ok_or(INVALID)?;
            *all.get_mut(usize::from(place & 15)).ok_or(INVALID)? = Some(codes);
            segment = rest;
        }
        Ok(())
    }
}

/// A file behind the start of its image.
struct Markers<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Markers<'a> {
    /// The next marker. Bytes of 255 may fill up to it.
    fn next(&mut self) -> Result<u8, ReadError> {
        const CUT: &str = "it is cut off before its end-of-image marker";
        if *self.bytes.get(self.at).ok_or(CUT)? != 0xff {
            return Err(format!("bytes from {} on belong to nothing", self.at).into());
        }
        while self.bytes.get(self.at) == Some(&0xff) {
            self.at += 1;
        }
        let marker = *self.bytes.get(self.at).ok_or(CUT)?;
        self.at += 1;
        Ok(marker)
    }

    /// The contents of a segment.
    fn segment(&mut self) -> Result<&'a [u8], ReadError> {
        let rest = &self.bytes[self.at..];
        let length = rest.first_chunk::<2>();
        let length = length.map(|&word| usize::from(u16::from_be_bytes(word)));
        let segment = length.and_then(|length| rest.get(2..length));
        let segment = segment.ok_or("it is cut off within its headers")?;
        self.at += 2 + segment.len();
        Ok(segment)
    }
}

/// Refuses an image that is not whole: blocks that are missing or no code, bytes that are left over, scans that are missing,
/// no end. What follows the end is not looked at.
///
/// Returns the bytes that the decoder takes beside the pixels.
fn check(bytes: &[u8]) -> Result<u64, ReadError> {
    let mut markers = Markers { bytes, at: 2 };
    let mut tables = Tables::default();
    let mut frame: Option<Frame> = None;
    let mut nonzero: Vec<Nonzero> = Vec::new();
    let mut scans = 0;
    let mut claim = decode_memory::claim(0)?;
    loop {
        match markers.next()? {
            0xd9 => break,
            0xc4 => tables.define(markers.segment()?)?,
            0xdd => {
                let word = markers.segment()?.first_chunk::<2>();
                let interval = u16::from_be_bytes(*word.ok_or("its restart interval is cut off")?);
                tables.interval = interval.into();
            }
            marker @ 0xc0..=0xc2 => {
                let found = Frame::read(markers.segment()?, marker == 0xc2)?;
                if frame.is_some() {
                    return Err("it has two frames".into());
                }
                frame = Some(found);
            }
            marker @ (0xc3 | 0xc5..=0xc7 | 0xc9..=0xcf | 0xdc | 0xde | 0xdf) => {
                return Err(ReadError::Unsupported(format!(
                    "it is a JPEG of another kind (marker {marker:02x}) than baseline and progressive; write it as PNG \
                     or as another JPEG"
                )));
            }
            0xda => {
                let frame = frame.as_mut().ok_or("a scan comes before its frame")?;
                let scan = scan_header(markers.segment()?, frame)?;
                frame.note(&scan)?;
                scans += 1;
                if scans > SCANS_MAX {
                    return Err(ReadError::Unsupported(format!(
                        "it has more than {SCANS_MAX} scans; write it as PNG or as another JPEG"
                    )));
                }
                if frame.is_progressive && scan.band.0 > 0 && nonzero.is_empty() {
                    claim.add(frame.blocks() * size_of::<u64>() as u64)?;
                    nonzero = masks(frame);
                }
                let passed = scan::pass(bytes, markers.at, (frame, &scan), &tables, &mut nonzero);
                markers.at = passed.map_err(|fault| faulty(fault, scans))?;
            }
            0x01 | 0xd0..=0xd8 => return Err("a marker stands where none may".into()),
            _ => drop(markers.segment()?),
        }
    }
    let frame = frame.ok_or("it has no frame")?;
    if !frame.is_whole() {
        return Err("it ends before all of its scans".into());
    }
    Ok(scratch(&frame, scans))
}

fn masks(frame: &Frame) -> Vec<Nonzero> {
    let each = frame.components.iter();
    each.map(|one| vec![0; one.blocks()]).collect()
}

/// What the decoder takes beside the pixels: coefficients of 16 bits where they are collected from scans, else those of a row.
fn scratch(frame: &Frame, scans: usize) -> u64 {
    let blocks = frame.blocks();
    let coefficients = 2 * (BLOCK as u64) * blocks;
    if frame.is_progressive || scans > 1 {
        return coefficients;
    }
    coefficients.min(ROWS_BYTES_MAX)
}

/// Coefficients of a block.
const BLOCK: usize = frame::LAST + 1;
/// Most bytes of rows of blocks: 16 rows of each of four components of the longest side, and three copies.
const ROWS_BYTES_MAX: u64 = 4 * 2 * 4 * 32 * SIDE_MAX as u64;

fn faulty(fault: Fault, scan: usize) -> ReadError {
    let what = match fault {
        Fault::Short => "ends before all of its blocks are there",
        Fault::Invalid => "holds bits that are no code",
        Fault::Left => "has bytes behind its last block",
    };
    format!("the data of scan {scan} {what}").into()
}

fn scan_header(header: &[u8], frame: &Frame) -> Result<Scan, ReadError> {
    const INVALID: &str = "a scan header is not valid";
    let (&count, rest) = header.split_first().ok_or(INVALID)?;
    let count = usize::from(count);
    let (parts, rest) = rest.split_at_checked(2 * count).ok_or(INVALID)?;
    let &[start, end, bits] = rest.first_chunk::<3>().ok_or(INVALID)?;
    let (parts, _) = parts.as_chunks::<2>();
    let mut components: Vec<ScanComponent> = Vec::new();
    for &[id, codes] in parts {
        let number = frame.component(id).ok_or(INVALID)?;
        if components.iter().any(|other| other.number == number) {
            return Err(INVALID.into());
        }
        components.push(ScanComponent {
            number,
            first_codes: usize::from(codes >> 4),
            other_codes: usize::from(codes & 15),
        });
    }
    if components.is_empty() {
        return Err(INVALID.into());
    }
    // Only progressive scans are of a part.
    let (band, bits) = if frame.is_progressive {
        ((start, end), (bits >> 4, bits & 15))
    } else {
        ((0, frame::LAST as u8), (0, 0))
    };
    Ok(Scan {
        components,
        band,
        bits,
    })
}
