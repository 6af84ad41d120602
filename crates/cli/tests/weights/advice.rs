//! Advice of refusals and notes of trainings: it is in the words of the user, and the same command accepts it.

use super::case;
use std::fs;

const MODEL: &str = "model plain
input x channels=1 extent=8x8x8
c1 = conv x filters=8 kernel=3 pad=1 bias=true
a1 = relu c1
c2 = conv a1 filters=3 kernel=1 bias=true
loss = softmax_cross_entropy c2
";

/// The number behind a mark.
fn number(text: &str, mark: &str) -> usize {
    let (_, rest) = text.split_once(mark).expect(text);
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn refusals_for_memory_suggest_batches_and_micro_batches_that_fit() {
    let case = case();
    fs::write(case.path("memory.model"), MODEL).unwrap();
    let write = |memory: &str, [batch, accumulate, micro]: [usize; 3]| {
        let text = format!(
            "model = \"memory.model\"\ndata = \"set\"\noutput = \"memory\"\nbatch = {batch}\nepochs = 1\n\
             accumulate = {accumulate}\nmemory = \"{memory}\"\nstrategy = \"data=1,micro={micro}\"\n\
             [schedule]\nlearning_rate = 0.01\n"
        );
        fs::write(case.path("memory.toml"), text).unwrap();
        case.refusal("train memory.toml --no-prediction")
    };
    for [batch, accumulate, micro] in [[6, 1, 2], [6, 1, 1], [3, 2, 1]] {
        let sizes = [batch, accumulate, micro];
        let needed = number(&write("8 KiB", sizes), " (");
        let text = write(&format!("{} KiB", needed * 3 / 4096), sizes);
        let size = number(&text, "nearest by proportion is batch = ");
        assert!(size < batch && size.is_multiple_of(micro), "{text}");
        let more = number(&text, "take `micro=");
        assert!(more > micro && batch % more == 0, "{text}");
        // Neither is refused as a strategy.
        for sizes in [[size, accumulate, micro], [batch, accumulate, more]] {
            let text = write("8 KiB", sizes);
            assert!(text.contains("of memory under"), "{text}");
        }
    }
    let text = write("8 KiB", [2, 1, 2]);
    assert!(!text.contains("take `micro="), "{text}");
}

#[test]
fn notes_of_a_training_are_in_the_words_of_the_run_file() {
    let case = case();
    let run = "overwrite = true\nbatch = 2\naccumulate = 2\nepochs = 1\n[schedule]\nlearning_rate = 0.01\n";
    case.run_file("parts.toml", "parts", run);
    let output = case.output(&["train", "parts.toml", "--no-prediction"]);
    let [said, answer] = [output.stderr, output.stdout].map(|it| String::from_utf8(it).unwrap());
    assert!(output.status.success(), "{said}");
    assert!(said.contains("accumulate = 2: batch norm"), "{said}");
    assert!(!said.contains("micro=2"), "{said}");
    assert!(!answer.contains("median of 0"), "{answer}");
    let text = case.refusal("train parts.toml --no-prediction --strategy atuo");
    assert!(text.contains("help: try `auto`"), "{text}");
}
