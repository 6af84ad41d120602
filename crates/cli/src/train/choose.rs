use crate::error::CliError;
use partita_graph::Graph;
use partita_lower::Strategy;

/// The strategy that `auto` means: the one with the most of its ranks on the data axis that the model
/// and the mini-batch admit, and the fewest splits of a sample beside it.
///
/// Errors: no strategy of that many ranks fits.
pub fn choose_strategy(graph: &Graph, batch: usize, ranks: usize) -> Result<Strategy, CliError> {
    let mut candidates = Vec::new();
    for data in divisors(ranks) {
        for depth in divisors(ranks / data) {
            for height in divisors(ranks / data / depth) {
                let width = ranks / data / depth / height;
                candidates.push(Strategy::hybrid(data, [depth, height, width]));
            }
        }
    }
    let fits = |strategy: &Strategy| strategy.check(graph, batch).is_ok();
    candidates.into_iter().find(fits).ok_or_else(|| {
        let fewer = (1..ranks)
            .rev()
            .find(|&fewer| choose_strategy(graph, batch, fewer).is_ok());
        CliError::User(format!(
            "strategy = \"auto\": {} with batch = {batch} cannot be split over {ranks} ranks; \
             nearest possible is ranks = {}",
            graph.name,
            fewer.unwrap_or(1)
        ))
    })
}

/// Largest first.
fn divisors(number: usize) -> Vec<usize> {
    (1..=number)
        .rev()
        .filter(|&divisor| number.is_multiple_of(divisor))
        .collect()
}
