//! Parsers of arguments with a form: numbers, and names of images.

use partita::{EMA_MAX, parse_cores};
use partita_space::Mesh;
use partita_space::help::Expected;
use partita_space::limits::SAMPLES_MAX;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Fractions of training, validation and test.
#[derive(Clone, Copy, Debug)]
pub struct Fractions(pub [f64; 3]);

/// Height and width.
#[derive(Clone, Copy, Debug)]
pub struct ImageSize(pub [usize; 2]);

/// Distances of voxels along D, H and W, in millimeters.
#[derive(Clone, Copy, Debug)]
pub struct Spacing(pub [f64; 3]);

/// A count from 1 to 2^24, the most samples of a step; more of anything is a typing error.
pub fn count(text: &str) -> Result<usize, Expected> {
    up_to(SAMPLES_MAX, text)
}

/// A fraction of a tile, from 0 to below 1.
pub fn overlap(text: &str) -> Result<f64, Expected> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..1.0).contains(&number) => Ok(number),
        Ok(number) if number >= 1.0 => Err(overlaps("0.9")),
        Ok(number) if number < 0.0 => Err(overlaps("0")),
        Ok(_) | Err(_) => Err(overlaps("0.5")),
    }
}

fn overlaps(nearest: &str) -> Expected {
    Expected::from("a number from 0 to below 1").nearest(nearest)
}

/// A number of samples of a dataset, from 1 to 2^40: small parts of large volumes are many.
pub fn dataset_samples(text: &str) -> Result<usize, Expected> {
    up_to(1 << 40, text)
}

/// A number of ranks, from 1 to 2^20.
pub fn ranks(text: &str) -> Result<usize, Expected> {
    up_to(Mesh::RANKS_MAX, text)
}

fn up_to(most: usize, text: &str) -> Result<usize, Expected> {
    between(1, most, text)
}

/// A whole number within these bounds.
pub fn within<const LEAST: usize, const MOST: usize>(text: &str) -> Result<usize, Expected> {
    between(LEAST, MOST, text)
}

fn between(least: usize, most: usize, text: &str) -> Result<usize, Expected> {
    match text.parse::<usize>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        Ok(_) | Err(_) => {
            let expected = Expected::new(format_args!("a whole number from {least} to {most}"));
            Err(expected.nearest(clamped(least, most, text)))
        }
    }
}

/// The nearest possible integer, rounded down; the least one if the text is not a number.
fn clamped(least: usize, most: usize, text: &str) -> usize {
    match text.parse::<f64>() {
        Ok(number) if number >= most as f64 => most,
        // The cast saturates, and turns NaN into 0.
        Ok(number) => (number as usize).clamp(least, most),
        Err(_) => least,
    }
}

/// Voxels a side of a universe: a power of two from 16 to 512.
pub fn universe_grid(text: &str) -> Result<usize, Expected> {
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
    Err(Expected::from("a power of two from 16 to 512").nearest(nearest))
}

/// A seed.
pub fn seed(text: &str) -> Result<u64, Expected> {
    text.parse().map_err(|_| {
        // The cast saturates, and turns NaN into 0.
        let nearest = text.parse::<f64>().unwrap_or(0.0) as u64;
        Expected::new(format_args!("a whole number from 0 to {}", u64::MAX)).nearest(nearest)
    })
}

/// A fraction from 0 to 1.
pub fn fraction(text: &str) -> Result<f64, Expected> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=1.0).contains(&number) => Ok(number),
        Ok(number) => {
            let nearest = if number > 1.0 { 1 } else { 0 };
            Err(Expected::from("a number from 0 to 1").nearest(nearest))
        }
        Err(_) => Err("a number from 0 to 1, like 0.1".into()),
    }
}

/// A decay of averages, above 0 and below 1.
pub fn decay(text: &str) -> Result<f64, Expected> {
    let possible = "a number above 0 and below 1, like 0.999";
    match text.parse::<f64>() {
        Ok(decay) if (f64::MIN_POSITIVE..=EMA_MAX).contains(&decay) => Ok(decay),
        Ok(decay) if decay > EMA_MAX => Err(Expected::from(possible).nearest(EMA_MAX)),
        Ok(_) => Err(format!("{possible}; without --ema there are no averages").into()),
        Err(_) => Err(possible.into()),
    }
}

