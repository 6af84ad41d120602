//! The orientation of a photograph, which cameras store beside its pixels.
//!
//! Source: Exif 2.32, sections 4.6.2 and 4.6.4 (tag 274, `Orientation`); TIFF 6.0, section 2.

use super::Image;
use crate::element::{Elements, each};

const ORIENTATION: u16 = 274;

/// The orientation of Exif metadata, 1 to 8; 1, as stored, where they have none.
pub(super) fn of_exif(metadata: &[u8]) -> u16 {
    let tiff = metadata.strip_prefix(b"Exif\0\0").unwrap_or(metadata);
    find(tiff)
        .filter(|orientation| (1..=8).contains(orientation))
        .unwrap_or(1)
}

/// The value of the tag in the first directory.
fn find(tiff: &[u8]) -> Option<u16> {
    let is_big = match tiff.get(..4)? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let short = |at: usize| {
        let word = *tiff.get(at..)?.first_chunk::<2>()?;
        Some(if is_big {
            u16::from_be_bytes(word)
        } else {
            u16::from_le_bytes(word)
        })
    };
    let word = *tiff.get(4..)?.first_chunk::<4>()?;
    let first = if is_big {
        u32::from_be_bytes(word)
    } else {
        u32::from_le_bytes(word)
    } as usize;
    let entries = usize::from(short(first)?);
    let at = (0..entries).map(|entry| first + 2 + 12 * entry);
    let mut tags = at.filter(|&at| short(at) == Some(ORIENTATION));
    short(tags.next()? + 8)
}

/// An image as it is to be seen.
pub(super) fn upright(image: Image, orientation: u16) -> Image {
    let [height, width, channels] = image.shape;
    // The stored pixel of a pixel (y, x) as seen.
    let from = |y: usize, x: usize| match orientation {
        2 => (y, width - 1 - x),
        3 => (height - 1 - y, width - 1 - x),
        4 => (height - 1 - y, x),
        5 => (x, y),
        6 => (height - 1 - x, y),
        7 => (height - 1 - x, width - 1 - y),
        8 => (x, width - 1 - y),
        _ => (y, x),
    };
    let (rows, columns) = match orientation {
        2..=4 => (height, width),
        5..=8 => (width, height),
        _ => return image,
    };
    let mut elements: Elements = image.elements;
    each!(&mut elements, values => {
        let mut seen = Vec::with_capacity(values.len());
        for y in 0..rows {
            for x in 0..columns {
                let (row, column) = from(y, x);
                let at = (row * width + column) * channels;
                seen.extend_from_slice(&values[at..at + channels]);
            }
        }
        *values = seen;
    });
    Image {
        shape: [rows, columns, channels],
        elements,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exif(orientation: u16, is_big: bool) -> Vec<u8> {
        let short = |value: u16| {
            if is_big {
                value.to_be_bytes()
            } else {
                value.to_le_bytes()
            }
        };
        let long = |value: u32| {
            if is_big {
                value.to_be_bytes()
            } else {
                value.to_le_bytes()
            }
        };
        let mut bytes = b"Exif\0\0".to_vec();
        bytes.extend(if is_big { b"MM" } else { b"II" });
        bytes.extend(short(42));
        bytes.extend(long(8));
        bytes.extend(short(2));
        for (tag, value) in [(271, 1), (ORIENTATION, orientation)] {
            bytes.extend(short(tag));
            bytes.extend(short(3));
            bytes.extend(long(1));
            bytes.extend(short(value));
            bytes.extend([0, 0]);
        }
        bytes
    }

    /// An image of 2 by 3 pixels, 1 2 3 above 4 5 6, seen in each of the orientations.
    #[test]
    fn each_orientation_is_undone() {
        for (orientation, shape, expected) in [
            (1, [2, 3], [1, 2, 3, 4, 5, 6]),
            (2, [2, 3], [3, 2, 1, 6, 5, 4]),
            (3, [2, 3], [6, 5, 4, 3, 2, 1]),
            (4, [2, 3], [4, 5, 6, 1, 2, 3]),
            (5, [3, 2], [1, 4, 2, 5, 3, 6]),
            (6, [3, 2], [4, 1, 5, 2, 6, 3]),
            (7, [3, 2], [6, 3, 5, 2, 4, 1]),
            (8, [3, 2], [3, 6, 2, 5, 1, 4]),
        ] {
            for is_big in [false, true] {
                assert_eq!(of_exif(&exif(orientation, is_big)), orientation);
            }
            let image = Image {
                shape: [2, 3, 2],
                elements: Elements::U8((1..=6).flat_map(|value| [value, 10 * value]).collect()),
            };
            let seen = upright(image, orientation);
            assert_eq!(seen.shape, [shape[0], shape[1], 2], "{orientation}");
            let expected: Vec<u8> = expected
                .into_iter()
                .flat_map(|value| [value, 10 * value])
                .collect();
            let Elements::U8(values) = seen.elements else {
                panic!("bytes stay bytes");
            };
            assert_eq!(values, expected, "{orientation}");
        }
        for bad in [
            &b""[..],
            b"Exif\0\0MM",
            b"II*\0\xff\xff\xff\xff",
            &exif(9, true),
        ] {
            assert_eq!(of_exif(bad), 1);
        }
    }
}
