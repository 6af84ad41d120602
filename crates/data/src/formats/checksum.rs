//! Checksums of stored bytes.

/// CRC-32C (Castagnoli).
///
/// Source: RFC 3720, appendix B.4.
pub(crate) fn crc32c(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
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
            table[at] = word;
            at += 1;
        }
        table
    };
    let step = |sum: u32, &byte: &u8| TABLE[usize::from(sum as u8 ^ byte)] ^ sum >> 8;
    !data.iter().fold(u32::MAX, step)
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
    }
}
