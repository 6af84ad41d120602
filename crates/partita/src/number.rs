//! Numbers as the user types them and as reports print them.

use partita_space::limits::SAMPLES_MAX;
use partita_space::{Bytes, Flops, Mesh};

/// Units of bytes, the ones printed first.
const UNITS: [(&str, f64); 9] = [
    ("B", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
];

/// The largest size, 8192 TiB: above, an f64 no longer tells one byte from the next.
const BYTES_MAX: f64 = 9_007_199_254_740_992.0;

/// A count from 1 to 2^24, the most samples of a step; more of anything is a typing error.
pub fn count(text: &str) -> Result<usize, String> {
    up_to(SAMPLES_MAX, text)
}

/// A number of ranks, from 1 to 2^20.
pub fn ranks(text: &str) -> Result<usize, String> {
    up_to(Mesh::RANKS_MAX, text)
}

fn up_to(most: usize, text: &str) -> Result<usize, String> {
    between(1, most, text)
}

/// A whole number within these bounds.
pub fn within<const LEAST: usize, const MOST: usize>(text: &str) -> Result<usize, String> {
    between(LEAST, MOST, text)
}

fn between(least: usize, most: usize, text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        Ok(_) | Err(_) => Err(format!(
            "possible is a whole number from {least} to {most}; nearest is {}",
            clamped(least, most, text)
        )),
    }
}

/// The whole number next below; the least one of what is no number.
fn clamped(least: usize, most: usize, text: &str) -> usize {
    match text.parse::<f64>() {
        Ok(number) if number >= most as f64 => most,
        // A cast ends at 0 and makes it of what is none.
        Ok(number) => (number as usize).clamp(least, most),
        Err(_) => least,
    }
}

/// Voxels a side of a universe: a power of two from 16 to 512.
pub fn universe_grid(text: &str) -> Result<usize, String> {
    let is_possible = |grid: &usize| grid.is_power_of_two() && (16..=512).contains(grid);
    if let Some(grid) = text.parse().ok().filter(is_possible) {
        return Ok(grid);
    }
    let asked = clamped(16, 512, text);
    let above = asked.next_power_of_two();
    let nearest = if above - asked <= asked - above / 2 {
        above
    } else {
        above / 2
    };
    Err(format!(
        "possible is a power of two from 16 to 512; nearest is {nearest}"
    ))
}

/// A number that names a dataset.
pub fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        // A cast ends at the bounds, and makes 0 of what is no number.
        let nearest = text.parse::<f64>().unwrap_or(0.0) as u64;
        format!(
            "possible is a whole number from 0 to {}; nearest is {nearest}",
            u64::MAX
        )
    })
}

/// A share from 0 to 1.
pub fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=1.0).contains(&number) => Ok(number),
        Ok(number) => Err(format!(
            "possible is a number from 0 to 1; nearest is {}",
            if number > 1.0 { 1 } else { 0 }
        )),
        Err(_) => Err("possible is a number from 0 to 1, like 0.1".to_owned()),
    }
}

/// A share of at most a tenth: the published box of parameters is no wider.
pub fn spread(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=0.1).contains(&number) => Ok(number),
        Ok(number) => Err(format!(
            "possible is a number from 0 to 0.1; nearest is {}",
            if number > 0.1 { 0.1 } else { 0.0 }
        )),
        Err(_) => Err("possible is a number from 0 to 0.1, like 0.05".to_owned()),
    }
}

/// A size with its unit, `16GiB` or `500 MB`.
pub fn bytes(text: &str) -> Result<Bytes, String> {
    let text = text.trim();
    let split = text
        .find(|letter: char| letter.is_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = (text[..split].trim(), text[split..].trim());
    let scale = UNITS
        .into_iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, scale)| scale);
    let bytes = number.parse::<f64>().ok().zip(scale);
    match bytes.map(|(number, scale)| (number * scale).round()) {
        Some(bytes) if (1.0..=BYTES_MAX).contains(&bytes) => Ok(Bytes(bytes as u64)),
        Some(_) | None => {
            let nearest = match nearest_bytes(number, unit) {
                Some(nearest) => format!("; nearest is `{nearest}`"),
                None => String::new(),
            };
            Err(format!(
                "possible is a number with a unit, like `16GiB`, from `1B` to `8192TiB`; units are \
                 {}{nearest}",
                UNITS.map(|(name, _)| name).join(", ")
            ))
        }
    }
}

