use crate::error::CliError;
use partita_graph::Graph;
use partita_lower::Strategy;

/// The strategy that `auto` means: the one with the most of its ranks on the data axis that the model
/// and the mini-batch admit, and the fewest splits of a sample beside it.
///
/// Errors: no strategy of that many ranks fits.
pub fn choose_strategy(graph: &Graph, batch: usize, ranks: usize) -> Result<Strategy, CliError> {
    first_fitting(graph, batch, ranks).ok_or_else(|| {
        let fewer = (1..ranks)
            .rev()
            .find(|&fewer| first_fitting(graph, batch, fewer).is_some());
        CliError::User(format!(
            "strategy = \"auto\": {} with batch = {batch} cannot be split over {ranks} ranks; \
             nearest possible is ranks = {}",
            graph.name,
            fewer.unwrap_or(1)
        ))
    })
}

fn first_fitting(graph: &Graph, batch: usize, ranks: usize) -> Option<Strategy> {
    let splits = |data: usize| {
        let rest = ranks / data;
        divisors(rest).into_iter().flat_map(move |depth| {
            let rest = rest / depth;
            let split = move |height| Strategy::hybrid(data, [depth, height, rest / height]);
            divisors(rest).into_iter().map(split)
        })
    };
    let mut candidates = divisors(ranks).into_iter().flat_map(splits);
    candidates.find(|strategy| strategy.check(graph, batch).is_ok())
}

/// Largest first.
fn divisors(number: usize) -> Vec<usize> {
    (1..=number)
        .rev()
        .filter(|&divisor| number.is_multiple_of(divisor))
        .collect()
}
