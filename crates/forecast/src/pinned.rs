//! What the convolutions of a program are pinned to.

use partita_program::{Body, Configuration, KernelShape, Menu, Program, Task, Work};
use partita_space::Seconds;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The tasks of a body that leave a choice.
pub(crate) fn shapes(body: &Body) -> impl Iterator<Item = (&Task, KernelShape<'_>)> {
    body.tasks.iter().filter_map(|task| {
        let shape = body.kernel_shape(task)?;
        shape.cut_extents().map(|_| (task, shape))
    })
}

/// Signatures of all convolutions of programs.
pub fn signatures<'p>(programs: impl Iterator<Item = &'p Program>) -> BTreeSet<String> {
    let bodies = programs.flat_map(|program| &program.bodies);
    let shapes = bodies.flat_map(shapes);
    shapes.map(|(_, shape)| shape.signature()).collect()
}

/// The convolutions of a rank by implementation. The text is one line for the user.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PinnedConvolutions {
    /// How many of them run by an implementation, or by several in micro-batches.
    pub by: BTreeMap<String, usize>,
    /// How many run by what needs neither measurements nor a model.
    pub plain: usize,
    /// The expected time of all that have one, over that of plain kernels alone: both measured, or both by the model. None
    /// where none has.
    pub expected_share: Option<f64>,
}

impl PinnedConvolutions {
    /// Of the tasks of a body.
    pub fn of(body: &Body, menu: &dyn Menu) -> Self {
        let mut found = Self {
            by: BTreeMap::new(),
            plain: 0,
            expected_share: None,
        };
        let (mut usual_seconds, mut pinned_seconds) = (0.0, 0.0);
        for (task, shape) in shapes(body) {
            let Work::Compute { algorithm, .. } = &task.work else {
                continue;
            };
            let Ok(usual) = menu.choose(&shape) else {
                continue;
            };
            if usual.algorithm == *algorithm {
                found.plain += 1;
            } else {
                *found.by.entry(methods(&algorithm.0)).or_default() += 1;
            }
            if let Some((usual, pinned)) = seconds(menu, &shape, (&usual.algorithm.0, &algorithm.0))
            {
                usual_seconds += usual;
                pinned_seconds += pinned;
            }
        }
        found.expected_share = (usual_seconds > 0.0).then(|| pinned_seconds / usual_seconds);
        found
    }

    /// Whether all run by what needs neither measurements nor a model.
    pub fn is_plain(&self) -> bool {
        self.by.is_empty()
    }
}

/// Expected seconds of a kernel by its usual implementation and by what is pinned.
fn seconds(
    menu: &dyn Menu,
    shape: &KernelShape<'_>,
    (usual, pinned): (&str, &str),
) -> Option<(f64, f64)> {
    let both = |of: &dyn Fn(&str) -> Option<Seconds>| Some((of(usual)?.0, of(pinned)?.0));
    both(&|method| menu.measured(shape, method))
        .or_else(|| both(&|method| menu.expected(shape, method)))
}

/// The implementations of a configuration, without its micro-batches.
fn methods(algorithm: &str) -> String {
    let Ok(configuration) = algorithm.parse::<Configuration>() else {
        return algorithm.to_owned();
    };
    let mut all: Vec<&str> = match &configuration {
        Configuration::Undivided { method } => vec![method],
        Configuration::Divided { .. } => {
            let pieces = configuration.micro_batches();
            pieces.map(|(_, _, method)| method).collect()
        }
    };
    all.sort_unstable();
    all.dedup();
    all.join("+")
}

impl fmt::Display for PinnedConvolutions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.plain + self.by.values().sum::<usize>();
        let by = self.by.iter();
        let mut by: Vec<String> = by
            .map(|(name, count)| format!("{count} by {name}"))
            .collect();
        if self.plain > 0 {
            by.push(format!("{} by plain kernels", self.plain));
        }
        write!(f, "of {all} convolutions of a step run {}", by.join(", "))?;
        if let Some(share) = self.expected_share {
            write!(
                f,
                "; expected to take {share:.2} of the time of plain kernels alone (`workspace=off`)"
            )?;
        }
        Ok(())
    }
}
