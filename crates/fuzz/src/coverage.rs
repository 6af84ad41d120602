//! Coverage feedback: whether an input reached something new.
//!
//! With `RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3
//! -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"`, which stable compilers take, LLVM counts how
//! often each edge of the control flow is taken. Without these flags there are no counters, and the
//! texts of errors are the feedback.
//! Source: <https://clang.llvm.org/docs/SanitizerCoverage.html>, inline 8-bit counters.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Mutex;

/// Counters that are tested together.
const WORD: usize = 64;

/// The counters of the program: start and end addresses for each linked section.
static SECTIONS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Called before `main` by instrumented programs.
///
/// # Safety
///
/// `start` and `stop` enclose counters that live as long as the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let section = (start as usize, stop as usize);
    if let Ok(mut sections) = SECTIONS.lock()
        && section.0 < section.1
        && !sections.contains(&section)
    {
        sections.push(section);
    }
}

/// Coverage so far.
pub(crate) struct Seen {
    /// For each counter, the classes of counts seen, one bit each.
    classes: Vec<u8>,
    refusals: HashSet<u64>,
    /// Pairs of an edge and a class of counts.
    pub(crate) features: usize,
}

impl Seen {
    pub(crate) fn new() -> Self {
        Self {
            classes: vec![0; counters().map(<[u8]>::len).sum()],
            refusals: HashSet::new(),
            features: 0,
        }
    }

    /// Whether edges are counted.
    pub(crate) fn is_instrumented(&self) -> bool {
        !self.classes.is_empty()
    }

    /// Adds the coverage of an input; true if any of it is new.
    pub(crate) fn take(&mut self, refusal: Option<&str>) -> bool {
        let mut is_new = false;
        let mut first = 0;
        for section in counters() {
            // Almost all counters are zero, so words of zeros are skipped.
            for (word, counts) in section.chunks(WORD).enumerate() {
                // Branch-free, so that it vectorizes.
                if counts.iter().fold(0, |any, &count| any | count) == 0 {
                    continue;
                }
                for (position, &count) in counts.iter().enumerate() {
                    let classes = &mut self.classes[first + word * WORD + position];
                    let class = class(count);
                    if class & !*classes != 0 {
                        *classes |= class;
                        self.features += 1;
                        is_new = true;
                    }
                }
            }
            first += section.len();
        }
        if !self.is_instrumented()
            && let Some(text) = refusal
            && self.refusals.insert(wording(text))
        {
            self.features += 1;
            is_new = true;
        }
        is_new
    }
}

/// Sets all counters to zero.
pub(crate) fn reset() {
    let sections = SECTIONS.lock().map(|sections| sections.clone());
    for (start, stop) in sections.unwrap_or_default() {
        // SAFETY: the section was registered by `__sanitizer_cov_8bit_counters_init`. Counters are plain
        // bytes that instrumented code of other threads may increment concurrently; at worst a count is lost.
        unsafe { std::ptr::write_bytes(start as *mut u8, 0, stop - start) };
    }
}

fn counters() -> impl Iterator<Item = &'static [u8]> {
    let sections = SECTIONS
        .lock()
        .map(|sections| sections.clone())
        .unwrap_or_default()
        .into_iter();
    sections.map(|(start, stop)| {
        // SAFETY: as in `reset`.
        unsafe { std::slice::from_raw_parts(start as *const u8, stop - start) }
    })
}

/// The class of a count, a bit: 1, 2, 3, 4 to 7, 8 to 15, 16 to 31, 32 to 127, 128 and more.
fn class(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 4,
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        128..=255 => 128,
    }
}

/// Hash of an error text without digits and quoted parts.
fn wording(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (position, part) in text.split(['`', '"']).enumerate() {
        if position % 2 == 0 {
            let plain = part.chars().filter(|letter| !letter.is_ascii_digit());
            plain.for_each(|letter| letter.hash(&mut hasher));
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_differ_by_wording_and_not_by_what_they_quote() {
        assert_eq!(
            wording("line 3: `a` is no key"),
            wording("line 14: `b` is no key")
        );
        assert_ne!(
            wording("line 3: `a` is no key"),
            wording("line 3: `a` is no value")
        );
    }

    #[test]
    fn counts_of_a_class_are_one_feature() {
        assert_eq!(class(0), 0);
        assert_eq!(class(4), class(7));
        assert_ne!(class(7), class(8));
        let bits = [1, 2, 3, 4, 8, 16, 32, 128].map(class);
        assert_eq!(bits.iter().fold(0, |all, bit| all | bit), 255);
    }
}
