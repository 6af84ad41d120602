//! Parsing of sizes in bytes, and of times.

use partita_space::help::Expected;
use partita_space::{Bytes, Seconds, UnitTable};

/// The largest size, 8192 TiB: above it an f64 cannot represent every byte.
const BYTES_MAX: f64 = 9_007_199_254_740_992.0;

/// The longest time that an option accepts, eleven days.
const SECONDS_MAX: f64 = 1e6;

/// A size with its unit, `16GiB` or `500 MB`.
pub fn parse_bytes(text: &str) -> Result<Bytes, Expected> {
    match UnitTable::BYTES.parse(text).map(f64::round) {
        Some(bytes) if (1.0..=BYTES_MAX).contains(&bytes) => Ok(Bytes(bytes as u64)),
        Some(_) | None => {
            let expected = Expected::new(format_args!(
                "a number with a unit, like `16GiB`, from `1B` to `8192TiB`; units are {}",
                UnitTable::BYTES.names()
            ));
            Err(expected.maybe_nearest(nearest_bytes(text.trim()).map(code)))
        }
    }
}

/// A time with its unit, `10s` or `2 min`.
pub fn parse_seconds(text: &str) -> Result<Seconds, Expected> {
    match UnitTable::TIME.parse(text) {
        Some(seconds) if (1e-9..=SECONDS_MAX).contains(&seconds) => Ok(Seconds(seconds)),
        Some(_) | None => {
            let expected = Expected::new(format_args!(
                "a number with a unit, like `10s`, from `1ns` to `1000000s`; units are {}",
                UnitTable::TIME.names()
            ));
            Err(expected.maybe_nearest(nearest_seconds(text.trim()).map(code)))
        }
    }
}

fn code(text: String) -> String {
    format!("`{text}`")
}

/// A text split before its unit; an exponent, as in `1e9s`, belongs to the number.
fn number_and_unit(text: &str) -> (&str, &str) {
    text.split_at(text.trim_end_matches(char::is_alphabetic).len())
}

/// The time that was probably meant, or the nearest bound; `None` if the text is not a number with a unit of time.
fn nearest_seconds(text: &str) -> Option<String> {
    let (number, unit) = number_and_unit(text);
    let number: f64 = number.trim().trim_start_matches(['-', '+']).parse().ok()?;
    let (factor, scale, unit) = match unit.to_lowercase().as_str() {
        // Without a unit, seconds are assumed.
        "" | "s" | "sec" | "secs" | "second" | "seconds" => (1.0, 1.0, "s"),
        "m" | "min" | "mins" | "minute" | "minutes" => (60.0, 1.0, "s"),
        "h" | "hour" | "hours" => (3600.0, 1.0, "s"),
        "d" | "day" | "days" => (86400.0, 1.0, "s"),
        "ms" | "msec" => (1.0, 1e-3, "ms"),
        "us" | "µs" | "usec" => (1.0, 1e-6, "us"),
        "ns" | "nsec" => (1.0, 1e-9, "ns"),
        _ => return None,
    };
    let seconds = number * factor * scale;
    Some(if seconds < 1e-9 {
        "1ns".to_owned()
    } else if seconds > SECONDS_MAX {
        "1000000s".to_owned()
    } else {
        format!("{}{unit}", number * factor)
    })
}

/// The size that was probably meant, or the nearest bound; `None` if the text is not a number.
fn nearest_bytes(text: &str) -> Option<String> {
    let (number, unit) = number_and_unit(text);
    let digits = number.trim().trim_start_matches(['-', '+']);
    let number = digits.parse().ok();
    let magnitude = number.filter(|number: &f64| !number.is_nan())?;
    // Without a unit, GiB is assumed.
    let meant = if unit.is_empty() { "GiB" } else { unit };
    let named = |name: &str| {
        let mut units = UnitTable::BYTES.units();
        units.find(|unit| unit.name.eq_ignore_ascii_case(name))
    };
    // `G`, `Gi` and `GX` are GiB.
    let binary = || {
        let first = meant.chars().next();
        let first = first.filter(|first| "kKmMgGtT".contains(*first))?;
        named(&format!("{first}iB"))
    };
    let unit = named(meant).or_else(binary)?;
    let bytes = (magnitude * unit.factor()).round();
    Some(if bytes < 1.0 {
        "1B".to_owned()
    } else if bytes > BYTES_MAX {
        "8192TiB".to_owned()
    } else {
        format!("{digits}{}", unit.name)
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
            ("16G", "16GiB"),
            ("16g", "16GiB"),
            ("512Mi", "512MiB"),
            ("16gb", "16GB"),
        ] {
            let error = parse_bytes(wrong).unwrap_err();
            let suggested = error.nearest.as_deref().unwrap().trim_matches('`');
            assert_eq!(suggested, nearest, "{wrong}");
            assert!(parse_bytes(suggested).is_ok(), "{error}");
        }
        for near in ["16gib", "-16 GiB", "16GIB"] {
            assert!(
                parse_bytes(near)
                    .unwrap_err()
                    .to_string()
                    .ends_with("help: try `16GiB`"),
                "{near}"
            );
        }
    }

    #[test]
    fn times_that_were_meant_are_accepted() {
        for (wrong, nearest) in [
            ("10", "10s"),
            ("-10s", "10s"),
            ("2min", "120s"),
            ("1.5h", "5400s"),
            ("0s", "1ns"),
            ("1000000000s", "1000000s"),
            ("20 msec", "20ms"),
        ] {
            let error = parse_seconds(wrong).unwrap_err();
            assert!(
                error
                    .to_string()
                    .ends_with(&format!("help: try `{nearest}`")),
                "{error}"
            );
            assert!(parse_seconds(nearest).is_ok(), "{nearest}");
        }
        for wrong in ["", "s", "ten", "10 parsecs", "nan"] {
            let error = parse_seconds(wrong).unwrap_err();
            assert_eq!(error.nearest, None, "{error}");
        }
    }
}
