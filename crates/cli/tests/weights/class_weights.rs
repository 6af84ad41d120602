//! Weights of classes that follow from the labels of the training split.

use super::{Case, STRATEGIES, case, without_metadata};
use partita_data::{Dataset, Split};
use partita_formats::{DType, Samples};
use serde_json::Value;
use std::fs;

/// Labels of each of three classes in the training split of a dataset.
fn counts(case: &Case, data: &str) -> [u64; 3] {
    let dataset = Dataset::open(case.path(data)).unwrap();
    let mut reader = dataset.reader(Split::Train);
    let (mut labels, mut counts) = (Samples::new(DType::Int16), [0; 3]);
    for sample in 0..dataset.samples(Split::Train) {
        let region = [0..1, 0..8, 0..8, 0..8];
        reader.read_labels(sample, region, &mut labels).unwrap();
        let Samples::I16(labels) = &labels else {
            panic!("labels are int16");
        };
        labels.iter().for_each(|&class| counts[class as usize] += 1);
    }
    counts
}

/// `labels / (classes * count)` in six digits, as a line of a model has them.
fn balanced(counts: &[u64]) -> String {
    let all: u64 = counts.iter().sum();
    let classes = counts.iter().filter(|&&count| count > 0).count() as u64;
    let weights = counts.iter().map(|&count| match count {
        0 => "0".to_owned(),
        count => {
            let weight = all as f64 / (classes * count) as f64;
            let rounded: f64 = format!("{weight:.5e}").parse().unwrap();
            rounded.to_string()
        }
    });
    weights.collect::<Vec<_>>().join(",")
}

/// A run file with this loss.
fn run_file(case: &Case, name: &str, loss: &str, more: &str) -> String {
    let text = format!(
        "loss = \"{loss}\"\nbatch = 2\noverwrite = true\n{more}\n[schedule]\nlearning_rate = 0.01\n"
    );
    case.run_file(&format!("{name}.toml"), name, &text);
    format!("{name}.toml")
}

/// Losses of all epochs of a training, and what it says.
fn train(case: &Case, arguments: &str) -> (Vec<[Value; 2]>, String) {
    let arguments = format!("train {arguments} --no-prediction --json");
    let output = case.output(&arguments.split(' ').collect::<Vec<_>>());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments}: {said}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let epochs = answer["epochs"].as_array().unwrap().iter();
    let losses = epochs.map(|epoch| {
        [
            epoch["training_loss"].clone(),
            epoch["validation"]["loss"].clone(),
        ]
    });
    let losses: Vec<_> = losses.collect();
    assert!(losses.iter().flatten().all(Value::is_number), "{answer}");
    (losses, said)
}

#[test]
fn weights_by_frequency_are_those_of_the_list() {
    let case = case();
    let counts = counts(case, "set");
    let list = balanced(&counts);
    for (word, same) in [
        (
            "softmax_cross_entropy weights=inverse_frequency",
            format!("softmax_cross_entropy weights={list}"),
        ),
        (
            "dice_cross_entropy dice_weights=inverse_frequency cross_entropy_weights=1,2,3",
            format!("dice_cross_entropy dice_weights={list} cross_entropy_weights=1,2,3"),
        ),
    ] {
        let counted = run_file(case, "counted", word, "epochs = 2");
        let listed = run_file(case, "listed", &same, "epochs = 2");
        for (strategy, ranks) in [("data=1", "1")].into_iter().chain(STRATEGIES) {
            let of = |file: &str| {
                let strategy = strategy.replace(' ', "");
                train(
                    case,
                    &format!("{file} --ranks {ranks} --strategy {strategy}"),
                )
            };
            let ((counted, said), (listed, _)) = (of(&counted), of(&listed));
            assert_eq!(counted, listed, "{word} under {strategy}");
            let all: u64 = counts.iter().sum();
            for part in [
                &*list,
                &format!("the {all} labels of the training split of set"),
            ] {
                assert!(said.contains(part), "{part}: {said}");
            }
        }
    }
    let plain = run_file(case, "unweighted", "softmax_cross_entropy", "epochs = 2");
    let counted = "softmax_cross_entropy weights=inverse_frequency";
    let counted = run_file(case, "counted", counted, "epochs = 2");
    assert_ne!(train(case, &plain).0, train(case, &counted).0);
}

