//! Checksums of stored bytes.

/// CRC-32C (Castagnoli).
///
/// Source: RFC 3720, appendix B.4.
pub fn crc32c(data: &[u8]) -> u32 {
    let (words, rest) = data.as_chunks::<8>();
    let sum = words.iter().fold(u32::MAX, |sum, word| {
        let [a, b, c, d] = sum.to_le_bytes();
        let mixed = [
            word[0] ^ a,
            word[1] ^ b,
            word[2] ^ c,
            word[3] ^ d,
            word[4],
            word[5],
            word[6],
            word[7],
        ];
        let parts = mixed.iter().zip(TABLES.iter().rev());
        parts.fold(0, |sum, (&byte, table)| sum ^ table[usize::from(byte)])
    });
    let step = |sum: u32, &byte: &u8| TABLES[0][usize::from(sum as u8 ^ byte)] ^ sum >> 8;
    !rest.iter().fold(sum, step)
}

/// Sums of a byte that is followed by as many zeros as the number of the table, so that eight bytes are
/// taken at a time.
///
/// Source: Kounavis and Berry, "Novel Table Lookup-Based Algorithms for High-Performance CRC Generation", 2008
/// (slicing by 8).
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut at = 0;
    while at < 256 {
        let mut word = at as u32;
        let mut bit = 0;
        while bit < 8 {
            word = if word & 1 == 1 {
                word >> 1 ^ 0x82f6_3b78
            } else {
                word >> 1
            };
            bit += 1;
        }
        tables[0][at] = word;
        at += 1;
    }
    let mut number = 1;
    while number < 8 {
        let mut at = 0;
        while at < 256 {
            let word: u32 = tables[number - 1][at];
            tables[number][at] = word >> 8 ^ tables[0][(word & 0xff) as usize];
            at += 1;
        }
        number += 1;
    }
    tables
}

/// CRC-32 of gzip and zip.
///
/// Source: RFC 1952, section 8.
pub(crate) fn crc32(data: &[u8]) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(data);
    sum.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_the_standard_text() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
    }
}
