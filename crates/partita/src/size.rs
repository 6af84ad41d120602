//! Parsing of sizes in bytes.

use partita_space::Bytes;

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

/// The largest size, 8192 TiB: above it an f64 cannot represent every byte.
const BYTES_MAX: f64 = 9_007_199_254_740_992.0;

/// A size with its unit, `16GiB` or `500 MB`.
pub fn parse_bytes(text: &str) -> Result<Bytes, String> {
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

/// The size that was probably meant, or the nearest bound; `None` if the text is not a number.
fn nearest_bytes(number: &str, unit: &str) -> Option<String> {
    let digits = number.trim_start_matches(['-', '+']);
    let magnitude = digits
        .parse()
        .ok()
        .filter(|number: &f64| !number.is_nan())?;
    // Without a unit, GiB is assumed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes() {
        assert_eq!(parse_bytes("16GiB"), Ok(Bytes(17_179_869_184)));
        assert_eq!(parse_bytes("0.5 MB"), Ok(Bytes(500_000)));
        assert_eq!(parse_bytes("1B"), Ok(Bytes(1)));
        for wrong in [
            "", "16", "GiB", "-1GiB", "0GiB", "16gib", "nanGiB", "1e30TB",
        ] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
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
            let error = parse_bytes(wrong).unwrap_err();
            let (_, suggested) = error.split_once("nearest is `").unwrap();
            let suggested = suggested.trim_end_matches('`');
            assert_eq!(suggested, nearest, "{wrong}");
            assert!(parse_bytes(suggested).is_ok(), "{error}");
        }
        for near in ["16gib", "-16 GiB", "16GIB"] {
            assert!(
                parse_bytes(near)
                    .unwrap_err()
                    .ends_with("nearest is `16GiB`"),
                "{near}"
            );
        }
    }
}
