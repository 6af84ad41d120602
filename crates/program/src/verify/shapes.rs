mod sequence;

use super::{Case, Fault, Spot};
use crate::{
    Buffer, CollectiveKind, Dtype, Item, Kernel, Load, Optimizer, PoolKind, Role, Taps, View, Work,
};

/// Extents and types of every view of every task, pinned algorithms, and workspaces.
pub(super) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    for (class, body) in case.bodies() {
        for (id, task) in body.tasks.iter().enumerate() {
            let mut rules = Rules {
                buffers: &body.buffers,
                dtype: case.program.dtype,
                shapes: Vec::new(),
                dtypes: Vec::new(),
            };
            match &task.work {
                Work::Compute {
                    kernel,
                    algorithm,
                    workspace,
                } => {
                    rules.kernel(kernel);
                    if !algorithm.is_pinned() {
                        let site = case.site(class, id);
                        faults.push(Fault::Unpinned { site });
                    }
                    if let Some(view) = workspace {
                        let (role, spot) = (body.buffer(view.buffer).role, case.spot(class, view));
                        faults.extend(workspace_fault(case, class, id, role, spot));
                    }
                }
                Work::Load(load) => {
                    let coord = &case.coords[class];
                    let owned = load.place.owned(&case.program.mesh, coord).shape();
                    rules.load(load, owned);
                }
                Work::Collective(collective) => rules.collective(&collective.kind),
                Work::Exchange(_) => {}
            }
            let site = || case.site(class, id);
            faults.extend(rules.shapes.into_iter().map(|reason| Fault::Shape {
                site: site(),
                reason,
            }));
            faults.extend(rules.dtypes.into_iter().map(|reason| Fault::Dtype {
                site: site(),
                reason,
            }));
        }
    }
}

fn workspace_fault(
    case: &Case<'_>,
    class: usize,
    task: usize,
    role: Role,
    spot: Spot,
) -> Option<Fault> {
    let site = case.site(class, task);
    (role != Role::Workspace).then_some(Fault::WorkspaceRole { site, spot, role })
}

/// One number in f64.
const SCALAR: [usize; 5] = [1; 5];

struct Rules<'b> {
    buffers: &'b [Buffer],
    dtype: Dtype,
    shapes: Vec<String>,
    dtypes: Vec<String>,
}

