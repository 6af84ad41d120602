//! Models of publications, by name: `FAMILY@SIZE`, with `+SUFFIX` for variants, or
//! `t5-LAYERS-CHANNELS-HEADS@LENGTH`.

mod alexnet;
mod amoebanet;
mod cosmoflow;
mod densenet;
mod inception;
mod network;
mod resnet;
mod resnet_v2;
mod scaffold;
mod t5;
mod unet3d;
mod vgg;

use self::resnet::Block;
use crate::infer::list;
use crate::{Graph, GraphError};
use partita_space::{Help, nearest};
use thiserror::Error;

/// What the name of a [`Family::AmoebaNetD`] begins with.
const AMOEBANET: &str = "amoebanetd";

/// Why a name is not of the zoo.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ModelError {
    /// No such family.
    #[error(
        "there is no model `{asked}` in the zoo{}",
        Help::possible(format_args!("{possible} and other sizes")).code(nearest)
    )]
    UnknownModel {
        /// As given.
        asked: String,
        /// The families of the zoo, each with a size.
        possible: String,
        /// The most similar of them.
        nearest: String,
    },
    /// A family without its input size.
    #[error("`{asked}` needs its input size{}", Help::possible(possible).code(nearest))]
    MissingSize {
        /// As given.
        asked: String,
        /// Sizes.
        possible: String,
        /// The name with the smallest size.
        nearest: String,
    },
    /// A size that the family does not have.
    #[error("`{asked}`: size {size:?} is not possible{}", Help::possible(possible).code(nearest))]
    BadSize {
        /// As given.
        asked: String,
        /// The part after `@`.
        size: String,
        /// Sizes.
        possible: String,
        /// The name with the nearest size.
        nearest: String,
    },
    /// Numbers in the name of a family that it does not have.
    #[error("there is no model `{asked}` in the zoo{}", Help::possible(possible).code(nearest))]
    BadScale {
        /// As given.
        asked: String,
        /// What the numbers may be.
        possible: String,
        /// The name with the nearest numbers.
        nearest: String,
    },
    /// A suffix that the family does not have.
    #[error("`{asked}`: there is no variant `+{suffix}`{}", Help::possible(possible).code(nearest))]
    UnknownSuffix {
        /// As given.
        asked: String,
        /// The part after `+`.
        suffix: String,
        /// Suffixes.
        possible: String,
        /// The name with the nearest suffix.
        nearest: String,
    },
    /// Numbers of a name that there cannot be.
    #[error(
        "`{asked}` is not possible{}",
        Help::possible(format_args!("{form}, with numbers from 1 to {most}")).code(nearest)
    )]
    BadDimensions {
        /// As given.
        asked: String,
        /// How a name reads.
        form: &'static str,
        /// The bound of each number.
        most: usize,
        /// The nearest name.
        nearest: String,
    },
    /// The zoo's own description does not pass the checks of a graph.
    #[error("the zoo's `{asked}` is faulty")]
    Graph {
        /// As given.
        asked: String,
        /// What is wrong.
        source: Box<GraphError>,
    },
}

/// Kinds of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// 3D regression of cosmological parameters.
    CosmoFlow,
    /// 3D segmentation.
    UNet3d,
    /// 3D segmentation by a network that is deeper for larger volumes.
    ScaFFold,
    /// 2D classification with large linear layers.
    AlexNet,
    /// 2D classification by 3x3 convolutions.
    Vgg16,
    /// Residual network of basic blocks.
    ResNet18,
    /// Residual network of bottlenecks.
    ResNet50,
    /// Residual network of bottlenecks.
    ResNet101,
    /// Residual network of bottlenecks.
    ResNet152,
    /// Densely connected network.
    DenseNet121,
    /// Network of many branches.
    InceptionV3,
    /// Pre-activation residual network for ten classes.
    ResNet110v2,
    /// Pre-activation residual network for ten classes.
    ResNet164v2,
    /// Pre-activation residual network for ten classes.
    ResNet1001v2,
    /// Evolved network of cells that read the two before them, for ten classes.
    AmoebaNetD {
        /// Normal cells, a multiple of 3.
        layers: usize,
        /// Four times the filters of the first convolution.
        filters: usize,
    },
    /// Encoder and decoder of sequences; of other dimensions by other names.
    T5,
}

