//! The frame of a JPEG file: its components, and how far scans have coded their coefficients.
//!
//! Source: ITU-T T.81, sections A.1, A.2 and B.2.2.

use crate::read_error::ReadError;

/// The last coefficient of a block.
pub(super) const LAST: usize = 63;

/// What a frame header says.
pub(super) struct Frame {
    pub(super) is_progressive: bool,
    pub(super) components: Vec<Component>,
    /// Units of interleaved scans along height and width.
    units: [usize; 2],
}

pub(super) struct Component {
    id: u8,
    /// Blocks of a unit along width and height.
    sampling: [usize; 2],
    /// Blocks that the image touches along height and width.
    blocks: [usize; 2],
    /// The lowest bit that was coded of each coefficient; `None` before its first scan.
    coded: [Option<u8>; LAST + 1],
}

/// What a scan codes.
pub(super) struct Scan {
    /// Of the frame, by number, with their codes for the first and the other coefficients of a block.
    pub(super) components: Vec<ScanComponent>,
    /// First and last coefficient.
    pub(super) band: (u8, u8),
    /// The lowest bit that earlier scans coded, 0 if this is the first, and that of this one.
    pub(super) bits: (u8, u8),
}

pub(super) struct ScanComponent {
    pub(super) number: usize,
    pub(super) first_codes: usize,
    pub(super) other_codes: usize,
}

impl Component {
    pub(super) fn blocks_per_unit(&self) -> u32 {
        (self.sampling[0] * self.sampling[1]) as u32
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks[0] * self.blocks[1]
    }
}

impl Frame {
    /// Reads a frame header.
    pub(super) fn read(header: &[u8], is_progressive: bool) -> Result<Self, ReadError> {
        let short = "its frame header is cut off";
        let (fixed, rest) = header.split_first_chunk::<6>().ok_or(short)?;
        let [_, high, low, wide, narrow, count] = *fixed;
        let height = usize::from(u16::from_be_bytes([high, low]));
        let width = usize::from(u16::from_be_bytes([wide, narrow]));
        let (parts, _) = rest.as_chunks::<3>();
        let parts = parts.get(..count.into()).ok_or(short)?;
        let sampling = |part: &[u8; 3]| [usize::from(part[1] >> 4), usize::from(part[1] & 15)];
        let most = parts.iter().map(sampling).fold([1, 1], |most, one| {
            [most[0].max(one[0]), most[1].max(one[1])]
        });
        let components = parts.iter().map(|part| {
            let [across, down] = sampling(part);
            let blocks = |extent: usize, own: usize, most: usize| (extent * own).div_ceil(8 * most);
            Component {
                id: part[0],
                sampling: [across, down],
                blocks: [
                    blocks(height, down, most[1]),
                    blocks(width, across, most[0]),
                ],
                coded: [None; LAST + 1],
            }
        });
        let frame = Self {
            is_progressive,
            components: components.collect(),
            units: [height.div_ceil(8 * most[1]), width.div_ceil(8 * most[0])],
        };
        let is_valid = |one: &Component| one.sampling.iter().all(|part| (1..=4).contains(part));
        if !(1..=4).contains(&count)
            || height * width == 0
            || !frame.components.iter().all(is_valid)
        {
            return Err("its frame header is not valid".into());
        }
        Ok(frame)
    }

    /// The component of this id.
    pub(super) fn component(&self, id: u8) -> Option<usize> {
        self.components.iter().position(|one| one.id == id)
    }

    /// Units of a scan: single blocks where it has one component.
    pub(super) fn units(&self, scan: &Scan) -> usize {
        match scan.components.as_slice() {
            [one] => self.components[one.number].blocks(),
            _ => self.units[0] * self.units[1],
        }
    }

    /// Blocks of all components, those beside the image that fill up units included.
    pub(super) fn blocks(&self) -> u64 {
        let units = (self.units[0] * self.units[1]) as u64;
        let each = self.components.iter();
        each.map(|one| units * u64::from(one.blocks_per_unit()))
            .sum()
    }

    /// Notes what a scan codes. Each bit of a coefficient is coded once, from the highest on, after those of the first
    /// coefficient.
    pub(super) fn note(&mut self, scan: &Scan) -> Result<(), ReadError> {
        let (start, end) = scan.band;
        let (before, now) = scan.bits;
        let is_valid = !self.is_progressive
            || start <= end
                && usize::from(end) <= LAST
                && (start > 0 || end == 0)
                && (start == 0 || scan.components.len() == 1)
                && now <= 13
                && (before == 0 || before == now + 1);
        if !is_valid {
            return Err("a scan header is not valid".into());
        }
        for one in &scan.components {
            let coded = &mut self.components[one.number].coded;
            if start > 0 && coded[0].is_none() {
                return Err("a scan comes before the one that it refines".into());
            }
            let expected = (before > 0).then_some(before);
            for bit in &mut coded[start.into()..=end.into()] {
                if *bit != expected {
                    return Err("a scan is missing, or comes twice".into());
                }
                *bit = Some(now);
            }
        }
        Ok(())
    }

    /// Whether all bits of all coefficients are coded.
    pub(super) fn is_whole(&self) -> bool {
        let mut bits = self.components.iter().flat_map(|one| &one.coded);
        bits.all(|bit| *bit == Some(0))
    }
}
