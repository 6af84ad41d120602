//! Trainings from the library, without a file.

use super::command::{MODEL, TARGETS, case, samples};
use crate::train::{
    EndReason, OffloadConfig, PredictionChoice, Processes, ResumeFrom, SampleOptions, TrainConfig,
    TrainData, TrainError, TrainRequest, Trained, Trainer, train,
};
use partita_data::{
    Answers, ArraySource, Dataset, SampleSource, SourceError, SourceTargets, Split, SplitArrays,
};
use partita_forecast::model::TrainModel;
use partita_formats::{DType, Samples};
use partita_input::CheckScope;
use partita_program::Transform;
use partita_session::LearningRateSchedule;
use partita_site::{Context, Environment, ErrorKind, Fault, full_text};
use partita_testkit::not_run;
use partita_weights::{self as weights, Values};
use std::fs;
use std::ops::{ControlFlow, Range};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// The samples of the dataset of [`case`].
fn arrays() -> ArraySource {
    let splits = [(Split::Train, 0..10), (Split::Validation, 10..15)];
    let splits = splits.map(|(split, universes)| {
        let (mut voxels, mut numbers) = (Vec::new(), Vec::new());
        for universe in universes {
            let (more, unit) = samples(universe);
            voxels.extend(more);
            numbers.extend(unit);
        }
        let arrays = SplitArrays {
            volumes: Samples::I16(voxels),
            answers: Answers::Numbers(numbers),
        };
        (split, arrays)
    });
    let targets = TARGETS.map(str::to_owned).to_vec();
    ArraySource::new([2, 4, 4, 4], SourceTargets::Numbers(targets), splits).unwrap()
}

/// The configuration of the run file of [`case`].
fn config(ranks: usize, strategy: &str) -> TrainConfig {
    TrainConfig {
        batch: 4,
        epochs: 6,
        ranks,
        strategy: strategy.to_owned(),
        kernels: partita_site::kernel_set::KernelSet::REFERENCE,
        samples: SampleOptions {
            transform: Transform::Scale { factor: 0.5 },
            ..SampleOptions::as_stored()
        },
        schedule: LearningRateSchedule::Constant { rate: 0.01 },
        ..TrainConfig::default()
    }
}

fn context() -> Context {
    Context::new(Environment::default())
}

fn trained(trainer: &Trainer) -> Result<Trained, TrainError> {
    Ok(trainer.train(&context())?.expect("ranks are threads"))
}

fn trainer(ranks: usize, strategy: &str) -> Trainer {
    let model = TrainModel::of_text(MODEL).unwrap();
    Trainer::new(model, arrays(), config(ranks, strategy))
}

/// The losses of all epochs, as bits.
fn losses(trained: &Trained) -> Vec<[u64; 2]> {
    let epochs = trained.result.epochs.iter();
    let validation = |epoch: &crate::EpochResult| epoch.validation.as_ref().unwrap().loss;
    let pairs = epochs.map(|epoch| [epoch.training_loss, validation(epoch)]);
    pairs.map(|pair| pair.map(f64::to_bits)).collect()
}

#[test]
fn a_context_can_be_kept_by_anyone() {
    fn is_owned<T: Send + Sync + 'static>() {}
    is_owned::<Context>();
}

#[test]
fn arrays_train_bit_for_bit_as_a_run_file_and_a_stored_dataset() {
    for (ranks, strategy) in [
        (1, "data=1"),
        (2, "depth=2"),
        (2, "data=2"),
        (4, "data=2,height=2"),
    ] {
        let (count, quoted) = (format!("ranks = {ranks}"), format!("\"{strategy}\""));
        let folder = case(&[("ranks = 2", &count), ("\"depth=2\"", &quoted)]);
        let request = TrainRequest {
            run_file: folder.path().join("run.toml"),
            prediction: PredictionChoice::Never,
            ..TrainRequest::default()
        };
        let of_file = train(&context(), &request).unwrap().unwrap();
        let of_arrays = trained(&trainer(ranks, strategy)).unwrap();
        assert_eq!(losses(&of_arrays), losses(&of_file), "{strategy}");
        assert_eq!(of_arrays.result.digest, of_file.result.digest);
        let stored = weights::load(folder.path().join("out/weights.safetensors")).unwrap();
        assert_eq!(of_arrays.weights.len(), stored.tensors.len());
        for own in &of_arrays.weights {
            let tensor = &stored.tensors[&own.name];
            assert_eq!(
                (&own.shape, &own.values),
                (&tensor.shape, &tensor.values),
                "{}",
                own.name
            );
        }
        assert!(of_file.weights.is_empty());
        assert_eq!(
            (
                &of_arrays.result.files.weights,
                &of_arrays.result.files.result
            ),
            (&None, &None)
        );
    }
}