impl Family {
    /// All families, in the order in which they are listed; of [`Self::AmoebaNetD`], which has any
    /// number of layers and filters, two.
    pub const ALL: [Family; 17] = [
        Self::CosmoFlow,
        Self::UNet3d,
        Self::ScaFFold,
        Self::AlexNet,
        Self::Vgg16,
        Self::ResNet18,
        Self::ResNet50,
        Self::ResNet101,
        Self::ResNet152,
        Self::DenseNet121,
        Self::InceptionV3,
        Self::ResNet110v2,
        Self::ResNet164v2,
        Self::ResNet1001v2,
        Self::AmoebaNetD {
            layers: 18,
            filters: 214,
        },
        Self::AmoebaNetD {
            layers: 18,
            filters: 416,
        },
        Self::T5,
    ];

    /// The part of a model's name before the `@`.
    pub fn name(self) -> String {
        let name = match self {
            Self::CosmoFlow => "cosmoflow",
            Self::UNet3d => "unet3d",
            Self::ScaFFold => "scaffold",
            Self::AlexNet => "alexnet",
            Self::Vgg16 => "vgg16",
            Self::ResNet18 => "resnet18",
            Self::ResNet50 => "resnet50",
            Self::ResNet101 => "resnet101",
            Self::ResNet152 => "resnet152",
            Self::DenseNet121 => "densenet121",
            Self::InceptionV3 => "inceptionv3",
            Self::ResNet110v2 => "resnet110v2",
            Self::ResNet164v2 => "resnet164v2",
            Self::ResNet1001v2 => "resnet1001v2",
            Self::AmoebaNetD { layers, filters } => {
                return format!("{AMOEBANET}-{layers}-{filters}");
            }
            Self::T5 => t5::LISTED_NAME,
        };
        name.to_owned()
    }

    /// The family of this name, listed or not.
    fn find(name: &str) -> Option<Self> {
        let unlisted = || {
            let numbers = name.strip_prefix(AMOEBANET)?.strip_prefix('-')?;
            let (layers, filters) = numbers.split_once('-')?;
            Some(amoebanet_near(layers.parse().ok()?, filters.parse().ok()?))
        };
        let mut families = Self::ALL.into_iter().chain(unlisted());
        families.find(|family| family.name() == name)
    }

