//! Detects the launcher that started this process, and the folders of its MPI.

use partita_mpi::Family;
use std::fs;
use std::path::{Path, PathBuf};

/// Set by srun for each step, not by sbatch for its script.
const SLURM: &str = "SLURM_STEP_ID";
/// Number of ancestor processes searched for the launcher: it may have started a script.
const ANCESTORS_MAX: usize = 4;

/// A program that started this process as one of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// The variable by which it was recognized, for errors.
    pub sign: &'static str,
    /// Number of processes that it started, if known.
    pub processes: Option<usize>,
    /// The MPI family that it belongs to, or that most often uses its interface.
    pub family: Option<Family>,
}

impl Launcher {
    /// Whether it may have started more than one process.
    pub fn has_several(&self) -> bool {
        self.processes != Some(1)
    }

    /// Advice if the MPI library does not see the other processes.
    pub fn advice(&self) -> &'static str {
        if self.sign == SLURM {
            "choose its process-management interface (srun --mpi=pmi2 for MPICH, --mpi=pmix for Open MPI), or \
             name a library of that interface, such as PARTITA_MPI=/path/to/libmpi.so"
        } else {
            "the library is of another MPI; name that of the launcher, such as \
             PARTITA_MPI=/path/to/libmpi.so"
        }
    }
}

/// The launcher that these variables indicate, even if it started only this process.
///
/// Sources: the environment that Open MPI's mpirun (4.1, 5.0), hydra (MPICH's and Intel's), PRRTE and
/// Slurm's srun (with PMI2, which gives `PMI_SIZE`, with PMIx, and with neither) set for their processes.
pub fn started_by(variable: &dyn Fn(&str) -> Option<String>) -> Option<Launcher> {
    let number = |name: &str| variable(name)?.parse::<usize>().ok();
    // Open MPI uses only PMIx; MPICH uses it only if built for it.
    let pmix = number("PMIX_RANK").map(|_| Family::OpenMpi);
    let found = |sign, processes, family| {
        Some(Launcher {
            sign,
            processes,
            family,
        })
    };
    if let Some(size) = number("OMPI_COMM_WORLD_SIZE") {
        found("OMPI_COMM_WORLD_SIZE", Some(size), Some(Family::OpenMpi))
    } else if let Some(size) = number("PMI_SIZE") {
        found("PMI_SIZE", Some(size), Some(Family::Mpich))
    } else if variable(SLURM).is_some() && number("SLURM_PROCID").is_some() {
        let size = number("SLURM_STEP_NUM_TASKS").or_else(|| number("SLURM_NTASKS"));
        found(SLURM, Some(size.unwrap_or(1)), pmix)
    } else if pmix.is_some() {
        found("PMIX_RANK", None, pmix)
    } else if number("PMI_RANK").is_some() {
        found("PMI_RANK", None, Some(Family::Mpich))
    } else {
        None
    }
}

/// The library folders of the ancestor processes: a launcher outside of the loader's folders has its own MPI.
pub fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let mut process = "self".to_owned();
    for _ in 0..ANCESTORS_MAX {
        let Some(parent) = parent(&process) else {
            break;
        };
        let program = fs::read_link(format!("/proc/{parent}/exe"));
        let root = program
            .ok()
            .and_then(|program| Some(program.parent()?.parent()?.to_owned()));
        for folder in root
            .iter()
            .flat_map(|root| ["lib64", "lib"].map(|lib| root.join(lib)))
        {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        process = parent;
    }
    // The loader searches these itself, with a cache that reflects the system's choice.
    folders.retain(|folder| folder != Path::new("/usr/lib") && folder != Path::new("/usr/lib64"));
    folders
}

/// The parent of a process.
fn parent(process: &str) -> Option<String> {
    let status = partita_files::read_text(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Some(line.trim().to_owned()).filter(|parent| parent != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(variables: &[(&str, &str)]) -> Option<Launcher> {
        started_by(&|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn launchers_are_detected_by_their_variables() {
        let size = |variables: &[(&str, &str)]| under(variables).map(|found| found.processes);
        assert_eq!(size(&[]), None);
        assert_eq!(size(&[("OMPI_COMM_WORLD_SIZE", "4")]), Some(Some(4)));
        assert_eq!(size(&[("PMI_SIZE", "2"), ("PMI_RANK", "1")]), Some(Some(2)));
        assert_eq!(size(&[("PMIX_RANK", "1")]), Some(None));
        let step = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "8"),
        ];
        assert_eq!(size(&step), Some(Some(8)));
        assert_eq!(size(&step[1..]), None, "a batch script is no step");
    }

    #[test]
    fn the_interface_determines_the_family() {
        let family = |variables: &[(&str, &str)]| under(variables).and_then(|found| found.family);
        let step = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1")];
        assert_eq!(family(&step), None);
        let with = |name| family(&[step[0], step[1], (name, "1")]);
        assert_eq!(with("PMIX_RANK"), Some(Family::OpenMpi));
        assert_eq!(with("PMI_SIZE"), Some(Family::Mpich));
        assert_eq!(family(&[("PMIX_RANK", "1")]), Some(Family::OpenMpi));
    }
}
