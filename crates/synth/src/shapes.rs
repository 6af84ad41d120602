//! Images of one figure on a ground, whose class is the figure's shape and the textures of both.

use crate::error::SynthError;
use crate::random::{CounterRng, SceneDraws, Stream};
use std::f64::consts::{PI, TAU};

/// Color channels.
const CHANNELS: usize = 3;
/// Shapes, and textures of the figure and of the ground.
const KINDS: usize = 10;
/// Deviation of the noise, in hundredths.
const NOISE: f64 = 20.0;
/// How far a texture moves a color, in hundredths.
const CONTRAST: f64 = 40.0;

/// The shapes, by the last digit of a class: the easiest to tell apart first.
const SHAPES: [Shape; KINDS] = [
    Shape::Disk,
    Shape::Bar,
    Shape::Cross,
    Shape::Ring,
    Shape::Triangle,
    Shape::Star,
    Shape::Crescent,
    Shape::Square,
    Shape::Clover,
    Shape::Pentagon,
];

/// What a dataset of images is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapesSpec {
    /// Pixels a side, 16 to 4096.
    pub size: usize,
    /// 2 to 1000.
    pub classes: usize,
    /// Names the dataset: with the index of an image it determines every bit.
    pub seed: u64,
}

/// An image and its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Layout (C, H, W) with three color channels, in hundredths, gray being 0.
    pub values: Vec<i16>,
    /// Its class.
    pub class: i16,
}

impl ShapesSpec {
    /// Errors: `InvalidSpec` for a size or a number of classes beyond its limits.
    pub fn validate(&self) -> Result<(), SynthError> {
        let invalid = |field, expected, got: usize| {
            Err(SynthError::InvalidSpec {
                field,
                expected,
                got: got.to_string(),
            })
        };
        if !(16..=4096).contains(&self.size) {
            return invalid("size", "16 to 4096 pixels a side", self.size);
        }
        if !(2..=KINDS.pow(3)).contains(&self.classes) {
            return invalid("classes", "2 to 1000", self.classes);
        }
        Ok(())
    }
}

/// Names of the classes: the shape, and from the tenth on the textures of figure and ground.
pub fn class_names(classes: usize) -> Vec<String> {
    let name = |class: usize| {
        let [shape, figure, ground] = digits(class);
        let shape = SHAPES[shape].name();
        if class < KINDS {
            shape.to_owned()
        } else {
            format!("{shape}-{figure}-{ground}")
        }
    };
    (0..classes).map(name).collect()
}

/// Makes image `index` of a dataset; same specification and index, same image.
///
/// Classes take turns. Place, extent, angle and colors of the figure are random, as is the noise of
/// each value; what there is to see does not depend on the size. Errors: `InvalidSpec`.
pub fn make_picture(spec: &ShapesSpec, index: u64) -> Result<Picture, SynthError> {
    spec.validate()?;
    let class = (index % spec.classes as u64) as usize;
    let rng = CounterRng::new(spec.seed, index);
    let scene = Scene::new(&mut SceneDraws::new(rng), digits(class));
    let size = spec.size;
    let at = |i: usize| (i as f64 + 0.5) / size as f64;
    let mut values = Vec::with_capacity(CHANNELS * size * size);
    for channel in 0..CHANNELS {
        for h in 0..size {
            for w in 0..size {
                let [noise, _] = rng.normal_pair(Stream::Noise, values.len() as u64);
                let level = scene.level(channel, at(h), at(w));
                values.push((level + NOISE * noise).round() as i16);
            }
        }
    }
    Ok(Picture {
        values,
        class: class as i16,
    })
}

/// Shape, texture of the figure, texture of the ground.
fn digits(class: usize) -> [usize; 3] {
    [class % KINDS, class / KINDS % KINDS, class / KINDS / KINDS]
}

