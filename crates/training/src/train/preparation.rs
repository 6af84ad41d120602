//! Preparation and augmentation of samples: `transform` and `[augmentation]` of a run file.

use super::section::{RunFileError, Section, float, short, suggest, whole};
use partita_forecast::model::{ModelError, TrainModel};
use partita_formats::DType;
use partita_input::{
    Augmentation, Crops, Elastic, EvaluationCrops, FittedStep, Preparation, Preprocessing, Step,
    TrainingCrops,
};
use partita_program::{Item, Program, Transform, Work};
use partita_space::help::Expected;
use partita_space::{Bytes, Rank};
use std::collections::BTreeMap;
use toml::de::{DeTable, DeValue};

const AUGMENTATION_KEYS: [&str; 11] = [
    "flip",
    "rotate",
    "crop",
    "crops_per_volume",
    "crop_positions",
    "validation_crops",
    "foreground",
    "scale_intensity",
    "shift_intensity",
    "noise",
    "elastic",
];
const STEPS: &str = "\"identity\", \"log1p\", \"log\", \"standardize\", {scale = NUMBER}, \
                     {clip = [LOW, HIGH]}, {percentiles = [LOW, HIGH]} with 0 to 100, \
                     {one_hot = CLASSES}, or a list of these in \
                     order, like [\"log1p\", \"standardize\"]";
/// Most classes of a channel.
const CLASSES_MAX: usize = 4096;

/// Most steps of a transform.
const STEPS_MAX: usize = 64;
const INTERVAL: &str = "two numbers, the smaller first, like [0.9, 1.1]";
const SHARE: &str = "a share of the training crops from 0 to 1, like 0.33";
/// Extents of crops that are those of the model's input, until [`SampleOptions::of_model`] knows it.
const OF_MODEL: [usize; 3] = [0; 3];
const EXTENT: &str = "extents D, H, W from 1 on, like [32, 32, 32], or H, W of images";

/// How samples come from files into the network.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleOptions {
    /// Transform of the import kernel: a single step that it can do, on values as they are stored.
    pub transform: Transform,
    /// Steps by the threads that read; empty where the kernel does it.
    pub steps: Vec<Step>,
    /// Crops of volumes.
    pub crops: Option<Crops>,
    /// Share of the training crops that have a position of a class but 0 in their middle.
    pub foreground: Option<f64>,
    /// Augmentation of training samples.
    pub augmentation: Option<Augmentation>,
}

impl SampleOptions {
    /// Whole samples as they are stored.
    pub fn as_stored() -> Self {
        Self {
            transform: Transform::Identity,
            steps: Vec::new(),
            crops: None,
            foreground: None,
            augmentation: None,
        }
    }

    /// Reads them. Errors: an invalid value, with its line and what is possible.
    pub fn read(top: &Section<'_>) -> Result<Self, RunFileError> {
        let mut steps = transform(top)?;
        let ((crops, foreground), augmentation) = augmentation(top)?;
        let computes = augmentation.is_some_and(|one| one.changes_values());
        let transform = match *steps.as_slice() {
            [Step::LogOnePlus] if !computes => Some(Transform::LogOnePlus),
            [Step::Scale { factor }] if !computes => Some(Transform::Scale { factor }),
            _ => None,
        };
        if transform.is_some() {
            steps.clear();
        }
        Ok(Self {
            transform: transform.unwrap_or(Transform::Identity),
            steps,
            crops,
            foreground,
            augmentation,
        })
    }

    /// The same with crops of the extents of the model's input where the run file gives none.
    ///
    /// Errors: a model that cannot be read.
    pub fn of_model(mut self, model: &TrainModel) -> Result<Self, ModelError> {
        if let Some(crops) = &mut self.crops
            && crops.extent == OF_MODEL
        {
            crops.extent = model.graph()?.nodes[0].shape.extent;
        }
        Ok(self)
    }

    /// Classes of each channel, where the last step makes a channel for each.
    pub fn one_hot(&self) -> Option<usize> {
        match self.steps.last() {
            Some(&Step::OneHot { classes }) => Some(classes),
            Some(_) | None => None,
        }
    }

