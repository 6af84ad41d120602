//! The catalog of kernels, from which lowering pins: measured times, and expected ones where nothing was measured.

use crate::{Frontier, FrontierPoint, Measurements, divide};
use partita_program::{Choice, Configuration, KernelShape, Menu, MenuError};
use partita_space::{Bytes, Seconds};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// A share of the time that measurements differ by for no reason: a configuration that gains less is not used in
/// place of the usual one.
const GAIN_MIN: f64 = 0.02;

/// The same for expected times, which are less sure.
const EXPECTED_GAIN_MIN: f64 = 0.1;

/// Measured times of kernels: by signature, then by configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Catalog {
    kernels: BTreeMap<String, BTreeMap<String, Seconds>>,
}

impl Catalog {
    /// The times of all kernels.
    pub fn of(measurements: &Measurements) -> Self {
        Self {
            kernels: measurements.kernels.clone(),
        }
    }

    /// Adds the times of another catalog for kernels that have nothing to compare here.
    pub fn complete(&mut self, other: &Self) {
        for (signature, times) in &other.kernels {
            if self.times(signature).is_none() {
                self.kernels.insert(signature.clone(), times.clone());
            }
        }
    }

    /// Takes the times of the kernels of another catalog, and forgets its own of those.
    pub fn replace(&mut self, other: &Self) {
        let others = other.kernels.iter();
        let others = others.map(|(signature, times)| (signature.clone(), times.clone()));
        self.kernels.extend(others);
    }

    /// The times of the kernels of these signatures; empty for those without.
    #[must_use]
    pub fn of_signatures(&self, signatures: &BTreeSet<String>) -> Self {
        let times = |signature: &String| self.kernels.get(signature).cloned().unwrap_or_default();
        let own = signatures.iter();
        Self {
            kernels: own.map(|key| (key.clone(), times(key))).collect(),
        }
    }

    /// The times of a kernel, if there is something to compare.
    fn times(&self, signature: &str) -> Option<&BTreeMap<String, Seconds>> {
        let times = self.kernels.get(signature);
        times.filter(|times| times.len() > 1)
    }

    /// Whether any configuration has micro-batches of an implementation.
    pub fn uses(&self, method: &str) -> bool {
        let mut all = self.kernels.values().flat_map(BTreeMap::keys);
        all.any(|algorithm| {
            let configuration = algorithm.parse::<Configuration>();
            configuration.is_ok_and(|it| it.uses(method))
        })
    }

    /// The configurations of a kernel that are worth having, with the workspaces that a menu states.
    pub fn frontier(&self, menu: &dyn Menu, shape: &KernelShape<'_>) -> Frontier {
        self.frontier_of(menu, shape, &shape.signature())
    }

    fn frontier_of(&self, menu: &dyn Menu, shape: &KernelShape<'_>, signature: &str) -> Frontier {
        let mut frontier = Frontier::default();
        for (algorithm, &seconds) in self.kernels.get(signature).into_iter().flatten() {
            // Of another version, an algorithm may no longer be offered.
            let Ok(configuration) = algorithm.parse::<Configuration>() else {
                continue;
            };
            if let Some(choice) = menu.configured(shape, &configuration) {
                frontier.add(FrontierPoint {
                    seconds,
                    workspace: choice.workspace,
                    configuration,
                });
            }
        }
        frontier
    }
}

/// A menu that pins by the measured configurations of a catalog, and where none was measured, by expected times.
///
/// A configuration takes the place of the usual one if it is faster by a margin. That of expected times is wider, so that
/// they choose nothing that is slower.
pub struct CatalogMenu<'m> {
    menu: Box<dyn Menu + 'm>,
    catalog: Catalog,
    /// By signature, as they were asked for; none for kernels that leave no choice.
    known: Mutex<BTreeMap<String, Option<Arc<Options>>>>,
}