#[derive(Debug, Clone, Copy)]
enum Shape {
    Disk,
    Triangle,
    Square,
    Pentagon,
    Star,
    Clover,
    Ring,
    Cross,
    Bar,
    Crescent,
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Triangle => "triangle",
            Self::Square => "square",
            Self::Pentagon => "pentagon",
            Self::Star => "star",
            Self::Clover => "clover",
            Self::Ring => "ring",
            Self::Cross => "cross",
            Self::Bar => "bar",
            Self::Crescent => "crescent",
        }
    }

    /// Whether a place belongs to the shape that touches the unit circle about the origin.
    fn contains(self, u: f64, v: f64) -> bool {
        let (radius, angle) = (u.hypot(v), v.atan2(u));
        let polygon = |corners: f64| {
            let sector = TAU / corners;
            let off = angle.rem_euclid(sector) - sector / 2.0;
            radius * off.cos() < (PI / corners).cos()
        };
        match self {
            Self::Disk => radius < 1.0,
            Self::Triangle => polygon(3.0),
            Self::Square => polygon(4.0),
            Self::Pentagon => polygon(5.0),
            Self::Star => radius < 0.65 + 0.35 * (5.0 * angle).cos(),
            Self::Clover => radius < 0.6 + 0.4 * (3.0 * angle).cos(),
            Self::Ring => (0.55..1.0).contains(&radius),
            Self::Cross => radius < 1.0 && u.abs().min(v.abs()) < 0.25,
            Self::Bar => u * u + (v / 0.35).powi(2) < 1.0,
            Self::Crescent => radius < 1.0 && (u - 0.45).hypot(v) > 0.75,
        }
    }
}

/// What an image shows, in the unit square.
struct Scene {
    shape: Shape,
    center: [f64; 2],
    radius: f64,
    angle: f64,
    /// Of figure and ground.
    colors: [[f64; CHANNELS]; 2],
    textures: [Texture; 2],
}

/// Stripes, checks or rings in three widths, or nothing.
struct Texture {
    kind: usize,
    angle: f64,
    phase: f64,
}

impl Scene {
    fn new(draws: &mut SceneDraws, [shape, figure, ground]: [usize; 3]) -> Self {
        let mut texture = |kind: usize| Texture {
            kind,
            angle: draws.between(0.0, TAU),
            phase: draws.between(0.0, 1.0),
        };
        let textures = [texture(figure), texture(ground)];
        let below = [(); CHANNELS].map(|()| draws.between(-80.0, 80.0));
        // Each color steps towards gray and over it, so that the figure stands out in all.
        let above = below.map(|color| color - color.signum() * draws.between(60.0, 120.0));
        Self {
            shape: SHAPES[shape],
            center: [draws.between(0.35, 0.65), draws.between(0.35, 0.65)],
            radius: draws.between(0.22, 0.36),
            angle: draws.between(0.0, TAU),
            colors: [above, below],
            textures,
        }
    }

    /// Value without noise of a place.
    fn level(&self, channel: usize, h: f64, w: f64) -> f64 {
        let (sine, cosine) = self.angle.sin_cos();
        let (y, x) = (h - self.center[0], w - self.center[1]);
        let (u, v) = (cosine * x + sine * y, cosine * y - sine * x);
        let is_figure = self.shape.contains(u / self.radius, v / self.radius);
        let layer = usize::from(!is_figure);
        self.colors[layer][channel] + CONTRAST * self.textures[layer].at(h, w)
    }
}

impl Texture {
    /// -1, 0 or 1.
    fn at(&self, h: f64, w: f64) -> f64 {
        let Some(kind) = self.kind.checked_sub(1) else {
            return 0.0;
        };
        let period = [0.12, 0.18, 0.27][kind / 3];
        let (sine, cosine) = self.angle.sin_cos();
        let (u, v) = (cosine * w + sine * h, cosine * h - sine * w);
        let square = |along: f64| {
            if (along / period + self.phase).rem_euclid(1.0) < 0.5 {
                1.0
            } else {
                -1.0
            }
        };
        match kind % 3 {
            0 => square(u),
            1 => square(u) * square(v),
            _ => square((h - 0.5).hypot(w - 0.5)),
        }
    }
}
