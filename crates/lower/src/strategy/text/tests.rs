//! What is read and printed, and what is refused.

use super::*;

#[test]
fn a_strategy_reads_as_it_prints() {
    for text in [
        "data=4,depth=2,height=2",
        "depth=8",
        "data=1",
        "width=3,overlap=off",
        "data=2,batch_norm=local,micro=2",
        "data=2,bucket=25MiB",
        "data=2,workspace=off",
        "data=2,workspace=64MiB,micro=2",
        "data=1,workspace=0B",
        "depth=2,workspace_total=1GiB",
        "data=2,bucket=1000B,micro=2",
        "data=2,fuse=off",
        "data=2,micro=4,shard=gradients",
        "depth=2,filter=2,channel=3; conv4..fc2: D=-,F=filter+depth; fc3: C=-",
        "depth=2; conv2..: N=depth,D=-",
        "data=2; conv1..pool1: recompute=on; conv2: F=data,recompute=off",
        "height=2; conv1..conv4: halo=grouped; conv5..: D=-,halo=own",
        "depth=2; conv1..pool1: chunks=8; conv2..: chunks=1",
        "data=2,micro=4,stages=[depth=2,height=2|depth=2|1|1],schedule=gems*2",
        "micro=3,stages=[..pool2: depth=2|conv3..conv4: data=2|fc1: 1|fc2..: 1],schedule=1f1b",
        "micro=2,stages=[1|1],schedule=chimera; conv1..: recompute=on",
        "data=2,branch=4; mixed1..mixed2: branches=[3|1]; b: branches=2; c..: branches=off",
        "micro=2,stages=[..conv1+conv2: 1|pool1+pool2..: 1],schedule=interleaved*2",
        "micro=4,stages=[..conv1: 1|..: 1],schedule=1f1b",
        "micro=2,stages=[..conv[0]: 1|conv[1]..: 1],schedule=1f1b",
        "stages=40,schedule=gpipe",
        "height=2; ..conv4: halo=grouped",
        "height=2; ..: halo=grouped",
    ] {
        assert_eq!(text.parse::<Strategy>().unwrap().to_string(), text);
    }
}

#[test]
fn stages_read_in_other_forms_too() {
    let text = "data=2; stages=[depth=2,height=2|depth=2|1|1]; micro=4; schedule=gems*2";
    let strategy: Strategy = text.parse().unwrap();
    assert_eq!(strategy.ranks(), 2 * (4 + 2 + 1 + 1));
    let again: Strategy = strategy.to_string().parse().unwrap();
    assert_eq!(again, strategy);
    let short: Strategy = "stages=4,micro=8".parse().unwrap();
    assert_eq!(
        short,
        "stages=[1|1|1|1],micro=8,schedule=1f1b".parse().unwrap()
    );
}

#[test]
fn malformed_strategies_are_refused() {
    for text in [
        "depth",
        "depth=0",
        "depth=x",
        "depth=2,depth=2",
        "overlap=maybe",
        "micro=0",
        "shard=all",
        "depth=2;",
        "depth=2; conv1",
        "depth=2; : D=-",
        "depth=2; conv1: D",
        "depth=2; conv1: X=depth",
        "depth=2; conv1: D=deep",
        "depth=2; conv1: D=depth+depth",
        "depth=2; conv1: D=-,D=-",
        "depth=2; conv1: halo=wide",
        "depth=2; conv1: recompute=maybe",
        "depth=2; conv1: chunks=0",
        "depth=2; conv1: chunks=99999999",
        "depth=2; conv1: chunks=2,chunks=2",
        "depth=2,chunks=2",
        "depth=2; conv1: recompute=on,recompute=off",
        "depth=2,halo=grouped",
        "depth=2; conv1: D=width",
        "depth=2; conv1: halo=own,halo=own",
        "",
        "schedule=gems",
        "branch=2; a: branches=0",
        "branch=2; a: branches=[1|0]",
        "branch=2; a: branches=[]",
        "branch=2; a: branches=1,branches=2",
        "stages=[]",
        "stages=[1|]",
        "stages=[1|x]",
        "stages=[conv1+: 1|1]",
        "stages=[..conv[: 1|fc..: 1]; micro=2",
        "stages=[..conv]: 1|fc..: 1]; micro=2",
        "stages=[1|depth=2,depth=2]",
        "stages=0",
        "stages=[1|1",
        "stages=[1|1],schedule=fast",
        "stages=[data=1048576|data=1048576]",
        "data=1048577",
        "data=524289; stages=[1|1]",
    ] {
        assert!(text.parse::<Strategy>().is_err(), "{text}");
    }
}

