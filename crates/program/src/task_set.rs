//! Sets of tasks of one lane, compact for sets that are a prefix of the lane and a few more.

/// Positions in a lane: all before some position, and single ones after it.
///
/// Tasks of exchanges and collectives complete in any order, but those long ago have all completed. So a
/// set for each task of a long program takes little memory, and little time to join.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskSet {
    /// Number of full words of 64 positions at the beginning.
    full: usize,
    /// The words after them.
    words: Vec<u64>,
}

impl TaskSet {
    /// Whether a position is a member.
    pub fn has(&self, position: usize) -> bool {
        let word = position / 64;
        let open = word.checked_sub(self.full);
        let word = open.map_or(u64::MAX, |open| self.words.get(open).copied().unwrap_or(0));
        word >> (position % 64) & 1 == 1
    }

    /// Adds a position.
    pub fn insert(&mut self, position: usize) {
        let Some(open) = (position / 64).checked_sub(self.full) else {
            return;
        };
        if open >= self.words.len() {
            self.words.resize(open + 1, 0);
        }
        self.words[open] |= 1 << (position % 64);
        self.trim();
    }

    /// Adds all members of another set.
    pub fn join(&mut self, other: &Self) {
        if other.full > self.full {
            let gone = (other.full - self.full).min(self.words.len());
            self.words.drain(..gone);
            self.full = other.full;
        }
        let theirs = other.words.iter().skip(self.full - other.full);
        if self.words.len() < theirs.len() {
            self.words.resize(theirs.len(), 0);
        }
        let pairs = self.words.iter_mut().zip(theirs);
        pairs.for_each(|(mine, theirs)| *mine |= theirs);
        self.trim();
    }

    fn trim(&mut self) {
        let full = self
            .words
            .iter()
            .take_while(|&&word| word == u64::MAX)
            .count();
        if full > 0 {
            self.words.drain(..full);
            self.full += full;
        }
    }

    /// Number of words that are stored.
    #[cfg(test)]
    fn kept(&self) -> usize {
        self.words.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::random::SplitMix;
    use std::collections::BTreeSet;

    #[test]
    fn a_set_has_what_was_put_in_and_keeps_only_what_lies_behind_the_first_gap() {
        let mut stream = SplitMix(1);
        let mut draw = |most: u64| stream.bits() % most;
        let mut all = vec![(TaskSet::default(), BTreeSet::new())];
        for _ in 0..2000 {
            let known = &all[draw(all.len() as u64) as usize];
            let (mut set, mut plain) = known.clone();
            for _ in 0..draw(90) {
                let position = draw(400) as usize;
                set.insert(position);
                plain.insert(position);
            }
            let (other, theirs) = &all[draw(all.len() as u64) as usize];
            set.join(other);
            plain.extend(theirs);
            assert!((0..700).all(|position| set.has(position) == plain.contains(&position)));
            all.push((set, plain));
        }
        let mut long = TaskSet::default();
        for position in 0..100_000 {
            long.insert(position);
            assert!(long.kept() <= 1, "{position}");
        }
        assert!(long.has(99_999) && !long.has(100_000));
    }
}
