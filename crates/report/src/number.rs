//! Formats of numbers in tables.

use partita_space::{Bytes, Flops};

/// Flops in the unit of published tables, `1183.42 Gflop`, or a smaller one for small numbers.
pub fn giga(flops: Flops) -> String {
    let number = flops.0 as f64 / 1e9;
    if number < 0.01 {
        flops.to_string()
    } else {
        format!("{number:.2} Gflop")
    }
}

/// Bytes in the unit of published tables, `52.71 GiB`, or a smaller one for small numbers.
pub fn gibi(bytes: Bytes) -> String {
    let number = bytes.0 as f64 / 1_073_741_824.0;
    if number < 0.01 {
        bytes.to_string()
    } else {
        format!("{number:.2} GiB")
    }
}

/// A count with its digits in groups of three, `9,437,344`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun, `1 layer` or `3 layers`.
pub fn counted(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_show_in_smaller_units() {
        assert_eq!(giga(Flops(1_183_420_000_000)), "1183.42 Gflop");
        assert_eq!(giga(Flops(2_500_000)), "2.50 Mflop");
        assert_eq!(gibi(Bytes(3 << 29)), "1.50 GiB");
        assert_eq!(gibi(Bytes(3 << 19)), "1.50 MiB");
    }

    #[test]
    fn groups_digits() {
        assert_eq!(grouped(9_437_344), "9,437,344");
        assert_eq!(grouped(100), "100");
        assert_eq!(grouped(0), "0");
    }
}
