//! Suggestions of refused strategies, read from the text that a user sees and typed as it says.

use partita_graph::Graph;
use partita_lower::{Request, SampleFormat, Strategy, StrategyChecks, lower};
use partita_program::{Dtype, Optimizer, ProgramKind, Transform, UnpinnedMenu};

/// Ranks and samples of the largest program that is lowered to see whether a strategy is accepted.
const LOWERED_MAX: usize = 32;

/// What a user types.
#[derive(Clone, Debug, PartialEq)]
pub struct Typed {
    /// The strategy.
    pub strategy: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Samples of the mini-batch.
    pub batch: usize,
}

impl Typed {
    /// Why a training is refused; none where it is accepted.
    pub fn refusal(&self, graph: &Graph) -> Option<String> {
        let strategy: Strategy = match self.strategy.parse() {
            Ok(strategy) => strategy,
            Err(error) => return Some(error.to_string()),
        };
        let checks = StrategyChecks {
            graph,
            ranks: self.ranks,
            batch: self.batch,
            check: &|strategy, batch| strategy.check(graph, batch),
            suits: &|_, _| true,
        };
        if let Err(error) = checks.check(&strategy) {
            return Some(error.to_string());
        }
        if self.ranks.max(self.batch) > LOWERED_MAX {
            return None;
        }
        let request = Request {
            graph,
            strategy: &strategy,
            batch: self.batch,
            kind: ProgramKind::Train,
            dtype: Dtype::F32,
            optimizer: Optimizer::Sgd {
                momentum: 0.9,
                weight_decay: 0.0,
            },
            decay_norms: true,
            ema: None,
            clip: None,
            samples: SampleFormat {
                dtype: Dtype::F32,
                transform: Transform::Identity,
            },
            menu: &UnpinnedMenu,
        };
        lower(&request).err().map(|error| error.to_string())
    }

    /// What a refusal suggests to type instead.
    pub fn suggestions(&self, refusal: &str) -> Vec<Self> {
        if !is_of_word(refusal)
            && let Some(choices) = choices(refusal)
        {
            let one = |choice| self.fitted(choice).unwrap_or_else(|| self.with(choice));
            return choices.split(", or ").map(one).collect();
        }
        self.corrected(refusal).into_iter().collect()
    }

    /// Another strategy for other ranks.
    fn fitted(&self, choice: &str) -> Option<Self> {
        let (strategy, ranks) = choice.split_once("` for ")?;
        Some(Self {
            strategy: strategy.strip_prefix('`')?.to_owned(),
            ranks: ranks.parse().ok()?,
            ..self.clone()
        })
    }

    /// With words in place of others, entries at the end, or another strategy; other ranks, another mini-batch.
    fn with(&self, choice: &str) -> Self {
        let mut typed = self.clone();
        let (strategy, others) = match choice.split_once(" with ") {
            Some((strategy, others)) => (strategy, others),
            None if choice.starts_with("ranks = ") || choice.starts_with("a mini-batch") => {
                ("", choice)
            }
            None => (choice, ""),
        };
        for other in others.split(" and ").filter(|other| !other.is_empty()) {
            if let Some(ranks) = other.strip_prefix("ranks = ") {
                typed.ranks = ranks.parse().expect("a number of ranks");
            } else {
                let batch = other.strip_prefix("a mini-batch of ").expect(choice);
                typed.batch = batch.parse().expect("a number of samples");
            }
        }
        let quoted = strategy.split('`').nth(1);
        match quoted {
            Some(entries) if entries.starts_with(';') => typed.strategy += entries,
            Some(whole) => typed.strategy = whole.to_owned(),
            None => {
                for word in outside(strategy, ',') {
                    typed.strategy = with_word(&typed.strategy, word);
                }
            }
        }
        typed
    }