impl Rules<'_> {
    fn collective(&mut self, kind: &CollectiveKind) {
        match kind {
            CollectiveKind::AllReduce { .. } | CollectiveKind::AllGather { .. } => {}
            CollectiveKind::ReduceScatter { .. } | CollectiveKind::AllToAll { .. } => {
                let views = || kind.sources().iter().chain(kind.targets());
                let Some(first) = views().next().map(|view| self.dtype_of(view)) else {
                    return;
                };
                if first == Dtype::I16 {
                    self.dtypes.push(format!("moves {first:?}, not floats"));
                }
                if let Some(other) = views().find(|view| self.dtype_of(view) != first) {
                    let other = self.dtype_of(other);
                    self.dtypes.push(format!("moves {first:?} and {other:?}"));
                }
            }
        }
    }

    fn kernel(&mut self, kernel: &Kernel) {
        match kernel {
            Kernel::Fused { parts } => self.fused(parts),
            Kernel::Fill { target, .. } => self.floats(&[("target", target)]),
            Kernel::Copy { source, target, .. } => {
                self.number("elements of the target", target.volume(), source.volume());
                let (a, b) = (self.dtype_of(source), self.dtype_of(target));
                if a != b {
                    self.dtypes
                        .push(format!("copies {a:?} to {b:?}; casts are imports"));
                }
            }
            Kernel::Import { source, target, .. } => {
                self.floats(&[("target", target)]);
                let [n, c, d, h, w] = source.extent;
                self.extent("target", target, [n, d, h, w, c]);
            }
            Kernel::PackWeights {
                w,
                packed,
                taps,
                groups,
                ..
            } => {
                self.floats(&[("w", w), ("packed", packed)]);
                self.taps(taps);
                let [.., inputs, outputs] = w.extent;
                self.plain_weights(
                    "w",
                    w,
                    taps,
                    *groups,
                    inputs.saturating_mul(*groups),
                    outputs,
                );
            }
            Kernel::ConvolutionForward { .. }
            | Kernel::ConvolutionBackwardData { .. }
            | Kernel::ConvolutionBackwardWeight { .. } => self.convolution(kernel),
            Kernel::PoolForward { .. } | Kernel::PoolBackward { .. } => self.pool(kernel),
            Kernel::BatchNormStatistics { .. }
            | Kernel::BatchNormForward { .. }
            | Kernel::BatchNormRunning { .. }
            | Kernel::BatchNormInference { .. }
            | Kernel::BatchNormBackwardStatistics { .. }
            | Kernel::BatchNormBackwardData { .. }
            | Kernel::BatchNormBackwardParameters { .. } => self.batch_norm(kernel),
            Kernel::LinearForward { .. }
            | Kernel::LinearBackwardData { .. }
            | Kernel::LinearBackwardWeight { .. } => self.linear(kernel),
            Kernel::BiasBackward { dy, db, .. } => {
                self.floats(&[("dy", dy), ("db", db)]);
                self.extent("db", db, vector(dy.extent[4]));
            }
            Kernel::LeakyReluForward { x, y, .. } | Kernel::Dropout { x, y, .. } => {
                self.floats(&[("x", x), ("y", y)]);
                self.same("y", y, "x", x);
            }
            Kernel::LeakyReluBackward { y, dy, dx, .. } => {
                self.floats(&[("y", y), ("dy", dy), ("dx", dx)]);
                self.same("dy", dy, "y", y);
                self.same("dx", dx, "y", y);
            }
            Kernel::EmbeddingForward { .. }
            | Kernel::EmbeddingBackward { .. }
            | Kernel::Positions { .. }
            | Kernel::LayerNormStatistics { .. }
            | Kernel::LayerNormForward { .. }
            | Kernel::LayerNormBackwardStatistics { .. }
            | Kernel::LayerNormBackwardData { .. }
            | Kernel::LayerNormBackwardParameters { .. }
            | Kernel::GeluForward { .. }
            | Kernel::GeluBackward { .. }
            | Kernel::AttentionForward { .. }
            | Kernel::AttentionBackward { .. } => self.sequence(kernel),
            Kernel::Add { a, b, y } => {
                self.floats(&[("a", a), ("b", b), ("y", y)]);
                self.same("b", b, "a", a);
                self.same("y", y, "a", a);
            }
            Kernel::MeanSquaredError { .. }
            | Kernel::SoftmaxCrossEntropy { .. }
            | Kernel::OutputErrors { .. }
            | Kernel::ClassCounts { .. } => self.loss(kernel),
            Kernel::SumOfSquares { sources, total } => {
                sources
                    .iter()
                    .for_each(|view| self.floats(&[("source", view)]));
                self.sums("total", total, SCALAR);
            }
            Kernel::Update { .. } => self.update(kernel),
        }
    }

    fn convolution(&mut self, kernel: &Kernel) {
        match kernel {
            Kernel::ConvolutionForward {
                x,
                w,
                bias,
                y,
                taps,
                groups,
                ..
            } => {
                self.floats(&[("x", x), ("w", w), ("y", y)]);
                self.weights(w, taps, *groups, x.extent[4], y.extent[4]);
                self.window(x, "y", y, taps);
                self.bias(bias.as_ref(), y.extent[4]);
            }
            Kernel::ConvolutionBackwardData {
                dy,
                w,
                bias,
                dx,
                taps,
                groups,
                ..
            } => {
                self.floats(&[("dy", dy), ("w", w), ("dx", dx)]);
                self.weights(w, taps, *groups, dx.extent[4], dy.extent[4]);
                self.number("samples of dx", dx.extent[0], dy.extent[0]);
                self.bias(bias.as_ref(), dx.extent[4]);
            }
            Kernel::ConvolutionBackwardWeight {
                x,
                dy,
                dw,
                taps,
                groups,
                ..
            } => {
                self.floats(&[("x", x), ("dy", dy), ("dw", dw)]);
                self.plain_weights("dw", dw, taps, *groups, x.extent[4], dy.extent[4]);
                self.window(x, "dy", dy, taps);
            }
            other => panic!("{} is no convolution", other.name()),
        }
    }

    fn fused(&mut self, parts: &[Kernel]) {
        let nested = parts
            .iter()
            .any(|part| matches!(part, Kernel::Fused { .. }));
        if nested || parts.len() < 2 {
            let reason = "two or more kernels are fused, none of them fused itself";
            self.shapes.push(reason.to_owned());
            return;
        }
        parts.iter().for_each(|part| self.kernel(part));
    }

    fn pool(&mut self, kernel: &Kernel) {
        match kernel {
            Kernel::PoolForward {
                kind,
                x,
                y,
                taps,
                shift,
            } => {
                self.floats(&[("x", x), ("y", y)]);
                self.pooling(*kind, x, "y", y, taps, shift);
            }
            Kernel::PoolBackward {
                kind,
                x,
                dy,
                dx,
                taps,
                shift,
                ..
            } => {
                self.floats(&[("dy", dy), ("dx", dx)]);
                self.pooling(*kind, dx, "dy", dy, taps, shift);
                match (kind, x) {
                    (PoolKind::Max, Some(x)) => {
                        self.floats(&[("x", x)]);
                        self.same("x", x, "dx", dx);
                    }
                    (PoolKind::Max, None) => {
                        self.shapes.push("a maximum needs x".to_owned());
                    }
                    (PoolKind::AverageAll | PoolKind::AverageInside, None) => {}
                    (PoolKind::AverageAll | PoolKind::AverageInside, Some(_)) => {
                        self.shapes
                            .push("x is given, but an average does not read it".to_owned());
                    }
                }
            }
            other => panic!("{} is no pooling", other.name()),
        }
    }

    fn batch_norm(&mut self, kernel: &Kernel) {
        match kernel {
            Kernel::BatchNormStatistics { x, sums, .. } => self.normalized(x, sums, &[], &[]),
            Kernel::BatchNormForward {
                x,
                sums,
                gamma,
                beta,
                y,
                count,
                ..
            } => {
                self.normalized(x, sums, &[("y", y)], &[("gamma", gamma), ("beta", beta)]);
                self.positive(*count);
            }
            Kernel::BatchNormRunning {
                sums,
                mean,
                variance,
                count,
                ..
            } => {
                let channels = sums.extent[4];
                self.sums("sums", sums, [1, 1, 1, 2, channels]);
                self.vectors(&[("mean", mean), ("variance", variance)], channels);
                self.positive(*count);
            }
            Kernel::BatchNormInference {
                x,
                mean,
                variance,
                gamma,
                beta,
                y,
                ..
            } => {
                self.floats(&[("x", x), ("y", y)]);
                self.same("y", y, "x", x);
                let moments = [("mean", mean), ("variance", variance)];
                self.vectors(&moments, x.extent[4]);
                self.vectors(&[("gamma", gamma), ("beta", beta)], x.extent[4]);
            }
            Kernel::BatchNormBackwardStatistics {
                x,
                sums,
                dy,
                gradient_sums,
                count,
                ..
            } => {
                self.normalized(x, sums, &[("dy", dy)], &[]);
                self.sums("gradient_sums", gradient_sums, sums_of(x));
                self.positive(*count);
            }
            Kernel::BatchNormBackwardData {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                dx,
                count,
                ..
            } => {
                self.normalized(x, sums, &[("dy", dy), ("dx", dx)], &[("gamma", gamma)]);
                self.sums("gradient_sums", gradient_sums, sums_of(x));
                self.positive(*count);
            }
            Kernel::BatchNormBackwardParameters {
                gradient_sums,
                dgamma,
                dbeta,
                ..
            } => {
                let channels = gradient_sums.extent[4];
                self.sums("gradient_sums", gradient_sums, [1, 1, 1, 2, channels]);
                self.vectors(&[("dgamma", dgamma), ("dbeta", dbeta)], channels);
            }
            other => panic!("{} is no batch norm kernel", other.name()),
        }
    }

    fn linear(&mut self, kernel: &Kernel) {
        let (x, w, y) = match kernel {
            Kernel::LinearForward { x, w, bias, y } => {
                self.bias(bias.as_ref(), w.extent[4]);
                (("x", x), ("w", w), ("y", y))
            }
            Kernel::LinearBackwardData { dy, w, dx, .. } => (("dx", dx), ("w", w), ("dy", dy)),
            Kernel::LinearBackwardWeight { x, dy, dw, .. } => (("x", x), ("dw", dw), ("dy", dy)),
            other => panic!("{} is no linear kernel", other.name()),
        };
        self.floats(&[x, w, y]);
        let [rows, features @ ..] = x.1.extent;
        let [.., inputs, outputs] = w.1.extent;
        self.extent(w.0, w.1, [1, 1, 1, inputs, outputs]);
        let features = features.iter().product();
        self.number(&format!("features of {}", x.0), features, inputs);
        self.extent(y.0, y.1, [rows, 1, 1, 1, outputs]);
    }

    fn loss(&mut self, kernel: &Kernel) {
        match kernel {
            Kernel::MeanSquaredError {
                x,
                target,
                dx,
                loss,
                count,
                weight,
            } => {
                self.same("target", target, "x", x);
                self.any_float("target", target);
                self.loss_of(x, dx.as_ref(), loss, (*count, *weight));
            }
            Kernel::SoftmaxCrossEntropy {
                x,
                target,
                dx,
                loss,
                count,
                weight,
                smoothing,
            } => {
                if !(0.0..1.0).contains(smoothing) {
                    self.shapes.push(format!("is smoothed by {smoothing}"));
                }
                let [n, d, h, w, _] = x.extent;
                self.extent("target", target, [n, d, h, w, 1]);
                self.loss_of(x, dx.as_ref(), loss, (*count, *weight));
            }
            Kernel::OutputErrors { x, target, errors } => {
                self.floats(&[("x", x)]);
                self.same("target", target, "x", x);
                self.any_float("target", target);
                self.sums("errors", errors, sums_of(x));
            }
            Kernel::ClassCounts { x, target, counts } => {
                let [n, d, h, w, classes] = x.extent;
                self.floats(&[("x", x)]);
                self.extent("target", target, [n, d, h, w, 1]);
                self.sums("counts", counts, [1, 1, 1, 3, classes]);
            }
            other => panic!("{} is no loss", other.name()),
        }
    }

    fn loss_of(&mut self, x: &View, dx: Option<&View>, loss: &View, (count, weight): (u64, f64)) {
        self.floats(&[("x", x)]);
        if let Some(dx) = dx {
            self.floats(&[("dx", dx)]);
            self.same("dx", dx, "x", x);
        }
        self.sums("loss", loss, SCALAR);
        self.positive(count);
        if !(weight.is_finite() && weight > 0.0) {
            self.shapes.push(format!("has the weight {weight}"));
        }
    }

    fn update(&mut self, kernel: &Kernel) {
        let Kernel::Update {
            rule,
            parameter,
            gradient,
            moments,
            clip,
        } = kernel
        else {
            panic!("{} is no update", kernel.name());
        };
        self.floats(&[("parameter", parameter), ("gradient", gradient)]);
        self.same("gradient", gradient, "parameter", parameter);
        for moment in moments {
            self.floats(&[("moment", moment)]);
            self.same("moment", moment, "parameter", parameter);
        }
        let expected = match rule {
            Optimizer::Sgd { momentum, .. } => usize::from(*momentum != 0.0),
            Optimizer::Adam { .. } => 2,
        };
        self.number("moments", moments.len(), expected);
        if let Some((total, _)) = clip {
            self.sums("total", total, SCALAR);
        }
    }

    /// A load fills exactly what the rank owns; samples lie in the order of the file.
    fn load(&mut self, load: &Load, owned: [usize; 5]) {
        let [n, d, h, w, c] = owned;
        let expected = match load.item {
            Item::Sample => [n, c, d, h, w],
            Item::Target => owned,
        };
        self.extent("target", &load.target, expected);
    }

    fn dtype_of(&self, view: &View) -> Dtype {
        self.buffers[view.buffer.0 as usize].dtype
    }

    fn expect_dtype(&mut self, name: &str, view: &View, expected: Dtype) {
        let got = self.dtype_of(view);
        if got != expected {
            self.dtypes
                .push(format!("{name} {view} is of {got:?}, not of {expected:?}"));
        }
    }

    /// Operands are of the program's type.
    fn floats(&mut self, views: &[(&str, &View)]) {
        for (name, view) in views {
            // A fill also clears sums.
            let role = self.buffers[view.buffer.0 as usize].role;
            let clears = *name == "target" && role == Role::Statistics;
            if !clears {
                self.expect_dtype(name, view, self.dtype);
            }
        }
    }

    /// Expected answers may stand as they were read.
    fn any_float(&mut self, name: &str, view: &View) {
        if self.dtype_of(view) == Dtype::I16 {
            self.dtypes.push(format!("{name} {view} is of I16"));
        }
    }

    fn sums(&mut self, name: &str, view: &View, extent: [usize; 5]) {
        self.expect_dtype(name, view, Dtype::F64);
        self.extent(name, view, extent);
    }

    fn extent(&mut self, name: &str, view: &View, expected: [usize; 5]) {
        if view.extent != expected {
            self.shapes
                .push(format!("{name} {view} should have extents {expected:?}"));
        }
    }

    fn same(&mut self, name: &str, view: &View, other: &str, like: &View) {
        if view.extent != like.extent {
            self.shapes.push(format!(
                "{name} {view} should have the extents of {other} {like}"
            ));
        }
    }

    fn number(&mut self, what: &str, got: usize, expected: usize) {
        if got != expected {
            self.shapes
                .push(format!("{what} are {got}, {expected} are expected"));
        }
    }

    fn positive(&mut self, count: u64) {
        if count == 0 {
            self.shapes.push("counts no element".to_owned());
        }
    }

    fn vectors(&mut self, views: &[(&str, &View)], channels: usize) {
        self.floats(views);
        for (name, view) in views {
            self.extent(name, view, vector(channels));
        }
    }

    fn bias(&mut self, bias: Option<&View>, channels: usize) {
        if let Some(bias) = bias {
            self.vectors(&[("bias", bias)], channels);
        }
    }

    fn normalized(
        &mut self,
        x: &View,
        sums: &View,
        like: &[(&str, &View)],
        vectors: &[(&str, &View)],
    ) {
        self.floats(&[("x", x)]);
        self.floats(like);
        for (name, view) in like {
            self.same(name, view, "x", x);
        }
        self.sums("sums", sums, sums_of(x));
        self.vectors(vectors, x.extent[4]);
    }

    fn taps(&mut self, taps: &Taps) -> bool {
        let sound = [taps.kernel, taps.stride, taps.dilation]
            .iter()
            .all(|dims| dims.iter().all(|&value| value > 0));
        if !sound {
            self.shapes.push(format!("{taps:?} has a zero"));
        }
        sound
    }

    /// How packed weights fit is seen where they are packed.
    fn weights(&mut self, w: &View, taps: &Taps, groups: usize, inputs: usize, outputs: usize) {
        if self.buffers[w.buffer.0 as usize].role != Role::PackedWeights {
            self.plain_weights("w", w, taps, groups, inputs, outputs);
        }
    }

    fn plain_weights(
        &mut self,
        name: &str,
        w: &View,
        taps: &Taps,
        groups: usize,
        inputs: usize,
        outputs: usize,
    ) {
        let [kd, kh, kw] = taps.kernel;
        if groups == 0 || !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            self.shapes.push(format!(
                "{inputs} and {outputs} channels do not split into {groups} groups"
            ));
            return;
        }
        self.extent(name, w, [kd, kh, kw, inputs / groups, outputs]);
    }

    /// `x` holds every input of every tap and nothing else.
    fn window(&mut self, x: &View, name: &str, y: &View, taps: &Taps) {
        self.number("samples of x", x.extent[0], y.extent[0]);
        if !self.taps(taps) || y.is_empty() {
            return;
        }
        let mut expected = x.extent;
        for dim in 0..3 {
            expected[dim + 1] = (y.extent[dim + 1] - 1) * taps.stride[dim]
                + (taps.kernel[dim] - 1) * taps.dilation[dim]
                + 1;
        }
        if x.extent != expected {
            self.shapes.push(format!(
                "x {x} should have extents {expected:?} for {name} {y} and {taps:?}"
            ));
        }
    }

    /// Channels and samples agree, and where an output would be undefined without an input, it has
    /// one.
    fn pooling(
        &mut self,
        kind: PoolKind,
        x: &View,
        name: &str,
        y: &View,
        taps: &Taps,
        shift: &[i64; 3],
    ) {
        self.number("samples of the pooled", x.extent[0], y.extent[0]);
        self.number("channels of the pooled", x.extent[4], y.extent[4]);
        if !self.taps(taps) || y.is_empty() {
            return;
        }
        match kind {
            PoolKind::AverageAll => return,
            PoolKind::Max | PoolKind::AverageInside => {}
        }
        for dim in 0..3 {
            let (inputs, outputs) = (x.extent[dim + 1], y.extent[dim + 1]);
            if let Some(o) = without_tap(taps, dim, shift[dim], inputs, outputs) {
                self.shapes.push(format!(
                    "output {o} of {name} {y} along spatial dim {dim} has no tap inside {x}"
                ));
            }
        }
    }
}

