//! PNG and JPEG images, (H, W, C), turned as their Exif metadata say they are to be seen.

mod jpeg;
mod orientation;

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use self::orientation::{of_exif, upright};
use crate::array::{Access, ArrayFile, Opened, StorageLayout, StoredArray};
use crate::decode_memory::{self, Claim};
use crate::element::{Element, Elements};
use crate::flat::{DEFLATE_FACTOR, Order, decode, for_runs};
use crate::read_error::ReadError;

/// The first bytes of a PNG file.
pub(crate) const PNG_MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The first bytes of a JPEG file.
pub(crate) const JPEG_MAGIC: &[u8] = b"\xff\xd8\xff";
/// Most bytes of a decoded image.
const IMAGE_BYTES_MAX: usize = 1 << 30;
/// Most bytes of a row, and of metadata, of a PNG file.
const PNG_PART_BYTES_MAX: usize = 64 << 20;
/// Longest side.
const SIDE_MAX: usize = 1 << 16;

/// An image, decoded whole at each read.
pub(crate) struct ImageFile(pub(crate) PathBuf);

/// A decoded image.
pub struct Image {
    /// H, W, C; C is 1 (gray), 2 (gray, alpha), 3 (RGB) or 4 (RGB, alpha).
    pub shape: [usize; 3],
    /// Values in this order.
    pub elements: Elements,
}

impl ArrayFile for ImageFile {
    fn array(&self, _: &str, _: Access) -> Result<Opened, ReadError> {
        let (shape, element) = header(&self.0)?;
        Ok(Opened {
            shape: shape.to_vec(),
            stored: StorageLayout::Stream { filter: "image" },
            stored_size: element.size(),
            element,
            external: Vec::new(),
            array: Box::new(StoredImage {
                path: self.0.clone(),
                shape,
            }),
        })
    }
}

/// An image that is decoded where it is read.
struct StoredImage {
    path: PathBuf,
    shape: [usize; 3],
}

impl StoredArray for StoredImage {
    fn read(
        &self,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        let image = read(&self.path)?;
        if image.shape != self.shape {
            return Err("it is another image than when it was opened".into());
        }
        let mut filled = 0;
        for_runs(&self.shape, starts, counts, |first, length| {
            image.elements.copy_to(first as usize, length, out, filled);
            filled += length;
            Ok(())
        })
    }
}

/// Shape of an image as it is to be seen, and type of its values, by its headers.
fn header(path: &Path) -> Result<([usize; 3], Element), ReadError> {
    let mut file = partita_files::open(path)?;
    let mut magic = Vec::new();
    Read::by_ref(&mut file)
        .take(JPEG_MAGIC.len() as u64)
        .read_to_end(&mut magic)?;
    if magic == JPEG_MAGIC {
        let (bytes, _claim) = stored(path)?;
        return jpeg::header(&bytes);
    }
    let mut reader = open_png(path)?;
    let (shape, is_wide) = png_shape(&reader)?;
    // Metadata may stand behind the pixels.
    reader.finish().map_err(png_error)?;
    let orientation = png_orientation(&reader);
    let element = if is_wide {
        Element::UInt16
    } else {
        Element::UInt8
    };
    Ok((seen_shape(shape, orientation), element))
}

/// The bytes of a file.
fn stored(path: &Path) -> Result<(Vec<u8>, Claim), ReadError> {
    let mut file = partita_files::open(path)?;
    let length = file.metadata()?.len();
    decode_memory::read_file(&mut file, length)
}

/// Decodes an image.
pub fn read(path: &Path) -> Result<Image, ReadError> {
    let (bytes, _claim) = stored(path)?;
    if bytes.starts_with(JPEG_MAGIC) {
        return jpeg::read(&bytes);
    }
    drop(bytes);
    png(path)
}

fn too_large([height, width]: [usize; 2]) -> ReadError {
    ReadError::Unsupported(format!(
        "an image of {height}x{width} pixels is too large; {SIDE_MAX} pixels a side and {IMAGE_BYTES_MAX} bytes are \
         read"
    ))
}

