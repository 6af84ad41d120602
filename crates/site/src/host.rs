//! Processor and memory of this machine.

use partita_cpu::Level;
use partita_space::Bytes;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::str::FromStr;

/// Processor and memory of this machine; `None` for what the system does not expose.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Host {
    /// Name of the processor.
    pub processor: Option<String>,
    /// Logical cores that this process may use.
    pub cores_usable: usize,
    /// Logical cores of the machine.
    pub cores_logical: Option<usize>,
    /// Physical cores of the machine.
    pub cores_physical: Option<usize>,
    /// Instruction level that the kernels use.
    pub simd: &'static str,
    /// Elements of f32 in one vector.
    pub simd_lanes_f32: usize,
    /// Caches of the first core.
    pub caches: Vec<Cache>,
    /// Memory of the machine.
    pub memory_bytes: Option<Bytes>,
    /// Memory available without swapping.
    pub memory_bytes_available: Option<Bytes>,
    /// Memory limit of the cgroup of this process.
    pub memory_bytes_limit: Option<Bytes>,
    /// CPU quota of the cgroup of this process, in cores.
    pub cores_limit: Option<f64>,
    /// NVIDIA GPUs that the driver lists.
    pub gpus: usize,
}

/// A cache of a core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Level, from 1.
    pub level: usize,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Its size.
    pub bytes: Bytes,
    /// Cores that share it.
    pub cores: String,
}

/// CPU quota of the cgroup of this process, in cores.
pub fn cores_quota() -> Option<f64> {
    let root = Path::new("/");
    cores_limit(root, &text(root, "proc/self/cgroup").unwrap_or_default())
}

impl Host {
    /// This machine, with the instruction level of the kernels.
    pub fn local(level: Level) -> Self {
        Self::read(Path::new("/"), level)
    }

    /// Memory available to programs, limited by the cgroup.
    pub fn memory_free(&self) -> Option<Bytes> {
        let known = [self.memory_bytes_available, self.memory_bytes_limit];
        known.into_iter().flatten().min()
    }

    /// Memory of the machine, limited by the cgroup.
    pub fn memory_total(&self) -> Option<Bytes> {
        let known = [self.memory_bytes, self.memory_bytes_limit];
        known.into_iter().flatten().min()
    }

    /// Its part of the largest caches that a rank has, where this many ranks with this many threads each are at work on
    /// neighboring cores; at most 32 MiB for each of the cores that share a cache.
    pub fn cache_of_rank(&self, ranks: usize, threads: usize) -> Bytes {
        /// Virtual machines of few cores show all of a cache of hundreds of MiB, which they share with others. What was read
        /// on two such cores was evicted after 64 to 128 MiB of other reads.
        const OF_CORE_MAX: u64 = 32 << 20;
        /// Where the system names none.
        const UNKNOWN: Bytes = Bytes(32 << 20);
        let largest = self.caches.iter().max_by_key(|cache| cache.bytes);
        let ranks = ranks.max(1);
        let Some(cache) = largest else {
            return Bytes(UNKNOWN.0 / ranks as u64);
        };
        let logical = self.cores_logical.unwrap_or(self.cores_usable);
        let physical = self.cores_physical.unwrap_or(logical).clamp(1, logical);
        let cores_of_each = (listed(&cache.cores) * physical / logical).max(1);
        let all = physical.div_ceil(cores_of_each);
        let reached = (ranks * threads).div_ceil(cores_of_each).clamp(1, all);
        let each = cache.bytes.0.min(OF_CORE_MAX * cores_of_each as u64);
        Bytes(each * reached as u64 / ranks as u64)
    }

    /// The machine whose `proc` and `sys` are under `root`.
    fn read(root: &Path, level: Level) -> Self {
        let cpus = text(root, "proc/cpuinfo").unwrap_or_default();
        let memory = text(root, "proc/meminfo").unwrap_or_default();
        let groups = text(root, "proc/self/cgroup").unwrap_or_default();
        let logical = values(&cpus, "processor").count();
        let gpus = root.join("proc/driver/nvidia/gpus");
        Self {
            processor: values(&cpus, "model name").next().map(str::to_owned),
            cores_usable: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            cores_logical: (logical > 0).then_some(logical),
            cores_physical: physical_cores(&cpus),
            simd: match level {
                Level::Portable => "portable",
                Level::Neon => "NEON",
                Level::Avx2 => "AVX2",
                Level::Avx512 => "AVX-512",
                Level::Avx512Bf16 => "AVX-512 with BF16",
            },
            simd_lanes_f32: level.lanes(),
            caches: caches(root),
            memory_bytes: kibibytes(&memory, "MemTotal"),
            memory_bytes_available: kibibytes(&memory, "MemAvailable"),
            memory_bytes_limit: memory_limit(root, &groups),
            cores_limit: cores_limit(root, &groups),
            gpus: fs::read_dir(gpus).into_iter().flatten().count(),
        }
    }
}

