//! The nodes of layers that arrange positions and channels, embed positions, or attend to all of them.

use super::attributes::{int, ints};
use super::{Value, Writer, Written};
use crate::onnx::schema::Attribute;
use crate::weights::Element;
use partita_graph::{Node, ParameterRole, Shape};

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

    pub(super) fn attention(
        &mut self,
        node: &Node,
        inputs: &[Value],
        (heads, causal): (usize, bool),
    ) -> Written {
        let [q, k, v] = inputs else {
            return Err("it has other inputs than q, k and v".to_owned());
        };
        let named = |what: &str| format!("{}.{what}", node.name);
        let of_head = node.shape.channels / heads;
        let mut parted = Vec::new();
        for (value, what) in [(q, "q"), (k, "k"), (v, "v")] {
            let value = self.image(value).name;
            let dims = [0, heads as i64, of_head as i64, -1];
            parted.push(self.shaped("Reshape", &named(what), &value, &dims));
        }
        let across = || vec![0, 1, 3, 2];
        let queries = self.turned(&named("queries"), &parted[0], across());
        let values = self.turned(&named("values"), &parted[2], across());
        self.push(
            "MatMul",
            &named("products"),
            &[&queries, &parted[1]],
            Vec::new(),
        );
        let scale = (of_head as f64).sqrt().recip();
        let scale = self.constant(&named("scale"), self.element, Vec::new(), &[scale]);
        let mut scores = named("scores");
        self.push("Mul", &scores, &[&named("products"), &scale], Vec::new());
        if causal {
            let counts = [q, k].map(|one| one.shape.extent.iter().product::<usize>());
            let mask = self.causal_mask(node, counts);
            let masked = named("masked");
            self.push("Add", &masked, &[&scores, &mask], Vec::new());
            scores = masked;
        }
        let weights = named("weights");
        self.push("Softmax", &weights, &[&scores], vec![int("axis", -1)]);
        self.push("MatMul", &named("means"), &[&weights, &values], Vec::new());
        let turned = self.turned(&named("turned"), &named("means"), across());
        let whole = self.dims(&[node.shape.channels], node.shape);
        self.shaped("Reshape", &node.name, &turned, &whole);
        Ok(Value::of(node))
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
