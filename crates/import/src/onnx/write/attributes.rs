//! Attributes and types of elements, as messages.

use crate::onnx::schema::Attribute;
use crate::weights::Element;

pub(super) fn number_of(element: Element) -> i32 {
    match element {
        Element::F32 => 1,
        Element::U8 => 2,
        Element::I8 => 3,
        Element::I16 => 5,
        Element::I32 => 6,
        Element::I64 => 7,
        Element::Bool => 9,
        Element::F16 => 10,
        Element::F64 => 11,
        Element::Bf16 => 16,
    }
}

fn named(name: &str, kind: i32) -> Attribute {
    Attribute {
        name: name.to_owned(),
        kind,
        ..Attribute::default()
    }
}

pub(super) fn int(name: &str, value: i64) -> Attribute {
    Attribute {
        i: Some(value),
        ..named(name, Attribute::INT)
    }
}

pub(super) fn real(name: &str, value: f64) -> Attribute {
    Attribute {
        f: Some(value as f32),
        ..named(name, Attribute::FLOAT)
    }
}

pub(super) fn ints(name: &str, values: Vec<i64>) -> Attribute {
    Attribute {
        ints: values,
        ..named(name, Attribute::INTS)
    }
}

pub(super) fn text(name: &str, value: &str) -> Attribute {
    Attribute {
        s: Some(value.as_bytes().to_vec()),
        ..named(name, Attribute::STRING)
    }
}