/// Three fractions that sum to 1.
pub fn fractions(text: &str) -> Result<Fractions, Expected> {
    let possible = "three numbers from 0 to 1 whose sum is 1, such as 0.8,0.1,0.1";
    let each: Result<Vec<f64>, Expected> =
        text.split(',').map(|part| fraction(part.trim())).collect();
    let each: [f64; 3] = each?.try_into().map_err(|_| Expected::from(possible))?;
    let sum: f64 = each.iter().sum();
    if (sum - 1.0).abs() < 1e-9 {
        Ok(Fractions(each))
    } else {
        Err(format!("{possible}; the sum is {sum}").into())
    }
}

/// Height and width of images.
pub fn image_size(text: &str) -> Result<ImageSize, Expected> {
    let possible = "a height and a width from 1 to 16384, such as 224x224";
    let (height, width) = text.split_once('x').unwrap_or((text, text));
    let side = |text: &str| {
        let side = text.parse().ok().filter(|side| (1..=16384).contains(side));
        side.ok_or_else(|| Expected::from(possible))
    };
    Ok(ImageSize([side(height)?, side(width)?]))
}

/// Distances of voxels along D, H and W.
pub fn spacing(text: &str) -> Result<Spacing, Expected> {
    let possible = "three distances in millimeters along D, H and W, each above 0, such as 1x1x1 or 2.5x0.8x0.8";
    let each: Option<Vec<f64>> = text
        .split('x')
        .map(|each| each.trim().parse().ok())
        .collect();
    let each: Option<[f64; 3]> = each.and_then(|each| each.try_into().ok());
    let is_possible = |each: &[f64; 3]| each.iter().all(|each| each.is_finite() && *each > 0.0);
    each.filter(is_possible)
        .map(Spacing)
        .ok_or_else(|| possible.into())
}

/// The path of a PNG image.
pub fn png(text: &str) -> Result<PathBuf, Expected> {
    let path = Path::new(text);
    if path
        .extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("png"))
    {
        return Ok(path.to_owned());
    }
    let nearest = path.with_extension("png");
    Err(Expected::from("the name of a PNG image, which ends in .png").nearest(nearest.display()))
}

/// A fraction of at most 0.1, as the published ranges of parameters.
pub fn spread(text: &str) -> Result<f64, Expected> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=0.1).contains(&number) => Ok(number),
        Ok(number) => {
            let nearest = if number > 0.1 { 0.1 } else { 0.0 };
            Err(Expected::from("a number from 0 to 0.1").nearest(nearest))
        }
        Err(_) => Err("a number from 0 to 0.1, like 0.05".into()),
    }
}

/// Numbers of cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(pub Vec<usize>);

/// A list of cores.
pub fn cores(text: &str) -> Result<Cores, Expected> {
    let read = parse_cores(text).map(Cores);
    let expected = "a list of numbers and ranges from 0 to 1023, like 0,4-7";
    read.ok_or_else(|| Expected::from(expected).nearest(0))
}

/// Paths of weights whose outputs are averaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightList(pub Vec<PathBuf>);

/// Paths with commas between them; a file that is there and has commas in its name is one.
pub fn weights(text: OsString) -> Result<WeightList, Expected> {
    let path = PathBuf::from(text);
    let list = path.to_str().filter(|list| {
        let is_list = list.contains(',') && !path.exists();
        list.is_empty() || is_list
    });
    let Some(list) = list else {
        return Ok(WeightList(vec![path]));
    };
    let entries: Vec<&str> = list.split(',').filter(|entry| !entry.is_empty()).collect();
    if entries.len() == list.split(',').count() {
        return Ok(WeightList(entries.into_iter().map(PathBuf::from).collect()));
    }
    let nearest = (!entries.is_empty()).then(|| entries.join(","));
    let expected = Expected::from("paths with commas between them, none of them empty");
    Err(expected.maybe_nearest(nearest))
}

/// Which of D, H, W are mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror(pub [bool; 3]);

