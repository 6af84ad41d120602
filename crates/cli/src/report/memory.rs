use super::axis::{Scale, size_unit};
use super::facts::{Facts, ranked};
use super::svg::{Anchor, Stroke, Svg, WIDTH, color, shortened};
use partita_program::{Body, Buffer, Program, Role};
use partita_space::{Bytes, Coord, Mesh};

/// What memory of a rank is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heading {
    /// Parameters and running statistics, and forms of them that kernels want.
    Weights,
    /// Moments of the optimizer.
    Optimizer,
    /// Of the weights.
    Gradients,
    /// Samples and targets as they were read.
    Samples,
    /// Values of tensors: a rank's own part.
    Activations,
    /// Their gradients, a rank's own part.
    ActivationGradients,
    /// What is held around the own part of either: halos that messages bring, and padding.
    Frames,
    /// Scratch of kernels, and sums over ranks.
    Scratch,
    /// What lies between buffers when most is held.
    Gaps,
}

impl Heading {
    /// All, in the order of the bars.
    pub const ALL: [Heading; 9] = [
        Self::Weights,
        Self::Optimizer,
        Self::Gradients,
        Self::Samples,
        Self::Activations,
        Self::ActivationGradients,
        Self::Frames,
        Self::Scratch,
        Self::Gaps,
    ];

    fn of(role: Role) -> Self {
        match role {
            Role::Parameter | Role::State | Role::PackedWeights | Role::Gathered => Self::Weights,
            Role::Optimizer => Self::Optimizer,
            Role::Gradient => Self::Gradients,
            Role::Staging => Self::Samples,
            Role::Activation => Self::Activations,
            Role::ActivationGradient => Self::ActivationGradients,
            Role::Statistics | Role::Workspace => Self::Scratch,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Optimizer => "optimizer",
            Self::Gradients => "gradients of weights",
            Self::Samples => "samples as read",
            Self::Activations => "activations",
            Self::ActivationGradients => "their gradients",
            Self::Frames => "halos and padding",
            Self::Scratch => "workspace and sums",
            Self::Gaps => "gaps",
        }
    }

    fn color(self) -> &'static str {
        match self {
            Self::Weights => color::BLUE,
            Self::Optimizer => color::SKY,
            Self::Gradients => color::ORANGE,
            Self::Samples => color::YELLOW,
            Self::Activations => color::GREEN,
            Self::ActivationGradients => color::VERMILLION,
            Self::Frames => color::PURPLE,
            Self::Scratch => color::STONE,
            Self::Gaps => color::GRAY,
        }
    }
}

/// Bytes under each of [`Heading::ALL`]; they sum to the arena.
pub type Itemized = [Bytes; 9];

/// What the largest rank holds when it holds most.
pub fn itemize(program: &Program) -> Itemized {
    let bodies = program.bodies.iter().zip(program.representatives());
    let largest = bodies.max_by_key(|(body, _)| body.arena);
    largest.map_or_else(Itemized::default, |(body, rank)| {
        at_peak(body, &program.mesh, &program.mesh.coord(rank))
    })
}

/// Buffers live from the first task that touches them to the last, and those of a run always.
fn at_peak(body: &Body, mesh: &Mesh, coord: &Coord) -> Itemized {
    let steps = body.tasks.len().max(1);
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; body.buffers.len()];
    for (step, task) in body.tasks.iter().enumerate() {
        for (view, _) in task.accesses() {
            let life = &mut lives[view.buffer.0 as usize];
            *life = Some((life.map_or(step, |(birth, _)| birth), step));
        }
    }
    for output in &body.outputs {
        let life = &mut lives[output.view.buffer.0 as usize];
        *life = life.map(|(birth, _)| (birth, steps - 1));
    }
    let is_live = |id: usize, step: usize| {
        let buffer = &body.buffers[id];
        buffer.role.is_persistent()
            || lives[id].is_some_and(|(birth, death)| birth <= step && step <= death)
    };
    // Bytes that come and go with each step.
    let mut changes = vec![0i64; steps + 1];
    for (buffer, life) in body.buffers.iter().zip(&lives) {
        if let Some((birth, death)) = life.filter(|_| !buffer.role.is_persistent()) {
            changes[birth] += buffer.bytes().0 as i64;
            changes[death + 1] -= buffer.bytes().0 as i64;
        }
    }
    let mut held = 0;
    let (mut most, mut peak) = (i64::MIN, 0);
    for (step, change) in changes[..steps].iter().enumerate() {
        held += change;
        if held > most {
            (most, peak) = (held, step);
        }
    }
    let mut items = Itemized::default();
    for (id, buffer) in body.buffers.iter().enumerate() {
        if is_live(id, peak) {
            let frame = frame(buffer, mesh, coord);
            items[Heading::of(buffer.role) as usize] += Bytes(buffer.bytes().0 - frame.0);
            items[Heading::Frames as usize] += frame;
        }
    }
    let sum: Bytes = items.iter().copied().sum();
    items[Heading::Gaps as usize] = Bytes(body.arena.0.saturating_sub(sum.0));
    items
}

