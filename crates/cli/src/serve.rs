//! `partita serve`: a loader or a validator of trainings.

use crate::args::DecodingArgs;
use crate::error::CliError;
use crate::interrupt;
use crate::number::{self, Cores};
use clap::{Args, ValueEnum};
use partita::{Context, LISTENING, ServeRequest, occupy, parse_seconds};
use partita_offload::{Address, AddressError, Role};
use partita_space::Seconds;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;

/// `partita serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Run file of the training
    #[arg(value_name = "RUN.toml")]
    pub run: PathBuf,
    /// What the process does
    #[arg(long, value_enum)]
    pub role: RoleName,
    /// Where it listens: HOST:PORT, where port 0 takes a free one, or unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub listen: Address,
    /// File with the secret that trainings must have (default: the user's, in the cache folder)
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
    /// Cores that it may use, such as `0,4-7` (default: all)
    #[arg(long, value_name = "CORES", value_parser = number::cores)]
    pub cores: Option<Cores>,
    #[command(flatten)]
    pub decoding: DecodingArgs,
    /// Ranks of a validator (default: those of the training)
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number::ranks)]
    pub ranks: Option<usize>,
    /// Threads of each rank (default: those of the training)
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number::count)]
    pub threads: Option<usize>,
    /// Strategy of a validator, such as `data=1` (default: that of the training)
    #[arg(long, value_name = "S")]
    pub strategy: Option<String>,
    /// Delay of each piece of samples or validation, such as `20ms`, to imitate a slow processor
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, allow_hyphen_values = true)]
    pub delay: Option<Seconds>,
    /// End when standard input closes, and do not report connections
    #[arg(long)]
    pub with_parent: bool,
}

/// Roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleName {
    /// Read, prepare and augment samples
    Loader,
    /// Validate snapshots of the parameters
    Validator,
}

fn address(text: &str) -> Result<Address, AddressError> {
    text.parse()
}

/// Serves until the process is asked to end.
pub fn run(context: &Context, args: &ServeArgs, out: &mut dyn Write) -> Result<(), CliError> {
    if let Some(Cores(cores)) = &args.cores {
        occupy(cores)?;
    }
    interrupt::listen()?;
    if args.with_parent {
        end_with_input();
    }
    let request = ServeRequest {
        run_file: args.run.clone(),
        role: match args.role {
            RoleName::Loader => Role::Loader,
            RoleName::Validator => Role::Validator,
        },
        listen: args.listen.clone(),
        secret: args.secret.clone(),
        delay: args.delay.unwrap_or_default(),
        ranks: args.ranks,
        threads: args.threads,
        strategy: args.strategy.clone(),
        is_quiet: args.with_parent,
    };
    let mut printed = Ok(());
    partita::serve(context, &request, &mut |address| {
        let line = format!("{}{LISTENING}{address}", request.role);
        printed = writeln!(out, "{line}").and_then(|()| out.flush());
    })?;
    Ok(printed?)
}

/// Asks this process to end once standard input closes, as it does when the parent ends.
fn end_with_input() {
    thread::spawn(|| {
        let mut input = io::stdin().lock();
        let mut bytes = [0; 64];
        while matches!(input.read(&mut bytes), Ok(1..)) {}
        interrupt::flag().store(true, Ordering::Relaxed);
    });
}
