//! Choices as a user types them.

use super::{Choice, Search};
use crate::{LayerChoice, Strategy};

/// What differs from the refused strategy: words that replace others, entries that follow, else the whole strategy;
/// then other ranks and another mini-batch.
pub(super) fn text_of(search: &Search<'_>, choice: &Choice) -> String {
    let strategy = change(search.strategy, &choice.strategy);
    let ranks = choice.strategy.ranks();
    let ranks = (ranks != search.checks.ranks).then(|| format!("ranks = {ranks}"));
    let batch = choice.batch;
    let batch = (batch != search.checks.batch).then(|| format!("a mini-batch of {batch}"));
    let others: Vec<String> = ranks.into_iter().chain(batch).collect();
    let others = others.join(" and ");
    match (strategy.is_empty(), others.is_empty()) {
        (true, _) => others,
        (false, true) => strategy,
        (false, false) => format!("{strategy} with {others}"),
    }
}

/// What differs between two strategies.
fn change(old: &Strategy, new: &Strategy) -> String {
    let whole = format!("`{new}`");
    let (before, after) = (old.entries(), new.entries());
    let Some(added) = after.strip_prefix(&before[..]) else {
        return whole;
    };
    match (changed_words(&old.words(), &new.words()), added) {
        (Some(words), []) => words,
        (Some(words), added) if words.is_empty() => {
            let entries: String = added.iter().map(|entry| format!("; {entry}")).collect();
            let mut added = new.layers[before.len()..].iter();
            let axes =
                |choice: &LayerChoice| choice.dims.iter().flatten().all(|axes| axes.is_empty());
            let purpose = match (added.all(axes), entries.matches(';').count()) {
                (false, _) => "",
                (true, 1) => " to leave this layer out",
                (true, _) => " to leave these layers out",
            };
            format!("`{entries}`{purpose}")
        }
        _ => whole,
    }
}

/// The words that replace others; none where they cannot.
fn changed_words(old: &[String], new: &[String]) -> Option<String> {
    let key = |word: &String| word.split_once('=').map_or("", |(key, _)| key).to_owned();
    let has = |words: &[String], asked: &str| words.iter().any(|word| key(word) == asked);
    let changed = new.iter().filter(|word| {
        // One rank is `data=1` where nothing else is said.
        !old.contains(word) && (*word != "data=1" || has(old, "data"))
    });
    let mut words: Vec<String> = changed.cloned().collect();
    for word in old.iter().filter(|word| !has(new, &key(word))) {
        words.push(match key(word).as_str() {
            "overlap" => "overlap=on".to_owned(),
            "fuse" => "fuse=on".to_owned(),
            "batch_norm" => "batch_norm=synchronized".to_owned(),
            "shard" => "shard=off".to_owned(),
            "bucket" | "workspace" | "workspace_total" | "stages" | "schedule" => return None,
            axis => format!("{axis}=1"),
        });
    }
    Some(words.join(","))
}
