//! PNG and JPEG images, (H, W, C), turned as their Exif metadata say they are to be seen.

mod orientation;

use std::io::{BufReader, Cursor};
use std::path::{Path, PathBuf};

use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use self::orientation::{of_exif, upright};
use crate::array::{Access, ArrayFile, Opened, StorageLayout, StoredArray};
use crate::element::{Element, Elements};
use crate::flat::{Order, decode, for_runs};
use crate::read_error::ReadError;

/// The first bytes of a PNG file.
pub(crate) const PNG_MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The first bytes of a JPEG file.
pub(crate) const JPEG_MAGIC: &[u8] = b"\xff\xd8\xff";
/// Most bytes of a decoded image.
const IMAGE_BYTES_MAX: usize = 1 << 30;
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
        let image = read(&self.0)?;
        let element = match image.elements {
            Elements::U16(_) => Element::UInt16,
            _ => Element::UInt8,
        };
        Ok(Opened {
            shape: image.shape.to_vec(),
            stored: StorageLayout::Stream { filter: "image" },
            stored_size: element.size(),
            element,
            external: Vec::new(),
            array: Box::new(image),
        })
    }
}

impl StoredArray for Image {
    fn read(
        &self,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        let mut filled = 0;
        for_runs(&self.shape, starts, counts, |first, length| {
            self.elements.copy_to(first as usize, length, out, filled);
            filled += length;
            Ok(())
        })
    }
}

/// Decodes an image.
pub fn read(path: &Path) -> Result<Image, ReadError> {
    let bytes = partita_files::read(path, IMAGE_BYTES_MAX as u64)?;
    if bytes.starts_with(JPEG_MAGIC) {
        return jpeg(bytes);
    }
    png(path)
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

fn too_large([height, width]: [usize; 2]) -> ReadError {
    ReadError::Unsupported(format!(
        "an image of {height}x{width} pixels is too large; {SIDE_MAX} pixels a side and {IMAGE_BYTES_MAX} bytes are \
         read"
    ))
}

fn jpeg(bytes: Vec<u8>) -> Result<Image, ReadError> {
    let options = DecoderOptions::default()
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
    size.ok_or_else(|| too_large([height, width]))?;
    let orientation = decoder.exif().map_or(1, |metadata| of_exif(metadata));
    let pixels = decoder.decode().map_err(jpeg_error)?;
    Ok(upright(
        image([height, width], Elements::U8(pixels))?,
        orientation,
    ))
}

fn png_error(error: png::DecodingError) -> ReadError {
    match error {
        png::DecodingError::IoError(error) => error.into(),
        png::DecodingError::LimitsExceeded => {
            ReadError::Unsupported(format!("it is larger than {IMAGE_BYTES_MAX} bytes"))
        }
        error => ReadError::Damaged(error.to_string()),
    }
}

fn png(path: &Path) -> Result<Image, ReadError> {
    let file = partita_files::open(path)?;
    let limits = png::Limits {
        bytes: IMAGE_BYTES_MAX,
    };
    let mut decoder = png::Decoder::new_with_limits(BufReader::new(file), limits);
    // Palettes become colors, and less than a byte becomes a byte.
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(png_error)?;
    let shape = [reader.info().height as usize, reader.info().width as usize];
    let size = reader
        .output_buffer_size()
        .filter(|&size| size <= IMAGE_BYTES_MAX);
    let mut bytes = vec![0; size.ok_or_else(|| too_large(shape))?];
    let info = reader.next_frame(&mut bytes).map_err(png_error)?;
    bytes.truncate(info.buffer_size());
    let elements = if info.bit_depth == png::BitDepth::Sixteen {
        let mut values = Elements::U16(vec![0; bytes.len() / 2]);
        decode(&bytes, Order::Big, &mut values, 0);
        values
    } else {
        Elements::U8(bytes)
    };
    let metadata = reader.info().exif_metadata.as_deref();
    let orientation = metadata.map_or(1, of_exif);
    Ok(upright(image(shape, elements)?, orientation))
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
