//! The ranks of a launch, measured and predicted together.

use crate::budget::MeasuringBudget;
use crate::input::InputSource;
use crate::local_machine::{CalibrationRun, LocalError, LocalMachine};
use crate::machine;
use partita_lower::{Strategy, StrategyError};
use partita_oracle::{Costs, Prediction, predict};
use partita_program::Program;
use partita_site::launch::{Launch, LaunchError};
use partita_site::{RankConfig, Ranks};
use partita_tune::{HostLayout, LinkSizes, LinkTimes};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Chooses a strategy on rank 0 and broadcasts it. If it is open (`is_open`), processes first measure their
/// links together.
///
/// Errors: those of the choice; a failed measurement.
pub fn choose_strategy<E>(
    launch: &Launch<'_>,
    rank_config: RankConfig,
    is_open: bool,
    choose: impl FnOnce(Ranks) -> Result<Strategy, E> + Send,
) -> Result<Strategy, E>
where
    E: Send + From<LaunchError> + From<LocalError> + From<StrategyError>,
{
    let ranks = launch.on_this_host(rank_config)?;
    if !launch.has_processes() {
        return choose(ranks);
    }
    if is_open && ranks.library.is_some() {
        let groups = (2..=ranks.count).collect();
        let wanted = (&groups, LinkSizes::ALL);
        measure_links::<E>(launch, rank_config, &ranks, wanted)?;
    }
    let chosen = launch.choose(|| choose(ranks).map(|strategy| strategy.to_string()))?;
    Ok(chosen.parse::<Strategy>()?)
}

/// Predicts a program with its tasks, on rank 0, measuring within a budget. `None` if the ranks are on several hosts, or too many share
/// its cores for useful measurements.
///
/// Errors: a failed measurement.
pub fn predict_measured<E>(
    launch: &Launch<'_>,
    program: &Program,
    rank_config: RankConfig,
    input: InputSource,
    budget: Arc<MeasuringBudget>,
) -> Result<Option<Prediction>, E>
where
    E: Send + From<LaunchError> + From<LocalError>,
{
    let ranks = launch.on_this_host(rank_config)?;
    if launch.has_processes() {
        if ranks.library.is_none() {
            return Ok(None);
        }
        let wanted = (&program.group_sizes(), LinkSizes::of(program));
        measure_links::<E>(launch, rank_config, &ranks, wanted)?;
    }
    let (context, kernels) = (launch.context(), rank_config.kernels);
    launch.on_first(|| {
        if ranks.count > ranks.most() {
            return Ok(None);
        }
        let mut here = LocalMachine::of(context, kernels, ranks, input)?.within(budget);
        Ok(Some(here.predict(program, true)?))
    })
}

/// Predicts a program with its tasks by the costs of a machine file, on rank 0.
///
/// Errors: a missing cost.
pub fn predict_described<E>(
    launch: &Launch<'_>,
    program: &Program,
    costs: &dyn Costs,
) -> Result<Option<Prediction>, E>
where
    E: Send + From<LaunchError> + From<LocalError>,
{
    launch.on_first(|| {
        let mode = machine::mode(costs, program.mesh.ranks());
        let predicted = predict(program, costs, mode, 1, true);
        Ok(Some(predicted.map_err(LocalError::Simulate)?))
    })
}

/// Measures the ranks of this host anew, and the network where there are several hosts; rank 0 gets the result.
/// `ranks` are those of [`Launch::calibrated_ranks`]. All ranks call [`Launch::close`] afterwards.
///
/// Errors: a failed measurement; too many ranks on a host.
pub fn calibrate<E>(
    launch: &Launch<'_>,
    rank_config: RankConfig,
    (ranks, layout): (&Ranks, HostLayout),
    programs: &[Program],
    passes: usize,
) -> Result<Option<CalibrationRun>, E>
where
    E: Send + From<LaunchError> + From<LocalError>,
{
    let (context, kernels) = (launch.context(), rank_config.kernels);
    let local = || LocalMachine::of(context, kernels, ranks.clone(), InputSource::FileSystem);
    if !launch.has_processes() {
        return Ok(Some(local()?.calibrate(programs, None, passes)?));
    }
    if launch.is_first() {
        launch.prepare(|| {
            context.before_measuring();
            Ok::<_, E>(())
        })?;
    }
    let groups = layout.groups_on_a_host();
    let by = (kernels, ranks.threads);
    let links = launch.measure_links((&groups, LinkSizes::ALL), &LinkTimes::default(), by)?;
    let network = launch.measure_network(layout, by)?;
    if !launch.is_first() {
        return Ok(None);
    }
    launch.prepare(|| {
        let mut found = local()?.calibrate(programs, Some(links), passes)?;
        found.add_network(&network)?;
        Ok::<_, E>(Some(found))
    })
}

/// Measures messages and collectives of all processes, for groups of these sizes that are not measured yet up to so
/// many bytes.
/// Rank 0 keeps the times.
fn measure_links<E>(
    launch: &Launch<'_>,
    rank_config: RankConfig,
    ranks: &Ranks,
    (groups, sizes): (&BTreeSet<usize>, LinkSizes),
) -> Result<(), E>
where
    E: Send + From<LaunchError> + From<LocalError>,
{
    let (context, kernels) = (launch.context(), rank_config.kernels);
    // Another process may hold the lock of the cache for longer than the others wait.
    let open = || {
        let here = LocalMachine::of(context, kernels, ranks.clone(), InputSource::FileSystem)?;
        if !here.links().has_all(ranks.count, groups, sizes) {
            context.before_measuring();
        }
        Ok::<_, E>(here)
    };
    let here = launch.is_first().then(|| launch.prepare(open));
    let here = here.transpose()?;
    let known = here.as_ref().map(LocalMachine::links).unwrap_or_default();
    let found = launch.measure_links((groups, sizes), &known, (kernels, ranks.threads))?;
    let Some(mut here) = here else {
        return Ok(());
    };
    launch.prepare(|| {
        here.keep_links(found);
        Ok::<_, E>(())
    })
}