fn png_error(error: png::DecodingError) -> ReadError {
    match error {
        png::DecodingError::IoError(error) => error.into(),
        png::DecodingError::LimitsExceeded => ReadError::Unsupported(format!(
            "its rows or its metadata are larger than {PNG_PART_BYTES_MAX} bytes, or than what is left of the budget of \
             decoding"
        )),
        error => ReadError::Damaged(error.to_string()),
    }
}

type PngReader = png::Reader<BufReader<File>>;

fn open_png(path: &Path) -> Result<PngReader, ReadError> {
    let file = partita_files::open(path)?;
    // Of a row, and of metadata, which may be compressed.
    let bytes = usize::try_from(decode_memory::left()).unwrap_or(usize::MAX);
    let limits = png::Limits {
        bytes: bytes.min(PNG_PART_BYTES_MAX),
    };
    let mut decoder = png::Decoder::new_with_limits(BufReader::new(file), limits);
    // Palettes become colors, and less than a byte becomes a byte.
    decoder.set_transformations(png::Transformations::EXPAND);
    decoder.ignore_checksums(false);
    // Texts and profiles are not needed, and may be compressed.
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.read_info().map_err(png_error)
}

/// H, W, C as stored, and whether values have 16 bits.
fn png_shape(reader: &PngReader) -> Result<([usize; 3], bool), ReadError> {
    let [height, width] = [reader.info().height as usize, reader.info().width as usize];
    let size = reader
        .output_buffer_size()
        .filter(|&size| size <= IMAGE_BYTES_MAX);
    size.ok_or_else(|| too_large([height, width]))?;
    let (color, depth) = reader.output_color_type();
    let is_wide = depth == png::BitDepth::Sixteen;
    Ok(([height, width, color.samples()], is_wide))
}

fn png_orientation(reader: &PngReader) -> u16 {
    let metadata = reader.info().exif_metadata.as_deref();
    metadata.map_or(1, of_exif)
}

fn png(path: &Path) -> Result<Image, ReadError> {
    let length = std::fs::metadata(path)?.len();
    let mut reader = open_png(path)?;
    let ([height, width, channels], is_wide) = png_shape(&reader)?;
    let each = if is_wide { 2 } else { 1 };
    let size = height * width * channels * each;
    if size as u64 > length.saturating_mul(DEFLATE_FACTOR) {
        return Err(format!("its {length} bytes cannot hold {height}x{width} pixels").into());
    }
    // Values of 16 bits are decoded from bytes, and images that were turned are copied.
    let _claim = decode_memory::claim(2 * size as u64)?;
    let mut bytes = vec![0; size];
    let info = reader.next_frame(&mut bytes).map_err(png_error)?;
    reader.finish().map_err(png_error)?;
    let orientation = png_orientation(&reader);
    bytes.truncate(info.buffer_size());
    let elements = if is_wide {
        let mut values = Elements::U16(vec![0; bytes.len() / 2]);
        decode(&bytes, Order::Big, &mut values, 0);
        drop(bytes);
        values
    } else {
        Elements::U8(bytes)
    };
    Ok(upright(image([height, width], elements)?, orientation))
}

/// The shape of an image that is turned as its orientation says.
fn seen_shape([height, width, channels]: [usize; 3], orientation: u16) -> [usize; 3] {
    match orientation {
        5..=8 => [width, height, channels],
        _ => [height, width, channels],
    }
}

fn image([height, width]: [usize; 2], elements: Elements) -> Result<Image, ReadError> {
    let pixels = (height * width).max(1);
    let channels = elements.len() / pixels;
    if channels == 0 || channels > 4 || channels * pixels != elements.len() {
        return Err(format!(
            "its {} values are no image of {height}x{width}",
            elements.len()
        )
        .into());
    }
    Ok(Image {
        shape: [height, width, channels],
        elements,
    })
}