/// Bytes of a tensor's buffer around what the rank owns.
fn frame(buffer: &Buffer, mesh: &Mesh, coord: &Coord) -> Bytes {
    let Some(home) = &buffer.home else {
        return Bytes(0);
    };
    let is_tensor = match Heading::of(buffer.role) {
        Heading::Activations | Heading::ActivationGradients => true,
        Heading::Weights
        | Heading::Optimizer
        | Heading::Gradients
        | Heading::Samples
        | Heading::Frames
        | Heading::Scratch
        | Heading::Gaps => false,
    };
    let owned = home.place.owned(mesh, coord).volume();
    let all = buffer.dims.iter().product::<usize>();
    match is_tensor {
        true => Bytes((all.saturating_sub(owned) * buffer.dtype.size()) as u64),
        false => Bytes(0),
    }
}

/// A strategy with its number in the ranking, if it has one.
fn name(facts: &Facts<'_>, strategy: &str) -> String {
    let mut ranking = ranked(facts.candidates);
    match ranking.position(|(candidate, _)| candidate.strategy.to_string() == strategy) {
        Some(at) => format!("{} #{}", shortened(strategy, 32), at + 1),
        None => shortened(strategy, 36),
    }
}

/// A bar for each strategy, against the limit.
pub fn figure(facts: &Facts<'_>) -> String {
    let sums: Vec<Bytes> = facts
        .itemized
        .iter()
        .map(|(_, items)| items.iter().copied().sum())
        .collect();
    let most = sums.iter().copied().max().unwrap_or_default();
    // A limit far beyond all bars would leave nothing of them.
    let shows_limit = facts.memory.0 <= 4 * most.0;
    let top = most.max(if shows_limit { facts.memory } else { most });
    let (unit, unit_name) = size_unit(top);
    let (left, right, row) = (300.0, WIDTH - 80.0, 26.0);
    let description = format!(
        "One bar for each of {} strategies: what the largest rank holds when it holds most, by \
         what it \
         is for; a rank may fill {}.",
        facts.itemized.len(),
        facts.memory
    );
    let mut svg = Svg::new("memory", "Memory of the largest rank", &description, 0.0);
    let entries = Heading::ALL.map(|heading| (heading.color(), heading.name().to_owned()));
    let bars_top = 8.0 + svg.legend(10.0, 4.0, &entries) + 18.0;
    let bottom = bars_top + row * facts.itemized.len() as f64;
    let scale = Scale::linear(top.0 as f64 / unit, [left, right]);
    scale.draw_across(
        &mut svg,
        bars_top,
        bottom,
        &format!("memory of the largest rank ({unit_name})"),
    );
    for (index, (strategy, items)) in facts.itemized.iter().enumerate() {
        let y = bars_top + row * index as f64 + 4.0;
        svg.styled(
            (left - 8.0, y + 13.0),
            Anchor::End,
            "code",
            name(facts, strategy),
        );
        draw_bar(&mut svg, &scale, [y, row - 8.0], unit, strategy, items);
    }
    let limit = format!("limit {}", facts.memory);
    if shows_limit {
        let x = scale.at(facts.memory.0 as f64 / unit);
        let line = [(x, bars_top - 4.0), (x, bottom)];
        svg.line(&line, Stroke::dashed(color::BLACK, 2.0));
        svg.styled((x, bars_top - 9.0), Anchor::Middle, "strong", limit);
    } else {
        let beyond = format!("{limit} →");
        svg.styled((WIDTH - 8.0, bars_top - 9.0), Anchor::End, "strong", beyond);
    }
    for (index, sum) in sums.iter().enumerate() {
        let y = bars_top + row * index as f64 + 17.0;
        let x = scale.at(sum.0 as f64 / unit) + 5.0;
        svg.styled((x, y), Anchor::Start, "small over", sum);
    }
    svg.grow(bottom + 46.0);
    svg.finish()
}

fn draw_bar(
    svg: &mut Svg,
    scale: &Scale,
    [top, height]: [f64; 2],
    unit: f64,
    strategy: &str,
    items: &Itemized,
) {
    let mut start = 0.0;
    for (heading, bytes) in Heading::ALL.into_iter().zip(items) {
        let end = start + bytes.0 as f64 / unit;
        if bytes.0 > 0 {
            let frame = [
                scale.at(start),
                top,
                scale.at(end) - scale.at(start),
                height,
            ];
            let told = format!("{strategy}: {}, {bytes}", heading.name());
            svg.bar(frame, heading.color(), &told);
        }
        start = end;
    }
}