    /// Element type of samples on their way into the network.
    pub fn dtype(&self, stored: DType) -> DType {
        let computes = self.augmentation.is_some_and(|one| one.changes_values());
        if computes || !self.steps.is_empty() {
            DType::Float32
        } else {
            stored
        }
    }

    /// All of them, to compare with those of a run that is resumed.
    pub fn text(&self) -> String {
        if self.steps.is_empty() && self.augmentation.is_none() {
            format!("{:?}", self.transform)
        } else {
            format!("{self:?}")
        }
    }

    /// All steps of `transform`, whoever does them.
    pub fn asked(&self) -> Vec<Step> {
        let kernel = match self.transform {
            Transform::Identity => None,
            Transform::LogOnePlus => Some(Step::LogOnePlus),
            Transform::Scale { factor } => Some(Step::Scale { factor }),
        };
        self.steps.iter().copied().chain(kernel).collect()
    }

    /// All of them in the words of a run file, those that are absent left out.
    pub fn words(&self) -> BTreeMap<String, String> {
        let steps = self.asked();
        let mut words = BTreeMap::new();
        let mut add = |key: &str, text: Option<String>| {
            words.extend(text.map(|text| (key.to_owned(), text)));
        };
        let texts: Vec<String> = steps.iter().map(step_text).collect();
        let transform = match texts.as_slice() {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        };
        add("transform", (!steps.is_empty()).then_some(transform));
        if let Some(crops) = self.crops {
            add("augmentation.crop", Some(format!("{:?}", crops.extent)));
            let count = crops.per_volume.map(|count| count.to_string());
            add("augmentation.crops_per_volume", count);
            let positions = match crops.training {
                TrainingCrops::Random => "\"random\"",
                TrainingCrops::Grid => "\"grid\"",
            };
            add("augmentation.crop_positions", Some(positions.to_owned()));
            let validation = match crops.evaluation {
                EvaluationCrops::Tiles => "\"tiles\"",
                EvaluationCrops::Grid => "\"grid\"",
                EvaluationCrops::Center => "\"center\"",
            };
            add("augmentation.validation_crops", Some(validation.to_owned()));
            let share = self.foreground.map(|share| share.to_string());
            add("augmentation.foreground", share);
        }
        if let Some(augmentation) = self.augmentation {
            let dims = DIMS.into_iter().zip(augmentation.flip);
            let flip: Vec<&str> = dims.filter(|one| one.1).map(|one| one.0).collect();
            let flip = (!flip.is_empty()).then(|| format!("{flip:?}"));
            add("augmentation.flip", flip);
            let rotate = augmentation.rotate.then(|| "true".to_owned());
            add("augmentation.rotate", rotate);
            let interval = |interval: [f64; 2]| format!("{interval:?}");
            add(
                "augmentation.scale_intensity",
                augmentation.scale_intensity.map(interval),
            );
            add(
                "augmentation.shift_intensity",
                augmentation.shift_intensity.map(interval),
            );
            add(
                "augmentation.noise",
                augmentation.noise.map(|one| one.to_string()),
            );
            let elastic = augmentation.elastic.map(|Elastic { magnitude, spacing }| {
                format!("{{ magnitude = {magnitude}, spacing = {spacing} }}")
            });
            add("augmentation.elastic", elastic);
        }
        words
    }

    /// All steps with their statistics, whoever does them.
    pub fn applied(&self, preparation: &Preparation) -> Preparation {
        match self.transform {
            Transform::Identity => preparation.clone(),
            Transform::LogOnePlus => Preparation::new(vec![FittedStep::LogOnePlus]),
            Transform::Scale { factor } => Preparation::new(vec![FittedStep::Scale { factor }]),
        }
    }
}