    /// Extents of the input along each of its dims, ascending.
    pub fn sizes(self) -> &'static [usize] {
        match self {
            Self::CosmoFlow => &cosmoflow::SIZES,
            Self::UNet3d => &unet3d::SIZES,
            Self::ScaFFold => &scaffold::SIZES,
            Self::AlexNet => &alexnet::SIZES,
            Self::Vgg16 => &vgg::SIZES,
            Self::ResNet18 | Self::ResNet50 | Self::ResNet101 | Self::ResNet152 => &resnet::SIZES,
            Self::DenseNet121 => &densenet::SIZES,
            Self::InceptionV3 => &inception::SIZES,
            Self::ResNet110v2 | Self::ResNet164v2 | Self::ResNet1001v2 => &resnet_v2::SIZES,
            Self::AmoebaNetD { .. } => &amoebanet::SIZES,
            Self::T5 => &t5::SIZES,
        }
    }

    /// Those of them that a variant has.
    pub fn sizes_of(self, suffix: &str) -> &'static [usize] {
        match (self, suffix) {
            (Self::InceptionV3, "aux") => &inception::AUXILIARY_SIZES,
            _ => self.sizes(),
        }
    }

    /// The size whose figures its publication gives; where it gives several, the smallest of them.
    pub fn published_size(self) -> usize {
        match self {
            Self::CosmoFlow => 128,
            Self::UNet3d => 256,
            Self::ScaFFold => 2048,
            Self::AlexNet
            | Self::Vgg16
            | Self::ResNet18
            | Self::ResNet50
            | Self::ResNet101
            | Self::ResNet152
            | Self::DenseNet121
            | Self::AmoebaNetD { .. } => 224,
            Self::InceptionV3 => 299,
            Self::ResNet110v2 | Self::ResNet164v2 | Self::ResNet1001v2 => 32,
            Self::T5 => 64,
        }
    }

    /// Suffixes of its variants, the plain one empty.
    pub fn suffixes(self) -> &'static [&'static str] {
        match self {
            Self::CosmoFlow | Self::Vgg16 => &["", "bn"],
            Self::UNet3d
            | Self::ScaFFold
            | Self::AlexNet
            | Self::ResNet18
            | Self::ResNet50
            | Self::ResNet101
            | Self::ResNet152
            | Self::DenseNet121
            | Self::ResNet110v2
            | Self::ResNet164v2
            | Self::ResNet1001v2
            | Self::AmoebaNetD { .. }
            | Self::T5 => &[""],
            Self::InceptionV3 => &["", "aux"],
        }
    }

    /// The name of its model of this size and variant, both of which it must have.
    pub fn model(self, size: usize, suffix: &str) -> String {
        let plus = if suffix.is_empty() { "" } else { "+" };
        format!("{}@{size}{plus}{suffix}", self.name())
    }

    fn build(self, name: &str, size: usize, suffix: &str) -> Result<Graph, GraphError> {
        let batch_norm = suffix == "bn";
        match self {
            Self::CosmoFlow => cosmoflow::build(name, size, batch_norm),
            Self::UNet3d => unet3d::build(name, size),
            Self::ScaFFold => scaffold::build(name, size),
            Self::AlexNet => alexnet::build(name, size),
            Self::Vgg16 => vgg::build(name, size, batch_norm),
            Self::ResNet18 => resnet::build(name, size, Block::Basic, [2, 2, 2, 2]),
            Self::ResNet50 => resnet::build(name, size, Block::Bottleneck, [3, 4, 6, 3]),
            Self::ResNet101 => resnet::build(name, size, Block::Bottleneck, [3, 4, 23, 3]),
            Self::ResNet152 => resnet::build(name, size, Block::Bottleneck, [3, 8, 36, 3]),
            Self::DenseNet121 => densenet::build(name, size),
            Self::InceptionV3 => inception::build(name, size, suffix == "aux"),
            Self::ResNet110v2 => resnet_v2::build(name, size, 110),
            Self::ResNet164v2 => resnet_v2::build(name, size, 164),
            Self::ResNet1001v2 => resnet_v2::build(name, size, 1001),
            Self::AmoebaNetD { layers, filters } => amoebanet::build(name, size, layers, filters),
            Self::T5 => t5::build(name, size, t5::LISTED),
        }
    }
}

/// All names, smallest size first, each followed by its variants.
pub fn names() -> Vec<String> {
    let family_names = |family: Family| {
        let of_size = move |&size: &usize| {
            let suffixes = family.suffixes().iter();
            let has_size = move |suffix: &&&str| family.sizes_of(suffix).contains(&size);
            let suffixes = suffixes.filter(has_size);
            suffixes.map(move |suffix| family.model(size, suffix))
        };
        family.sizes().iter().flat_map(of_size)
    };
    Family::ALL.into_iter().flat_map(family_names).collect()
}

/// Builds the model of this name, `cosmoflow@128`, `cosmoflow@512+bn` or `t5-6-512-8@64`.
///
/// Errors: a family, size or suffix that does not exist, with those that do and the nearest.
pub fn build(name: &str) -> Result<Graph, ModelError> {
    if let Some(built) = t5::of_name(name) {
        return built;
    }
    let (family_name, rest) = match name.split_once('@') {
        Some((family, rest)) => (family, Some(rest)),
        None => (name, None),
    };
    let Some(family) = Family::find(family_name) else {
        return Err(match family_name.strip_prefix(AMOEBANET) {
            Some(numbers) => bad_scale(name, numbers, rest.unwrap_or_default()),
            None => unknown_model(name),
        });
    };
    let (size, suffix) = match rest {
        Some(rest) => rest.split_once('+').unwrap_or((rest, "")),
        None => return Err(missing_size(name, family)),
    };
    let size = find_size(name, family, size, suffix)?;
    if suffix.is_empty() == name.contains('+') || !family.suffixes().contains(&suffix) {
        return Err(unknown_suffix(name, family, size, suffix));
    }
    family
        .build(name, size, suffix)
        .map_err(|source| ModelError::Graph {
            asked: name.to_owned(),
            source: Box::new(source),
        })
}