/// What a kernel has to choose from.
struct Options {
    frontier: Frontier,
    /// Those of the points of the frontier; none for the usual one.
    choices: Vec<Option<Choice>>,
    /// Workspace of the usual implementation, and its time if that is known.
    usual: (Bytes, Option<Seconds>),
    gain_min: f64,
}

impl Options {
    fn fastest_within(&self, limit: Bytes) -> Option<Choice> {
        let fits = |point: &&FrontierPoint| point.workspace <= limit;
        let fastest = self.frontier.points().iter().take_while(fits).count();
        let fastest = fastest.checked_sub(1)?;
        let seconds = self.frontier.points()[fastest].seconds;
        let (workspace, usual) = self.usual;
        let gains = |time: Seconds| seconds.0 < (1.0 - self.gain_min) * time.0;
        if workspace <= limit && !usual.is_none_or(gains) {
            return None;
        }
        self.choices[fastest].clone()
    }
}

impl<'m> CatalogMenu<'m> {
    /// The kernels of a menu.
    pub fn new(menu: Box<dyn Menu + 'm>, catalog: Catalog) -> Self {
        Self {
            menu,
            catalog,
            known: Mutex::default(),
        }
    }

    /// Whether so many configurations of a kernel were measured that times decide.
    pub(crate) fn is_measured(&self, signature: &str) -> bool {
        self.catalog.times(signature).is_some()
    }

    fn options(&self, shape: &KernelShape<'_>) -> Option<Arc<Options>> {
        // Only these are cut or have several implementations.
        shape.cut_extents()?;
        let signature = shape.signature();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(options) = known.get(&signature) {
            return options.clone();
        }
        let measured = self.measured_options(shape, &signature);
        let options = measured.or_else(|| self.expected_options(shape));
        let options = options.map(Arc::new);
        known.insert(signature, options.clone());
        options
    }

    /// None where fewer than two configurations were measured.
    fn measured_options(&self, shape: &KernelShape<'_>, signature: &str) -> Option<Options> {
        let times = self.catalog.times(signature)?;
        let frontier = self.catalog.frontier_of(&*self.menu, shape, signature);
        let usual = self.menu.choose(shape).ok()?;
        let time = times.get(&usual.algorithm.0).copied();
        Some(self.with_choices(shape, frontier, (usual, time), GAIN_MIN))
    }

    /// None where an implementation is alone, or has no expected time.
    fn expected_options(&self, shape: &KernelShape<'_>) -> Option<Options> {
        let all = self.menu.implementations(shape).ok()?;
        let (usual, others) = all.split_first()?;
        let time = self.expected(shape, &usual.algorithm.0)?;
        let mut frontier = Frontier::default();
        let mut add = |choice: &Choice, seconds| {
            frontier.add(FrontierPoint {
                seconds,
                workspace: choice.workspace,
                configuration: Configuration::undivided(&choice.algorithm.0),
            });
        };
        add(usual, time);
        let mut is_gain = false;
        for choice in others {
            let seconds = self.expected(shape, &choice.algorithm.0);
            if let Some(seconds) = seconds
                && seconds.0 < (1.0 - EXPECTED_GAIN_MIN) * time.0
            {
                add(choice, seconds);
                is_gain = true;
            }
        }
        is_gain.then(|| {
            let usual = (usual.clone(), Some(time));
            self.with_choices(shape, frontier, usual, EXPECTED_GAIN_MIN)
        })
    }

    fn with_choices(
        &self,
        shape: &KernelShape<'_>,
        frontier: Frontier,
        (usual, time): (Choice, Option<Seconds>),
        gain_min: f64,
    ) -> Options {
        let choice = |point: &FrontierPoint| {
            let choice = self.menu.configured(shape, &point.configuration)?;
            (usual.algorithm != choice.algorithm).then_some(choice)
        };
        let choices = frontier.points().iter().map(choice).collect();
        Options {
            frontier,
            choices,
            usual: (usual.workspace, time),
            gain_min,
        }
    }
}

