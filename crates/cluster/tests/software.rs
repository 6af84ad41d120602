//! Software profiles: they load, they survive writing, faults are refused with line, key and nearest choice.

use partita_cluster::{
    CollectiveLibrary, Machine, MachineError, ProcessorKind, Software, SoftwareError,
};
use partita_space::{Bytes, BytesPerSecond};
use std::fs;
use std::path::PathBuf;

fn load(name: &str) -> Software {
    Software::load(name, &[]).unwrap_or_else(|error| panic!("{error}"))
}

const TEXT: &str = include_str!("../../../software/chainermn.toml");

/// Replaces a part of ChainerMN's profile: line and key of the fault, and the whole error.
fn refused(from: &str, to: &str) -> (usize, String, MachineError) {
    let offset = TEXT.find(from).unwrap_or_else(|| panic!("no `{from}`"));
    let changed = TEXT.replacen(from, to, 1);
    let error = Software::parse(&changed, "bad.toml").expect_err(to);
    let (MachineError::BadValue { line, key, .. } | MachineError::UnknownKey { line, key, .. }) =
        &error
    else {
        panic!("{error}")
    };
    assert_eq!(*line, TEXT[..offset].matches('\n').count() + 1, "{error}");
    (*line, key.clone(), error)
}

#[test]
fn built_in_profiles_survive_writing() {
    let names = Software::available(&[]);
    let all = [
        "chainermn",
        "horovod",
        "lbann",
        "mxnet",
        "partita",
        "partita-cudnn",
        "partita-opencl",
        "pytorch-ddp",
    ];
    assert_eq!(names, all);
    for name in names {
        let software = load(&name);
        assert_eq!(software.name, name);
        let text = software.to_toml();
        let again = Software::parse(&text, "again").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again, software);
        assert_eq!(again.to_toml(), text);
    }
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../software");
    assert_eq!(Software::available(&[folder]), Software::available(&[]));
}

#[test]
fn a_machine_file_is_no_profile() {
    let text = include_str!("../../../machines/lassen.toml");
    let error = Software::parse(text, "lassen.toml").expect_err("a machine");
    assert!(
        error.to_string().contains("`--machine lassen.toml`"),
        "{error}"
    );
}

#[test]
fn faults_name_line_key_and_nearest() {
    let unknown = [
        ("data_store =", "datastore =", "data_store"),
        ("[exchange.intra]", "[exchange.intar]", "intra"),
        ("growth = {", "grows = {", "growth"),
        ("space = {", "spaces = {", "space"),
        ("context = {", "contxt = {", "context"),
    ];
    for (from, to, meant) in unknown {
        let (_, _, error) = refused(from, to);
        let MachineError::UnknownKey { nearest, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(nearest.as_deref(), Some(meant));
    }
    let (_, key, error) = refused("value = \"nccl\"", "value = \"nccll\"");
    assert_eq!(key, "collectives");
    assert!(error.to_string().ends_with("help: try \"nccl\""), "{error}");
}

#[test]
fn invalid_values_name_their_key() {
    let bad = [
        (
            "data_store = { value = true",
            "data_store = { value = 1",
            "data_store",
        ),
        (
            "adapters = { value = 1",
            "adapters = { value = 0",
            "allreduce.fit.adapters",
        ),
        (
            "adapters = { value = 1",
            "adapters = { value = \"al\"",
            "allreduce.fit.adapters",
        ),
        (
            "workspace = { value = \"8 MiB\"",
            "workspace = { value = \"8\"",
            "memory.workspace",
        ),
        (
            "context = { value = \"",
            "context = { value = \"-",
            "memory.context",
        ),
        (
            "space = { value = ",
            "space = { value = 1",
            "kernels.split.space",
        ),
        (
            "backward = { value = ",
            "backward = { value = -",
            "redistribution.backward",
        ),
        (
            "latency = { value = \"",
            "latency = { value = \"-",
            "exchange.intra.latency",
        ),
        (
            "strategy = { value = \"batch_norm=local,bucket=1TiB,fuse=off\"",
            "strategy = { value = \" \"",
            "strategy",
        ),
    ];
    for (from, to, key) in bad {
        let to = if key == "kernels.split.space" {
            "space = { value = 7"
        } else {
            to
        };
        assert_eq!(refused(from, to).1, key);
    }
}

#[test]
fn profiles_are_found_by_name_and_by_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ours.toml");
    fs::write(
        &path,
        load("lbann").to_toml().replace("\"lbann\"", "\"ours\""),
    )
    .expect("written");
    let by_path = Software::load(path.to_str().expect("text"), &[]).expect("by path");
    let dirs = [folder.path().to_owned()];
    assert_eq!(Software::load("ours", &dirs).expect("by name"), by_path);
    assert!(Software::available(&dirs).contains(&"ours".to_owned()));
    let error = Software::load("lban", &dirs).expect_err("a typo");
    assert!(
        error
            .to_string()
            .contains("help: try `lbann`; possible values: "),
        "{error}"
    );
    let machine = Software::load("lassen", &dirs).expect_err("a machine");
    assert!(
        machine.to_string().ends_with("or a path to a profile")
            && machine.to_string().contains("help: try `--machine lassen`"),
        "{machine}"
    );
    let profile = Machine::load("lbann", &dirs).expect_err("a profile");
    assert!(
        profile.to_string().contains("help: try `--software lbann`"),
        "{profile}"
    );
    let absent = Software::load("absent/none.toml", &[]).expect_err("no such file");
    assert!(matches!(absent, SoftwareError::Unreadable { .. }));
}

