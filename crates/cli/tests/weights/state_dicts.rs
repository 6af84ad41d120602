//! Weights by name: what PyTorch's wrappers, tied layers and norms without parameters make of the names in a file.

use super::{Case, MODEL, case};
use partita_weights::state_dict::{load, save};
use partita_weights::{Tensor, Values};
use std::fs;

impl Case {
    /// A file of tensors in PyTorch's names, of those of another and more.
    fn derive(&self, from: &str, to: &str, change: impl FnOnce(&mut Vec<(String, Tensor)>)) {
        let found = load(self.path(from)).unwrap();
        let mut tensors: Vec<(String, Tensor)> = found.floats.tensors.into_iter().collect();
        change(&mut tensors);
        save(self.path(to), &tensors, &[], found.floats.metadata).unwrap();
    }

    /// Evaluates weights on the validation split: what is said, and the loss.
    fn evaluated(&self, arguments: &str) -> (String, f64) {
        let arguments = format!("evaluate {arguments} --json");
        let output = self.output(&arguments.split(' ').collect::<Vec<_>>());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{arguments}: {said}");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (said, json["metrics"]["loss"].as_f64().unwrap())
    }

    /// A run file of a training of one epoch, and what it says.
    fn start(&self, model: &str, weights: &str) -> String {
        let more = format!(
            "overwrite = true\nbatch = 2\nepochs = 1\n[schedule]\nlearning_rate = 0.01\n{weights}\n"
        );
        let name = format!("start-{model}.toml");
        self.run_file(&name, &format!("start-{model}"), &more);
        let text = fs::read_to_string(self.path(&name)).unwrap();
        let text = text.replace("small.model", &format!("{model}.model"));
        fs::write(self.path(&name), text).unwrap();
        let output = self.output(&["train", &name, "--no-prediction"]);
        String::from_utf8(output.stderr).unwrap()
    }
}

fn prefixed(prefix: &str) -> impl Fn(&mut Vec<(String, Tensor)>) {
    move |tensors| {
        for (name, _) in tensors {
            *name = format!("{prefix}{name}");
        }
    }
}

fn one(name: &str) -> (String, Tensor) {
    let (shape, values) = (vec![3], Values::F32(vec![1.0; 3]));
    (name.to_owned(), Tensor { shape, values })
}

#[test]
fn prefixes_of_wrappers_are_dropped_where_all_names_then_fit() {
    let case = case();
    case.answer("weights export run.toml --out unwrapped.safetensors");
    let (said, loss) = case.evaluated("run.toml");
    assert!(!said.contains("tensors of the model"), "{said}");
    for prefix in ["module.", "_orig_mod.module.", "model."] {
        case.derive(
            "unwrapped.safetensors",
            "wrapped.safetensors",
            prefixed(prefix),
        );
        let (said, same) = case.evaluated("run.toml --weights wrapped.safetensors");
        assert_eq!(same, loss);
        assert!(
            said.contains(&format!("the prefix `{prefix}` of its names was dropped")),
            "{said}"
        );
        let import = "weights import wrapped.safetensors --model small.model --out own.safetensors";
        assert!(
            case.answer(import)
                .contains("7 of the 7 tensors of the model are loaded; 0 of the file are left")
        );
        let [own, out] = ["own.safetensors", "out/weights.safetensors"]
            .map(|name| load(case.path(name)).unwrap());
        assert_eq!(own.floats.tensors, out.floats.tensors);
    }
    // What Lightning keeps besides is told, and skipped.
    case.derive("unwrapped.safetensors", "more.safetensors", |tensors| {
        prefixed("model.")(tensors);
        tensors.extend([one("criterion.weight"), one("metric.total")]);
    });
    let text = case.refusal("evaluate run.toml --weights more.safetensors");
    assert!(text.contains("`--rename model=` takes it"), "{text}");
    let skipped = "run.toml --weights more.safetensors --skip criterion.* --skip *.total";
    let (said, same) = case.evaluated(skipped);
    assert_eq!(same, loss);
    assert!(said.contains("2 of the file are left"), "{said}");
    let renamed = "run.toml --weights more.safetensors --skip criterion.weight --skip metric.total --rename model=";
    assert_eq!(case.evaluated(renamed).1, loss);
    let text = case.refusal("evaluate run.toml --skip c1.weight");
    assert!(
        text.contains("`--skip c1.weight`: the model needs it"),
        "{text}"
    );
    let text = case.refusal("evaluate run.toml --rename c1");
    assert!(text.contains("help: try `c1=`"), "{text}");
}

