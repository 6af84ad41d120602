//! Networks that read numbers beside the samples, from a table to predictions.

use super::channels::said;
use super::{Case, case};
use partita_data::{Dataset, Split};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;

const MODEL: &str = "model tabular
input x channels=3 extent=16x16
input t features=2
c1 = conv x filters=4 kernel=3 pad=1
gate = linear t features=4
g1 = multiply c1 gate
p1 = global_average_pool g1
f1 = flatten p1
k1 = concat f1 t
y = linear k1 features=3
loss = softmax_cross_entropy y
";

/// Writes a table with a row for each sample of a dataset.
fn table(case: &Case, name: &str, header: &str, row: impl Fn(usize) -> String) {
    let dataset = Dataset::open(case.path("pictures")).unwrap();
    let mut text = format!("{header}\n");
    let samples = Split::ALL
        .into_iter()
        .flat_map(|split| dataset.names(split));
    for (index, sample) in samples.enumerate() {
        writeln!(text, "{sample},{}", row(index)).unwrap();
    }
    fs::write(case.path(name), text).unwrap();
}

fn run_file(case: &Case, name: &str, more: &str) {
    let text = format!(
        "model = \"tabular.model\"\ndata = \"pictures\"\noutput = \"{name}\"\nbatch = 4\nepochs = 2\n{more}\n\
         [schedule]\nlearning_rate = 0.05\n"
    );
    fs::write(case.path(&format!("{name}.toml")), text).unwrap();
}

fn loss(answer: &Value) -> f64 {
    answer["metrics"]["loss"].as_f64().unwrap()
}

#[test]
fn features_of_a_table_are_trained_and_predicted_with() {
    let case = case();
    fs::write(case.path("tabular.model"), MODEL).unwrap();
    case.answer("data shapes --out pictures --images 24 --size 16 --classes 3 --validation 0.25 --test 0.25");
    run_file(case, "alone", "strategy = \"data=1\"");
    let told = case.refusal("train alone.toml --no-prediction");
    assert!(
        told.contains("`tabular` reads 2 features of each sample; pictures has 0"),
        "{told}"
    );
    assert!(told.contains("partita data features DATASET"), "{told}");

    table(case, "short.csv", "sample,age", |index| index.to_string());
    let text = fs::read_to_string(case.path("short.csv")).unwrap();
    let (kept, last) = text.trim_end().rsplit_once('\n').unwrap();
    fs::write(case.path("short.csv"), kept).unwrap();
    let told = case.refusal("data features pictures --table short.csv");
    let sample = last.split(',').next().unwrap();
    assert!(
        told.contains(&format!("no row for the sample `{sample}`")),
        "{told}"
    );

    let row = |index: usize| format!("{},{},{}", index % 3, index % 5, (index % 4) as f64 / 4.0);
    table(case, "table.csv", "sample,weight,other,age", row);
    let text = case.answer("data features pictures --table table.csv --columns age,weight");
    assert_eq!(text, "24 samples have the features age, weight\n");
    let found = &case.json("data inspect pictures --json")["features"];
    assert_eq!(*found, serde_json::json!(["age", "weight"]));

    let alone = case.json("train alone.toml --no-prediction --json");
    for (name, strategy, ranks) in [
        ("halves", "data=2", 2),
        ("quarters", "height=2,width=2", 4),
        ("stages", "stages=[..p1: 1|f1..: 1],micro=2", 2),
    ] {
        run_file(
            case,
            name,
            &format!("strategy = \"{strategy}\"\nranks = {ranks}"),
        );
        let trained = case.json(&format!("train {name}.toml --no-prediction --json"));
        let [own, other] =
            [&alone, &trained].map(|it| it["epochs"][1]["validation"]["loss"].as_f64().unwrap());
        assert!(
            (own - other).abs() < 1e-5,
            "{strategy}: {other} instead of {own}"
        );
    }
    let own = loss(&case.json("evaluate alone.toml --json"));
    assert_eq!(Some(own), alone["epochs"][1]["validation"]["loss"].as_f64());
    case.answer("infer alone.toml --split test --out pictures.npy");
    let (header, _) = case.array("pictures.npy");
    assert!(header.contains("(6, 3)"), "{header}");

    // In another order of the columns they are read by name.
    case.answer("data features pictures --table table.csv --columns weight,age");
    let (text, found) = said(case, "evaluate alone.toml --json");
    let found: Value = serde_json::from_str(&found).unwrap();
    assert!(
        text.contains("in the order of the weights, by name: age, weight"),
        "{text}"
    );
    assert_eq!(loss(&found), own);
    // Names that differ in case are those of different columns.
    let row = |index: usize| format!("9,{},{}", index % 3, (index % 4) as f64 / 4.0);
    table(case, "case.csv", "sample,Age,weight,age", row);
    case.answer("data features pictures --table case.csv");
    assert_eq!(loss(&case.json("evaluate alone.toml --json")), own);
    // Others are refused, and other values are other results.
    case.answer("data features pictures --table table.csv --columns weight,other");
    let told = case.refusal("evaluate alone.toml");
    assert!(told.contains("features are weight, other"), "{told}");
    table(case, "more.csv", "sample,age,weight", |index| {
        format!("{index},1")
    });
    case.answer("data features pictures --table more.csv");
    assert_ne!(loss(&case.json("evaluate alone.toml --json")), own);
}