/// The first of so many outputs of which no tap lies among the inputs.
///
/// Only some are looked at, as an image may have any number of positions. Of outputs whose first tap lies before
/// the inputs, the place of the first tap behind their beginning repeats with the dilation, and the outputs in
/// front need the most taps. Of the others those whose first tap lies behind the inputs have none.
fn without_tap(
    taps: &Taps,
    dim: usize,
    shift: i64,
    inputs: usize,
    outputs: usize,
) -> Option<usize> {
    let [stride, dilation, kernel] =
        [taps.stride[dim], taps.dilation[dim], taps.kernel[dim]].map(|step| step as i64);
    let (inputs, outputs) = (inputs as i64, outputs as i64);
    let meets = |o: i64| {
        // The first tap that does not lie before the inputs.
        let first = o * stride - shift;
        let tap = -(first.min(0).div_euclid(dilation));
        tap < kernel && first + tap * dilation < inputs
    };
    let from = |position: i64| -(-position).div_euclid(stride);
    let before = from(shift).clamp(0, dilation);
    let behind = from(shift + inputs).max(0);
    let found = (0..before).chain([behind]).find(|&o| !meets(o));
    found.filter(|&o| o < outputs).map(|o| o as usize)
}

fn vector(channels: usize) -> [usize; 5] {
    [1, 1, 1, 1, channels]
}