/// Bytes of the buffers that preparation and augmentation need on a rank.
pub fn buffer_bytes(
    preprocessing: &Preprocessing,
    stored: DType,
    program: &Program,
    rank: Rank,
) -> Bytes {
    let tasks = program.body(rank).tasks.iter();
    let parts = tasks.filter_map(|task| match &task.work {
        Work::Load(load) if load.item == Item::Sample => {
            let coord = program.mesh.coord(rank);
            let [_, d, h, w, c] = load.distribution.owned(&program.mesh, &coord).shape();
            Some(preprocessing.buffer_bytes(stored, [c, d, h, w]))
        }
        Work::Load(_)
        | Work::Store(_)
        | Work::Compute { .. }
        | Work::Exchange(_)
        | Work::Collective(_) => None,
    });
    parts.max().unwrap_or_default()
}

fn transform(top: &Section<'_>) -> Result<Vec<Step>, RunFileError> {
    let refuse = |expected: Expected| Err(top.refuse("transform", expected));
    let steps = match top.get("transform").map(|value| value.get_ref()) {
        None => return Ok(Vec::new()),
        Some(DeValue::Array(values)) if values.len() > STEPS_MAX => {
            return refuse(format!("a list of at most {STEPS_MAX} steps").into());
        }
        Some(DeValue::Array(values)) => {
            let mut steps = Vec::new();
            for (index, value) in values.iter().enumerate() {
                match step(value.get_ref()) {
                    Ok(step) => steps.extend(step),
                    Err(expected) => {
                        let number = index + 1;
                        return refuse(Expected {
                            text: format!("in the place of step {number} {}", expected.text),
                            ..expected
                        });
                    }
                }
            }
            steps
        }
        Some(value) => match step(value) {
            Ok(step) => step.into_iter().collect(),
            Err(expected) => return refuse(expected),
        },
    };
    let is_one_hot = |step: &Step| matches!(step, Step::OneHot { .. });
    match steps.split_last() {
        Some((_, before)) if before.iter().any(is_one_hot) => refuse(
            "{one_hot = CLASSES} as the last step alone, like [{clip = [0, 3]}, {one_hot = 4}]"
                .into(),
        ),
        Some(_) | None => Ok(steps),
    }
}

/// A step; the inner `None` is the one that changes nothing. Errors: what is expected.
fn step(value: &DeValue<'_>) -> Result<Option<Step>, Expected> {
    match value {
        DeValue::Table(table) => step_of_table(table).map(Some),
        DeValue::String(word) => Ok(match word.as_ref() {
            "identity" => None,
            "log1p" => Some(Step::LogOnePlus),
            "log" => Some(Step::Log),
            "standardize" => Some(Step::Standardize),
            other => return Err(Expected::from(STEPS).nearest(nearest_step(other))),
        }),
        DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_) => Err(STEPS.into()),
    }
}

/// The step that was probably meant by a word.
fn nearest_step(word: &str) -> String {
    let words = ["identity", "log1p", "log", "standardize"];
    let tables = [
        ("scale", "{scale = NUMBER}"),
        ("clip", "{clip = [LOW, HIGH]}"),
        ("percentiles", "{percentiles = [LOW, HIGH]}"),
        ("one_hot", "{one_hot = CLASSES}"),
    ];
    let names = words.into_iter().chain(tables.map(|(name, _)| name));
    let close = suggest::word(word, names);
    let table = tables.into_iter().find(|(name, _)| *name == close);
    table.map_or_else(|| format!("\"{close}\""), |(_, text)| text.to_owned())
}

