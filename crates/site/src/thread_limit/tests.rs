//! How many threads a process can start.

use super::*;
use std::fs;

fn limit_of(files: &[(&str, &str)]) -> Option<usize> {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    limit(root.path())
}

#[test]
fn the_tightest_limit_of_the_system_counts() {
    assert_eq!(limit_of(&[]), None);
    let mappings = ("proc/sys/vm/max_map_count", "65530\n");
    let system = ("proc/sys/kernel/threads-max", "192730\n");
    assert_eq!(limit_of(&[system]), Some(192_730));
    assert_eq!(limit_of(&[mappings, system]), Some(14_334));
    let limits = "Limit Soft Limit Hard Limit Units\n\
                  Max processes             4096                 96365                processes\n";
    let user = ("proc/self/limits", limits);
    assert_eq!(limit_of(&[mappings, system, user]), Some(4096));
    let unlimited = limits.replace("4096 ", "unlimited ");
    let user = ("proc/self/limits", unlimited.as_str());
    assert_eq!(limit_of(&[mappings, user]), Some(14_334));
    let groups = ("proc/self/cgroup", "0::/job/step\n");
    let job = ("sys/fs/cgroup/job/pids.max", "300\n");
    let step = ("sys/fs/cgroup/job/step/pids.max", "max\n");
    assert_eq!(limit_of(&[mappings, groups, job, step]), Some(300));
}

#[test]
fn what_is_suggested_is_possible() {
    let asked = |ranks, threads| TooManyThreads {
        ranks,
        threads,
        possible: 14_334,
        cores: 2,
    };
    let text = asked(2, 20_000).to_string();
    assert!(text.contains("help: try `threads = 7163`"), "{text}");
    assert!(text.contains("1 keep(s) the 2 core(s)"), "{text}");
    assert_eq!(asked(2, 7163).threads_max(), 7163);
    let text = asked(20_000, 1).to_string();
    assert!(text.contains("help: try `ranks = 2866`"), "{text}");
    assert!(asked(2866, 1).threads_max() >= 1);
    assert_eq!(asked(2867, 1).threads_max(), 0);
}
