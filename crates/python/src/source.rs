//! Samples of Python objects.

use partita::{SampleSource, Samples, SourceError, SourceTargets, Split};
use partita_formats::DType;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ops::Range;

/// A region, half-open over (C, D, H, W).
type Region = [Range<usize>; 4];

/// A Python object that gives regions of samples as bytes: `partita._data.Source`.
pub struct PythonSource {
    object: Py<PyAny>,
    name: String,
    counts: [usize; 3],
    shape: [usize; 4],
    dtype: DType,
    targets: SourceTargets,
    features: Vec<String>,
}

impl PythonSource {
    /// Reads what the object says of itself.
    ///
    /// Errors: an attribute that is missing or of another type.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let is_i16 = object.getattr("dtype")?.extract::<String>()? == "int16";
        let extent: Option<[usize; 3]> = object.getattr("class_extent")?.extract()?;
        let names: Vec<String> = object.getattr("names")?.extract()?;
        Ok(Self {
            object: object.clone().unbind(),
            name: object.getattr("name")?.extract()?,
            counts: object.getattr("counts")?.extract()?,
            shape: object.getattr("shape")?.extract()?,
            dtype: if is_i16 { DType::Int16 } else { DType::Float32 },
            features: object.getattr("feature_names")?.extract()?,
            targets: match extent {
                Some(extent) => SourceTargets::Classes { names, extent },
                None => SourceTargets::Numbers(names),
            },
        })
    }

    /// The bytes that a method of the object returns for a region of a sample.
    fn read<T>(
        &self,
        method: &str,
        (split, sample): (Split, usize),
        region: &Region,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, SourceError> {
        let bounds: Vec<(usize, usize)> = region.iter().map(|it| (it.start, it.end)).collect();
        Python::attach(|python| {
            let object = self.object.bind(python);
            let bytes = object.call_method1(method, (split.name(), sample, bounds));
            let bytes = bytes.map_err(|error| told(python, &error))?;
            let bytes = bytes.cast::<PyBytes>();
            let bytes = bytes.map_err(|error| error.to_string())?;
            Ok(take(bytes.as_bytes()))
        })
    }
}

/// The exception in a line.
fn told(python: Python<'_>, error: &PyErr) -> String {
    let kind = error.get_type(python);
    let kind = kind.name().map(|it| it.to_string()).unwrap_or_default();
    format!("{kind}: {}", error.value(python))
}

fn i16s(bytes: &[u8]) -> Vec<i16> {
    let (values, _) = bytes.as_chunks::<2>();
    values.iter().map(|it| i16::from_ne_bytes(*it)).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks::<4>();
    values.iter().map(|it| f32::from_ne_bytes(*it)).collect()
}

/// Refuses another number of elements than that of a region.
fn whole(values: Samples, region: &Region) -> Result<Samples, SourceError> {
    let elements: usize = region.iter().map(ExactSizeIterator::len).product();
    if values.len() == elements {
        return Ok(values);
    }
    Err(format!(
        "it gives {} elements for the region {region:?}, which has {elements}",
        values.len()
    )
    .into())
}

impl SampleSource for PythonSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn samples(&self, split: Split) -> usize {
        self.counts[split as usize]
    }

    fn shape(&self) -> [usize; 4] {
        self.shape
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn targets(&self) -> SourceTargets {
        self.targets.clone()
    }

    fn read_volume(
        &self,
        of: (Split, usize),
        region: &Region,
        out: &mut Samples,
    ) -> Result<(), SourceError> {
        let samples = |bytes: &[u8]| match self.dtype {
            DType::Int16 => Samples::I16(i16s(bytes)),
            DType::Float32 => Samples::F32(f32s(bytes)),
        };
        *out = whole(self.read("volume", of, region, samples)?, region)?;
        Ok(())
    }

    fn features(&self) -> Vec<String> {
        self.features.clone()
    }

    fn read_features(&self, of: (Split, usize)) -> Result<Vec<f32>, SourceError> {
        self.read("features", of, &[0..1, 0..1, 0..1, 0..1], f32s)
    }

    fn read_numbers(&self, of: (Split, usize)) -> Result<Vec<f32>, SourceError> {
        self.read("numbers", of, &[0..1, 0..1, 0..1, 0..1], f32s)
    }

    fn read_classes(
        &self,
        of: (Split, usize),
        region: &Region,
        out: &mut Samples,
    ) -> Result<(), SourceError> {
        let classes = self.read("classes", of, region, |bytes| Samples::I16(i16s(bytes)))?;
        *out = whole(classes, region)?;
        Ok(())
    }
}
