//! Finds foreign libraries by name, as the loader would, without loading them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Cache of the loader: the paths of all libraries in the system's folders.
const LOADER_CACHE: &str = "/etc/ld.so.cache";
const CACHE_BYTES_MAX: u64 = 64 << 20;

/// Folders that the loader searches last.
const DEFAULT_FOLDERS: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Variables with the installation prefix of a library.
pub const HINT_VARIABLES: [&str; 8] = [
    "MPI_HOME",
    "MPI_ROOT",
    "I_MPI_ROOT",
    "CUDNN_HOME",
    "CUDNN_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "NCCL_HOME",
];

/// Search paths of the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoaderPaths {
    /// Folders of `LD_LIBRARY_PATH`.
    pub listed: Vec<PathBuf>,
    /// Values of the [`HINT_VARIABLES`] that are set.
    pub roots: BTreeMap<&'static str, PathBuf>,
}

/// An optional library.
pub struct Library {
    /// Its name.
    pub name: &'static str,
    /// Its purpose.
    pub purpose: &'static str,
    /// File names without version, the preferred first.
    pub stems: &'static [&'static str],
    /// Installation prefixes, or variables that name them, which the loader does not search.
    pub hints: &'static [&'static str],
    /// How to install it.
    pub remedy: &'static str,
}

/// Name of the library that is loaded to see whether it is supported.
pub const ONEDNN: &str = "oneDNN";
/// Name of OpenCL among them.
pub(crate) const OPENCL: &str = "OpenCL";

/// The known optional libraries.
pub const LIBRARIES: [Library; 6] = [
    Library {
        name: "MPI",
        purpose: "ranks as processes on several nodes",
        stems: &["libmpi_abi.so", "libmpi.so", "libmpich.so"],
        hints: &[
            "$MPI_HOME",
            "$MPI_ROOT",
            "$I_MPI_ROOT",
            "/opt/openmpi",
            "/usr/local",
        ],
        remedy: "install an MPI (Debian: apt-get install libopenmpi-dev openmpi-bin), or load the \
                 cluster's module",
    },
    Library {
        name: ONEDNN,
        purpose: "more implementations for tune",
        stems: &["libdnnl.so.3"],
        hints: &[],
        remedy: "install oneDNN 3 for OpenMP (`pip install onednn-cpu-gomp`, say), and name it: export \
                 PARTITA_ONEDNN=/path/to/libdnnl.so.3",
    },
    Library {
        name: OPENCL,
        purpose: "kernels on GPUs",
        stems: &["libOpenCL.so.1"],
        hints: &["/usr/local/cuda", "/opt/rocm", "/opt/rocm/opencl"],
        remedy: "the driver of a GPU brings it; to try the kernels of GPUs on the processor, on Debian: apt-get install \
                 ocl-icd-libopencl1 pocl-opencl-icd",
    },
    Library {
        name: "CUDA",
        purpose: "ranks on NVIDIA GPUs (planned)",
        stems: &["libcuda.so"],
        hints: &["/usr/local/nvidia", "/usr/lib/wsl"],
        remedy: NOT_USED,
    },
    Library {
        name: "cuDNN",
        purpose: "kernels on NVIDIA GPUs (planned)",
        stems: &["libcudnn.so"],
        hints: &[
            "$CUDNN_HOME",
            "$CUDNN_PATH",
            "$CUDA_HOME",
            "$CUDA_PATH",
            "/usr/local/cuda",
        ],
        remedy: NOT_USED,
    },
    Library {
        name: "NCCL",
        purpose: "collectives between NVIDIA GPUs (planned)",
        stems: &["libnccl.so"],
        hints: &["$NCCL_HOME", "$CUDA_HOME", "$CUDA_PATH", "/usr/local/cuda"],
        remedy: NOT_USED,
    },
];

/// GPUs compute through OpenCL today.
const NOT_USED: &str = "nothing to install: GPUs compute through OpenCL today, with or without it";

/// A library that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The file.
    pub path: PathBuf,
    /// Whether the loader would find it by its name.
    pub is_on_path: bool,
}

