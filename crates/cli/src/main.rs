//! The binary `partita`; the library of the same name holds all of it.

mod allocator;

use std::process::ExitCode;

fn main() -> ExitCode {
    partita_cli::main()
}