#[test]
fn strategies_train_as_one_rank_does() {
    let one = trained(&trainer(1, "data=1")).unwrap();
    let strategies = [
        ("depth=2", 2),
        ("width=2", 2),
        ("data=2", 2),
        ("data=2,height=2", 4),
        ("stages=[1|1]", 2),
    ];
    for (strategy, ranks) in strategies {
        let split = trained(&trainer(ranks, strategy));
        let split = split.unwrap_or_else(|error| panic!("{strategy}: {}", full_text(&error)));
        for (a, b) in one.result.epochs.iter().zip(&split.result.epochs) {
            let ratio = a.training_loss / b.training_loss;
            assert!((ratio - 1.0).abs() < 1e-3, "{strategy}: {ratio}");
        }
    }
}

#[test]
fn an_output_folder_gets_the_files_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let stored = case(&[]);
    let dataset = Dataset::open(stored.path().join("set")).unwrap();
    let model = TrainModel::of_text(MODEL).unwrap();
    let on_disk = Trainer::new(model, dataset, config(2, "depth=2")).output(&out);
    let on_disk = trained(&on_disk).unwrap();
    let file = on_disk.result.files.weights.clone().unwrap();
    assert!(on_disk.weights.is_empty() && fs::exists(&file).unwrap());
    assert!(out.join("checkpoints").is_dir() && out.join("result.json").is_file());
    assert_eq!(
        losses(&on_disk),
        losses(&trained(&trainer(2, "depth=2")).unwrap())
    );
}

/// There is no folder to look in, and a start from the beginning is not what was asked for.
#[test]
fn the_newest_checkpoint_of_no_folder_is_refused() {
    let newest = trainer(1, "data=1").resuming(ResumeFrom::Newest);
    let text = full_text(&trained(&newest).unwrap_err());
    assert!(
        text.contains("no output folder that could hold one"),
        "{text}"
    );
    let whatever = trainer(1, "data=1").resuming(ResumeFrom::Auto);
    assert_eq!(losses(&trained(&whatever).unwrap()).len(), 6);
}

