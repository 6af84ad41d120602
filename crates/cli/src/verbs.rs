//! The verbs: each makes a request from arguments and prints the result as text or JSON.

use crate::args::{
    CalibrateArgs, CompareArgs, DataVerb, DecodingArgs, DoctorArgs, EvaluateArgs,
    ImportNetworkArgs, InferArgs, InspectArgs, LowerArgs, ModelsArgs, PlanArgs, PredictArgs,
    TrainArgs, TuneArgs, Verb, WeightsVerb,
};
use crate::demo;
use crate::draft::Draft;
use crate::error::CliError;
use crate::interrupt;
use crate::number::Cores;
use crate::serve;
use crate::work::{make_dataset, train, write_json, write_picture, write_result};
use partita::{Context, ErrorKind, TrainData, confine};
use partita_data::ValueScope;
use partita_files::NewFile;
use partita_formats::decode_memory;
use partita_report::{page, text, tuning_page};
use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::path::Path;

/// Runs a verb.
pub fn run(context: &Context, verb: &Verb, out: &mut dyn Write) -> Result<(), CliError> {
    if let Some(Cores(cores)) = cores(verb) {
        confine(cores)?;
    }
    decode_memory::set_limit(decoding(verb).and_then(|args| args.decode_memory));
    match verb {
        Verb::Models(args) => models(args, out),
        Verb::Inspect(args) => inspect(args, out),
        Verb::Import(args) => import(args, out),
        Verb::Lower(args) => lower(context, args, out),
        Verb::Predict(args) => predict(context, args, out),
        Verb::Plan(args) => plan(context, args, out),
        Verb::Calibrate(args) => calibrate(context, args, out),
        Verb::Tune(args) => tune(context, args, out),
        Verb::Train(args) => run_train(context, args, out),
        Verb::Serve(args) => serve::run(context, args, out),
        Verb::Evaluate(args) => evaluate(context, args, out),
        Verb::Infer(args) => infer(context, args, out),
        Verb::Weights { verb } => weights(verb, out),
        Verb::Compare(args) => compare(args, out),
        Verb::Data { verb } => data(context, verb, out),
        Verb::Doctor(args) => doctor(context, args, out),
        Verb::Demo(args) => demo::run(context, args, out),
    }
}

/// The cores of a verb that measures or trains without a run file of the user; others give them to the library.
fn cores(verb: &Verb) -> Option<&Cores> {
    let on = match verb {
        Verb::Predict(args) => &args.on,
        Verb::Plan(args) => &args.on,
        Verb::Calibrate(args) => &args.on,
        Verb::Tune(args) => &args.on,
        Verb::Demo(args) => &args.on,
        Verb::Models(_)
        | Verb::Inspect(_)
        | Verb::Import(_)
        | Verb::Lower(_)
        | Verb::Train(_)
        | Verb::Serve(_)
        | Verb::Evaluate(_)
        | Verb::Infer(_)
        | Verb::Weights { .. }
        | Verb::Compare(_)
        | Verb::Data { .. }
        | Verb::Doctor(_) => return None,
    };
    on.cores.as_ref()
}

/// The memory of readers of a verb that reads files of samples.
fn decoding(verb: &Verb) -> Option<&DecodingArgs> {
    match verb {
        Verb::Train(args) => Some(&args.decoding),
        Verb::Serve(args) => Some(&args.decoding),
        Verb::Evaluate(args) => Some(&args.forward.decoding),
        Verb::Infer(args) => Some(&args.forward.decoding),
        Verb::Data {
            verb: DataVerb::Convert(args),
        } => Some(&args.decoding),
        Verb::Data {
            verb: DataVerb::Inspect(args),
        } => Some(&args.decoding),
        Verb::Models(_)
        | Verb::Inspect(_)
        | Verb::Import(_)
        | Verb::Lower(_)
        | Verb::Predict(_)
        | Verb::Plan(_)
        | Verb::Calibrate(_)
        | Verb::Tune(_)
        | Verb::Weights { .. }
        | Verb::Compare(_)
        | Verb::Data { .. }
        | Verb::Doctor(_)
        | Verb::Demo(_) => None,
    }
}

fn models(args: &ModelsArgs, out: &mut dyn Write) -> Result<(), CliError> {
    if args.json {
        write_json(out, &partita::models()?)
    } else {
        Ok(text::models(&partita::families()?, out)?)
    }
}

fn inspect(args: &InspectArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let model = partita::inspect(&args.model)?;
    if args.text {
        return Ok(write!(out, "{}", model.text())?);
    }
    write_result(out, args.json, &model, text::inspect)
}

fn import(args: &ImportNetworkArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let found = partita::import(&args.request())?;
    write_result(out, args.json, &found, text::import)
}

fn lower(context: &Context, args: &LowerArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let request = args.request()?;
    if let Some(pass) = args.after {
        let text = partita::lower_after(context, &request, pass)?;
        return Ok(out.write_all(text.as_bytes())?);
    }
    let lowered = partita::lower(context, &request)?;
    if args.json {
        write_json(out, &lowered.summary())
    } else {
        Ok(out.write_all(lowered.program.to_text().as_bytes())?)
    }
}

fn predict(context: &Context, args: &PredictArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let predicted = partita::predict(context, &args.request()?)?;
    write_result(out, args.json, &predicted, text::predict)
}

