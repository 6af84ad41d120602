//! The target of what processes of the offload tell each other. The first byte of an input says which side receives the
//! rest: `g` a process that is greeted, `h` one whose trainer has proven its secret, `r` a loader, `p` a rank that waits for pieces, `s` a validator, `t` a rank that waits
//! for a validator.

use partita_data::Dataset;
use partita_formats::{DType, Samples};
use partita_input::{PieceReader, PieceRequest, PieceSupply as _, PieceValues, Preprocessing};
use partita_offload::{
    Address, Hello, LIST_BYTES_MAX, Loaders, Report, Role, Secret, SnapshotHead, Stream,
    difference, greet, receive, receive_report, receive_snapshot, receive_up_to, send,
    serve_pieces,
};
use partita_program::Transform;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Debug;
use std::fs;
use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

const CREDITS: usize = 4;
/// Messages that are read of an input.
const MESSAGES_MAX: usize = 64;
/// The pieces that the rank waits for: 8 elements of a volume, two targets.
const PIECES: [&str; 2] = [
    r#"{"samples":[0],"key":{"seed":1,"epoch":0},"part":{"Volume":[{"start":0,"end":1},{"start":0,"end":2},
        {"start":0,"end":2},{"start":0,"end":2}]}}"#,
    r#"{"samples":[0],"key":{"seed":1,"epoch":0},"part":{"Targets":{"start":0,"end":2}}}"#,
];

/// Writes the dataset of the loader.
pub(super) fn write_dataset(folder: &Path) -> io::Result<()> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/fixtures/universes");
    for name in ["dataset.toml", "u0.h5", "u1.h5", "u2.h5"] {
        fs::write(folder.join(name), fs::read(from.join(name))?)?;
    }
    Ok(())
}

/// What one side receives.
pub(super) fn wire(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let (side, rest) = bytes.split_first().ok_or("an empty input")?;
    match side {
        b'g' => greeting(rest, folder),
        b'h' => messages::<Hello>(rest, &|mut input| receive(&mut input), check_settings),
        b'r' => requests(rest, folder),
        b'p' => pieces(rest),
        b's' => messages::<SnapshotHead>(
            rest,
            &|mut input| receive_snapshot(&mut input),
            check_shards,
        ),
        b't' => messages::<Report<Value>>(rest, &|mut input| receive_report(&mut input), |_| {}),
        _ => Err("an unknown side".to_owned()),
    }
}

/// Gives a side what the other one sends, and then its end. The side must not keep the connection.
fn fed<R>(bytes: &[u8], side: impl FnOnce(Stream) -> R) -> R {
    let (own, mut other) = match UnixStream::pair() {
        Ok(pair) => pair,
        Err(error) => panic!("no pair of sockets: {error}"),
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            // The side that receives may have closed the connection.
            let _ = other.write_all(bytes);
            let _ = other.shutdown(Shutdown::Write);
            let _ = io::copy(&mut other, &mut io::sink());
        });
        side(Stream::from(own))
    })
}

/// Bytes of somebody who does not know the secret are never a greeting.
fn greeting(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let secret = match Secret::of_user(&folder.join("secret")) {
        Ok(secret) => secret,
        Err(error) => panic!("the secret of the target: {error}"),
    };
    let greeted = fed(bytes, |stream| {
        greet(stream, &secret).map(|greeted| greeted.hello)
    });
    match greeted {
        Ok(hello) => panic!("greeted without the secret: {hello:?}"),
        Err(error) => Err(error.to_string()),
    }
}

/// Equal settings do not differ, and one that a side lacks does.
fn check_settings(hello: &Hello) {
    for role in [Role::Loader, Role::Validator] {
        assert_eq!(difference(role, &hello.settings, &hello.settings), None);
        let unlike = difference(role, &[], &hello.settings);
        let is_set = |setting: &partita_offload::SharedSetting| setting.value != "not set";
        assert!(
            unlike.is_some() || !hello.settings.iter().any(is_set),
            "settings that one side lacks differ"
        );
    }
}