fn sums_of(x: &View) -> [usize; 5] {
    [1, 1, 1, 2, x.extent[4]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_without_a_tap_are_those_found_one_by_one() {
        let mut lacking = 0;
        for case in 0..4 * 3 * 3 * 9 * 5 {
            let [kernel, stride, dilation] = [case % 4 + 1, case / 4 % 3 + 1, case / 12 % 3 + 1];
            let (shift, inputs) = ((case / 36 % 9) as i64 - 2, case / 324 + 1);
            let taps = Taps {
                kernel: [kernel; 3],
                stride: [stride; 3],
                dilation: [dilation; 3],
            };
            let has_tap = |o: &usize| {
                let at = |k: usize| (o * stride + k * dilation) as i64 - shift;
                (0..kernel).any(|k| (0..inputs as i64).contains(&at(k)))
            };
            for outputs in 0..8 {
                let expected = (0..outputs).find(|o| !has_tap(o));
                let found = without_tap(&taps, 0, shift, inputs, outputs);
                assert_eq!(found, expected, "{taps:?} {shift} {inputs} {outputs}");
                lacking += usize::from(expected.is_some());
            }
        }
        assert!(lacking > 1000, "{lacking} have outputs without a tap");
    }

    #[test]
    fn any_number_of_outputs_is_checked_at_once() {
        let taps = Taps {
            kernel: [2; 3],
            stride: [2; 3],
            dilation: [1; 3],
        };
        assert_eq!(without_tap(&taps, 0, 0, 1 << 47, 1 << 46), None);
        assert_eq!(
            without_tap(&taps, 0, 0, (1 << 47) - 2, 1 << 46),
            Some((1 << 46) - 1)
        );
    }
}