fn plan(context: &Context, args: &PlanArgs, out: &mut dyn Write) -> Result<(), CliError> {
    // A report that cannot be written fails before the search.
    let draft = args.report.as_deref().map(Draft::new).transpose()?;
    interrupt::listen_twice()?;
    let planned = partita::plan(context, &args.request())?;
    if let (Some(draft), Some(figures)) = (draft, &planned.figures) {
        draft.publish(&page(figures))?;
    }
    if args.json {
        write_json(out, &planned.candidates)?
    } else {
        text::plan(&planned, args.all, out)?
    }
    match planned.none_fits {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

fn calibrate(context: &Context, args: &CalibrateArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let Some(calibrated) = partita::calibrate(context, &args.request())? else {
        return Ok(());
    };
    if args.json {
        write_json(out, &calibrated.summary())
    } else {
        Ok(text::calibrate(&calibrated, out)?)
    }
}

fn tune(context: &Context, args: &TuneArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let draft = args.report.as_deref().map(Draft::new).transpose()?;
    interrupt::listen()?;
    let tuned = partita::tune(context, &args.request()?)?;
    if let Some(draft) = draft {
        draft.publish(&tuning_page(&tuned))?;
    }
    write_result(out, args.json, &tuned, text::tune)
}

fn run_train(context: &Context, args: &TrainArgs, out: &mut dyn Write) -> Result<(), CliError> {
    train(context, &args.request(), args.json, out).map(drop)
}

fn evaluate(context: &Context, args: &EvaluateArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let path = args.csv.as_deref().unwrap_or(Path::new(""));
    let unwritable = |error| CliError::unwritable(path, &error, ErrorKind::Request);
    if args.csv.is_some() && !is_free_for_samples(path) {
        let reason = "it is no table that `evaluate --csv` wrote, and other files are not replaced";
        return Err(CliError::unwritable(path, &reason, ErrorKind::Request));
    }
    let csv = args.csv.as_deref().map(NewFile::create).transpose();
    let csv = csv.map_err(unwritable)?;
    interrupt::listen()?;
    let Some(found) = partita::evaluate(context, &args.request())? else {
        return Ok(());
    };
    if let Some(mut csv) = csv {
        let written = csv.write_all(text::samples_csv(&found).as_bytes());
        written.and_then(|()| csv.place()).map_err(unwritable)?;
    }
    write_result(out, args.forward.json, &found, text::evaluate)
}

/// Bytes of the first line of a table that are read.
const LINE_MAX: u64 = 1 << 20;

/// Whether nothing is at a path, or a table of samples of an earlier evaluation.
fn is_free_for_samples(path: &Path) -> bool {
    let mut line = String::new();
    match partita_files::open(path) {
        Ok(file) => {
            let read = BufReader::new(file.take(LINE_MAX)).read_line(&mut line);
            read.is_ok() && text::is_samples_csv(line.trim_end())
        }
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn infer(context: &Context, args: &InferArgs, out: &mut dyn Write) -> Result<(), CliError> {
    interrupt::listen()?;
    let Some(found) = partita::infer(context, &args.request())? else {
        return Ok(());
    };
    write_result(out, args.forward.json, &found, text::infer)
}

/// Evaluates or infers samples of the caller. Other verbs run as they are.
pub fn forward(
    context: &Context,
    verb: &Verb,
    data: &TrainData,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    match verb {
        Verb::Evaluate(args) => match partita::evaluate_on(context, &args.request(), data)? {
            Some(found) => write_result(out, args.forward.json, &found, text::evaluate),
            None => Ok(()),
        },
        Verb::Infer(args) => match partita::infer_on(context, &args.request(), data)? {
            Some(found) => write_result(out, args.forward.json, &found, text::infer),
            None => Ok(()),
        },
        _ => run(context, verb, out),
    }
}

fn weights(verb: &WeightsVerb, out: &mut dyn Write) -> Result<(), CliError> {
    let (request, json) = match verb {
        WeightsVerb::Export(args) => (args.request(), args.json),
        WeightsVerb::Import(args) => (args.request(), args.json),
    };
    let converted = partita::convert_weights(&request)?;
    write_result(out, json, &converted, text::weights)
}

fn compare(args: &CompareArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let comparison = partita::compare(&args.prediction, &args.trace)?;
    write_result(out, args.json, &comparison, text::compare)
}

fn data(context: &Context, verb: &DataVerb, out: &mut dyn Write) -> Result<(), CliError> {
    match verb {
        DataVerb::Cosmology(args) => {
            make_dataset(&|| partita::make_cosmology(context, &args.request()), out)
        }
        DataVerb::Segmentation(args) => make_dataset(
            &|| partita::make_segmentation(context, &args.request()),
            out,
        ),
        DataVerb::Fractals(args) => {
            make_dataset(&|| partita::make_fractals(context, &args.request()), out)
        }
        DataVerb::Shapes(args) => {
            make_dataset(&|| partita::make_shapes(context, &args.request()), out)
        }
        DataVerb::Digits(args) => {
            make_dataset(&|| partita::make_digits(context, &args.request()), out)
        }
        DataVerb::Convert(args) => {
            make_dataset(&|| partita::convert_data(context, &args.request()), out)
        }
        DataVerb::Features(args) => {
            let written = partita::write_features(&args.path, &args.table, &args.columns)?;
            write_result(out, args.json, &written, text::features)
        }
        DataVerb::Inspect(args) => {
            let scope = if args.all {
                ValueScope::All
            } else {
                ValueScope::First
            };
            let summary = partita::inspect_data(&args.path, scope)?;
            if let Some(path) = &args.picture {
                write_picture(path, &partita::picture_of_data(&args.path)?)?;
            }
            write_result(out, args.json, &summary, text::inspected)
        }
    }
}

fn doctor(context: &Context, args: &DoctorArgs, out: &mut dyn Write) -> Result<(), CliError> {
    write_result(out, args.json, &partita::doctor(context), text::doctor)
}
