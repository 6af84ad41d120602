//! Entropy-coded data of JPEG files: bits, byte stuffing, Huffman codes.
//!
//! Source: ITU-T T.81, sections B.1.1.5, C.2 and F.2.2.3.

/// Bits of a code that one look into a table decodes.
const LOOK_BITS: u32 = 9;
/// Longest code.
const CODE_BITS_MAX: usize = 16;

/// Why entropy-coded data are not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A marker or the end of the file comes before the last block.
    Short,
    /// Bits that are no code, or a coefficient beyond the last of its block.
    Invalid,
    /// Bytes that belong to no block.
    Left,
}

/// Reads bits up to the next marker.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The next bits, the first in the highest bit.
    buffer: u64,
    count: u32,
    is_at_marker: bool,
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self {
            bytes,
            at,
            buffer: 0,
            count: 0,
            is_at_marker: false,
        }
    }

    fn fill(&mut self) {
        while self.count <= 56 && !self.is_at_marker {
            let Some(&byte) = self.bytes.get(self.at) else {
                self.is_at_marker = true;
                return;
            };
            if byte == 0xff {
                if self.bytes.get(self.at + 1) != Some(&0) {
                    self.is_at_marker = true;
                    return;
                }
                self.at += 1;
            }
            self.at += 1;
            self.buffer |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    /// The next bits, at most 16.
    pub(super) fn take(&mut self, bits: u32) -> Result<u32, Fault> {
        if self.count < bits {
            self.fill();
            if self.count < bits {
                return Err(Fault::Short);
            }
        }
        if bits == 0 {
            return Ok(0);
        }
        let value = (self.buffer >> (64 - bits)) as u32;
        self.buffer <<= bits;
        self.count -= bits;
        Ok(value)
    }

    /// Passes any number of bits.
    pub(super) fn skip(&mut self, mut bits: u32) -> Result<(), Fault> {
        while bits > 0 {
            let now = bits.min(16);
            self.take(now)?;
            bits -= now;
        }
        Ok(())
    }

    /// Decodes a symbol.
    pub(super) fn symbol(&mut self, codes: &Codes) -> Result<u8, Fault> {
        if self.count < CODE_BITS_MAX as u32 {
            self.fill();
        }
        let (symbol, length) = codes.find(self.buffer)?;
        if length > self.count {
            return Err(Fault::Short);
        }
        self.buffer <<= length;
        self.count -= length;
        Ok(symbol)
    }

    /// Ends an interval or a scan, less than a byte before a marker; returns where the marker is.
    pub(super) fn end(mut self) -> Result<usize, Fault> {
        self.fill();
        if self.count >= 8 || !self.is_at_marker {
            return Err(Fault::Left);
        }
        Ok(self.at)
    }
}

/// A Huffman code.
pub(super) struct Codes {
    /// Symbol and length of the code that some bits begin with; length 0 of a longer one.
    look: Vec<(u8, u8)>,
    /// By length, the first code beyond those of that length, in the highest of 16 bits.
    ends: [u32; CODE_BITS_MAX + 1],
    /// By length, what is added to a code to give the place of its symbol.
    places: [i32; CODE_BITS_MAX + 1],
    symbols: Vec<u8>,
}

impl Codes {
    /// A code by the number of codes of each length, and its symbols; `None` if it has more codes than bits allow.
    pub(super) fn new(counts: &[u8; CODE_BITS_MAX], symbols: &[u8]) -> Option<Self> {
        let mut codes = Self {
            look: vec![(0, 0); 1 << LOOK_BITS],
            ends: [0; CODE_BITS_MAX + 1],
            places: [0; CODE_BITS_MAX + 1],
            symbols: symbols.to_vec(),
        };
        let (mut code, mut place) = (0u32, 0usize);
        for length in 1..=CODE_BITS_MAX {
            let count = usize::from(counts[length - 1]);
            codes.places[length] = place as i32 - code as i32;
            for _ in 0..count {
                let free = LOOK_BITS.checked_sub(length as u32);
                if let Some(free) = free.filter(|_| code >> length == 0) {
                    let first = (code as usize) << free;
                    codes.look[first..first + (1 << free)].fill((symbols[place], length as u8));
                }
                code += 1;
                place += 1;
            }
            if code > 1 << length {
                return None;
            }
            codes.ends[length] = code << (CODE_BITS_MAX - length);
            code <<= 1;
        }
        Some(codes)
    }

    fn find(&self, buffer: u64) -> Result<(u8, u32), Fault> {
        let (symbol, length) = self.look[(buffer >> (64 - LOOK_BITS)) as usize];
        if length > 0 {
            return Ok((symbol, length.into()));
        }
        let word = (buffer >> 48) as u32;
        for length in LOOK_BITS as usize + 1..=CODE_BITS_MAX {
            if word < self.ends[length] {
                let code = (word >> (CODE_BITS_MAX - length)) as i32;
                let place = usize::try_from(code + self.places[length]);
                let symbol = place.ok().and_then(|place| self.symbols.get(place));
                return Ok((*symbol.ok_or(Fault::Invalid)?, length as u32));
            }
        }
        Err(Fault::Invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three codes: 0, 10, and one of twelve bits behind those of the table.
    fn codes() -> Codes {
        let mut counts = [0; 16];
        (counts[0], counts[1], counts[11]) = (1, 1, 1);
        Codes::new(&counts, &[7, 8, 9]).expect("a code")
    }

    #[test]
    fn codes_of_any_length_are_found() {
        let codes = codes();
        // 0, 10, 1100 0000 0000, then ones as padding.
        let bytes = [0b0101_1000, 0b0000_0001, 0xff, 0xd9];
        let mut bits = Bits::new(&bytes, 0);
        for expected in [7, 8, 9] {
            assert_eq!(bits.symbol(&codes), Ok(expected));
        }
        assert_eq!(bits.end(), Ok(2));
        let mut bits = Bits::new(&[0xff, 0, 0xff, 0xd9], 0);
        assert_eq!(bits.take(8), Ok(255));
        assert_eq!(bits.take(1), Err(Fault::Short));
        assert_eq!(bits.symbol(&codes), Err(Fault::Short));
        assert_eq!(Bits::new(&[1, 2, 0xff, 0xd9], 0).end(), Err(Fault::Left));
        let mut bits = Bits::new(&[0xf0, 0xf0], 0);
        assert_eq!(bits.symbol(&codes), Err(Fault::Invalid));
    }

    #[test]
    fn codes_beyond_their_bits_are_refused() {
        let mut counts = [0; 16];
        counts[0] = 3;
        assert!(Codes::new(&counts, &[1, 2, 3]).is_none());
    }
}