fn step_of_table(table: &DeTable<'_>) -> Result<Step, Expected> {
    let Some((key, value)) = table.iter().next().filter(|_| table.len() == 1) else {
        return Err(format!("{STEPS}, each with one key").into());
    };
    let value = value.get_ref();
    match key.get_ref().as_ref() {
        "scale" => match suggest::number(value) {
            Some(factor) if float(value).is_some() && is_scale(factor) => {
                Ok(Step::Scale { factor })
            }
            Some(factor) => Err(possible_scales(factor)),
            None => Err("{scale = NUMBER}, like {scale = 0.01}".into()),
        },
        "clip" => clip(value),
        "percentiles" => percentiles(value),
        "one_hot" => {
            let possible = 2..=CLASSES_MAX;
            let classes = whole(value).and_then(|classes| usize::try_from(classes).ok());
            let classes = classes.filter(|classes| possible.contains(classes));
            classes
                .map(|classes| Step::OneHot { classes })
                .ok_or_else(|| {
                    let most = CLASSES_MAX as u64;
                    let nearest = suggest::whole_number(value, 2, most);
                    Expected::new(format_args!(
                        "{{one_hot = CLASSES}} with 2 to {most} classes"
                    ))
                    .maybe_nearest(nearest)
                })
        }
        other => Err(Expected::from(STEPS).nearest(nearest_step(other))),
    }
}

fn clip(value: &DeValue<'_>) -> Result<Step, Expected> {
    if let Some([low, high]) = interval(value) {
        return Ok(Step::Clip { low, high });
    }
    let swapped = numbers(value).filter(|[low, high]| low > high);
    let nearest =
        swapped.map(|[low, high]| format!("{{clip = [{}, {}]}}", short(high), short(low)));
    let expected = "{clip = [LOW, HIGH]} with two numbers, the smaller first, like {clip = [0, 5]}";
    Err(Expected::from(expected).maybe_nearest(nearest))
}

fn percentiles(value: &DeValue<'_>) -> Result<Step, Expected> {
    let fits = |[low, high]: &[f64; 2]| 0.0 <= *low && low < high && *high <= 100.0;
    if let Some([low, high]) = interval(value).filter(fits) {
        return Ok(Step::Percentiles { low, high });
    }
    let within = |number: f64| number.clamp(0.0, 100.0);
    let ordered = |[a, b]: [f64; 2]| [within(a.min(b)), within(a.max(b))];
    let meant = numbers(value).map(ordered).filter(fits);
    let nearest =
        meant.map(|[low, high]| format!("{{percentiles = [{}, {}]}}", short(low), short(high)));
    let expected = "{percentiles = [LOW, HIGH]} with two numbers from 0 to 100, the smaller first, like \
                    {percentiles = [1, 99]}";
    Err(Expected::from(expected).maybe_nearest(nearest))
}

/// A list of two numbers that single precision holds.
fn numbers(value: &DeValue<'_>) -> Option<[f64; 2]> {
    let DeValue::Array(values) = value else {
        return None;
    };
    let holds = |number: &f64| (*number as f32).is_finite();
    let number = |index: usize| float(values.get(index)?.get_ref()).filter(holds);
    let pair = [number(0)?, number(1)?];
    (values.len() == 2).then_some(pair)
}

/// Two numbers that single precision holds, the smaller first.
fn interval(value: &DeValue<'_>) -> Option<[f64; 2]> {
    numbers(value).filter(|[low, high]| low <= high)
}

/// D, H, W; or H, W of images.
fn extent(value: &DeValue<'_>) -> Option<[usize; 3]> {
    let DeValue::Array(values) = value else {
        return None;
    };
    let count = |number: i64| usize::try_from(number).ok().filter(|&count| count > 0);
    let counts = values.iter().map(|value| count(whole(value.get_ref())?));
    match *counts.collect::<Option<Vec<usize>>>()? {
        [d, h, w] => Some([d, h, w]),
        [h, w] => Some([1, h, w]),
        _ => None,
    }
}

/// Crops, and the share of them on foreground.
type CropOptions = (Option<Crops>, Option<f64>);

fn augmentation(top: &Section<'_>) -> Result<(CropOptions, Option<Augmentation>), RunFileError> {
    let Some(section) = top.section("augmentation")? else {
        return Ok(((None, None), None));
    };
    section.check(&AUGMENTATION_KEYS)?;
    let noise = "a standard deviation from 0 on, like 0.01";
    let is_noise = |number: f64| number >= 0.0 && (number as f32).is_finite();
    let augmentation = Augmentation {
        flip: flips(&section)?,
        rotate: section.flag("rotate")?.unwrap_or(false),
        scale_intensity: section.read("scale_intensity", INTERVAL, interval)?,
        shift_intensity: section.read("shift_intensity", INTERVAL, interval)?,
        noise: section
            .number("noise", noise, is_noise)?
            .filter(|&noise| noise > 0.0),
        elastic: elastic(&section)?,
    };
    Ok((crops(&section)?, Some(augmentation)))
}

