//! The axis order of a weight file: what its metadata or its tensors say, or else what is asked for.

use super::error::WeightsError;
use super::matching::Matching;
use super::pytorch::Layout;
use super::{Selection, WeightFile, WeightNames};
use partita_graph::Graph;

impl WeightFile {
    /// Names and axis order of its tensors.
    ///
    /// Errors: another order than is asked for, both orders fit, axes that the model or the order does not have.
    pub(super) fn layout(
        &self,
        graph: &Graph,
        selection: &Selection,
    ) -> Result<Layout, WeightsError> {
        let pytorch = Layout::pytorch(graph);
        let stated = self.stated_order();
        let asked = selection.order;
        let known = match stated {
            Some(order) => Ok(Some(order)),
            None => self.evident_order((graph, &pytorch), selection)?,
        };
        let order = match (known, asked) {
            (Ok(Some(order)), Some(asked)) if order != asked => {
                return Err(WeightsError::OtherOrder {
                    file: self.path().to_owned(),
                    order,
                    is_stated: stated.is_some(),
                });
            }
            (Ok(Some(order)), _) => order,
            (Ok(None) | Err(BothFit), Some(asked)) => asked,
            (Ok(None), None) => WeightNames::PyTorch,
            // Axes are of PyTorch's files alone.
            (Err(BothFit), None) if selection.axes.is_some() => WeightNames::PyTorch,
            (Err(BothFit), None) => {
                let file = self.path().to_owned();
                return Err(WeightsError::EitherOrder { file });
            }
        };
        match (order, &selection.axes) {
            (WeightNames::Partita, None) => Ok(Layout::Partita),
            (WeightNames::PyTorch, None) => Ok(pytorch),
            (WeightNames::PyTorch, Some(axes)) if axes.0.len() == graph.spatial_rank => {
                Ok(pytorch.along(axes.dims()))
            }
            (_, Some(axes)) => Err(WeightsError::NoAxes {
                file: self.path().to_owned(),
                axes: axes.to_string(),
                reason: match order {
                    WeightNames::Partita => {
                        "it has Partita's axis order, in which kernels lie along D, H and W"
                            .to_owned()
                    }
                    WeightNames::PyTorch => {
                        format!("the model has {} spatial dims", graph.spatial_rank)
                    }
                },
            }),
        }
    }

    /// What its metadata say.
    fn stated_order(&self) -> Option<WeightNames> {
        let stated = self.source.metadata(super::ORDER);
        let names = [WeightNames::Partita, WeightNames::PyTorch];
        let named = names.into_iter().find(|one| Some(one.name()) == stated);
        let has_dims = self.source.metadata(super::DIMS.0).is_some();
        named.or(has_dims.then_some(WeightNames::Partita))
    }

    /// What names and shapes of its tensors say: the order that more of them fit, if some fit one alone.
    ///
    /// Errors: a renaming that fits nothing. Within: tensors fit both orders, which have their values at other places.
    fn evident_order(
        &self,
        (graph, pytorch): (&Graph, &Layout),
        selection: &Selection,
    ) -> Result<Result<Option<WeightNames>, BothFit>, WeightsError> {
        let file = (self.path(), &self.source);
        let layouts = [&Layout::Partita, pytorch];
        let [here, there] = layouts.map(|layout| Matching::new(file, (graph, layout), selection));
        let named = [here.tensors()?.0, there.tensors()?.0];
        let (mut partita_alone, mut pytorch_alone, mut both) = (0, 0, false);
        for parameter in graph.stored_parameters() {
            let fits = [0, 1].map(|at| {
                let stored = named[at].get(&layouts[at].name(parameter));
                let shape = stored.and_then(|stored| self.source.shape(stored));
                shape == Some(layouts[at].shape(parameter))
            });
            match fits {
                [true, false] => partita_alone += 1,
                [false, true] => pytorch_alone += 1,
                [true, true] => {
                    let places: Vec<usize> = (0..parameter.volume()).collect();
                    both |= pytorch.to_partita(parameter, &places) != places;
                }
                [false, false] => {}
            }
        }
        Ok(match (partita_alone, pytorch_alone) {
            (0, 0) if both => Err(BothFit),
            (0, 0) => Ok(self
                .has_vectors_of_five_dims()
                .then_some(WeightNames::Partita)),
            (here, there) if here > there => Ok(Some(WeightNames::Partita)),
            (_, _) => Ok(Some(WeightNames::PyTorch)),
        })
    }

    /// Whether a tensor is a vector as Partita stores them, whatever its layer is named.
    fn has_vectors_of_five_dims(&self) -> bool {
        let names = self.source.names();
        let mut vectors = names.iter().filter(|name| !name.ends_with(".weight"));
        vectors.any(|name| matches!(self.source.shape(name).as_deref(), Some([1, 1, 1, 1, _])))
    }
}

/// Tensors fit both orders.
struct BothFit;