/// On other data, and in a training that goes on with other data, weights are those of the training.
#[test]
fn weights_by_frequency_are_kept() {
    let case = case();
    case.answer(
        "data segmentation --out others --volumes 14 --grid 8 --validation 0.36 --test 0.22 --seed 9",
    );
    assert_ne!(counts(case, "set"), counts(case, "others"));
    let list = balanced(&counts(case, "set"));
    let losses = |name: &str, weights: &str| {
        let loss = format!("dice_cross_entropy weights={weights}");
        let file = run_file(case, name, &loss, "epochs = 1");
        train(case, &file);
        let of = |more: &str| {
            let found = case.json(&format!("evaluate {file} --json{more}"));
            found["metrics"]["loss"].clone()
        };
        let evaluated = [of(""), of(" --data others"), of(" --split train")];
        let file = run_file(case, name, &loss, "epochs = 2");
        let text = fs::read_to_string(case.path(&file)).unwrap();
        let text = text.replace("data = \"set\"", "data = \"others\"");
        fs::write(case.path(&file), text).unwrap();
        let (resumed, said) = train(case, &format!("{file} --resume"));
        (evaluated, resumed, said)
    };
    let (counted, listed) = (losses("kept", "inverse_frequency"), losses("given", &list));
    assert_eq!((&counted.0, &counted.1), (&listed.0, &listed.1));
    let said = format!("weights of classes are {list}, of the checkpoint");
    assert!(counted.2.contains(&said), "{}", counted.2);
}

#[test]
fn weights_without_numbers_of_classes_take_those_of_the_run() {
    let case = case();
    let list = balanced(&counts(case, "set"));
    let bare = without_metadata(&fs::read(case.path("out/weights.safetensors")).unwrap());
    fs::write(case.path("foreign.safetensors"), bare).unwrap();
    let evaluate = |name: &str, weights: &str| {
        let loss = format!("softmax_cross_entropy weights={weights}");
        let file = run_file(case, name, &loss, "epochs = 1");
        let arguments = [
            "evaluate",
            &file,
            "--weights",
            "foreign.safetensors",
            "--json",
        ];
        let arguments = arguments.into_iter().chain(["--order", "partita"]);
        let output = case.output(&arguments.collect::<Vec<_>>());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        (answer["metrics"]["loss"].clone(), said)
    };
    let (counted, said) = evaluate("unknown", "inverse_frequency");
    assert_eq!(counted, evaluate("known", &list).0);
    assert!(
        said.contains(&list) && said.contains("split of set"),
        "{said}"
    );
}

/// A class that the loss ignores and one that no label has; costs without data.
#[test]
fn classes_that_do_not_occur_have_weight_0() {
    let case = case();
    let model = |loss: &str| {
        format!(
            "model more\ninput x channels=1 extent=8x8x8\nc = conv x filters=5 kernel=3 pad=1 bias=true\nloss = {loss}\n"
        )
    };
    let [_, one, two] = counts(case, "set");
    let list = balanced(&[0, one, two, 0, 0]);
    let mut losses = Vec::new();
    for weights in ["inverse_frequency", &list] {
        let loss = format!("softmax_cross_entropy c weights={weights} ignore=0");
        fs::write(case.path("more.model"), model(&loss)).unwrap();
        let run = "model = \"more.model\"\ndata = \"set\"\noutput = \"more\"\noverwrite = true\nbatch = 2\nepochs = 1\n\
                   strategy = \"data=1\"\n[schedule]\nlearning_rate = 0.01\n";
        fs::write(case.path("more.toml"), run).unwrap();
        let predict = "predict more.model --ranks 2 --strategy data=2 --batch 4 --machine lassen --no-io --json";
        let figures = case.json(predict);
        losses.push((train(case, "more.toml"), figures["step_seconds"].clone()));
    }
    let [counted, listed] = [&losses[0], &losses[1]];
    assert_eq!(counted.0.0, listed.0.0);
    assert_eq!(counted.1, listed.1);
    let said = &counted.0.1;
    for part in [&*list, "without a label that counts have weight 0: 0, 3, 4"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Labels are counted once, so all losses ignore the same ones.
    let loss = "softmax_cross_entropy c weights=inverse_frequency ignore=0";
    let aux = "c2 = conv x filters=5 kernel=1 bias=true\naux = softmax_cross_entropy c2 weight=0.4 weights=inverse_frequency\nloss =";
    fs::write(case.path("more.model"), model(loss).replace("loss =", aux)).unwrap();
    let text = case.refusal("train more.toml --no-prediction");
    assert!(
        text.contains("`ignore` of losses with `inverse_frequency`") && text.contains("none and 0"),
        "{text}"
    );
    let regression = "mse c weights=inverse_frequency";
    fs::write(case.path("wrong.model"), model(regression)).unwrap();
    let text =
        case.refusal("predict wrong.model --ranks 1 --strategy data=1 --batch 2 --machine lassen");
    assert!(text.contains("of losses of classes"), "{text}");
}
