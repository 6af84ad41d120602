//! Loaders and validators that a training starts itself.

use super::config::OffloadConfig;
use super::error::OffloadError;
use partita_offload::{Address, Role};
use partita_site::Environment;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What precedes its address on the line that a process prints when it listens.
pub const LISTENING: &str = " listens at ";

/// Processes that end with the training: they end when their standard input closes.
#[derive(Debug, Default)]
pub struct Children {
    children: Vec<Child>,
    addresses: Vec<Address>,
}

impl Children {
    /// Starts this many processes of a role, with the run file of the training.
    ///
    /// Errors: `Start`.
    pub fn start(
        environment: &Environment,
        role: Role,
        count: usize,
        run_file: &Path,
        config: &OffloadConfig,
    ) -> Result<Self, OffloadError> {
        let mut all = Self::default();
        let Some((program, first)) = environment.serve_command.split_first() else {
            let reason = "no command is known that starts it".to_owned();
            return Err(OffloadError::Start { role, reason });
        };
        for _ in 0..count {
            let mut command = Command::new(program);
            command
                .args(first)
                .args(["--with-parent", "--listen", "127.0.0.1:0", "--role"])
                .arg(role.name());
            if let Some(cores) = &config.cores {
                command.args(["--cores", cores]);
            }
            command.arg(run_file);
            all.add(command)
                .map_err(|reason| OffloadError::Start { role, reason })?;
        }
        Ok(all)
    }

    /// Where they listen.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    fn add(&mut self, mut command: Command) -> Result<(), String> {
        use std::os::unix::process::CommandExt;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C asks the training to end, which then ends them.
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let output = child.stdout.take();
        self.children.push(child);
        let mut line = String::new();
        if let Some(output) = output {
            let read = BufReader::new(output).read_line(&mut line);
            read.map_err(|error| error.to_string())?;
        }
        let address = line.trim().split_once(LISTENING);
        let address = address.and_then(|(_, address)| address.parse().ok());
        let address = address.ok_or("it ended before it listened; its error is above")?;
        self.addresses.push(address);
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
