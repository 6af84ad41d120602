//! `partita serve`: a loader or a validator of trainings.

use crate::error::CliError;
use crate::interrupt;
use crate::number;
#[cfg(not(target_os = "linux"))]
use crate::screen::warn;
use clap::{Args, ValueEnum};
use partita::{Context, ErrorKind, LISTENING, ServeRequest, parse_cores, parse_seconds};
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
    /// Cores that it may use, such as `0,4-7` (default: all)
    #[arg(long, value_name = "CORES", value_parser = cores)]
    pub cores: Option<Cores>,
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

/// Numbers of cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(Vec<usize>);

fn address(text: &str) -> Result<Address, AddressError> {
    text.parse()
}

fn cores(text: &str) -> Result<Cores, String> {
    let read = parse_cores(text).map(Cores);
    read.ok_or_else(|| {
        "possible is a list of numbers and ranges from 0 to 1023, like 0,4-7; nearest is 0"
            .to_owned()
    })
}

/// Serves until the process is asked to end.
pub fn run(context: &Context<'_>, args: &ServeArgs, out: &mut dyn Write) -> Result<(), CliError> {
    if let Some(Cores(cores)) = &args.cores {
        pin(cores)?;
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

/// Restricts this process to some cores.
///
/// Source: `sched_setaffinity(2)`: threads inherit the set of the thread that starts them.
#[cfg(target_os = "linux")]
fn pin(cores: &[usize]) -> Result<(), CliError> {
    // SAFETY: all bits of the set may be 0.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &core in cores {
        // SAFETY: cores are below 1024, the bits of the set.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the set is initialized and has that size.
    if unsafe { libc::sched_setaffinity(0, size, &raw const set) } == 0 {
        return Ok(());
    }
    let reason = io::Error::last_os_error();
    let possible = std::thread::available_parallelism().map_or(1, usize::from);
    Err(CliError::Library {
        text: format!(
            "--cores: none of {cores:?} can be used: {reason}; this process may use {possible} core(s)"
        ),
        kind: ErrorKind::Request,
    })
}

#[cfg(not(target_os = "linux"))]
fn pin(_: &[usize]) -> Result<(), CliError> {
    warn("--cores has an effect on Linux only");
    Ok(())
}
