//! The nodes of each layer.

use super::attributes::{int, ints, real, text};
use super::{Value, Writer, Written};
use crate::Reason;
use crate::onnx::schema::Attribute;
use crate::weights::Element;
use partita_graph::{
    Activation, Convolution, Interpolation, Node, PadMode, ParameterRole, Pool, PoolKind, Resample,
    TransposedConvolution,
};
use partita_space::Window;

/// The attributes of a resize.
fn interpolated(interpolation: Interpolation) -> Vec<Attribute> {
    let (mode, transform) = match interpolation {
        Interpolation::Nearest => ("nearest", "asymmetric"),
        Interpolation::Linear { align_corners } if align_corners => ("linear", "align_corners"),
        Interpolation::Linear { .. } => ("linear", "half_pixel"),
    };
    vec![
        text("mode", mode),
        text("coordinate_transformation_mode", transform),
        text("nearest_mode", "floor"),
    ]
}

impl Writer<'_> {
    fn window(&self, window: &[Window; 3]) -> Vec<Attribute> {
        let dims = &window[3 - self.rank()..];
        let all = |of: fn(&Window) -> usize| dims.iter().map(|one| of(one) as i64).collect();
        let lows = dims.iter().map(|one| one.pad_low as i64);
        let pads = lows
            .chain(dims.iter().map(|one| one.pad_high as i64))
            .collect();
        vec![
            ints("kernel_shape", all(|one| one.kernel)),
            ints("strides", all(|one| one.stride)),
            ints("pads", pads),
        ]
    }

    fn dilations(&self, window: &[Window; 3]) -> Attribute {
        let dims = window[3 - self.rank()..].iter();
        ints("dilations", dims.map(|one| one.dilation as i64).collect())
    }

    fn layer(
        &mut self,
        node: &Node,
        operator: &str,
        input: &str,
        attributes: Vec<Attribute>,
    ) -> Written {
        // A linear layer at each position of an image, and one of features, may share a weight.
        let dims = if operator == "Gemm" {
            2
        } else {
            2 + self.rank()
        };
        let weight = self.weight(node, dims).ok_or("it has no weight")?;
        let bias = self.parameter(node, ParameterRole::Bias);
        let inputs: Vec<&str> = [input, &weight]
            .into_iter()
            .chain(bias.as_deref())
            .collect();
        self.push(operator, &node.name, &inputs, attributes);
        Ok(Value::of(node))
    }

    pub(super) fn convolution(
        &mut self,
        node: &Node,
        input: &Value,
        about: &Convolution,
    ) -> Written {
        let mut input = self.image(input).name;
        let mut window = about.window;
        if about.periodic {
            let dims = 3 - self.rank()..3;
            let lows = dims.clone().map(|dim| window[dim].pad_low as i64);
            let highs = dims.map(|dim| window[dim].pad_high as i64);
            let both: Vec<i64> = [0, 0]
                .into_iter()
                .chain(lows)
                .chain([0, 0])
                .chain(highs)
                .collect();
            input = self.padded(node, &input, &both, "wrap");
            for one in &mut window {
                (one.pad_low, one.pad_high) = (0, 0);
            }
        }
        let mut attributes = self.window(&window);
        attributes.push(self.dilations(&window));
        attributes.push(int("group", about.groups as i64));
        self.layer(node, "Conv", &input, attributes)
    }

    fn padded(&mut self, node: &Node, input: &str, pads: &[i64], mode: &str) -> String {
        let pads = self.whole(&format!("{}.pads", node.name), pads);
        let name = format!("{}.padded", node.name);
        self.push("Pad", &name, &[input, &pads], vec![text("mode", mode)]);
        name
    }

    pub(super) fn transposed(
        &mut self,
        node: &Node,
        input: &Value,
        about: &TransposedConvolution,
    ) -> Written {
        let input = self.image(input).name;
        let mut attributes = self.window(&about.window);
        attributes.push(self.dilations(&about.window));
        let more = about.output_padding[3 - self.rank()..].iter();
        attributes.push(ints(
            "output_padding",
            more.map(|&one| one as i64).collect(),
        ));
        attributes.push(int("group", about.groups as i64));
        self.layer(node, "ConvTranspose", &input, attributes)
    }

    pub(super) fn pool(&mut self, node: &Node, input: &Value, about: &Pool) -> Written {
        let extent = input.shape.extent;
        let input = self.image(input).name;
        let is_all = about.window == extent.map(Window::tile);
        let (operator, mut attributes) = match about.kind {
            PoolKind::Max if is_all => ("GlobalMaxPool", Vec::new()),
            PoolKind::AverageAll | PoolKind::AverageInside if is_all => {
                ("GlobalAveragePool", Vec::new())
            }
            PoolKind::L2 if is_all => ("GlobalLpPool", vec![int("p", 2)]),
            PoolKind::Max => ("MaxPool", Vec::new()),
            PoolKind::AverageAll => ("AveragePool", vec![int("count_include_pad", 1)]),
            PoolKind::AverageInside => ("AveragePool", vec![int("count_include_pad", 0)]),
            PoolKind::L2 => ("LpPool", vec![int("p", 2)]),
        };
        if !is_all {
            attributes.extend(self.window(&about.window));
        }
        self.push(operator, &node.name, &[&input], attributes);
        Ok(Value::of(node))
    }

    pub(super) fn resample(&mut self, node: &Node, input: &Value, about: &Resample) -> Written {
        let input = self.image(input).name;
        let first = 3 - self.rank();
        match about {
            Resample::AdaptiveAverage { .. } => {
                return Err("a mean over unequal windows is not in ONNX".into());
            }
            Resample::Upsample {
                factors,
                interpolation,
            } => {
                let factors = factors[first..].iter().map(|&one| one as f64);
                let scales: Vec<f64> = [1.0, 1.0].into_iter().chain(factors).collect();
                let name = format!("{}.scales", node.name);
                let scales = self.constant(&name, Element::F32, vec![scales.len()], &scales);
                let attributes = interpolated(*interpolation);
                self.push("Resize", &node.name, &[&input, "", &scales], attributes);
            }
            Resample::Resize {
                outputs,
                interpolation,
            } => {
                let outputs: Vec<i64> = outputs[first..].iter().map(|&one| one as i64).collect();
                let axes = (2..2 + self.rank() as i64).collect();
                let sizes = self.whole(&format!("{}.sizes", node.name), &outputs);
                let mut attributes = interpolated(*interpolation);
                attributes.push(ints("axes", axes));
                self.push("Resize", &node.name, &[&input, "", "", &sizes], attributes);
            }
            Resample::Crop {
                starts,
                steps,
                outputs,
            } => self.crop(node, &input, [starts, steps, outputs]),
            Resample::Pad { sides, mode } => {
                let lows = sides[first..].iter().map(|side| side.0 as i64);
                let highs = sides[first..].iter().map(|side| side.1 as i64);
                let pads: Vec<i64> = [0, 0]
                    .into_iter()
                    .chain(lows)
                    .chain([0, 0])
                    .chain(highs)
                    .collect();
                let mode = match mode {
                    PadMode::Zero => "constant",
                    PadMode::Replicate => "edge",
                    PadMode::Reflect => "reflect",
                };
                let pads = self.whole(&format!("{}.pads", node.name), &pads);
                self.push(
                    "Pad",
                    &node.name,
                    &[&input, &pads],
                    vec![text("mode", mode)],
                );
            }
        }
        Ok(Value::of(node))
    }

    fn crop(&mut self, node: &Node, input: &str, [starts, steps, outputs]: [&[usize; 3]; 3]) {
        let dims = 3 - self.rank()..3;
        let of = |values: &[usize; 3]| dims.clone().map(|dim| values[dim] as i64).collect();
        let ends = [0, 1, 2].map(|dim| starts[dim] + (outputs[dim] - 1) * steps[dim] + 1);
        let words: [(&str, Vec<i64>); 4] = [
            ("starts", of(starts)),
            ("ends", of(&ends)),
            ("axes", (2..2 + self.rank() as i64).collect()),
            ("steps", of(steps)),
        ];
        let cut = words.map(|(word, values)| self.whole(&format!("{}.{word}", node.name), &values));
        let inputs = [input, &cut[0], &cut[1], &cut[2], &cut[3]];
        self.push("Slice", &node.name, &inputs, Vec::new());
    }

    pub(super) fn batch_norm(
        &mut self,
        node: &Node,
        input: &Value,
        [epsilon, momentum]: [f64; 2],
    ) -> Written {
        let mut inputs = vec![input.name.clone()];
        for role in [
            ParameterRole::Gamma,
            ParameterRole::Beta,
            ParameterRole::RunningMean,
            ParameterRole::RunningVariance,
        ] {
            inputs.push(self.parameter(node, role).ok_or("it has no statistics")?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let attributes = vec![real("epsilon", epsilon), real("momentum", 1.0 - momentum)];
        self.push("BatchNormalization", &node.name, &inputs, attributes);
        Ok(Value {
            name: node.name.clone(),
            ..input.clone()
        })
    }

    pub(super) fn prelu(&mut self, node: &Node, input: &Value) -> Written {
        let graph = self.graph;
        let mut all = node.parameters.iter().map(|&id| graph.parameter(id));
        let slopes = all.next().ok_or("it has no slopes")?;
        let mut shape = vec![slopes.volume()];
        if !input.is_features {
            shape.extend(vec![1; self.rank()]);
        }
        let slopes = self.parameter_as(slopes, Some(shape));
        self.push("PRelu", &node.name, &[&input.name, &slopes], Vec::new());
        Ok(Value {
            name: node.name.clone(),
            ..input.clone()
        })
    }

    pub(super) fn linear(&mut self, node: &Node, input: &Value) -> Written {
        let input = self.features(input).name;
        let value = self.layer(node, "Gemm", &input, vec![int("transB", 1)])?;
        Ok(Value {
            is_features: true,
            ..value
        })
    }

    /// The inputs with the same dims.
    fn alike(&mut self, inputs: &[Value]) -> Vec<Value> {
        if inputs.iter().all(|one| one.is_features) {
            return inputs.to_vec();
        }
        inputs.iter().map(|one| self.image(one)).collect()
    }

    pub(super) fn binary(&mut self, node: &Node, operator: &str, inputs: &[Value]) -> Value {
        let inputs = self.alike(inputs);
        let names: Vec<&str> = inputs.iter().map(|one| one.name.as_str()).collect();
        self.push(operator, &node.name, &names, Vec::new());
        Value {
            name: node.name.clone(),
            shape: node.shape,
            ..inputs[0].clone()
        }
    }

    pub(super) fn concat(&mut self, node: &Node, inputs: &[Value]) -> Value {
        let inputs = self.alike(inputs);
        let names: Vec<&str> = inputs.iter().map(|one| one.name.as_str()).collect();
        self.push("Concat", &node.name, &names, vec![int("axis", 1)]);
        Value {
            is_features: inputs[0].is_features,
            ..Value::of(node)
        }
    }

    pub(super) fn slice(
        &mut self,
        node: &Node,
        input: &Value,
        (start, channels): (usize, usize),
    ) -> Value {
        let starts = self.whole(&format!("{}.start", node.name), &[start as i64]);
        let ends = self.whole(&format!("{}.end", node.name), &[(start + channels) as i64]);
        let axes = self.whole("channels.axis", &[1]);
        self.push(
            "Slice",
            &node.name,
            &[&input.name, &starts, &ends, &axes],
            Vec::new(),
        );
        Value {
            is_features: input.is_features,
            ..Value::of(node)
        }
    }

    /// Scale and shift with the dims of an image.
    fn affine_of_image(&mut self, node: &Node, channels: usize) -> Result<Vec<String>, Reason> {
        let graph = self.graph;
        let mut shape = vec![channels];
        shape.extend(vec![1; self.rank()]);
        let roles = [ParameterRole::Gamma, ParameterRole::Beta];
        let named = roles.map(|role| {
            let mut all = node.parameters.iter().map(|&id| graph.parameter(id));
            let parameter = all.find(|one| one.role == role);
            let parameter = parameter.ok_or("it has no scale and shift")?;
            Ok(self.parameter_as(parameter, Some(shape.clone())))
        });
        named.into_iter().collect()
    }

    fn affine(&mut self, node: &Node) -> Result<[String; 2], Reason> {
        let gamma = self.parameter(node, ParameterRole::Gamma);
        let beta = self.parameter(node, ParameterRole::Beta);
        match (gamma, beta) {
            (Some(gamma), Some(beta)) => Ok([gamma, beta]),
            _ => Err("it has no scale and shift".into()),
        }
    }

    pub(super) fn layer_norm(&mut self, node: &Node, input: &Value, epsilon: f64) -> Written {
        let [gamma, beta] = self.affine(node)?;
        let attributes = vec![int("axis", -1), real("epsilon", epsilon)];
        if input.is_features {
            let inputs = [&*input.name, &gamma, &beta];
            self.push("LayerNormalization", &node.name, &inputs, attributes);
            return Ok(Value {
                name: node.name.clone(),
                ..input.clone()
            });
        }
        let rank = self.rank() as i64;
        let back: Vec<i64> = [0, rank + 1].into_iter().chain(1..=rank).collect();
        let there: Vec<i64> = [0].into_iter().chain(2..2 + rank).chain([1]).collect();
        let (last, norm) = (format!("{}.last", node.name), format!("{}.norm", node.name));
        self.push(
            "Transpose",
            &last,
            &[&input.name],
            vec![ints("perm", there)],
        );
        self.push(
            "LayerNormalization",
            &norm,
            &[&last, &gamma, &beta],
            attributes,
        );
        self.push("Transpose", &node.name, &[&norm], vec![ints("perm", back)]);
        Ok(Value::of(node))
    }

    /// An instance norm; groups are joined with space before it, for older opsets scale them as a whole.
    pub(super) fn group_norm(
        &mut self,
        node: &Node,
        input: &Value,
        (groups, epsilon): (Option<usize>, f64),
    ) -> Written {
        let input = self.image(input);
        let channels = input.shape.channels;
        let attributes = vec![real("epsilon", epsilon)];
        let Some(groups) = groups.filter(|&groups| groups != channels) else {
            let [gamma, beta] = self.affine(node)?;
            let inputs = [&*input.name, &gamma, &beta];
            self.push("InstanceNormalization", &node.name, &inputs, attributes);
            return Ok(Value::of(node));
        };
        let named = |what: &str| format!("{}.{what}", node.name);
        let joined = self.whole(&named("joined_extents"), &[0, groups as i64, -1]);
        let extents = input.shape.extent[3 - self.rank()..]
            .iter()
            .map(|&one| one as i64);
        let whole: Vec<i64> = [0, channels as i64].into_iter().chain(extents).collect();
        let whole = self.whole(&named("extents"), &whole);
        let ones = self.constant(
            &named("ones"),
            self.element,
            vec![groups],
            &vec![1.0; groups],
        );
        let zeros = self.constant(
            &named("zeros"),
            self.element,
            vec![groups],
            &vec![0.0; groups],
        );
        let affine = self.affine_of_image(node, channels)?;
        self.push(
            "Reshape",
            &named("joined"),
            &[&input.name, &joined],
            Vec::new(),
        );
        let inputs = [&*named("joined"), &ones, &zeros];
        self.push("InstanceNormalization", &named("norm"), &inputs, attributes);
        self.push(
            "Reshape",
            &named("parted"),
            &[&named("norm"), &whole],
            Vec::new(),
        );
        self.push(
            "Mul",
            &named("scaled"),
            &[&named("parted"), &affine[0]],
            Vec::new(),
        );
        self.push(
            "Add",
            &node.name,
            &[&named("scaled"), &affine[1]],
            Vec::new(),
        );
        Ok(Value::of(node))
    }

    /// Functions of elements. New ones are a line here; what ONNX lacks is refused by name.
    pub(super) fn activation(
        &mut self,
        node: &Node,
        input: &Value,
        activation: Activation,
    ) -> Written {
        let (operator, attributes) = match activation {
            Activation::Gelu => ("Gelu", vec![text("approximate", "none")]),
            Activation::Sigmoid => ("Sigmoid", Vec::new()),
            Activation::Tanh => ("Tanh", Vec::new()),
            Activation::Elu { alpha } => ("Elu", vec![real("alpha", alpha)]),
            Activation::Silu => {
                let gate = format!("{}.gate", node.name);
                self.push("Sigmoid", &gate, &[&input.name], Vec::new());
                self.push("Mul", &node.name, &[&input.name, &gate], Vec::new());
                return Ok(Value {
                    name: node.name.clone(),
                    ..input.clone()
                });
            }
            Activation::GeluTanh => ("Gelu", vec![text("approximate", "tanh")]),
            Activation::Mish => ("Mish", Vec::new()),
            Activation::HardSwish => ("HardSwish", Vec::new()),
            Activation::HardSigmoid => {
                let attributes = vec![real("alpha", 1.0 / 6.0), real("beta", 0.5)];
                ("HardSigmoid", attributes)
            }
            Activation::Softplus { beta } => {
                let steps = [("Mul", Some(beta)), ("Softplus", None), ("Div", Some(beta))];
                return Ok(self.with_numbers(node, input, &steps));
            }
            Activation::Affine { scale, shift } => {
                let steps = [("Mul", Some(scale)), ("Add", Some(shift))];
                return Ok(self.with_numbers(node, input, &steps));
            }
            Activation::Hardtanh { low, high } | Activation::Clamp { low, high } => {
                let bounds = [("low", low), ("high", high)].map(|(word, bound)| {
                    let name = format!("{}.{word}", node.name);
                    self.constant(&name, self.element, Vec::new(), &[bound])
                });
                let inputs = [&*input.name, &bounds[0], &bounds[1]];
                self.push("Clip", &node.name, &inputs, Vec::new());
                return Ok(Value {
                    name: node.name.clone(),
                    ..input.clone()
                });
            }
        };
        Ok(self.same(node, operator, input, attributes))
    }

    /// Operators one after the other, each perhaps with a number. What changes nothing is left out.
    fn with_numbers(&mut self, node: &Node, input: &Value, steps: &[(&str, Option<f64>)]) -> Value {
        let is_neutral = |&(operator, number): &(&str, Option<f64>)| match operator {
            "Add" => number == Some(0.0),
            _ => number == Some(1.0),
        };
        let steps: Vec<_> = steps.iter().filter(|step| !is_neutral(step)).collect();
        let mut from = input.name.clone();
        for (at, &&(operator, number)) in steps.iter().enumerate() {
            let name = if at + 1 == steps.len() {
                node.name.clone()
            } else {
                format!("{}.{}", node.name, operator.to_lowercase())
            };
            let number = number.map(|number| {
                let constant = format!("{name}.{}", operator.to_lowercase());
                self.constant(&constant, self.element, Vec::new(), &[number])
            });
            let inputs: Vec<&str> = [from.as_str()]
                .into_iter()
                .chain(number.as_deref())
                .collect();
            self.push(operator, &name, &inputs, Vec::new());
            from = name;
        }
        Value {
            name: from,
            ..input.clone()
        }
    }
}