pub(crate) fn text(root: &Path, path: &str) -> Option<String> {
    partita_files::read_text(root.join(path)).ok()
}

/// Values of a key in lines `key : value`.
fn values<'t>(text: &'t str, key: &'t str) -> impl Iterator<Item = &'t str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .filter(move |(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim())
}

fn kibibytes(text: &str, key: &str) -> Option<Bytes> {
    let number = values(text, key).next()?.strip_suffix("kB")?;
    number
        .trim()
        .parse()
        .ok()
        .map(|number: u64| Bytes(number * 1024))
}

/// Number of different pairs of package and core.
fn physical_cores(cpus: &str) -> Option<usize> {
    let packages = values(cpus, "physical id");
    let cores: BTreeSet<(&str, &str)> = packages.zip(values(cpus, "core id")).collect();
    (!cores.is_empty()).then_some(cores.len())
}

/// How many a list of the system names, like `0-3,8-11`; at least 1.
fn listed(list: &str) -> usize {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>().ok();
        Some(number(last)?.checked_sub(number(first)?)? + 1)
    };
    list.split(',').filter_map(range).sum::<usize>().max(1)
}

fn caches(root: &Path) -> Vec<Cache> {
    let cache = |index: usize| {
        let folder = format!("sys/devices/system/cpu/cpu0/cache/index{index}");
        let read = |name: &str| {
            let text = text(root, &format!("{folder}/{name}"))?;
            Some(text.trim().to_owned())
        };
        let kibibytes: u64 = read("size")?.strip_suffix('K')?.parse().ok()?;
        Some(Cache {
            level: read("level")?.parse().ok()?,
            kind: read("type")?,
            bytes: Bytes(kibibytes * 1024),
            cores: read("shared_cpu_list")?,
        })
    };
    (0..8).map_while(cache).collect()
}

/// Contents of a file in the cgroup of this process and in its ancestors.
///
/// `controller` is the folder of cgroup v1; `None` means v2. In a container the path of the group may not
/// exist, but its root does.
pub(crate) fn group_files(
    root: &Path,
    groups: &str,
    controller: Option<&str>,
    file: &str,
) -> Vec<String> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(names), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let belongs = match controller {
            Some(controller) => names.split(',').any(|name| name == controller),
            None => names.is_empty(),
        };
        if !belongs {
            continue;
        }
        let base = root.join("sys/fs/cgroup").join(controller.unwrap_or(""));
        for folder in Path::new(path).ancestors() {
            let folder = folder.strip_prefix("/").unwrap_or(folder);
            let path = base.join(folder).join(file);
            found.extend(partita_files::read_text(path).map(|text| text.trim().to_owned()));
        }
    }
    found
}

fn memory_limit(root: &Path, groups: &str) -> Option<Bytes> {
    /// Cgroup v1 encodes "no limit" as the largest number of pages.
    const UNLIMITED: u64 = 1 << 62;
    let new = group_files(root, groups, None, "memory.max");
    let old = group_files(root, groups, Some("memory"), "memory.limit_in_bytes");
    let limits = new.iter().chain(&old).filter_map(|text| text.parse().ok());
    limits.filter(|&bytes| bytes < UNLIMITED).min().map(Bytes)
}