#[test]
fn fits_take_the_bandwidth_of_the_machine() {
    let lassen = Machine::load("lassen", &[]).expect("built in");
    let fit = load("lbann").allreduce_on(&lassen).expect("a fit");
    assert_eq!(fit.inter.bandwidth.value, BytesPerSecond(25e9));
    assert_eq!(fit.intra.bandwidth, lassen.links.intra.bandwidth);
    let abci = Machine::load("abci", &[]).expect("built in");
    let fit = load("chainermn").allreduce_on(&abci).expect("a fit");
    assert_eq!(fit.inter.bandwidth.value, BytesPerSecond(12.5e9));
    assert!(load("partita").allreduce_on(&abci).is_none());
    // As many adapters as there are, if the profile says so, and no more than there are.
    let mut more = lassen.clone();
    more.links.inter.nics_per_node.value = 16;
    let of = |name| load(name).allreduce_on(&more).expect("a fit").inter;
    assert_eq!(of("lbann").bandwidth.value, BytesPerSecond(25e9));
    assert_eq!(of("chainermn").bandwidth.value, BytesPerSecond(25e9 / 16.0));
    let mut least = lassen.clone();
    least.links.inter.nics_per_node.value = 1;
    let fit = load("chainermn").allreduce_on(&least).expect("a fit");
    assert_eq!(fit.inter.bandwidth.value, BytesPerSecond(25e9));
    // What was measured on the machine comes first.
    let mut measured = abci.clone();
    measured.allreduce = load("lbann").allreduce_on(&lassen);
    assert_eq!(
        load("chainermn").allreduce_on(&measured),
        measured.allreduce
    );
}

#[test]
fn contexts_are_of_gpus() {
    let own = load("partita-cudnn");
    assert_eq!(own.memory_on(ProcessorKind::Cpu), (Bytes(0), Bytes(0)));
    let (context, workspace) = own.memory_on(ProcessorKind::Gpu);
    assert_eq!(context, Bytes(450_000_000));
    assert_eq!(workspace, Bytes(256 << 20));
    assert!(own.data_store.value && !load("horovod").data_store.value);
    assert!(own.reads_parts());
    for library in CollectiveLibrary::ALL {
        assert!(!library.name().is_empty());
    }
}

/// Its kernels compute in f32 at rates of their own, and its messages are copied twice.
#[test]
fn partita_on_gpus_has_rates_and_links_of_its_own() {
    let software = load("partita-opencl");
    let lassen = Machine::load("lassen", &[]).expect("built in");
    let used = software.on(lassen.clone());
    let kernels = software.kernels.gpu.as_ref().expect("own kernels");
    let (device, own) = (&used.device, &lassen.device);
    assert_eq!(device.efficiency.conv3d.forward.value, kernels.conv3d.value);
    assert_eq!(device.kernel_start, Some(kernels.start.clone()));
    assert!(device.rates.tf32.is_none() && device.tiles.is_none());
    let f16 = device.rates.f16.as_ref().expect("stored in f16");
    assert_eq!(f16.value, own.peak_flops_f32.value);
    let staging = software.staging.as_ref().expect("staged");
    assert_eq!(used.links.intra.bandwidth, staging.bandwidth);
    let latency = lassen.links.inter.latency.value + staging.latency.value;
    assert_eq!(used.links.inter.latency.value, latency);
    assert!(used.links.inter.node_bandwidth.value <= lassen.links.inter.node_bandwidth.value);
    // With the vendor's libraries, and on processors, a machine stays as its file says.
    assert_eq!(load("partita-cudnn").on(lassen.clone()), lassen);
    let fugaku = Machine::load("fugaku", &[]).expect("built in");
    assert_eq!(software.on(fugaku.clone()), fugaku);
}