impl Menu for CatalogMenu<'_> {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        self.menu.choose(shape)
    }

    fn implementations(&self, shape: &KernelShape<'_>) -> Result<Vec<Choice>, MenuError> {
        self.menu.implementations(shape)
    }

    fn expected(&self, shape: &KernelShape<'_>, method: &str) -> Option<Seconds> {
        self.menu.expected(shape, method)
    }

    fn measured(&self, shape: &KernelShape<'_>, configuration: &str) -> Option<Seconds> {
        let times = self.catalog.times(&shape.signature())?;
        times.get(configuration).copied()
    }

    fn fastest_within(&self, shape: &KernelShape<'_>, limit: Bytes) -> Option<Choice> {
        self.options(shape)?.fastest_within(limit)
    }

    fn divide(&self, shapes: &[KernelShape<'_>], total: Bytes) -> Vec<Option<Choice>> {
        let options: Vec<Option<Arc<Options>>> =
            shapes.iter().map(|shape| self.options(shape)).collect();
        let none = Frontier::default();
        let all = options
            .iter()
            .map(|options| options.as_ref().map_or(&none, |options| &options.frontier));
        let all: Vec<&Frontier> = all.collect();
        let divided = divide(&all, total).unwrap_or_else(|| vec![None; shapes.len()]);
        let chosen = options.iter().zip(divided);
        chosen
            .map(|(options, at)| options.as_ref()?.choices[at?].clone())
            .collect()
    }

    fn fuses(&self) -> bool {
        self.menu.fuses()
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    //! A menu and a kernel for tests.

    use partita_program::{
        Algorithm, Buffer, BufferId, Choice, Dtype, Kernel, KernelShape, Menu, MenuError, Role,
        Taps,
    };
    use partita_space::{Bytes, Seconds};

    /// A usual implementation of 10 ms without workspace, and two that are expected to be as fast as told.
    pub struct Fixed {
        /// Of the two that are not usual.
        pub expected: [f64; 2],
    }

    /// Names of the implementations, the usual one first.
    pub const NAMES: [&str; 3] = ["usual", "small", "large"];
    /// Their workspaces.
    pub const WORKSPACES: [u64; 3] = [0, 1 << 10, 1 << 20];

    impl Menu for Fixed {
        fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
            Ok(self.implementations(shape)?.swap_remove(0))
        }

        fn implementations(&self, _shape: &KernelShape<'_>) -> Result<Vec<Choice>, MenuError> {
            let all = NAMES.into_iter().zip(WORKSPACES);
            let choice = |(name, workspace): (&str, u64)| Choice {
                algorithm: Algorithm(name.to_owned()),
                workspace: Bytes(workspace),
                packed_weights: 0,
            };
            Ok(all.map(choice).collect())
        }

        fn expected(&self, _shape: &KernelShape<'_>, method: &str) -> Option<Seconds> {
            let [small, large] = self.expected;
            let times = NAMES.into_iter().zip([10e-3, small, large]);
            let mut times = times.filter(|(name, _)| *name == method);
            times.next().map(|(_, seconds)| Seconds(seconds))
        }
    }

    /// A convolution with its buffers.
    pub fn convolution() -> (Kernel, Vec<Buffer>) {
        let buffer = |dims| Buffer {
            name: "operand".to_owned(),
            role: Role::Activation,
            dtype: Dtype::F32,
            dims,
            tensor: None,
            offset: Bytes(0),
        };
        let all = [[1, 1, 6, 6, 4], [1, 3, 3, 4, 8], [1, 1, 4, 4, 8]];
        let buffers = all.map(buffer).to_vec();
        let [x, w, y] = [0, 1, 2].map(|id| buffers[id].view(BufferId(id as u32)));
        let taps = Taps {
            kernel: [1, 3, 3],
            stride: [1; 3],
            dilation: [1; 3],
        };
        let kernel = Kernel::ConvolutionForward {
            x,
            w,
            bias: None,
            y,
            taps,
            groups: 1,
            accumulate: false,
        };
        (kernel, buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::{Fixed, WORKSPACES, convolution};
    use super::*;

    /// A menu with these expected and these measured times of a kernel.
    fn menu(
        shape: &KernelShape<'_>,
        expected: [f64; 2],
        measured: &[(&str, f64)],
    ) -> CatalogMenu<'static> {
        let mut catalog = Catalog::default();
        let times = measured.iter();
        let times = times.map(|(name, seconds)| ((*name).to_owned(), Seconds(*seconds)));
        catalog.kernels.insert(shape.signature(), times.collect());
        CatalogMenu::new(Box::new(Fixed { expected }), catalog)
    }

    /// What is chosen within each limit.
    fn chosen(expected: [f64; 2], measured: &[(&str, f64)]) -> [Option<String>; 3] {
        let (kernel, buffers) = convolution();
        let shape = KernelShape {
            kernel: &kernel,
            buffers: &buffers,
        };
        let menu = menu(&shape, expected, measured);
        WORKSPACES.map(|limit| {
            let chosen = menu.fastest_within(&shape, Bytes(limit));
            // As often as it is asked.
            assert_eq!(chosen, menu.fastest_within(&shape, Bytes(limit)));
            let total = menu.divide(&[shape], Bytes(limit)).swap_remove(0);
            assert_eq!(total, chosen);
            chosen.map(|choice| choice.algorithm.0)
        })
    }

    fn names(all: [Option<&str>; 3]) -> [Option<String>; 3] {
        all.map(|name| name.map(str::to_owned))
    }

    #[test]
    fn expected_times_choose_within_the_workspace() {
        let all = names([None, Some("small"), Some("large")]);
        assert_eq!(chosen([5e-3, 4e-3], &[]), all);
        let small = names([None, Some("small"), Some("small")]);
        assert_eq!(chosen([5e-3, 6e-3], &[]), small);
    }

    #[test]
    fn expected_gains_below_the_margin_choose_nothing() {
        assert_eq!(chosen([9.1e-3, 12e-3], &[]), names([None; 3]));
        let large = names([None, None, Some("large")]);
        assert_eq!(chosen([9.1e-3, 8.9e-3], &[]), large);
    }

    #[test]
    fn measured_times_override_expected_ones() {
        let measured = [("usual", 10e-3), ("small", 9e-3), ("large", 11e-3)];
        let small = names([None, Some("small"), Some("small")]);
        assert_eq!(chosen([5e-3, 1e-3], &measured), small);
        let slower = [("usual", 10e-3), ("large", 11e-3)];
        assert_eq!(chosen([5e-3, 1e-3], &slower), names([None; 3]));
        // One time alone compares nothing.
        let alone = names([None, Some("small"), Some("large")]);
        assert_eq!(chosen([5e-3, 1e-3], &[("large", 11e-3)]), alone);
    }

    #[test]
    fn measured_and_expected_times_stand_apart() {
        let (kernel, buffers) = convolution();
        let shape = KernelShape {
            kernel: &kernel,
            buffers: &buffers,
        };
        // The usual one was never tried.
        let tried = menu(&shape, [5e-3, 1e-3], &[("small", 6e-3), ("large", 2e-3)]);
        assert_eq!(tried.measured(&shape, "large"), Some(Seconds(2e-3)));
        assert_eq!(tried.measured(&shape, "usual"), None);
        assert_eq!(tried.expected(&shape, "large"), Some(Seconds(1e-3)));
        assert_eq!(tried.expected(&shape, "usual"), Some(Seconds(10e-3)));
        let alone = menu(&shape, [5e-3, 1e-3], &[("large", 2e-3)]);
        assert_eq!(alone.measured(&shape, "large"), None);
    }
}