/// A list of different dims, by their names or first letters.
pub fn mirror(text: &str) -> Result<Mirror, Expected> {
    let names = [
        ["depth", "d", "z"],
        ["height", "h", "y"],
        ["width", "w", "x"],
    ];
    let (mut mirrored, mut is_list) = ([false; 3], true);
    for word in text.split(',') {
        let is_known = |name: &[&str; 3]| name[..2].contains(&word);
        let begin = word.trim().to_lowercase().chars().next();
        let is_near = |name: &[&str; 3]| {
            let mut letters = name[1..].iter().flat_map(|name| name.chars());
            letters.any(|letter| Some(letter) == begin)
        };
        let dim = names.iter().position(is_known);
        is_list &= dim.is_some_and(|dim| !mirrored[dim]);
        let letters = |letter: char| names.iter().position(|name| name[1].contains(letter));
        let together: Option<Vec<usize>> = word.chars().map(letters).collect();
        let near = dim.or_else(|| names.iter().position(is_near));
        for dim in together.into_iter().flatten().chain(near) {
            mirrored[dim] = true;
        }
    }
    if is_list {
        return Ok(Mirror(mirrored));
    }
    let meant: Vec<&str> = (0..3)
        .filter(|&dim| mirrored[dim])
        .map(|dim| names[dim][0])
        .collect();
    let nearest = if meant.is_empty() {
        "height,width".to_owned()
    } else {
        meant.join(",")
    };
    let expected = "different dims of depth, height and width, or d, h and w, with commas";
    Err(Expected::from(expected).nearest(nearest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_paths_between_commas() {
        let list = |text: &str| weights(text.into()).map(|WeightList(all)| all);
        assert_eq!(list("a"), Ok(vec![PathBuf::from("a")]));
        assert_eq!(list("a,b/c"), Ok(["a", "b/c"].map(PathBuf::from).to_vec()));
        let folder = tempfile::tempdir().unwrap();
        let one = folder.path().join("a,b");
        std::fs::write(&one, "").unwrap();
        assert_eq!(list(one.to_str().unwrap()), Ok(vec![one]));
        for (asked, end) in [
            ("a,,b", "help: try a,b"),
            (",a", "help: try a"),
            (",", "empty"),
            ("", "empty"),
        ] {
            let error = list(asked).unwrap_err().to_string();
            assert!(error.ends_with(end), "{asked}: {error}");
        }
    }

    #[test]
    fn dims_to_mirror_are_named_once() {
        assert_eq!(mirror("w"), Ok(Mirror([false, false, true])));
        assert_eq!(mirror("depth,h"), Ok(Mirror([true, true, false])));
        for (asked, nearest) in [
            ("h,h", "height"),
            ("w,height,x", "height,width"),
            ("D,heigth", "depth,height"),
            ("channels", "height,width"),
            ("hw", "height,width"),
            ("", "height,width"),
        ] {
            let error = mirror(asked).unwrap_err().to_string();
            assert!(
                error.ends_with(&format!("help: try {nearest}")),
                "{asked}: {error}"
            );
        }
    }

    #[test]
    fn reads_counts() {
        assert_eq!(count("16384"), Ok(16384));
        assert!(count("0").unwrap_err().to_string().ends_with("help: try 1"));
        assert!(
            count("2.7")
                .unwrap_err()
                .to_string()
                .ends_with("help: try 2")
        );
        assert!(count("99999999999999999999").is_err());
        assert!(count("-3").is_err());
        assert!(
            fraction("1.5")
                .unwrap_err()
                .to_string()
                .ends_with("help: try 1")
        );
        assert!(fraction("x").is_err());
        assert!(fraction("NaN").is_err());
    }

    #[test]
    fn pictures_are_png_images() {
        assert_eq!(png("a/b.png"), Ok(PathBuf::from("a/b.png")));
        assert_eq!(png("B.PNG"), Ok(PathBuf::from("B.PNG")));
        for (asked, nearest) in [("x.jpg", "x.png"), ("a.b/x", "a.b/x.png")] {
            let error = png(asked).unwrap_err().to_string();
            assert!(error.ends_with(&format!("help: try {nearest}")), "{error}");
        }
    }

    #[test]
    fn what_is_suggested_for_a_bounded_number_is_accepted() {
        type Parser = fn(&str) -> Result<usize, Expected>;
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
                let error = parse(asked).unwrap_err().to_string();
                assert!(error.ends_with(&format!("help: try {nearest}")), "{error}");
                assert_eq!(parse(nearest).ok(), nearest.parse().ok());
            }
        }
        for (asked, nearest) in [("-1", "0"), ("1e30", "18446744073709551615"), ("x", "0")] {
            let error = seed(asked).unwrap_err().to_string();
            assert!(error.contains("from 0 to 18446744073709551615"), "{error}");
            assert!(error.ends_with(&format!("help: try {nearest}")), "{error}");
            assert!(seed(nearest).is_ok());
        }
    }
}
