//! What the metadata of Zarr say beside shapes and codecs: fill values, and fields that a reader has to know.

use std::path::Path;

use half::f16;
use partita_space::Help;
use serde_json::Value;

use crate::element::{Element, Elements};
use crate::read_error::ReadError;

/// Fields of the metadata of version 3 that are known here.
const ARRAY_FIELDS: [&str; 11] = [
    "zarr_format",
    "node_type",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "attributes",
    "dimension_names",
    "storage_transformers",
];
const GROUP_FIELDS: [&str; 4] = [
    "zarr_format",
    "node_type",
    "attributes",
    "consolidated_metadata",
];

/// The value of chunks that were never written, alone; `None` for `null`, and for elements that are not read.
///
/// Errors: what is no number of that type.
/// Source: specification 2, fill value encoding; core specification 3.0, fill values.
pub(super) fn fill(value: &Value, element: &Element) -> Result<Option<Elements>, ReadError> {
    if value.is_null() || element.size() == 0 {
        return Ok(None);
    }
    let found = match element {
        Element::Float16 | Element::Float32 | Element::Float64 => float(value, element),
        _ => whole(value).and_then(|number| of_whole(number, element)),
    };
    let invalid = || {
        format!(
            "its fill value {value} is no value of {}{}",
            element.name(),
            Help::possible(
                "a number, \"NaN\", \"Infinity\", \"-Infinity\" and, for floats, the bits in hexadecimal \
                 (\"0x7fc00000\")"
            )
        )
    };
    found.map(Some).ok_or_else(|| invalid().into())
}

fn whole(value: &Value) -> Option<i128> {
    if let Some(is_true) = value.as_bool() {
        return Some(is_true.into());
    }
    let float = |number: f64| (number.fract() == 0.0).then_some(number as i128);
    let signed = value.as_i64().map(i128::from);
    signed
        .or_else(|| value.as_u64().map(i128::from))
        .or_else(|| value.as_f64().and_then(float))
}

fn of_whole(number: i128, element: &Element) -> Option<Elements> {
    macro_rules! one {
        ($kind:ident) => {
            Elements::$kind(vec![number.try_into().ok()?])
        };
    }
    Some(match element {
        Element::UInt8 => one!(U8),
        Element::Int8 => one!(I8),
        Element::UInt16 => one!(U16),
        Element::Int16 => one!(I16),
        Element::UInt32 => one!(U32),
        Element::Int32 => one!(I32),
        Element::UInt64 => one!(U64),
        Element::Int64 => one!(I64),
        Element::Float16 | Element::Float32 | Element::Float64 | Element::Other(_) => return None,
    })
}

fn float(value: &Value, element: &Element) -> Option<Elements> {
    let text = value.as_str();
    if let Some(digits) = text.and_then(|text| text.strip_prefix("0x")) {
        // All bits, so that signs and payloads of NaN are kept.
        let bits = u64::from_str_radix(digits, 16).ok()?;
        let is_whole = digits.len() == 2 * element.size();
        return is_whole.then(|| match element {
            Element::Float16 => Elements::F16(vec![bits as u16]),
            Element::Float32 => Elements::F32(vec![f32::from_bits(bits as u32)]),
            _ => Elements::F64(vec![f64::from_bits(bits)]),
        });
    }
    let number = match text {
        Some("NaN") => f64::NAN,
        Some("Infinity") => f64::INFINITY,
        Some("-Infinity") => f64::NEG_INFINITY,
        Some(_) => return None,
        None => value.as_f64()?,
    };
    Some(match element {
        Element::Float16 => Elements::F16(vec![f16::from_f64(number).to_bits()]),
        Element::Float32 => Elements::F32(vec![number as f32]),
        _ => Elements::F64(vec![number]),
    })
}

/// Refuses metadata of an array of version 3 with parts that are not read.
pub(super) fn check_array(header: &Value) -> Result<(), ReadError> {
    check_fields(header, &ARRAY_FIELDS)?;
    let grid = header.pointer("/chunk_grid/name").and_then(Value::as_str);
    if grid.is_some_and(|grid| grid != "regular") {
        return Err(ReadError::unsupported(
            "its chunks are no regular grid, which is not read; write it with chunks of one shape",
        ));
    }
    let transformers = header.pointer("/storage_transformers");
    match transformers.and_then(Value::as_array) {
        Some(transformers) if !transformers.is_empty() => Err(ReadError::unsupported(
            "it has storage transformers, which are not read; write it without them",
        )),
        Some(_) | None => Ok(()),
    }
}

/// Refuses a group of version 3 with fields that a reader has to know.
pub(super) fn check_group(folder: &Path) -> Result<(), ReadError> {
    let Ok(text) = partita_files::read_text(folder.join("zarr.json")) else {
        return Ok(());
    };
    let read: Result<Value, _> = serde_json::from_str(&text);
    let header = read.map_err(|error| format!("its metadata are not valid: {error}"))?;
    check_fields(&header, &GROUP_FIELDS)
}

/// Source: core specification 3.0, `must_understand`: true unless a field says that it is false.
fn check_fields(header: &Value, known: &[&str]) -> Result<(), ReadError> {
    let is_free = |value: &Value| value.get("must_understand") == Some(&Value::Bool(false));
    let mut fields = header.as_object().into_iter().flatten();
    let unknown = fields.find(|(name, value)| !known.contains(&name.as_str()) && !is_free(value));
    match unknown {
        None => Ok(()),
        Some((name, _)) => Err(ReadError::Unsupported(format!(
            "its metadata have the field `{name}`, which a reader has to understand, and this one does not; write it \
             without the field, or with `\"must_understand\": false` in it if the values do not depend on it"
        ))),
    }
}
