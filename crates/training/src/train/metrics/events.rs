//! Event files of TensorBoard: records of `tensorflow.Event` messages with the checksums of TFRecord.
//!
//! A record is the length of its data (u64, little endian), the masked CRC-32C of the length, the data, and the masked
//! CRC-32C of the data. Source: TensorFlow, `tensorflow/core/lib/io/record_writer.h` and
//! `tensorflow/core/util/event.proto`.

use std::io::{self, Write};

/// The version that readers expect in the first event.
const VERSION: &str = "brain.Event:2";

/// An event file.
pub struct EventFile<W> {
    to: W,
}

impl<W: Write> EventFile<W> {
    /// Writes the first event.
    pub fn start(mut to: W, wall_time: f64) -> io::Result<Self> {
        let mut event = Message::default();
        event.double(1, wall_time);
        event.bytes(3, VERSION.as_bytes());
        to.write_all(&record(&event.0))?;
        Ok(Self { to })
    }

    /// Writes an event with scalars, each under its tag.
    pub fn scalars(
        &mut self,
        wall_time: f64,
        step: u64,
        scalars: &[(&str, f64)],
    ) -> io::Result<()> {
        let mut summary = Message::default();
        for (tag, value) in scalars {
            let mut one = Message::default();
            one.bytes(1, tag.as_bytes());
            one.float(2, *value as f32);
            summary.bytes(1, &one.0);
        }
        let mut event = Message::default();
        event.double(1, wall_time);
        event.number(2, step);
        event.bytes(5, &summary.0);
        self.to.write_all(&record(&event.0))
    }
}

/// The records of an event file whose event has no scalars, or a first tag and a step that `keeps` takes. What a killed
/// process left at the end is cut.
pub fn kept_events(bytes: &[u8], keeps: impl Fn(&str, u64) -> bool) -> Vec<u8> {
    let (mut rest, mut kept) = (bytes, Vec::new());
    while let Some((head, after)) = rest.split_first_chunk::<12>() {
        let (length, _) = head.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let whole = length
            .checked_add(4)
            .and_then(|end| after.split_at_checked(end));
        let Some((body, next)) = whole else {
            break;
        };
        let data = &body[..length];
        if first_scalar(data).is_none_or(|(tag, step)| keeps(tag, step)) {
            kept.extend_from_slice(&record(data));
        }
        rest = next;
    }
    kept
}

/// The tag of the first scalar of an event, and its step.
fn first_scalar(event: &[u8]) -> Option<(&str, u64)> {
    let step = match fields(event).find(|one| one.0 == 2) {
        Some((_, Field::Number(step))) => step,
        Some(_) | None => 0,
    };
    let inside = |message, field| {
        fields(message).find_map(|(number, value)| match value {
            Field::Bytes(bytes) if number == field => Some(bytes),
            Field::Bytes(_) | Field::Number(_) => None,
        })
    };
    let tag = inside(inside(inside(event, 5)?, 1)?, 1)?;
    Some((std::str::from_utf8(tag).ok()?, step))
}

/// A value of a message that is read.
enum Field<'m> {
    /// Of the wire types 0, 1 and 5.
    Number(u64),
    Bytes(&'m [u8]),
}

/// Fields of a message with their numbers, up to one that is not valid.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u64, Field<'_>)> {
    std::iter::from_fn(move || {
        let key = varint(&mut message)?;
        let mut take = |count: u64| {
            let (taken, rest) = message.split_at_checked(usize::try_from(count).ok()?)?;
            message = rest;
            Some(taken)
        };
        let value = match key & 7 {
            1 => Field::Number(u64::from_le_bytes(take(8)?.try_into().ok()?)),
            5 => Field::Number(u32::from_le_bytes(take(4)?.try_into().ok()?).into()),
            0 => Field::Number(varint(&mut message)?),
            2 => {
                let length = varint(&mut message)?;
                let (taken, rest) = message.split_at_checked(usize::try_from(length).ok()?)?;
                message = rest;
                Field::Bytes(taken)
            }
            _ => return None,
        };
        Some((key >> 3, value))
    })
}

fn varint(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Fields of a message in the wire format of protocol buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
    }
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut all = Vec::with_capacity(data.len() + 16);
    all.extend(length);
    all.extend(masked(&length).to_le_bytes());
    all.extend(data);
    all.extend(masked(data).to_le_bytes());
    all
}

/// CRC-32C, rotated and shifted so that checksums of checksums differ.
fn masked(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// CRC-32C (Castagnoli). Source: RFC 3720, appendix B.4.
fn crc32c(data: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            let low = 0_u32.wrapping_sub(crc & 1);
            crc >> 1 ^ 0x82F6_3B78 & low
        })
    };
    !data.iter().fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors of RFC 3720, appendix B.4.
    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46DD_794E);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn events_of_steps_that_are_repeated_are_cut() {
        let mut bytes = Vec::new();
        let mut file = EventFile::start(&mut bytes, 1.5).unwrap();
        let mut ends = Vec::new();
        for (tag, step) in [("train/loss", 300), ("epoch/loss", 1), ("train/loss", 301)] {
            file.scalars(2.5, step, &[(tag, 0.25), ("b", -1.0)])
                .unwrap();
            ends.push(file.to.len());
        }
        let keeps = |tag: &str, step: u64| tag.starts_with("epoch/") || step <= 300;
        assert_eq!(kept_events(&bytes, keeps), bytes[..ends[1]]);
        assert_eq!(kept_events(&bytes, |_, _| true), bytes);
        assert_eq!(
            kept_events(&bytes[..ends[1] - 1], |_, _| true),
            bytes[..ends[0]]
        );
        assert!(kept_events(&[0xff; 64], |_, _| true).is_empty());
    }

    #[test]
    fn events_are_framed_records() {
        let mut bytes = Vec::new();
        let mut file = EventFile::start(&mut bytes, 1.5).unwrap();
        file.scalars(2.5, 300, &[("train/loss", 0.25), ("b", -1.0)])
            .unwrap();
        let mut rest = &bytes[..];
        let mut events = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let sum = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            assert_eq!(sum(8), masked(&rest[..8]));
            let data = &rest[12..12 + length];
            assert_eq!(sum(12 + length), masked(data));
            events.push(data.to_vec());
            rest = &rest[16 + length..];
        }
        let [first, second] = &events[..] else {
            panic!("{} events", events.len());
        };
        assert_eq!(first[0], 1 << 3 | 1);
        assert_eq!(first[1..9], 1.5_f64.to_le_bytes());
        assert_eq!(first[9..11], [3 << 3 | 2, 13]);
        assert_eq!(&first[11..], VERSION.as_bytes());
        // Step 300 is the varint AC 02.
        assert_eq!(second[9..12], [2 << 3, 0xAC, 0x02]);
        assert_eq!(second[12], 5 << 3 | 2);
        let value = &second[14..];
        assert_eq!(value[..4], [1 << 3 | 2, 17, 1 << 3 | 2, 10]);
        assert_eq!(&value[4..14], b"train/loss");
        assert_eq!(value[14], 2 << 3 | 5);
        assert_eq!(value[15..19], 0.25_f32.to_le_bytes());
        assert_eq!(second[13] as usize, second.len() - 14);
    }
}