fn find_size(name: &str, family: Family, asked: &str, suffix: &str) -> Result<usize, ModelError> {
    let sizes = family.sizes_of(suffix);
    if let Some(&size) = sizes.iter().find(|size| size.to_string() == asked) {
        return Ok(size);
    }
    // What is no number is nearest to the smallest; the bound keeps distances to a huge one apart.
    let number = asked.parse::<f64>().unwrap_or(0.0).clamp(0.0, 1e9);
    let distance = |size: usize| (size as f64 - number).abs();
    let closest = sizes
        .iter()
        .copied()
        .min_by(|&a, &b| distance(a).total_cmp(&distance(b)));
    let suffix = if family.suffixes().contains(&suffix) {
        suffix
    } else {
        ""
    };
    Err(ModelError::BadSize {
        asked: name.to_owned(),
        size: asked.to_owned(),
        possible: list(sizes.iter().map(usize::to_string)),
        nearest: family.model(closest.unwrap_or(sizes[0]), suffix),
    })
}

/// AmoebaNet-D with the possible numbers nearest to these.
fn amoebanet_near(layers: usize, filters: usize) -> Family {
    let layers = layers.clamp(3, amoebanet::LAYERS_MAX);
    Family::AmoebaNetD {
        layers: (layers + 1) / 3 * 3,
        filters: filters.clamp(amoebanet::FILTERS_MIN, amoebanet::FILTERS_MAX),
    }
}

/// Of AmoebaNet-D; `numbers` follow the name, `rest` is the size.
fn bad_scale(name: &str, numbers: &str, rest: &str) -> ModelError {
    let mut asked = numbers.split('-').skip(1).map(str::parse);
    let number = |asked: Option<Result<usize, _>>, usual| match asked {
        Some(Ok(number)) => number,
        Some(Err(_)) | None => usual,
    };
    let family = amoebanet_near(number(asked.next(), 18), number(asked.next(), 416));
    let mut sizes = family.sizes().iter().copied();
    let size = sizes.find(|size| size.to_string() == rest);
    ModelError::BadScale {
        asked: name.to_owned(),
        possible: format!(
            "{AMOEBANET}-LAYERS-FILTERS@SIZE with layers a multiple of 3 up to {}, filters {} to {}",
            amoebanet::LAYERS_MAX,
            amoebanet::FILTERS_MIN,
            amoebanet::FILTERS_MAX
        ),
        nearest: family.model(size.unwrap_or(family.published_size()), ""),
    }
}

fn unknown_model(name: &str) -> ModelError {
    let names = names();
    let stem = |full: &str| {
        full.split_once('@')
            .map_or(full, |(stem, _)| stem)
            .to_owned()
    };
    let stems: Vec<String> = names.iter().map(|full| stem(full)).collect();
    let closest = nearest(&stem(name), stems.iter().map(String::as_str)).unwrap_or_default();
    let family = Family::find(closest).filter(|_| !name.contains('@'));
    let of_stem = names.iter().filter(|full| stem(full) == closest);
    ModelError::UnknownModel {
        asked: name.to_owned(),
        nearest: match family {
            Some(family) => family.model(family.published_size(), ""),
            None => nearest(name, of_stem.map(String::as_str))
                .unwrap_or("none")
                .to_owned(),
        },
        possible: list(Family::ALL.map(|family| family.model(family.published_size(), ""))),
    }
}

fn missing_size(name: &str, family: Family) -> ModelError {
    ModelError::MissingSize {
        asked: name.to_owned(),
        possible: list(family.sizes().iter().map(usize::to_string)),
        nearest: family.model(family.sizes()[0], ""),
    }
}

fn unknown_suffix(name: &str, family: Family, size: usize, suffix: &str) -> ModelError {
    let suffixes = || {
        family
            .suffixes()
            .iter()
            .copied()
            .filter(|suffix| !suffix.is_empty())
    };
    let closest = nearest(suffix, suffixes()).unwrap_or("");
    ModelError::UnknownSuffix {
        asked: name.to_owned(),
        suffix: suffix.to_owned(),
        possible: if suffixes().next().is_none() {
            "none".to_owned()
        } else {
            list(suffixes().map(|suffix| format!("+{suffix}")))
        },
        nearest: family.model(size, closest),
    }
}