/// The search paths of the loader.
pub struct Loader<'p> {
    files: Vec<PathBuf>,
    roots: &'p BTreeMap<&'static str, PathBuf>,
}

impl<'p> Loader<'p> {
    /// The loader of this machine: `LD_LIBRARY_PATH`, its cache, and its own folders, in this order.
    pub fn of_this_machine(paths: &'p LoaderPaths) -> Self {
        let listed = paths.listed.iter();
        let mut files: Vec<PathBuf> = listed.flat_map(|folder| files_in(folder)).collect();
        let cache = partita_files::read(LOADER_CACHE, CACHE_BYTES_MAX).unwrap_or_default();
        files.extend(cached(&cache).into_iter().filter(|path| path.is_file()));
        files.extend(
            DEFAULT_FOLDERS
                .iter()
                .flat_map(|folder| files_in(Path::new(folder))),
        );
        Self {
            files,
            roots: &paths.roots,
        }
    }

    /// Finds a library in the loader's folders, else in those of its hints.
    pub fn find(&self, library: &Library) -> Option<Found> {
        let found = |path: PathBuf, is_on_path| Found { path, is_on_path };
        if let Some(path) = first_match(library.stems, &self.files) {
            return Some(found(path, true));
        }
        let unseen: Vec<PathBuf> = library
            .hints
            .iter()
            .filter_map(|hint| match hint.strip_prefix('$') {
                Some(variable) => self.roots.get(variable).cloned(),
                None => Some(PathBuf::from(hint)),
            })
            .flat_map(|root| ["lib64", "lib"].map(|lib| root.join(lib)))
            .flat_map(|folder| files_in(&folder))
            .collect();
        first_match(library.stems, &unseen).map(|path| found(path, false))
    }
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// The paths in the loader's cache, which are null-terminated in its string table.
fn cached(cache: &[u8]) -> Vec<PathBuf> {
    cache
        .split(|&byte| byte == 0)
        .filter(|text| text.first() == Some(&b'/'))
        .filter_map(|text| std::str::from_utf8(text).ok())
        .map(PathBuf::from)
        .collect()
}

/// The first file with one of the stems, with or without a version suffix.
fn first_match(stems: &[&str], files: &[PathBuf]) -> Option<PathBuf> {
    let is = |path: &Path, stem: &str| {
        let name = path.file_name().and_then(|name| name.to_str());
        let version = name.and_then(|name| name.strip_prefix(stem));
        version.is_some_and(|version| version.is_empty() || version.starts_with('.'))
    };
    stems
        .iter()
        .find_map(|stem| files.iter().find(|path| is(path, stem)).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_belong_to_a_name_and_longer_names_do_not() {
        let files =
            ["/a/libcudart.so", "/a/libmpi_cxx.so.40", "/b/libmpi.so.40"].map(PathBuf::from);
        assert_eq!(first_match(&["libcuda.so"], &files), None);
        let found = first_match(&["libmpi_abi.so", "libmpi.so"], &files);
        assert_eq!(found, Some(PathBuf::from("/b/libmpi.so.40")));
    }

    #[test]
    fn all_variables_of_hints_are_looked_up() {
        let hints = LIBRARIES.iter().flat_map(|library| library.hints);
        for variable in hints.filter_map(|hint| hint.strip_prefix('$')) {
            assert!(HINT_VARIABLES.contains(&variable), "{variable}");
        }
    }

    #[test]
    fn paths_are_read_from_the_cache() {
        let cache = b"glibc-ld.so.cache1.1\x02\0\0\0libz.so.1\0/lib/libz.so.1\0/lib/liby.so\0";
        let expected = ["/lib/libz.so.1", "/lib/liby.so"].map(PathBuf::from);
        assert_eq!(cached(cache), expected);
    }

    #[test]
    fn what_the_loader_does_not_see_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("libmpi.so.40"), "").unwrap();
        let loader = Loader {
            files: files_in(folder.path()),
            roots: &BTreeMap::new(),
        };
        let found = loader.find(&LIBRARIES[0]).unwrap();
        assert!(found.is_on_path);
        assert!(found.path.ends_with("libmpi.so.40"));
    }
}
