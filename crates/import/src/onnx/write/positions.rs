//! The nodes of layers that arrange positions and channels, embed positions, or attend to all of them.

use super::attributes::{int, ints};
use super::{Value, Writer, Written};
use crate::Reason;
use crate::onnx::schema::Attribute;
use crate::weights::Element;
use partita_graph::{AttentionWindow, Node, Op, ParameterRole, ScoreBias, Shape};
use partita_space::ScoreRows;

impl Writer<'_> {
    /// Samples, these dims, then the positions of a shape.
    fn dims(&self, first: &[usize], shape: Shape) -> Vec<i64> {
        let space = shape.extent[3 - self.rank()..].iter();
        let dims = first.iter().chain(space).map(|&one| one as i64);
        // 0 keeps the extent of the input: that of samples.
        [0].into_iter().chain(dims).collect()
    }

    /// A node of one input and a list of whole numbers.
    fn shaped(&mut self, operator: &str, name: &str, input: &str, numbers: &[i64]) -> String {
        let numbers = self.whole(&format!("{name}.numbers"), numbers);
        self.push(operator, name, &[input, &numbers], Vec::new());
        name.to_owned()
    }

    fn turned(&mut self, name: &str, input: &str, order: Vec<i64>) -> String {
        self.push("Transpose", name, &[input], vec![ints("perm", order)]);
        name.to_owned()
    }

    pub(super) fn channel_shuffle(&mut self, node: &Node, input: &Value, groups: usize) -> Written {
        let input = self.image(input);
        let channels = input.shape.channels;
        let named = |what: &str| format!("{}.{what}", node.name);
        let parted = self.dims(&[groups, channels / groups], input.shape);
        let parted = self.shaped("Reshape", &named("parted"), &input.name, &parted);
        let space = 3..3 + self.rank() as i64;
        let order = [0, 2, 1].into_iter().chain(space).collect();
        let turned = self.turned(&named("turned"), &parted, order);
        let whole = self.dims(&[channels], node.shape);
        self.shaped("Reshape", &node.name, &turned, &whole);
        Ok(Value::of(node))
    }

    /// Channels that become blocks of positions: PyTorch's order, in any number of dims.
    pub(super) fn pixel_shuffle(
        &mut self,
        node: &Node,
        input: &Value,
        factors: [usize; 3],
    ) -> Written {
        let input = self.image(input);
        let rank = self.rank();
        let named = |what: &str| format!("{}.{what}", node.name);
        let blocks = [&[node.shape.channels], &factors[3 - rank..]].concat();
        let parted = self.dims(&blocks, input.shape);
        let parted = self.shaped("Reshape", &named("parted"), &input.name, &parted);
        let pairs = (0..rank as i64).flat_map(|dim| [2 + rank as i64 + dim, 2 + dim]);
        let order = [0, 1].into_iter().chain(pairs).collect();
        let turned = self.turned(&named("turned"), &parted, order);
        let whole = self.dims(&[node.shape.channels], node.shape);
        self.shaped("Reshape", &node.name, &turned, &whole);
        Ok(Value::of(node))
    }

    pub(super) fn reshape(&mut self, node: &Node, input: &Value) -> Written {
        let input = self.image(input);
        let whole = self.dims(&[node.shape.channels], node.shape);
        self.shaped("Reshape", &node.name, &input.name, &whole);
        Ok(Value::of(node))
    }

    /// Rows are put first on positions, the others get zeros.
    pub(super) fn position_embedding(
        &mut self,
        node: &Node,
        input: &Value,
        rows: usize,
    ) -> Written {
        let input = self.image(input);
        let named = |what: &str| format!("{}.{what}", node.name);
        let weight = self.parameter(node, ParameterRole::Weight);
        let weight = weight.ok_or("it has no weight")?;
        let mut of_channels = self.turned(&named("turned"), &weight, vec![1, 0]);
        let positions: usize = node.shape.extent.iter().product();
        if rows < positions {
            let pads = [0, 0, 0, (positions - rows) as i64];
            of_channels = self.shaped("Pad", &named("padded"), &of_channels, &pads);
        }
        let mut whole = self.dims(&[node.shape.channels], node.shape);
        whole[0] = 1;
        let of_image = self.shaped("Reshape", &named("rows"), &of_channels, &whole);
        self.push("Add", &node.name, &[&input.name, &of_image], Vec::new());
        Ok(Value::of(node))
    }

    /// Source: Vaswani et al., "Attention is all you need", NeurIPS 2017, section 3.5.
    pub(super) fn sinusoids(&mut self, node: &Node, input: &Value) -> Written {
        let input = self.image(input);
        let Shape {
            extent: [_, _, width],
            channels,
        } = node.shape;
        let code = |channel: usize, position: usize| {
            let power = (channel / 2 * 2) as f64 / channels as f64;
            let angle = position as f64 / 10_000f64.powf(power);
            if channel.is_multiple_of(2) {
                angle.sin()
            } else {
                angle.cos()
            }
        };
        let values: Vec<f64> = (0..channels)
            .flat_map(|channel| (0..width).map(move |position| code(channel, position)))
            .collect();
        let mut shape = vec![1; 2 + self.rank()];
        (shape[1], shape[1 + self.rank()]) = (channels, width);
        let name = format!("{}.codes", node.name);
        let codes = self.constant(&name, self.element, shape, &values);
        self.push("Add", &node.name, &[&input.name, &codes], Vec::new());
        Ok(Value::of(node))
    }

    pub(super) fn embedding(&mut self, node: &Node, input: &Value) -> Written {
        let input = self.image(input);
        let named = |what: &str| format!("{}.{what}", node.name);
        let weight = self.parameter(node, ParameterRole::Weight);
        let weight = weight.ok_or("it has no weight")?;
        let to = i64::from(super::attributes::number_of(Element::I64));
        let whole = vec![int("to", to)];
        self.push("Cast", &named("numbers"), &[&input.name], whole);
        let numbers = self.shaped("Squeeze", &named("list"), &named("numbers"), &[1]);
        self.push("Gather", &named("rows"), &[&weight, &numbers], Vec::new());
        let rank = self.rank() as i64;
        let order = [0, rank + 1].into_iter().chain(1..=rank).collect();
        self.turned(&node.name, &named("rows"), order);
        Ok(Value::of(node))
    }

    /// A norm by the root of the mean square over the channels.
    pub(super) fn rms_norm(&mut self, node: &Node, input: &Value, epsilon: f64) -> Written {
        let input = self.image(input);
        let graph = self.graph;
        let named = |what: &str| format!("{}.{what}", node.name);
        let mut all = node.parameters.iter().map(|&id| graph.parameter(id));
        let gamma = all.find(|one| one.role == ParameterRole::Gamma);
        let gamma = gamma.ok_or("it has no scale")?;
        let mut shape = vec![node.shape.channels];
        shape.extend(vec![1; self.rank()]);
        let gamma = self.parameter_as(gamma, Some(shape));
        let name = &input.name;
        self.push("Mul", &named("squares"), &[name, name], Vec::new());
        let mean = self.shaped("ReduceMean", &named("mean"), &named("squares"), &[1]);
        let epsilon = self.constant(&named("epsilon"), self.element, Vec::new(), &[epsilon]);
        self.push("Add", &named("variance"), &[&mean, &epsilon], Vec::new());
        self.push("Sqrt", &named("root"), &[&named("variance")], Vec::new());
        self.push("Div", &named("norm"), &[name, &named("root")], Vec::new());
        self.push("Mul", &node.name, &[&named("norm"), &gamma], Vec::new());
        Ok(Value::of(node))
    }

    /// Dims are samples, heads, windows if there are any, positions and channels of a head.
    pub(super) fn attention(&mut self, node: &Node, inputs: &[Value]) -> Written {
        let (&Op::Attention { heads, window, .. }, [q, k, v]) = (&node.op, inputs) else {
            return Err("it has other inputs than q, k and v".into());
        };
        let named = |what: &str| format!("{}.{what}", node.name);
        let of_head = node.shape.channels / heads;
        let mut parted = Vec::new();
        for (value, what) in [(q, "q"), (k, "k"), (v, "v")] {
            let value = self.image(value).name;
            let dims = [0, heads as i64, of_head as i64, -1];
            let name = self.shaped("Reshape", &named(what), &value, &dims);
            parted.push(match &window {
                Some(window) => {
                    let windows = self.window_positions(node, window);
                    let gathered = named(&format!("{what}_windows"));
                    let axis = vec![int("axis", 3)];
                    self.push("Gather", &gathered, &[&name, &windows], axis);
                    gathered
                }
                None => name,
            });
        }
        let last = || match window {
            Some(_) => vec![0, 1, 3, 4, 2],
            None => vec![0, 1, 3, 2],
        };
        let queries = self.turned(&named("queries"), &parted[0], last());
        let values = self.turned(&named("values"), &parted[2], last());
        let mut keys = parted[1].clone();
        if window.is_some() {
            keys = self.turned(&named("keys"), &keys, vec![0, 1, 3, 2, 4]);
        }
        self.push("MatMul", &named("products"), &[&queries, &keys], Vec::new());
        let scale = (of_head as f64).sqrt().recip();
        let scale = self.constant(&named("scale"), self.element, Vec::new(), &[scale]);
        let scores = named("scores");
        self.push("Mul", &scores, &[&named("products"), &scale], Vec::new());
        let scores = self.with_terms(node, [q, k], scores)?;
        let weights = named("weights");
        self.push("Softmax", &weights, &[&scores], vec![int("axis", -1)]);
        self.push("MatMul", &named("means"), &[&weights, &values], Vec::new());
        let first = match window {
            Some(_) => vec![0, 1, 4, 2, 3],
            None => vec![0, 1, 3, 2],
        };
        let mut whole = self.turned(&named("turned"), &named("means"), first);
        if let Some(window) = &window {
            let dims = [0, heads as i64, of_head as i64, -1];
            whole = self.shaped("Reshape", &named("windows"), &whole, &dims);
            let places = self.window_places(node, window);
            let axis = vec![int("axis", 3)];
            self.push("Gather", &named("back"), &[&whole, &places], axis);
            whole = named("back");
        }
        let dims = self.dims(&[node.shape.channels], node.shape);
        self.shaped("Reshape", &node.name, &whole, &dims);
        Ok(Value::of(node))
    }

    /// Scores with the bias and the masks of a node.
    fn with_terms(
        &mut self,
        node: &Node,
        [q, k]: [&Value; 2],
        mut scores: String,
    ) -> Result<String, Reason> {
        let &Op::Attention {
            causal,
            window,
            bias,
            ..
        } = &node.op
        else {
            return Ok(scores);
        };
        let named = |what: &str| format!("{}.{what}", node.name);
        let extents = [q, k].map(|one| one.shape.extent);
        let own = extents.map(|all| window.map_or(all, |window| window.extent));
        let counts = own.map(|extent| extent.iter().product::<usize>());
        let mut added = Vec::new();
        if let Some(bias) = bias {
            added.push(self.score_bias(node, (bias, window.is_some()), counts)?);
        }
        if causal {
            added.push(self.causal_mask(node, counts));
        }
        if let Some(window) = window.filter(|window| window.shift != [0; 3]) {
            added.push(self.window_mask(node, &window));
        }
        for (number, term) in added.into_iter().enumerate() {
            let sum = named(&format!("scores_{number}"));
            self.push("Add", &sum, &[&scores, &term], Vec::new());
            scores = sum;
        }
        Ok(scores)
    }

    /// Numbers of the positions of each window.
    fn window_positions(&mut self, node: &Node, window: &AttentionWindow) -> String {
        let positions = positions(node, window);
        let positions: Vec<f64> = positions.into_iter().map(|one| one as f64).collect();
        let shape = vec![window.count(node.shape.extent), window.volume()];
        let name = format!("{}.positions", node.name);
        self.constant(&name, Element::I64, shape, &positions)
    }

    /// For each position its place among those of all windows.
    fn window_places(&mut self, node: &Node, window: &AttentionWindow) -> String {
        let positions = positions(node, window);
        let mut places = vec![0; positions.len()];
        let all = positions.into_iter().enumerate();
        all.for_each(|(place, position)| places[position] = place as i64);
        self.whole(&format!("{}.places", node.name), &places)
    }

    /// What is added between parts of the image that a shift brings together: windows, positions, positions.
    fn window_mask(&mut self, node: &Node, window: &AttentionWindow) -> String {
        let (extent, volume) = (node.shape.extent, window.volume());
        let count = window.count(extent);
        let mut values = Vec::with_capacity(count * volume * volume);
        for one in 0..count {
            let parts: Vec<usize> = (0..volume).map(|at| window.part(extent, one, at)).collect();
            let pairs = parts.iter().flat_map(|i| parts.iter().map(move |j| i == j));
            values.extend(pairs.map(|is_same| if is_same { 0.0 } else { window.mask }));
        }
        let shape = vec![count, volume, volume];
        self.constant(
            &format!("{}.shift_mask", node.name),
            self.element,
            shape,
            &values,
        )
    }

    /// Heads, of all windows alike, then positions of q and of k.
    fn score_bias(
        &mut self,
        node: &Node,
        (bias, has_windows): (ScoreBias, bool),
        [outer, inner]: [usize; 2],
    ) -> Result<String, Reason> {
        let named = |what: &str| format!("{}.{what}", node.name);
        let weight = self.parameter(node, ParameterRole::Weight);
        let weight = weight.ok_or("it has no weight")?;
        let bias = match bias {
            ScoreBias::Relative(table) => {
                let rows = ScoreRows::Relative(table);
                let numbers =
                    (0..outer).flat_map(|i| (0..inner).map(move |j| rows.row(i, j) as f64));
                let numbers: Vec<f64> = numbers.collect();
                let shape = vec![outer, inner];
                let index = self.constant(&named("index"), Element::I64, shape, &numbers);
                self.push("Gather", &named("pairs"), &[&weight, &index], Vec::new());
                self.turned(&named("bias"), &named("pairs"), vec![2, 0, 1])
            }
            ScoreBias::Pairs => {
                let dims = [-1, outer as i64, inner as i64];
                self.shaped("Reshape", &named("bias"), &weight, &dims)
            }
        };
        if has_windows {
            return Ok(self.shaped("Unsqueeze", &named("of_windows"), &bias, &[1]));
        }
        Ok(bias)
    }

    /// Minus infinity where a key is later than the query, else 0.
    fn causal_mask(&mut self, node: &Node, [queries, keys]: [usize; 2]) -> String {
        let named = |what: &str| format!("{}.{what}", node.name);
        let extents = self.whole(&named("mask_extents"), &[queries as i64, keys as i64]);
        let lowest = self.constant(
            &named("lowest"),
            self.element,
            vec![1],
            &[f64::NEG_INFINITY],
        );
        self.push("Expand", &named("all"), &[&lowest, &extents], Vec::new());
        let next = self.constant(&named("next"), Element::I64, Vec::new(), &[1.0]);
        let upper: Vec<Attribute> = vec![int("upper", 1)];
        self.push("Trilu", &named("mask"), &[&named("all"), &next], upper);
        named("mask")
    }
}

/// Numbers of the positions of an image, window by window.
fn positions(node: &Node, window: &AttentionWindow) -> Vec<usize> {
    let extent = node.shape.extent;
    let count = window.count(extent);
    let all = (0..count).flat_map(|one| (0..window.volume()).map(move |at| (one, at)));
    all.map(|(one, at)| {
        let [d, h, w] = window.position(extent, one, at);
        (d * extent[1] + h) * extent[2] + w
    })
    .collect()
}
