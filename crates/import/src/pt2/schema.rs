//! The JSON of an exported program, as far as it is read.
//!
//! Source: PyTorch, `torch/_export/serde/schema.py`, version 8.

use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;

/// Major version that is read.
pub(super) const VERSION: u64 = 8;

#[derive(Deserialize)]
pub(super) struct Program {
    pub(super) graph_module: GraphModule,
}

/// Read before all else.
#[derive(Deserialize)]
pub(super) struct Versioned {
    pub(super) schema_version: Version,
}

#[derive(Deserialize)]
pub(super) struct Version {
    pub(super) major: u64,
}

#[derive(Deserialize)]
pub(super) struct GraphModule {
    pub(super) graph: GraphJson,
    pub(super) signature: Signature,
}

#[derive(Deserialize)]
pub(super) struct GraphJson {
    pub(super) nodes: Vec<NodeJson>,
    pub(super) tensor_values: BTreeMap<String, TensorMeta>,
}

#[derive(Deserialize)]
pub(super) struct NodeJson {
    pub(super) target: String,
    pub(super) inputs: Vec<NamedArgument>,
    pub(super) outputs: Vec<Argument>,
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
pub(super) struct NamedArgument {
    pub(super) name: String,
    pub(super) arg: Argument,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Named {
    pub(super) name: String,
}

/// An argument of a call. Kinds that no translated operator takes are [`Other`](Self::Other).
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Argument {
    AsNone(IgnoredAny),
    AsTensor(Named),
    AsTensors(Vec<Named>),
    AsOptionalTensors(Vec<OptionalTensor>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(Number),
    AsFloats(Vec<Number>),
    AsBool(bool),
    AsString(String),
    AsSymInt(IgnoredAny),
    AsSymInts(IgnoredAny),
    #[serde(untagged)]
    Other(IgnoredAny),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OptionalTensor {
    AsTensor(Named),
    AsNone(IgnoredAny),
}

/// JSON has no infinity, so that it is written as text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Number {
    Value(f64),
    Text(String),
}

impl Number {
    pub(super) fn value(&self) -> Option<f64> {
        match self {
            Self::Value(value) => Some(*value),
            Self::Text(text) => text.to_lowercase().parse().ok(),
        }
    }
}

#[derive(Clone, Deserialize)]
pub(super) struct TensorMeta {
    pub(super) dtype: u64,
    #[serde(default)]
    pub(super) requires_grad: bool,
    pub(super) sizes: Vec<Size>,
    #[serde(default)]
    pub(super) strides: Vec<Size>,
    pub(super) storage_offset: Option<Size>,
}

/// An extent: a number, or an expression with the value of the example.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Size {
    AsInt(u64),
    AsExpr(Expression),
}

#[derive(Clone, Deserialize)]
pub(super) struct Expression {
    hint: Option<Hint>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Hint {
    AsInt(u64),
    #[serde(untagged)]
    Other(IgnoredAny),
}

impl Size {
    /// Its value in the example; none if the file does not say.
    pub(super) fn value(&self) -> Option<usize> {
        match self {
            Self::AsInt(value)
            | Self::AsExpr(Expression {
                hint: Some(Hint::AsInt(value)),
            }) => usize::try_from(*value).ok(),
            Self::AsExpr(_) => None,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Signature {
    pub(super) input_specs: Vec<InputSpec>,
    pub(super) output_specs: Vec<OutputSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum InputSpec {
    Parameter {
        arg: Named,
        parameter_name: String,
    },
    Buffer {
        arg: Named,
        buffer_name: String,
    },
    TensorConstant {
        arg: Named,
        tensor_constant_name: String,
    },
    UserInput {
        arg: Argument,
    },
    #[serde(untagged)]
    Other(IgnoredAny),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OutputSpec {
    UserOutput {
        arg: Argument,
    },
    #[serde(untagged)]
    Other(IgnoredAny),
}

/// `model_weights_config.json`, and `model_constants_config.json`.
#[derive(Deserialize)]
pub(super) struct Payloads {
    pub(super) config: BTreeMap<String, Payload>,
}

#[derive(Deserialize)]
pub(super) struct Payload {
    pub(super) path_name: String,
    #[serde(default)]
    pub(super) use_pickle: bool,
    /// None of what is no tensor.
    pub(super) tensor_meta: Option<TensorMeta>,
}
