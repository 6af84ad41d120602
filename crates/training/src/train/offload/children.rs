//! Loaders and validators that a training starts itself.

use super::config::OffloadConfig;
use super::error::{OffloadError, StartError};
use partita_formats::decode_memory;
use partita_offload::{Address, Role, Secret};
use partita_site::Environment;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// What precedes its address on the line that a process prints when it listens.
pub const LISTENING: &str = " listens at ";

/// Longest path of a socket file. Source: `sockaddr_un` of Linux, 108 bytes with the zero at the end.
const SOCKET_PATH_MAX: usize = 107;

/// Processes that end with the training: they end when their standard input closes. They listen at sockets in a folder that
/// only this user may enter.
#[derive(Debug)]
pub struct Children {
    children: Vec<Child>,
    addresses: Vec<Address>,
    folder: TempDir,
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
        let folder = private_folder(environment);
        let folder = folder.map_err(|error| OffloadError::Start {
            role,
            error: StartError::NoFolder(error),
        })?;
        let mut all = Self {
            children: Vec::new(),
            addresses: Vec::new(),
            folder,
        };
        Secret::of_user(&all.secret())?;
        let Some((program, first)) = environment.serve_command.split_first() else {
            let error = StartError::NoCommand;
            return Err(OffloadError::Start { role, error });
        };
        for index in 0..count {
            let address = Address::Unix(all.folder.path().join(index.to_string()));
            let mut command = Command::new(program);
            command
                .args(first)
                .args(["--with-parent", "--listen", &address.to_string()])
                .args(["--role", role.name(), "--secret"])
                .arg(all.secret());
            if let Some(cores) = &config.cores {
                command.args(["--cores", cores]);
            }
            if let Some(limit) = decode_memory::chosen() {
                command.args(["--decode-memory", &format!("{}B", limit.0)]);
            }
            command.arg(run_file);
            all.add(command)
                .map_err(|error| OffloadError::Start { role, error })?;
        }
        Ok(all)
    }

    /// Where they listen.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The file with their secret, made for them.
    pub fn secret(&self) -> PathBuf {
        self.folder.path().join("secret")
    }

    fn add(&mut self, mut command: Command) -> Result<(), StartError> {
        use std::os::unix::process::CommandExt;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C asks the training to end, which then ends them.
        command.process_group(0);
        let mut child = command.spawn()?;
        let output = child.stdout.take();
        self.children.push(child);
        let mut line = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line)?;
        }
        let address = line.trim().split_once(LISTENING);
        let address = address.and_then(|(_, address)| address.parse().ok());
        self.addresses.push(address.ok_or(StartError::Ended)?);
        Ok(())
    }
}

/// A new folder of mode 0700, whose path is short enough for sockets.
fn private_folder(environment: &Environment) -> io::Result<TempDir> {
    let new = |place: &Path| {
        tempfile::Builder::new()
            .prefix("partita-offload-")
            .tempdir_in(place)
    };
    let folder = new(&environment.temporary)?;
    // Room for the number of the process.
    if folder.path().as_os_str().len() + "/0000".len() <= SOCKET_PATH_MAX {
        return Ok(folder);
    }
    new(Path::new("/tmp"))
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