/// A step as one writes it in a run file.
fn step_text(step: &Step) -> String {
    match step {
        Step::LogOnePlus | Step::Log | Step::Standardize => format!("\"{step}\""),
        Step::Scale { .. } | Step::Clip { .. } | Step::Percentiles { .. } | Step::OneHot { .. } => {
            format!("{{ {step} }}")
        }
    }
}

/// What a key of [`SampleOptions::words`] is where it is absent, if it has a value then.
pub fn default_of(key: &str) -> Option<&'static str> {
    let defaults = [
        ("transform", "\"identity\""),
        ("augmentation.flip", "[]"),
        ("augmentation.rotate", "false"),
        ("augmentation.noise", "0"),
        ("augmentation.crop_positions", "\"random\""),
        ("augmentation.validation_crops", "\"tiles\""),
        ("augmentation.foreground", "0"),
    ];
    let found = defaults.into_iter().find(|(name, _)| *name == key);
    found.map(|(_, value)| value)
}

/// Whether two values are the same; checkpoints of earlier versions have transforms without braces and quotes.
pub fn same_words(one: &str, other: &str) -> bool {
    let bare = |text: &str| text.replace(['{', '}', '"', ' '], "");
    let unlisted = |text: &str| {
        let bare = bare(text);
        let inner = bare
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        inner.map_or_else(|| bare.clone(), str::to_owned)
    };
    bare(one) == bare(other) || unlisted(one) == unlisted(other)
}

/// Names of D, H and W in run files and on the command line.
pub const DIMS: [&str; 3] = ["depth", "height", "width"];

fn flips(section: &Section<'_>) -> Result<[bool; 3], RunFileError> {
    let mut meant = [false; 3];
    let mut is_list = true;
    let one = |value: &DeValue<'_>| {
        let word = value.as_str().unwrap_or_default();
        let close = suggest::word(word, DIMS.into_iter());
        (DIMS.iter().position(|dim| *dim == close), close == word)
    };
    match section.get("flip").map(|value| value.get_ref()) {
        None => return Ok(meant),
        Some(DeValue::Array(values)) => {
            for (dim, is_one) in values.iter().map(|value| one(value.get_ref())) {
                dim.into_iter().for_each(|dim| meant[dim] = true);
                is_list &= is_one;
            }
        }
        Some(value) => {
            is_list = false;
            match one(value).0.filter(|_| value.is_str()) {
                Some(dim) => meant[dim] = true,
                None => meant = [value.as_bool() != Some(false); 3],
            }
        }
    }
    if is_list {
        return Ok(meant);
    }
    let names = DIMS.iter().zip(meant).filter(|(_, is_meant)| *is_meant);
    let names: Vec<&str> = names.map(|(name, _)| *name).collect();
    let expected =
        "a list of \"depth\" (z, the first of D, H, W), \"height\" (y) and \"width\" (x, the last)";
    let expected = Expected::from(expected).nearest(format_args!("{names:?}"));
    Err(section.refuse("flip", expected))
}

fn elastic(section: &Section<'_>) -> Result<Option<Elastic>, RunFileError> {
    let table = "a table like { magnitude = 2, spacing = 8 }";
    section.read("elastic", table, |value| value.as_table().map(|_| ()))?;
    let Some(section) = section.section("elastic")? else {
        return Ok(None);
    };
    section.check(&["magnitude", "spacing"])?;
    let voxels = "a number of voxels above 0, like 2";
    let magnitude = section.number("magnitude", voxels, |number| {
        number > 0.0 && number < f64::from(1 << 24)
    })?;
    let spacing = section.count("spacing")?;
    Ok(Some(Elastic {
        magnitude: section.need("magnitude", magnitude, voxels)?,
        spacing: section.need("spacing", spacing, "a whole number of voxels, like 8")?,
    }))
}

