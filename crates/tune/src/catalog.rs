//! The catalog of measured kernels, from which lowering pins.

use crate::{Frontier, FrontierPoint, Measurements, divide};
use partita_program::{Choice, Configuration, KernelShape, Menu, MenuError};
use partita_space::{Bytes, Seconds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A share of the time that measurements differ by for no reason: a configuration that gains less is not used in
/// place of the usual one.
const GAIN_MIN: f64 = 0.02;

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

    /// Whether no kernel leaves a choice.
    pub fn is_empty(&self) -> bool {
        self.kernels.values().all(|times| times.len() < 2)
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

/// A menu with the measured configurations of a catalog.
pub struct CatalogMenu<'m> {
    menu: Box<dyn Menu + Sync + 'm>,
    catalog: Catalog,
    /// Frontiers by signature, as they were asked for.
    known: Mutex<BTreeMap<String, Arc<Frontier>>>,
}

impl<'m> CatalogMenu<'m> {
    /// The kernels of a menu.
    pub fn new(menu: Box<dyn Menu + Sync + 'm>, catalog: Catalog) -> Self {
        Self {
            menu,
            catalog,
            known: Mutex::default(),
        }
    }

    fn frontier(&self, shape: &KernelShape<'_>) -> Option<Arc<Frontier>> {
        // Only these are cut or have several implementations.
        shape.cut_extents()?;
        let signature = shape.signature();
        if self.catalog.kernels.get(&signature)?.len() < 2 {
            return None;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let frontier = known.entry(signature).or_insert_with_key(|signature| {
            Arc::new(self.catalog.frontier_of(&*self.menu, shape, signature))
        });
        Some(Arc::clone(frontier))
    }

    /// The choice of a point; none if it is what needs no measurement.
    fn choice(&self, shape: &KernelShape<'_>, point: &FrontierPoint) -> Option<Choice> {
        let choice = self.menu.configured(shape, &point.configuration)?;
        let usual = self.menu.choose(shape).ok()?;
        (usual.algorithm != choice.algorithm).then_some(choice)
    }
}

impl Menu for CatalogMenu<'_> {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        self.menu.choose(shape)
    }

    fn implementations(&self, shape: &KernelShape<'_>) -> Result<Vec<Choice>, MenuError> {
        self.menu.implementations(shape)
    }

    fn fastest_within(&self, shape: &KernelShape<'_>, limit: Bytes) -> Option<Choice> {
        let frontier = self.frontier(shape)?;
        let fastest = frontier.fastest_within(limit)?;
        let usual = self.menu.choose(shape).ok()?;
        let times = self.catalog.kernels.get(&shape.signature())?;
        let gains = |time: &Seconds| fastest.seconds.0 < (1.0 - GAIN_MIN) * time.0;
        if usual.workspace <= limit && !times.get(&usual.algorithm.0).is_none_or(gains) {
            return None;
        }
        self.choice(shape, fastest)
    }

    fn divide(&self, shapes: &[KernelShape<'_>], total: Bytes) -> Vec<Option<Choice>> {
        let frontiers: Vec<Option<Arc<Frontier>>> =
            shapes.iter().map(|shape| self.frontier(shape)).collect();
        let none = Frontier::default();
        let all = frontiers
            .iter()
            .map(|frontier| frontier.as_deref().unwrap_or(&none));
        let all: Vec<&Frontier> = all.collect();
        let divided = divide(&all, total).unwrap_or_else(|| vec![None; shapes.len()]);
        let chosen = shapes.iter().zip(all).zip(divided);
        chosen
            .map(|((shape, frontier), at)| self.choice(shape, &frontier.points()[at?]))
            .collect()
    }

    fn fuses(&self) -> bool {
        self.menu.fuses()
    }
}
