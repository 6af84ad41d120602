//! How volumes are read and written.

use super::{case, nifti, npy};
use std::fs;

/// Instance norms are of tiles, as they were of crops.
#[test]
fn networks_that_span_positions_are_evaluated_by_tiles() {
    let case = case();
    let model = "model normed\ninput x channels=1 extent=4x4x4\n\
                 c1 = conv x filters=4 kernel=3 pad=1 bias=true init=he_normal\n\
                 n1 = instance_norm c1 epsilon=1e-5\na1 = relu n1\n\
                 c2 = conv a1 filters=3 kernel=1 bias=true\nloss = softmax_cross_entropy c2\n";
    fs::write(case.path("normed.model"), model).unwrap();
    let text = "model = \"normed.model\"\ndata = \"set\"\noutput = \"normed\"\nstrategy = \"data=1\"\n\
                transform = { scale = 0.01 }\nbatch = 2\nepochs = 1\n[augmentation]\ncrop = [4, 4, 4]\n\
                [schedule]\nlearning_rate = 0.01\n";
    fs::write(case.path("normed.toml"), text).unwrap();
    let trained = case.json("train normed.toml --no-prediction --json");
    let evaluated = case.json("evaluate normed.toml --json");
    let last = &trained["epochs"][0]["validation"];
    for key in ["loss", "samples", "classification"] {
        assert_eq!(last[key], evaluated["metrics"][key], "{key}");
    }
    let because = "`n1` normalizes over all positions of a sample";
    assert_eq!(evaluated["volumes"], "tiles");
    assert_eq!(evaluated["tiles"]["because"], because);
    let answer = case.answer("evaluate normed.toml");
    let line = format!(
        "tiles       4x4x4, overlap 0.5, gaussian weights; {because}, which `--volumes whole` would change"
    );
    assert!(answer.contains(&line), "{answer}");
    let asked =
        case.json("infer normed.toml --overlap 0.25 --tile-weights middle --out tiles.npy --json");
    assert_eq!(asked["tiles"]["overlap"], 0.25);
    assert_eq!(asked["tiles"]["weights"], "middle");
    assert!(asked["tiles"]["because"].is_null());
    let whole = case.json("evaluate normed.toml --volumes whole --json");
    assert_ne!(whole["metrics"]["loss"], evaluated["metrics"]["loss"]);
    let refused = case.refusal("evaluate normed.toml --overlap 1");
    assert!(
        refused.contains("from 0 to below 1\nhelp: try 0.9"),
        "{refused}"
    );
    let refused = case.refusal("evaluate normed.toml --volumes whole --tile-weights constant");
    assert!(
        refused.contains("`--tile-weights` is of tiles"),
        "{refused}"
    );
    let refused = case.refusal("evaluate run.toml --overlap 0.5");
    assert!(refused.contains("`--volumes whole`"), "{refused}");
}

#[test]
fn predictions_are_written_as_volumes() {
    let case = case();
    let split = "--split test";
    case.answer(&format!("infer run.toml {split} --out volumes.npy"));
    let answer = case.json(&format!("infer run.toml {split} --out volumes.nii --json"));
    let files = answer["files"].as_array().unwrap();
    let samples = answer["samples"].as_u64().unwrap() as usize;
    assert!(samples > 1 && files.len() == samples, "{answer}");
    let (_, expected) = npy(&case.path("volumes.npy"));
    let mut found = Vec::new();
    for file in files {
        let (header, values) = nifti(&case.path(file.as_str().unwrap()));
        let dims: Vec<i16> = header[40..56]
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&w| i16::from_le_bytes(w))
            .collect();
        assert_eq!(dims[..5], [4, 8, 8, 8, 3]);
        // Of no known position.
        assert_eq!(header[252..256], [0; 4]);
        found.extend(values);
    }
    assert!(found == expected, "the same values as NPY");
    let refused = case.refusal(&format!("infer run.toml {split} --out volumes.nrrd"));
    assert!(refused.contains(".nii.gz"), "{refused}");
}