/// Extents of crops, given as a list or in a table, and the share of them on foreground, in the table or beside it.
fn crop(section: &Section<'_>) -> Result<(Option<[usize; 3]>, Option<f64>), RunFileError> {
    let share = |section: &Section<'_>| {
        section.number("foreground", SHARE, |share| (0.0..=1.0).contains(&share))
    };
    let beside = share(section)?;
    let is_table = section
        .get("crop")
        .is_some_and(|value| value.get_ref().is_table());
    if is_table && let Some(table) = section.section("crop")? {
        table.check(&["extent", "foreground"])?;
        let inside = share(&table)?;
        if inside.is_some() && beside.is_some() {
            return Err(section.refuse("foreground", "this once: in the table `crop` or beside it"));
        }
        let given = table.read("extent", EXTENT, extent)?;
        return Ok((Some(given.unwrap_or(OF_MODEL)), inside.or(beside)));
    }
    let side = section.get("crop").and_then(|value| whole(value.get_ref()));
    let cube = side.map(|side| {
        let side = side.max(1);
        format!("[{side}, {side}, {side}]")
    });
    let expected = Expected::from(EXTENT).maybe_nearest(cube);
    Ok((section.read("crop", expected, extent)?, beside))
}

fn crops(section: &Section<'_>) -> Result<CropOptions, RunFileError> {
    let per_volume = section.count("crops_per_volume")?;
    let training = [
        ("random", TrainingCrops::Random),
        ("grid", TrainingCrops::Grid),
    ];
    let training = section.choice("crop_positions", &training)?;
    let evaluation = [
        ("tiles", EvaluationCrops::Tiles),
        ("grid", EvaluationCrops::Grid),
        ("center", EvaluationCrops::Center),
    ];
    let evaluation = section.choice("validation_crops", &evaluation)?;
    let (extent, foreground) = crop(section)?;
    let Some(extent) = extent else {
        let given = [
            ("crops_per_volume", per_volume.is_some()),
            ("crop_positions", training.is_some()),
            ("validation_crops", evaluation.is_some()),
            ("foreground", foreground.is_some()),
        ];
        return match given.into_iter().find(|&(_, is_given)| is_given) {
            Some((key, _)) => Err(section.refuse(key, "this only with `crop`")),
            None => Ok((None, None)),
        };
    };
    let training = training.unwrap_or_default();
    let foreground = foreground.filter(|&share| share > 0.0);
    if training == TrainingCrops::Grid && foreground.is_some() {
        let expected = "\"random\" with `foreground`, for which crops are where classes are";
        return Err(section.refuse("crop_positions", expected));
    }
    if training == TrainingCrops::Grid && per_volume.is_some() {
        let expected =
            "nothing with `crop_positions = \"grid\"`, which has as many as cover a volume";
        return Err(section.refuse("crops_per_volume", expected));
    }
    let crops = Crops {
        extent,
        per_volume,
        training,
        evaluation: evaluation.unwrap_or_default(),
    };
    Ok((Some(crops), foreground))
}

/// Whether a factor is neither 0 nor infinite in f32, in which kernels multiply.
fn is_scale(factor: f64) -> bool {
    (factor as f32).is_normal()
}

/// What is possible where a factor is not.
fn possible_scales(asked: f64) -> Expected {
    if asked == 0.0 {
        return "{scale = NUMBER} with a number other than 0, like {scale = 0.01}".into();
    }
    let (least, most) = (f32::MIN_POSITIVE, f32::MAX);
    let magnitude = asked.abs().clamp(least.into(), most.into()) as f32;
    let nearest = magnitude.copysign(asked as f32);
    Expected::new(format_args!(
        "{{scale = NUMBER}} of a magnitude from {least:e} to {most:e}, which single precision holds"
    ))
    .nearest(format_args!("{{scale = {nearest:e}}}"))
}