    /// With the word that is refused corrected.
    fn corrected(&self, refusal: &str) -> Option<Self> {
        let (_, rest) = refusal.split_once("`: ")?;
        let end = |text: &str| text.split('`').next().map(str::to_owned);
        let after = |mark: &str| end(rest.split_once(mark)?.1);
        let first = after("`");
        let mut strategy = self.strategy.clone();
        if let Some(unknown) = after("option `") {
            strategy = in_place(&strategy, &unknown, &after("help: try `")?);
        } else if let Some(example) = after("as in `") {
            // Axes move into the stages.
            let moved = rest
                .split_once("help: write ")
                .and_then(|(_, rest)| rest.split_once(" into "));
            for word in moved.iter().flat_map(|(words, _)| words.split(',')) {
                let (axis, _) = word.split_once('=')?;
                strategy = with_word(&strategy, &format!("{axis}=1"));
            }
            for word in outside(&example, ',') {
                strategy = with_word(&strategy, word);
            }
        } else if rest.contains("so it splits nothing\n") {
            let asked = first?;
            let (dim, _) = asked.split_once('=')?;
            strategy = in_place(&strategy, &asked, &format!("{dim}=-"));
        } else {
            let (layer, near) = (after("no layer `"), after("help: try `")?);
            // Layers are named in stages and behind a semicolon.
            let start = layer.as_ref().and_then(|_| strategy.find(['[', ';']));
            let (head, rest) = strategy.split_at(start.unwrap_or(0));
            strategy = head.to_owned() + &in_place(rest, &layer.or(first)?, &near);
        }
        Some(Self {
            strategy,
            ..self.clone()
        })
    }
}

/// Whether a refusal is of one word, in whose place another stands, and not of a strategy that the checks refuse.
pub fn is_of_word(refusal: &str) -> bool {
    let marks = [
        "option `",
        "no layer `",
        "` is not possible",
        "is not of the form",
        "cannot be set for layers",
    ];
    marks.iter().any(|mark| refusal.contains(mark))
}

/// What a refusal suggests to try.
pub fn choices(refusal: &str) -> Option<&str> {
    let choices = refusal
        .lines()
        .find_map(|line| line.strip_prefix("help: try "))?;
    let (choices, _) = choices
        .split_once("; possible values: ")
        .unwrap_or((choices, ""));
    Some(choices)
}

/// A text with another word in place of the first that is not a part of a longer one.
fn in_place(text: &str, asked: &str, word: &str) -> String {
    let is_part =
        |letter: Option<char>| letter.is_some_and(|one| one.is_alphanumeric() || one == '_');
    let is_whole = |at: &usize| {
        let (before, after) = (&text[..*at], &text[at + asked.len()..]);
        !is_part(before.chars().next_back()) && !is_part(after.chars().next())
    };
    match text.match_indices(asked).map(|(at, _)| at).find(is_whole) {
        Some(at) => [&text[..at], word, &text[at + asked.len()..]].concat(),
        None => text.to_owned(),
    }
}

/// A strategy with a word in place of the one with its key, or behind the others.
fn with_word(strategy: &str, word: &str) -> String {
    if word.is_empty() {
        return strategy.to_owned();
    }
    let key = |word: &str| word.split('=').next().unwrap_or("").trim().to_owned();
    let (head, entries) = outside_once(strategy);
    let mut words: Vec<&str> = outside(head, ',');
    words.retain(|one| key(one) != key(word) && !one.trim().is_empty());
    words.push(word);
    let head = words.join(",");
    entries.map_or(head.clone(), |entries| format!("{head};{entries}"))
}

/// A strategy before and after its first semicolon.
fn outside_once(strategy: &str) -> (&str, Option<&str>) {
    match strategy.split_once(';') {
        Some((head, entries)) => (head, Some(entries)),
        None => (strategy, None),
    }
}

/// Splits a text at a sign, except within brackets.
fn outside(text: &str, sign: char) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        if letter == sign && depth == 0 {
            parts.push(&text[start..at]);
            start = at + 1;
        }
    }
    parts.push(&text[start..]);
    parts
}