#[test]
fn numbers_that_cannot_be_name_the_nearest_that_can() {
    for (text, nearest) in [
        (
            "schedule=gems*9223372036854775808; stages=2",
            "schedule=gems,micro=2",
        ),
        (
            "schedule=gems*8193; stages=2,micro=16384",
            "schedule=gems*8192",
        ),
        (
            "schedule=gems*16385; stages=2, micro = 12",
            "schedule=gems*6",
        ),
        ("schedule=gems*0; stages=2,micro=12", "schedule=gems"),
        ("schedule=gems*x; stages=2,micro=12", "schedule=gems"),
        ("schedule=gems*0; stages=2,micro=3", "schedule=gems,micro=2"),
        (
            "stages=2,schedule=interleaved*99999999999999999999",
            "schedule=interleaved*2",
        ),
        ("stages=2,schedule=interleaved*1", "schedule=interleaved*2"),
        ("depth=2.5", "depth=2"),
        ("depth=2.", "depth=2"),
        ("depth=0.5", "depth=1"),
        ("depth=1e3", "depth=1000"),
        ("depth=-4", "depth=4"),
        ("depth=nan", "depth=1"),
        ("depth=inf", "depth=1048576"),
        ("depth=0x2", "depth=2"),
        ("data=2 depth=3", "data=2,depth=3"),
        ("micro=2.5", "micro=2"),
        ("micro=9223372036854775808", "micro=16384"),
        ("data=99999999999999999999", "data=1048576"),
        ("data=4294967296,depth=4294967296", "data=1048576"),
        ("stages=9223372036854775807", "stages=1048576"),
        (
            "branch=2; a..b: branches=9223372036854775807",
            "branches=1048576",
        ),
        (
            "branch=2; a..b: branches=[9223372036854775807|1]",
            "branches=1048576",
        ),
    ] {
        let error = text.parse::<Strategy>().unwrap_err().to_string();
        assert!(error.contains(&format!("help: try `{nearest}`")), "{error}");
    }
}

#[test]
fn strategies_of_the_most_ranks_are_read() {
    for most in [
        "data=1048576",
        "depth=32,data=64",
        "data=524288; stages=[1|1]",
    ] {
        let strategy: Strategy = most.parse().unwrap();
        assert_eq!(strategy.to_string().parse(), Ok(strategy), "{most}");
    }
}

#[test]
fn refusals_name_what_is_possible() {
    let error = |text: &str| text.parse::<Strategy>().unwrap_err().to_string();
    assert!(error("dept=2").contains("help: try `depth`"));
    assert!(error("recompute=on").contains("; conv1..pool3: recompute=on"));
    let unsplit = error("depth=2,data=2; conv1..: D=depth+width");
    assert!(unsplit.contains("`width`"), "{unsplit}");
    assert!(
        unsplit.contains("possible values: `data`, `depth`"),
        "{unsplit}"
    );
}

#[test]
fn the_nearest_valid_value_is_named_and_valid() {
    for (text, near) in [
        ("data=2,bucket=0.5", "bucket=25MiB"),
        ("data=2,bucket=25", "bucket=25MiB"),
        ("data=2,bucket=0.3B", "bucket=off"),
        ("data=2,bucket=0B", "bucket=off"),
        ("data=2,bucket=0", "bucket=off"),
        ("data=2,bucket=-4MiB", "bucket=off"),
        ("data=2,bucket=2.5B", "bucket=3B"),
        ("data=2,bucket=2TiB", "bucket=1024GiB"),
        ("data=2,bucket=NaNB", "bucket=25MiB"),
        ("data=2,bucket=infB", "bucket=25MiB"),
        ("data=2,workspace=lve", "workspace=live"),
        ("data=2,workspace=64", "workspace=64MiB"),
        (
            "workspace=1KiB,workspace_total=1MiB",
            "workspace_total=1MiB",
        ),
        ("data=2,workspace=2.5B", "workspace=3B"),
        ("data=2,workspace_total=2TiB", "workspace_total=1024GiB"),
        ("data=2,workspace_total=live", "workspace_total=64MiB"),
        ("data=2,batch_norm=locl", "batch_norm=local"),
        ("data=2,batch_norm=synchronised", "batch_norm=synchronized"),
    ] {
        let error = text.parse::<Strategy>().unwrap_err();
        let StrategyError::Value { nearest, .. } = &error else {
            panic!("{text}: {error}");
        };
        assert_eq!(nearest, near, "{error}");
        format!("data=2,{nearest}").parse::<Strategy>().unwrap();
    }
    let off: Strategy = "data=2,bucket=off".parse().unwrap();
    assert_eq!(off, "data=2".parse().unwrap());
}
