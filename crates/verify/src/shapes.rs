//! Extents and dtypes of views.

use crate::{BufferRegion, Case, Fault};
use partita_program::descriptor::{Elements, Extents, Operand, Window};
use partita_program::{Buffer, CollectiveKind, Dtype, Item, Kernel, Load, Role, Taps, View, Work};
use partita_space::Resampling;

/// Extents and types of every view of every task, pinned algorithms, and workspaces.
pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    for (class, body) in case.checked() {
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
                    let owned = load.distribution.owned(&case.program.mesh, coord).shape();
                    rules.load(load, owned);
                }
                Work::Store(store) => {
                    let coord = &case.coords[class];
                    let owned = store.distribution.owned(&case.program.mesh, coord).shape();
                    if store.source.extent != owned {
                        let found = store.source.extent;
                        rules
                            .shapes
                            .push(format!("a store of {found:?}, where {owned:?} is owned"));
                    }
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
    spot: BufferRegion,
) -> Option<Fault> {
    let site = case.site(class, task);
    (role != Role::Workspace).then_some(Fault::WorkspaceRole { site, spot, role })
}

struct Rules<'b> {
    buffers: &'b [Buffer],
    dtype: Dtype,
    shapes: Vec<String>,
    dtypes: Vec<String>,
}

impl Rules<'_> {
    fn collective(&mut self, kind: &CollectiveKind) {
        match kind {
            CollectiveKind::AllReduce { views } => {
                let dtypes = views.iter().map(|view| self.dtype_of(view));
                let dtypes: Vec<Dtype> = dtypes.collect();
                if let Some(other) = dtypes.iter().find(|&&dtype| dtype != dtypes[0]) {
                    let reason = format!("sums {:?} and {other:?}", dtypes[0]);
                    self.dtypes.push(reason);
                }
            }
            CollectiveKind::AllGather { .. } => {}
            CollectiveKind::ReduceScatter { .. } | CollectiveKind::AllToAll { .. } => {
                let (sources, targets) = (kind.sources().joined(), kind.targets().joined());
                let views = || sources.iter().chain(targets);
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
        let parts = kernel.parts();
        if let Kernel::Fused { .. } = kernel {
            let nested = |part: &Kernel| matches!(part, Kernel::Fused { .. });
            if parts.len() < 2 || parts.iter().any(nested) {
                let reason = "two or more kernels are fused, none of them fused itself";
                self.shapes.push(reason.to_owned());
            }
        }
        for descriptor in parts.iter().map(Kernel::descriptor) {
            for operand in &descriptor.operands {
                self.elements(operand);
                self.extents(operand);
            }
            self.taps(descriptor.window);
            self.shapes.extend(descriptor.violations);
        }
    }

    fn elements(&mut self, operand: &Operand<'_>) {
        let view = operand.view;
        let got = self.dtype_of(view);
        let expected = match operand.elements {
            Elements::Program => self.dtype.of_role(self.role_of(view)),
            Elements::ProgramOrSums => match self.role_of(view) {
                Role::Statistics => got,
                role @ (Role::Parameter
                | Role::State
                | Role::Constant
                | Role::Optimizer
                | Role::Average
                | Role::Gradient
                | Role::Staging
                | Role::Activation
                | Role::ActivationGradient
                | Role::PackedWeights
                | Role::Gathered
                | Role::Workspace) => self.dtype.of_role(role),
            },
            Elements::Sums => Dtype::F64,
            Elements::Any => got,
            Elements::Floats => {
                if got == Dtype::I16 {
                    self.dtypes
                        .push(format!("{} {view} is of I16", operand.name));
                }
                got
            }
            Elements::Like(other) => {
                let other = self.dtype_of(other);
                if got != other {
                    self.dtypes
                        .push(format!("copies {other:?} to {got:?}; casts are imports"));
                }
                got
            }
        };
        if got != expected {
            let name = operand.name;
            self.dtypes
                .push(format!("{name} {view} is of {got:?}, not of {expected:?}"));
        }
    }

    fn extents(&mut self, operand: &Operand<'_>) {
        let (name, view) = (operand.name, operand.view);
        match operand.extents {
            Extents::Any => {}
            Extents::Are(expected) => self.extent(name, view, expected),
            Extents::Like(other, like) => {
                if view.extent != like.extent {
                    self.shapes.push(format!(
                        "{name} {view} should have the extents of {other} {like}"
                    ));
                }
            }
            Extents::Volume(other) => {
                let what = format!("elements of the {name}");
                self.number(&what, view.volume(), other.volume());
            }
            Extents::Samples(other) => {
                self.number(
                    &format!("samples of {name}"),
                    view.extent[0],
                    other.extent[0],
                );
            }
            Extents::Weights {
                taps,
                groups,
                inputs,
                outputs,
                may_be_packed,
            } => {
                // Packed weights are checked where they are packed.
                if !may_be_packed || self.role_of(view) != Role::PackedWeights {
                    self.weights(operand, taps, groups, [inputs, outputs]);
                }
            }
            Extents::Window { name, of, taps } => self.window(view, name, of, taps),
            Extents::Pooled {
                name,
                of,
                taps,
                shift,
                needs_tap,
            } => {
                self.number("samples of the pooled", view.extent[0], of.extent[0]);
                self.number("channels of the pooled", view.extent[4], of.extent[4]);
                if needs_tap && are_positive(taps) {
                    self.pooling(view, (name, of), taps, shift);
                }
            }
            Extents::Resampled { name, of, maps } => self.resampled(view, (name, of), maps),
        }
    }

    /// Checks that every output is defined.
    fn resampled(&mut self, x: &View, (name, y): (&str, &View), maps: &[Resampling; 3]) {
        self.number("samples of the resampled", x.extent[0], y.extent[0]);
        self.number("channels of the resampled", x.extent[4], y.extent[4]);
        for (dim, map) in maps.iter().enumerate() {
            let (inputs, outputs) = (x.extent[dim + 1], y.extent[dim + 1]);
            if !map.fits(inputs, outputs) {
                self.shapes.push(format!(
                    "{name} {y} along spatial dim {dim} has outputs without an input in {x} by {map:?}"
                ));
            }
        }
    }

    /// A load fills exactly what the rank owns; samples lie in the order of the file.
    fn load(&mut self, load: &Load, owned: [usize; 5]) {
        let [n, d, h, w, c] = owned;
        let expected = match load.item {
            Item::Sample | Item::Features => [n, c, d, h, w],
            Item::Target => owned,
        };
        self.extent("target", &load.target, expected);
    }

    fn dtype_of(&self, view: &View) -> Dtype {
        self.buffers[view.buffer.0 as usize].dtype
    }

    fn role_of(&self, view: &View) -> Role {
        self.buffers[view.buffer.0 as usize].role
    }

    fn extent(&mut self, name: &str, view: &View, expected: [usize; 5]) {
        if view.extent != expected {
            self.shapes
                .push(format!("{name} {view} should have extents {expected:?}"));
        }
    }

    fn number(&mut self, what: &str, got: usize, expected: usize) {
        if got != expected {
            self.shapes
                .push(format!("{what} are {got}, {expected} are expected"));
        }
    }

    fn taps(&mut self, window: Option<Window<'_>>) {
        let taps = window.map(|window| window.taps);
        if let Some(taps) = taps.filter(|taps| !are_positive(taps)) {
            self.shapes.push(format!("{taps:?} has a zero"));
        }
    }

    fn weights(
        &mut self,
        w: &Operand<'_>,
        taps: &Taps,
        groups: usize,
        [inputs, outputs]: [usize; 2],
    ) {
        let [kd, kh, kw] = taps.kernel;
        if groups == 0 || !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            self.shapes.push(format!(
                "{inputs} and {outputs} channels do not split into {groups} groups"
            ));
            return;
        }
        self.extent(w.name, w.view, [kd, kh, kw, inputs / groups, outputs]);
    }

    /// `x` has just the inputs of all taps.
    fn window(&mut self, x: &View, name: &str, y: &View, taps: &Taps) {
        self.number("samples of x", x.extent[0], y.extent[0]);
        if !are_positive(taps) || y.is_empty() {
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

    /// Checks that outputs that need an input have one.
    fn pooling(&mut self, x: &View, (name, y): (&str, &View), taps: &Taps, shift: &[i64; 3]) {
        if y.is_empty() {
            return;
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

fn are_positive(taps: &Taps) -> bool {
    let all = [taps.kernel, taps.stride, taps.dilation];
    all.iter().flatten().all(|&value| value > 0)
}

/// The first output without a tap among the inputs.
///
/// Only some outputs are tested, in time independent of the extent. For outputs whose first tap is before the
/// inputs, the position of the first tap inside is periodic in the dilation, and the first outputs need the most
/// taps. Of the others, those whose first tap is after the inputs have none.
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