/// The size that was probably meant, or the end of what is possible on the side where it lies; none of
/// what is no number.
fn nearest_bytes(number: &str, unit: &str) -> Option<String> {
    let digits = number.trim_start_matches(['-', '+']);
    let magnitude = digits
        .parse()
        .ok()
        .filter(|number: &f64| !number.is_nan())?;
    // Without a unit, as a machine's memory is told.
    let meant = if unit.is_empty() { "GiB" } else { unit };
    let mut alike = UNITS.into_iter();
    let (name, scale) = alike.find(|(name, _)| name.eq_ignore_ascii_case(meant))?;
    let bytes = (magnitude * scale).round();
    Some(match (bytes < 1.0, bytes > BYTES_MAX) {
        (true, _) => "1B".to_owned(),
        (_, true) => "8192TiB".to_owned(),
        (false, false) => format!("{digits}{name}"),
    })
}

/// Flops in the unit of published tables, `1183.42 GFlop`, unless that would show none.
pub fn giga(flops: Flops) -> String {
    let number = flops.0 as f64 / 1e9;
    match number < 0.01 {
        true => flops.to_string(),
        false => format!("{number:.2} GFlop"),
    }
}

/// Bytes in the unit of published tables, `52.71 GiB`, unless that would show none.
pub fn gibi(bytes: Bytes) -> String {
    let number = bytes.0 as f64 / 1_073_741_824.0;
    match number < 0.01 {
        true => bytes.to_string(),
        false => format!("{number:.2} GiB"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes() {
        assert_eq!(bytes("16GiB"), Ok(Bytes(17_179_869_184)));
        assert_eq!(bytes("0.5 MB"), Ok(Bytes(500_000)));
        assert_eq!(bytes("1B"), Ok(Bytes(1)));
        for wrong in [
            "", "16", "GiB", "-1GiB", "0GiB", "16gib", "nanGiB", "1e30TB",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        for (wrong, nearest) in [
            ("18446744073709551616B", "8192TiB"),
            ("99999999999999tb", "8192TiB"),
            ("0GiB", "1B"),
            ("0.1B", "1B"),
            ("16", "16GiB"),
            ("16gib", "16GiB"),
            ("-1GiB", "1GiB"),
        ] {
            let error = bytes(wrong).unwrap_err();
            let (_, suggested) = error.split_once("nearest is `").unwrap();
            let suggested = suggested.trim_end_matches('`');
            assert_eq!(suggested, nearest, "{wrong}");
            assert!(bytes(suggested).is_ok(), "{error}");
        }
        for near in ["16gib", "-16 GiB", "16GIB"] {
            assert!(
                bytes(near).unwrap_err().ends_with("nearest is `16GiB`"),
                "{near}"
            );
        }
    }

    #[test]
    fn small_numbers_show_in_smaller_units() {
        assert_eq!(giga(Flops(1_183_420_000_000)), "1183.42 GFlop");
        assert_eq!(giga(Flops(2_500_000)), "2.50 MFlop");
        assert_eq!(gibi(Bytes(3 << 29)), "1.50 GiB");
        assert_eq!(gibi(Bytes(3 << 19)), "1.50 MiB");
    }

    #[test]
    fn reads_counts() {
        assert_eq!(count("16384"), Ok(16384));
        assert!(count("0").unwrap_err().ends_with("nearest is 1"));
        assert!(count("2.7").unwrap_err().ends_with("nearest is 2"));
        assert!(count("99999999999999999999").is_err());
        assert!(count("-3").is_err());
        assert!(share("1.5").unwrap_err().ends_with("nearest is 1"));
        assert!(share("x").is_err());
        assert!(share("NaN").is_err());
    }

    #[test]
    fn what_is_suggested_for_a_bounded_number_is_accepted() {
        type Parser = fn(&str) -> Result<usize, String>;
        let parsers: [(Parser, [&str; 6]); 3] = [
            (universe_grid, ["16", "512", "32", "64", "16", "16"]),
            (within::<8, 1024>, ["8", "1024", "33", "48", "9", "8"]),
            (within::<1, 512>, ["1", "512", "33", "48", "9", "1"]),
        ];
        for (parse, suggested) in parsers {
            for (asked, nearest) in ["0", "99999999999999999999", "33.5", "48.5", "9.5", "x"]
                .into_iter()
                .zip(suggested)
            {
                let error = parse(asked).unwrap_err();
                assert!(error.ends_with(&format!("nearest is {nearest}")), "{error}");
                assert_eq!(parse(nearest), nearest.parse().map_err(|_| String::new()));
            }
        }
        for (asked, nearest) in [("-1", "0"), ("1e30", "18446744073709551615"), ("x", "0")] {
            let error = seed(asked).unwrap_err();
            assert!(error.contains("from 0 to 18446744073709551615"), "{error}");
            assert!(error.ends_with(&format!("nearest is {nearest}")), "{error}");
            assert!(seed(nearest).is_ok());
        }
    }

    #[test]
    fn groups_digits() {
        assert_eq!(grouped(9_437_344), "9,437,344");
        assert_eq!(grouped(100), "100");
        assert_eq!(grouped(0), "0");
    }
}