fn requests(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let dataset = match Dataset::open(folder) {
        Ok(dataset) => dataset,
        Err(error) => panic!("the dataset of the target: {error}"),
    };
    let plain = Preprocessing::plain(&dataset);
    let reader = PieceReader::new(&dataset, plain, Transform::Identity);
    let stop = AtomicBool::new(false);
    let served = fed(bytes, |stream| {
        serve_pieces(&stream, reader, CREDITS, Duration::ZERO, &stop)
    });
    assert!(
        served.held_max <= CREDITS + 1,
        "{} pieces in memory",
        served.held_max
    );
    served.fault.map_or(Ok(()), Err)
}

fn pieces(bytes: &[u8]) -> Result<(), String> {
    let requests = PIECES.map(|text| match serde_json::from_str::<PieceRequest>(text) {
        Ok(request) => request,
        Err(error) => panic!("a request of the target: {error}"),
    });
    let (warnings, said) = channel();
    let upcoming = requests.clone().into_iter();
    let has_all = fed(bytes, |stream| {
        let address = Address::Unix(PathBuf::from("loader"));
        let warn = Box::new(move |text| drop(warnings.send(text)));
        let joined = vec![(address, stream)];
        let limits = (CREDITS, Duration::from_secs(10));
        let mut loaders = match Loaders::new(0, joined, limits, Box::new(upcoming), warn) {
            Ok(loaders) => loaders,
            Err(error) => panic!("no loaders: {error}"),
        };
        let values = [
            PieceValues::Volume(Samples::new(DType::Int16)),
            PieceValues::Targets(Vec::new()),
        ];
        let mut taken = requests.iter().zip(values);
        taken.all(|(request, mut values)| {
            let is_there = loaders.deliver(request, 1, &mut values);
            let count = (values.len(), request.elements());
            assert!(!is_there || count.0 == count.1, "{count:?} elements");
            is_there
        })
    });
    let warnings: Vec<String> = said.try_iter().collect();
    assert_eq!(
        warnings.len(),
        usize::from(!has_all),
        "a loss is told once: {warnings:?}"
    );
    warnings.into_iter().next().map_or(Ok(()), Err)
}

/// Messages of a kind, one after the other.
fn messages<T: Serialize + DeserializeOwned + Debug>(
    mut bytes: &[u8],
    read: &dyn Fn(&mut &[u8]) -> io::Result<T>,
    check: fn(&T),
) -> Result<(), String> {
    for _ in 0..MESSAGES_MAX {
        if bytes.is_empty() {
            break;
        }
        let message = read(&mut bytes).map_err(|error| error.to_string())?;
        check_same(&message);
        check(&message);
    }
    Ok(())
}

/// What was received is sent as something that reads as the same.
fn check_same<T: Serialize + DeserializeOwned + Debug>(message: &T) {
    let mut bytes = Vec::new();
    if let Err(error) = send(&mut bytes, message) {
        panic!("what was received cannot be sent: {error}");
    }
    let again: T = match receive_up_to(&mut bytes.as_slice(), LIST_BYTES_MAX) {
        Ok(again) => again,
        Err(error) => panic!("what was sent cannot be received: {error}"),
    };
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
}

/// A shard inside its tensor has this many bytes, another one none.
fn check_shards(head: &SnapshotHead) {
    for shard in &head.shards {
        let mut dims = shard.region.into_iter().zip(shard.shape);
        let is_inside = dims.all(|([start, end], extent)| start <= end && end <= extent);
        let sizes = shard
            .region
            .into_iter()
            .map(|[start, end]| end.abs_diff(start));
        let sizes = sizes.chain([shard.element_bytes]);
        let bytes = sizes.fold(1u128, |product, size| product.saturating_mul(size as u128));
        let extents = shard.shape.into_iter().chain([shard.element_bytes]);
        let whole = extents.fold(1u128, |product, one| product.saturating_mul(one as u128));
        match shard.bytes() {
            Some(found) => assert!(is_inside && found as u128 == bytes, "{shard:?}"),
            // Products before the last factor may be too large although a factor is zero.
            None => assert!(
                !is_inside || whole > usize::MAX as u128 || whole == 0,
                "{shard:?}"
            ),
        }
    }
}
