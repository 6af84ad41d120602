//! The instruction levels at which fast kernels are tested.

use partita_cpu::Level;

/// Restricts the tests of fast kernels to some instruction levels.
const VARIABLE: &str = "PARTITA_TEST_VECTORS";

/// The instruction levels at which tests run the fast kernels: all that the processor has, or those that
/// `PARTITA_TEST_VECTORS` lists, such as `avx2` or `portable,avx2`.
///
/// Panics if the variable names no level, or one that the processor lacks.
pub fn test_levels() -> Vec<Level> {
    match std::env::var(VARIABLE) {
        Ok(list) if !list.is_empty() => parse(&list).unwrap_or_else(|error| panic!("{error}")),
        Ok(_) | Err(_) => Level::all_available().collect(),
    }
}

fn parse(list: &str) -> Result<Vec<Level>, String> {
    let level = |word: &str| {
        let level = Level::named(word.trim()).filter(|level| level.available());
        level.ok_or_else(|| {
            let names: Vec<&str> = Level::all_available().map(Level::name).collect();
            let possible = names.join(", ");
            format!("{VARIABLE}: `{word}` is not possible here; possible are {possible}")
        })
    };
    list.split(',').map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_levels_are_read() {
        let lowest = Level::Portable;
        let highest = Level::detect();
        let list = format!("{}, {}", lowest.name(), highest.name());
        assert_eq!(parse(&list), Ok(vec![lowest, highest]));
        let refusal = parse("portable,sse9").unwrap_err();
        assert!(refusal.contains("`sse9`"), "{refusal}");
        assert!(refusal.contains("portable"), "{refusal}");
    }
}