#[test]
fn a_callback_gets_each_epoch_and_ends_the_training() {
    let whole = trained(&trainer(2, "depth=2")).unwrap();
    let seen: Arc<Mutex<Vec<f64>>> = Arc::default();
    let noted = Arc::clone(&seen);
    let stopped = trainer(2, "depth=2").on_epoch(move |epoch| {
        noted
            .lock()
            .unwrap()
            .push(epoch.validation.as_ref().unwrap().loss);
        if epoch.epoch == 2 {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    let stopped = trained(&stopped).unwrap();
    assert_eq!(losses(&stopped), losses(&whole)[..2]);
    let bits: Vec<u64> = seen
        .lock()
        .unwrap()
        .iter()
        .map(|loss| loss.to_bits())
        .collect();
    let expected: Vec<u64> = losses(&stopped).iter().map(|pair| pair[1]).collect();
    assert_eq!(bits, expected);
    let end = stopped.result.ended_early.as_ref().unwrap();
    assert_eq!((end.epoch, end.reason), (2, EndReason::Callback));
    assert!(!stopped.weights.is_empty() && whole.result.ended_early.is_none());
    let values = |of: &Trained| match &of.weights[0].values {
        Values::F32(values) => values.clone(),
        Values::F64(values) => values.iter().map(|&value| value as f32).collect(),
    };
    assert_ne!(
        values(&stopped),
        values(&whole),
        "four epochs more change the weights"
    );
}

/// Fails at a sample.
struct Failing(ArraySource);

impl SampleSource for Failing {
    fn name(&self) -> &str {
        "camera"
    }

    fn samples(&self, split: Split) -> usize {
        self.0.samples(split)
    }

    fn shape(&self) -> [usize; 4] {
        self.0.shape()
    }

    fn dtype(&self) -> DType {
        self.0.dtype()
    }

    fn targets(&self) -> SourceTargets {
        self.0.targets()
    }

    fn read_volume(
        &self,
        of: (Split, usize),
        region: &[Range<usize>; 4],
        out: &mut Samples,
    ) -> Result<(), SourceError> {
        match of {
            (Split::Train, 7) => Err("the lens is covered".into()),
            // Fewer voxels than asked for.
            (Split::Validation, 3) => {
                *out = Samples::I16(vec![0]);
                Ok(())
            }
            _ => self.0.read_volume(of, region, out),
        }
    }

    fn read_numbers(&self, of: (Split, usize)) -> Result<Vec<f32>, SourceError> {
        self.0.read_numbers(of)
    }
}

#[test]
fn a_source_that_fails_ends_the_training_with_its_reason() {
    // Found by the look at the data, and by a rank that trains.
    for (check_data, kind) in [
        (CheckScope::All, ErrorKind::Request),
        (CheckScope::None, ErrorKind::Failure),
    ] {
        let config = TrainConfig {
            check_data,
            ..config(2, "depth=2")
        };
        let source: Arc<dyn SampleSource> = Arc::new(Failing(arrays()));
        let trainer = Trainer::new(TrainModel::of_text(MODEL).unwrap(), source, config);
        let error = trained(&trainer).unwrap_err();
        let text = full_text(&error);
        let expected = "camera: sample 7 of the split `train` cannot be read: the lens is covered";
        assert!(text.contains(expected), "{text}");
        assert_eq!(error.kind(), kind, "{text}");
    }
}

#[test]
fn a_source_that_gives_too_little_is_refused() {
    let dataset = Dataset::of_source(Arc::new(Failing(arrays()))).unwrap();
    let mut reader = dataset.reader(Split::Validation);
    let mut out = Samples::new(DType::Int16);
    let region = || [0..2, 1..3, 0..4, 0..4];
    reader.read_volume(2, region(), &mut out).unwrap();
    assert_eq!(out.len(), 64);
    let error = reader.read_volume(3, region(), &mut out).unwrap_err();
    assert!(
        error.to_string().contains("of another number or type"),
        "{error}"
    );
    let mut outside = region();
    outside[1] = 3..5;
    assert!(reader.read_volume(2, outside, &mut out).is_err());
    assert!(reader.read_target(5).is_err());
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    let numbers = || SourceTargets::Numbers(vec!["one".to_owned()]);
    let refused = |volumes, answers| {
        let arrays = SplitArrays { volumes, answers };
        let error = ArraySource::new([1, 1, 2, 2], numbers(), [(Split::Train, arrays)]);
        error.unwrap_err().to_string()
    };
    let three = refused(Samples::F32(vec![0.0; 7]), Answers::Numbers(vec![0.0]));
    assert!(
        three.contains("7 elements of samples and 1 of targets"),
        "{three}"
    );
    refused(Samples::F32(vec![0.0; 8]), Answers::Numbers(vec![0.0]));
    refused(Samples::F32(vec![0.0; 4]), Answers::Classes(vec![0]));
}

#[test]
fn loaders_of_a_training_without_files_are_refused() {
    let offload = |loaders, validators| OffloadConfig {
        loaders: Processes::Started(loaders),
        validators: Processes::Started(validators),
        ..OffloadConfig::default()
    };
    let refused = |offload, data: TrainData| {
        let config = TrainConfig {
            offload,
            ..config(2, "depth=2")
        };
        let model = TrainModel::of_text(MODEL).unwrap();
        let error = trained(&Trainer::new(model, data, config)).unwrap_err();
        full_text(&error)
    };
    for offload in [offload(1, 0), offload(0, 1)] {
        let text = refused(offload, arrays().into());
        assert!(text.contains("reads the files of a dataset"), "{text}");
    }
    let stored = case(&[]);
    let dataset = Dataset::open(stored.path().join("set")).unwrap();
    let text = refused(offload(1, 0), dataset.into());
    assert!(text.contains("it reads a run file"), "{text}");
}

/// Says to a process that it is a rank of this test.
const RANK: &str = "PARTITA_TEST_TRAINER_RANK";

#[test]
fn processes_train_bit_for_bit_as_threads_and_end_by_the_callback_of_rank_0() {
    if std::env::var_os(RANK).is_some() {
        return as_rank();
    }
    let oversubscribed = ["--oversubscribe", "--allow-run-as-root"];
    for (program, arguments) in [
        ("mpirun.openmpi", &oversubscribed[..]),
        ("mpirun.mpich", &[]),
    ] {
        let mut command = Command::new(program);
        command.args(arguments).args(["-n", "2"]);
        command.arg(std::env::current_exe().unwrap());
        command
            .arg("processes_train_bit_for_bit")
            .arg("--nocapture");
        match command.env(RANK, "1").stdin(Stdio::null()).output() {
            Ok(output) => assert!(
                output.status.success(),
                "{program}: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(error) => {
                not_run(program, error);
            }
        }
    }
}

fn as_rank() {
    let until = |epochs: u64| {
        trainer(2, "depth=2").on_epoch(move |epoch| {
            if epoch.epoch == epochs {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })
    };
    let threads = trained(&until(3)).unwrap();
    let environment = Environment::from_variables(&|name| std::env::var_os(name)).unwrap();
    let launcher = environment.launcher.as_ref();
    assert!(launcher.is_some_and(|launcher| launcher.has_several()));
    // MPI is started once in a process.
    let processes = until(3).train(&Context::new(environment)).unwrap();
    if let Some(processes) = processes {
        assert_eq!(losses(&processes), losses(&threads));
        assert_eq!(processes.result.epochs.len(), 3);
        assert_eq!(processes.weights, threads.weights);
    }
}