fn cores_limit(root: &Path, groups: &str) -> Option<f64> {
    let new = group_files(root, groups, None, "cpu.max");
    let quotas = group_files(root, groups, Some("cpu"), "cpu.cfs_quota_us");
    let periods = group_files(root, groups, Some("cpu"), "cpu.cfs_period_us");
    let old = quotas.iter().zip(&periods);
    let pairs = new.iter().filter_map(|text| text.split_once(' '));
    let pairs = pairs.chain(old.map(|(quota, period)| (quota.as_str(), period.as_str())));
    let number = |text: &str| f64::from_str(text).ok().filter(|&number| number > 0.0);
    pairs
        .filter_map(|(quota, period)| Some(number(quota)? / number(period)?))
        .min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn reads_cores_caches_and_memory() {
        let cpu = |id: usize, core: usize| {
            format!("processor : {id}\nmodel name : Some CPU\nphysical id : 0\ncore id : {core}\n")
        };
        let cpus = [cpu(0, 0), cpu(1, 0), cpu(2, 1), cpu(3, 1)].concat();
        let cache = "sys/devices/system/cpu/cpu0/cache/index0";
        let root = machine(&[
            ("proc/cpuinfo", cpus.as_str()),
            (
                "proc/meminfo",
                "MemTotal:  2048 kB\nMemAvailable: 1024 kB\n",
            ),
            (&format!("{cache}/size"), "32K\n"),
            (&format!("{cache}/level"), "1\n"),
            (&format!("{cache}/type"), "Data\n"),
            (&format!("{cache}/shared_cpu_list"), "0-1\n"),
        ]);
        let host = Host::read(root.path(), Level::Portable);
        assert_eq!(host.processor.as_deref(), Some("Some CPU"));
        assert_eq!(
            (host.cores_logical, host.cores_physical),
            (Some(4), Some(2))
        );
        assert_eq!(host.memory_bytes, Some(Bytes(2_097_152)));
        assert_eq!(host.caches.len(), 1);
        assert_eq!(host.caches[0].bytes, Bytes(32_768));
        assert_eq!((host.memory_bytes_limit, host.cores_limit), (None, None));
    }

    #[test]
    fn ranks_share_the_caches_that_their_cores_have() {
        let root = machine(&[]);
        let mut host = Host::read(root.path(), Level::Portable);
        assert_eq!(host.cache_of_rank(4, 1), Bytes(8 << 20));
        let cache = Cache {
            level: 3,
            kind: "Unified".to_owned(),
            bytes: Bytes(32 << 20),
            cores: "0-1".to_owned(),
        };
        let mut shares = |cores: &str, [logical, physical]: [usize; 2], ranks: &[usize]| {
            host.caches = vec![Cache {
                cores: cores.to_owned(),
                ..cache.clone()
            }];
            (host.cores_logical, host.cores_physical) = (Some(logical), Some(physical));
            let share = |&ranks: &usize| host.cache_of_rank(ranks, 1).0 >> 20;
            ranks.iter().map(share).collect::<Vec<u64>>()
        };
        assert_eq!(shares("0-1", [2, 2], &[1, 2, 4]), [32, 16, 8]);
        assert_eq!(shares("0-1", [2, 1], &[1, 2]), [32, 16]);
        // 16 caches of 8 cores, each with two threads.
        let of_many = shares("0-7,128-135", [256, 128], &[1, 8, 16, 128, 256]);
        assert_eq!(of_many, [32, 4, 4, 4, 2]);
        assert_eq!(host.cache_of_rank(2, 64), Bytes(256 << 20));
        // Two of the cores that share a cache of a server.
        (host.caches[0].bytes, host.caches[0].cores) = (Bytes(300 << 20), "0-1".to_owned());
        (host.cores_logical, host.cores_physical) = (Some(2), Some(2));
        assert_eq!(host.cache_of_rank(1, 1), Bytes(64 << 20));
        assert_eq!(host.cache_of_rank(8, 1), Bytes(8 << 20));
    }

    #[test]
    fn the_tightest_group_limits() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/job/step\n"),
            ("sys/fs/cgroup/job/memory.max", "1000\n"),
            ("sys/fs/cgroup/job/step/memory.max", "max\n"),
            ("sys/fs/cgroup/job/cpu.max", "300000 100000\n"),
            ("sys/fs/cgroup/job/step/cpu.max", "150000 100000\n"),
        ]);
        let host = Host::read(root.path(), Level::Portable);
        assert_eq!(host.memory_bytes_limit, Some(Bytes(1000)));
        assert_eq!(host.cores_limit, Some(1.5));
    }

    #[test]
    fn the_old_hierarchy_limits_too() {
        let root = machine(&[
            ("proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/gone\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4096\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        let host = Host::read(root.path(), Level::Portable);
        assert_eq!(host.memory_bytes_limit, Some(Bytes(4096)));
        assert_eq!(host.cores_limit, None);
    }

    #[test]
    fn a_machine_that_tells_nothing_is_no_failure() {
        let root = machine(&[]);
        let host = Host::read(root.path(), Level::Portable);
        assert!(host.cores_usable >= 1);
        assert_eq!((host.memory_bytes, host.gpus), (None, 0));
    }
}