#[test]
fn a_training_says_what_it_takes_and_refuses_to_take_nothing() {
    let case = case();
    case.answer("weights export run.toml --out took.safetensors");
    case.derive(
        "took.safetensors",
        "parallel.safetensors",
        prefixed("module."),
    );
    let table = |file: &str, more: &str| format!("[weights]\nfile = \"{file}\"\n{more}");
    let start = |more: &str| case.start("small", &table("parallel.safetensors", more));
    let all =
        "parallel.safetensors: 7 of the 7 tensors of the model are loaded; 0 of the file are left";
    let said = start("rename = { \"module\" = \"\" }");
    assert!(said.contains(all) && !said.contains("prefix"), "{said}");
    let said = start("new = [\"*\"]");
    assert!(
        said.contains(all) && said.contains("the prefix `module.`"),
        "{said}"
    );
    let said = start("skip = [\"*2*\"]");
    assert!(said.contains("5 of the 7 tensors of the model are loaded, 2 keep initial values; 2 of the file are left"), "{said}");
    let said = start("skip = [\"*\"]");
    assert!(said.contains("no tensor is loaded, 7 are left"), "{said}");
    let said = start("skip = [\"*\"]\ninitial = true");
    assert!(
        said.contains("0 of the 7 tensors of the model are loaded, 7 keep initial values"),
        "{said}"
    );
    let said = start("rename = { \"module\" = \"\", \"module.c1\" = \"c2\" }");
    assert!(
        said.contains("both `module.c1.weight` and `module.c2.weight` would be `c2.weight`"),
        "{said}"
    );

    let wide = MODEL.replace(
        "c2 = conv a1",
        "c4 = conv a1 filters=4 kernel=1 bias=true\nn4 = layer_norm c4 epsilon=1e-5\nc2 = conv n4",
    );
    fs::write(case.path("deep.model"), wide).unwrap();
    let start = |more: &str| case.start("deep", &table("took.safetensors", more));
    let said = start("");
    for part in [
        "`c4.weight`",
        "also missing: `c4.bias`, `n4.weight`, `n4.bias`",
        "`new = [\"c4*\", \"n4*\"]`",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let said = start("new = [\"*4*\"]");
    assert!(
        said.contains("7 of the 11 tensors of the model are loaded, 4 keep"),
        "{said}"
    );
    let import = "weights import took.safetensors --model deep.model --out x.safetensors";
    assert!(
        case.refusal(import)
            .contains("in `[weights]` of a training `new = [")
    );
}

#[test]
fn tied_weights_have_the_names_of_all_their_layers() {
    let case = case();
    let model = MODEL.replace(
        "c2 = conv a1",
        "t1 = conv a1 filters=4 kernel=3 pad=1 bias=true\nt2 = conv t1 filters=4 kernel=3 pad=1 bias=true \
         weight=t1.weight\nc2 = conv t2",
    );
    fs::write(case.path("tied.model"), model).unwrap();
    case.start("tied", "");
    case.answer("weights export start-tied.toml --out tied.safetensors");
    let tensors = load(case.path("tied.safetensors")).unwrap().floats.tensors;
    assert_eq!(tensors["t1.weight"], tensors["t2.weight"]);
    let (_, loss) = case.evaluated("start-tied.toml");
    case.derive("tied.safetensors", "one.safetensors", |tensors| {
        tensors.retain(|(name, _)| name != "t1.weight")
    });
    for file in ["tied", "one"] {
        assert_eq!(
            case.evaluated(&format!("start-tied.toml --weights {file}.safetensors"))
                .1,
            loss
        );
    }
    case.derive("tied.safetensors", "untied.safetensors", |tensors| {
        let (_, tensor) = tensors
            .iter_mut()
            .find(|(name, _)| name == "t2.weight")
            .unwrap();
        let Values::F32(values) = &mut tensor.values else {
            panic!("weights are in f32")
        };
        values[5] += 1.0;
    });
    let text = case.refusal("evaluate start-tied.toml --weights untied.safetensors");
    assert!(
        text.contains("`t1.weight` and `t2.weight` differ"),
        "{text}"
    );
    assert_eq!(
        case.evaluated("start-tied.toml --weights untied.safetensors --skip t2.weight")
            .1,
        loss
    );
    let text = case.refusal("evaluate start-tied.toml --weights tied.safetensors --skip t1.weight");
    for part in [
        "shares this tensor under the names t1.weight, t2.weight",
        "the file has it as `t2.weight`",
        "`--skip t2.weight` leaves it out",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

const PLAIN: &str = "model plain
input x channels=1 extent=8x8x8
c1 = conv x filters=4 kernel=3 pad=1 bias=false
n1 = batch_norm c1 epsilon=1e-5 momentum=0.1 affine=false
c2 = conv n1 filters=4 kernel=3 pad=1 bias=true
n2 = instance_norm c2 epsilon=1e-5 affine=false
c3 = conv n2 filters=4 kernel=1 bias=true
n3 = group_norm c3 groups=2 epsilon=1e-5 affine=false
n4 = layer_norm n3 epsilon=0.01 bias=false
n5 = layer_norm n4 epsilon=0.01 affine=false
c4 = conv n5 filters=3 kernel=1 bias=true
loss = softmax_cross_entropy c4
";

/// A norm without scale and offset trains as one whose scale is frozen at 1 and whose offset is at 0, and no file has
/// them.
#[test]
fn norms_without_parameters_are_those_of_pytorchs_affine_false() {
    let case = case();
    let affine = PLAIN
        .replace(" affine=false", "")
        .replace(" bias=false\nn5", "\nn5");
    fs::write(case.path("plain.model"), PLAIN).unwrap();
    fs::write(case.path("affine.model"), affine).unwrap();
    let frozen =
        "freeze_statistics = false\nfreeze = [\"n1\", \"n2\", \"n3\", \"n4.beta\", \"n5\"]\n";
    let train = |model: &str, epochs: usize, more: &str, resume: &str| {
        let run = format!(
            "model = \"{model}.model\"\ndata = \"set\"\noutput = \"{model}\"\ntransform = {{ scale = 0.01 }}\nbatch = 2\n\
             strategy = \"depth=2,shard=parameters\"\nranks = 2\nepochs = {epochs}\n{more}[schedule]\nlearning_rate = 0.01\n[checkpoint]\nevery_epochs = 1\n"
        );
        fs::write(case.path(&format!("{model}.toml")), run).unwrap();
        case.json(&format!(
            "train {model}.toml --no-prediction --json{resume}"
        ))
    };
    let (plain, full) = (train("plain", 2, "", ""), train("affine", 2, frozen, ""));
    let losses =
        |run: &serde_json::Value| [0, 1].map(|at| run["epochs"][at]["validation"]["loss"].clone());
    assert_eq!(losses(&plain), losses(&full));
    assert!(plain["epochs"][1]["validation"]["loss"].is_f64());
    let again = train("plain", 3, "", " --resume");
    assert_eq!(losses(&again), losses(&plain));

    case.answer("weights export affine.toml --out affine.safetensors");
    case.answer("weights export plain.toml --out plain.safetensors");
    let names = |file: &str| {
        load(case.path(file))
            .unwrap()
            .floats
            .tensors
            .into_keys()
            .collect::<Vec<_>>()
    };
    let own = names("plain.safetensors");
    assert_eq!(
        own,
        [
            "c1.weight",
            "c2.bias",
            "c2.weight",
            "c3.bias",
            "c3.weight",
            "c4.bias",
            "c4.weight",
            "n1.running_mean",
            "n1.running_var",
            "n4.weight"
        ]
    );
    let is_own = |name: &String| {
        !name.starts_with('n') || name.ends_with("gamma") || name.contains("running")
    };
    assert!(names("plain/weights.safetensors").iter().all(is_own));
    // As PyTorch writes them.
    case.derive("affine.safetensors", "torch.safetensors", |tensors| {
        tensors.retain(|(name, _)| own.contains(name));
    });
    let (_, loss) = case.evaluated("affine.toml");
    assert_eq!(
        case.evaluated("plain.toml --weights torch.safetensors").1,
        loss
    );
}

/// What is asked for of a list of files need fit one of them only.
#[test]
fn names_and_axes_are_asked_for_of_the_files_that_have_them() {
    let case = case();
    case.answer("weights export run.toml --out listed.safetensors");
    case.derive("listed.safetensors", "other.safetensors", |tensors| {
        for (name, _) in tensors.iter_mut() {
            *name = name.replace("c1.", "conv.");
        }
        tensors.push(one("criterion.weight"));
    });
    let (_, loss) = case.evaluated("run.toml");
    let list = "run.toml --weights out,other.safetensors";
    let more = format!("{list} --rename conv=c1 --skip criterion.* --axes DHW");
    let (said, same) = case.evaluated(&more);
    assert!((same / loss - 1.0).abs() < 1e-6, "{same} {loss}");
    assert!(said.contains("1 of the file are left"), "{said}");
    let fitting = "--rename conv=c1 --skip criterion.*";
    for (more, expected) in [
        (
            format!("{list} {fitting} --skip metric.*"),
            "`skip` names `metric.*`, which fits no tensor, and none of the other file",
        ),
        (
            format!("{list} {fitting} --rename conv2=c2"),
            "`rename` names `conv2`, which fits no tensor, and none of the other file",
        ),
        (
            "run.toml --weights out,out,out --skip metric.*".to_owned(),
            "and none of the 2 other files",
        ),
        (
            "run.toml --weights out,out --axes WHD".to_owned(),
            "the axes WHD are of no use",
        ),
        // A file that lacks a tensor is told of itself.
        (format!("{list} --skip criterion.*"), "other.safetensors"),
    ] {
        let told = case.refusal(&format!("evaluate {more}"));
        assert!(told.contains(expected), "{more}: {told}");
    }
}
