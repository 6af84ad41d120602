//! The tables of measured times in an SQLite database.
//!
//! | table | a row is | key |
//! |---|---|---|
//! | `settings` | the conditions of measurements ([`Conditions`]) | all of them |
//! | `shapes` | features of a kernel ([`Features`]), which do not depend on the setting | signature |
//! | `kernels` | seconds of a kernel, and bytes of its workspace if known | setting, shape, algorithm |
//! | `links` | one size of a message or collective | setting, operation, members, point |
//! | `loads` | one size of a read | setting, what was read, point |
//!
//! `PRAGMA user_version` is the format, `PRAGMA application_id` says that the database is of this program.

use crate::{Conditions, KernelKey, KernelTime, Measurements};
use partita_oracle::{Features, LinkTimes, TransferTime};
use partita_space::{Bytes, Seconds};
use rusqlite::{Row, Statement, Transaction, params};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Format of the database. Times in an older format are discarded (it is also raised after faulty measurements),
/// a newer format is not read.
///
/// Keys of kernels have their own version (`KernelShape::KEY_VERSION`), so processes with different versions can
/// share a database: each leaves the keys of the other unchanged.
pub(crate) const FORMAT: u32 = 9;

/// `part` in ASCII.
const APPLICATION: i32 = 0x7061_7274;

/// The statements that make the tables, as SQLite keeps them in the file. A time of 0 has no relative error, which
/// fits of transfers minimize.
const SCHEMA: [&str; 5] = [
    "CREATE TABLE settings (
    id INTEGER PRIMARY KEY,
    processor TEXT NOT NULL,
    cores INTEGER NOT NULL CHECK (cores >= 0),
    simd TEXT NOT NULL,
    backend TEXT NOT NULL,
    ranks INTEGER NOT NULL CHECK (ranks >= 0),
    at_work INTEGER NOT NULL CHECK (at_work >= 0),
    threads INTEGER NOT NULL CHECK (threads >= 0),
    UNIQUE (processor, cores, simd, backend, ranks, at_work, threads)
) STRICT",
    "CREATE TABLE shapes (
    id INTEGER PRIMARY KEY,
    signature TEXT NOT NULL UNIQUE,
    family TEXT NOT NULL,
    flops REAL NOT NULL,
    bytes REAL NOT NULL,
    positions REAL NOT NULL,
    row_length REAL NOT NULL,
    first_channels REAL NOT NULL,
    last_channels REAL NOT NULL,
    taps REAL NOT NULL,
    stride REAL NOT NULL,
    groups REAL NOT NULL,
    buffer_ratio REAL NOT NULL,
    packed REAL NOT NULL,
    parts REAL NOT NULL,
    scaled_flops REAL NOT NULL,
    scaled_bytes REAL NOT NULL
) STRICT",
    "CREATE TABLE kernels (
    setting INTEGER NOT NULL REFERENCES settings,
    shape INTEGER NOT NULL REFERENCES shapes,
    algorithm TEXT NOT NULL,
    seconds REAL NOT NULL CHECK (seconds BETWEEN 0 AND 86400),
    workspace_bytes INTEGER CHECK (workspace_bytes >= 0),
    PRIMARY KEY (setting, shape, algorithm)
) STRICT, WITHOUT ROWID",
    "CREATE TABLE links (
    setting INTEGER NOT NULL REFERENCES settings,
    operation TEXT NOT NULL,
    members INTEGER NOT NULL CHECK (members >= 0),
    point INTEGER NOT NULL,
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    seconds REAL NOT NULL CHECK (seconds > 0 AND seconds <= 86400),
    host REAL NOT NULL CHECK (host BETWEEN 0 AND 86400),
    PRIMARY KEY (setting, operation, members, point)
) STRICT, WITHOUT ROWID",
    "CREATE TABLE loads (
    setting INTEGER NOT NULL REFERENCES settings,
    what TEXT NOT NULL,
    point INTEGER NOT NULL,
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    seconds REAL NOT NULL CHECK (seconds > 0 AND seconds <= 86400),
    host REAL NOT NULL CHECK (host BETWEEN 0 AND 86400),
    PRIMARY KEY (setting, what, point)
) STRICT, WITHOUT ROWID",
];

const COLUMNS_OF_SETTING: &str = "processor, cores, simd, backend, ranks, at_work, threads";

/// The column of each feature of [`Features::NAMES`].
const COLUMNS_OF_SHAPE: [&str; Features::NAMES.len()] = [
    "positions",
    "row_length",
    "first_channels",
    "last_channels",
    "taps",
    "stride",
    "groups",
    "buffer_ratio",
    "packed",
    "parts",
    "scaled_flops",
    "scaled_bytes",
];

/// Words of `links.operation`.
const MESSAGE: &str = "message";
const COLLECTIVES: [&str; 4] = ["allreduce", "allgather", "reduce_scatter", "alltoall"];

type TimesByMembers = BTreeMap<usize, Vec<TransferTime>>;

/// What a database holds.
#[derive(Debug)]
pub(crate) enum Contents {
    /// Nothing: the file is new.
    Nothing,
    /// Times of an older format.
    Older,
    /// Times of this format.
    Current,
    /// Times of a newer format.
    Newer(u32),
    /// Something else, with the reason.
    Foreign(String),
}

/// Which times remain if a database has a time already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// The one in the database.
    Keep,
    /// The new one.
    Replace,
}

/// What a database holds, by its header and the statements of its tables.
pub(crate) fn contents(tx: &Transaction<'_>) -> rusqlite::Result<Contents> {
    let number = |pragma: &str| tx.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
    let (application, format) = (number("application_id")?, number("user_version")?);
    let mut of_file =
        tx.prepare("SELECT sql FROM sqlite_schema WHERE name NOT GLOB 'sqlite_*' ORDER BY rowid")?;
    if application == 0 && format == 0 && !of_file.exists([])? {
        return Ok(Contents::Nothing);
    }
    if application != APPLICATION || format < 0 {
        let reason = "it is a database of another program";
        return Ok(Contents::Foreign(reason.to_owned()));
    }
    let format = format.unsigned_abs();
    match format.cmp(&FORMAT) {
        Ordering::Less => return Ok(Contents::Older),
        Ordering::Greater => return Ok(Contents::Newer(format)),
        Ordering::Equal => {}
    }
    let of_file = of_file.query_map([], |row| row.get::<_, Option<String>>(0))?;
    let of_file: Vec<Option<String>> = of_file.collect::<rusqlite::Result<_>>()?;
    // Triggers, views and other tables are not run or read.
    if of_file.iter().map(Option::as_deref).eq(SCHEMA.map(Some)) {
        Ok(Contents::Current)
    } else {
        Ok(Contents::Foreign("it has other tables".to_owned()))
    }
}

/// Checks structure, indexes, types and ranges of values; gives the first fault. It takes about a microsecond per
/// row.
pub(crate) fn fault(tx: &Transaction<'_>) -> rusqlite::Result<Option<String>> {
    let found: String = tx.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    Ok((found != "ok").then_some(found))
}

/// Makes the tables, in place of those of an older format.
pub(crate) fn create(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    let mut old = tx.prepare(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB 'sqlite_*'",
    )?;
    let old = old.query_map([], |row| row.get::<_, String>(0))?;
    let old: Vec<String> = old.collect::<rusqlite::Result<_>>()?;
    for name in old {
        tx.execute(&format!("DROP TABLE \"{}\"", name.replace('"', "\"\"")), [])?;
    }
    for statement in SCHEMA {
        tx.execute(statement, [])?;
    }
    tx.pragma_update(None, "application_id", APPLICATION)?;
    tx.pragma_update(None, "user_version", FORMAT)
}

/// All settings, in order.
pub(crate) fn settings(tx: &Transaction<'_>) -> rusqlite::Result<Vec<Conditions>> {
    let mut of_file = tx.prepare(&format!("SELECT {COLUMNS_OF_SETTING} FROM settings"))?;
    let setting = |row: &Row<'_>| {
        Ok(Conditions {
            processor: row.get(0)?,
            cores: row.get(1)?,
            simd: row.get(2)?,
            backend: row.get(3)?,
            ranks: row.get(4)?,
            at_work: row.get(5)?,
            threads: row.get(6)?,
        })
    };
    let mut all: Vec<Conditions> = of_file.query_map([], setting)?.collect::<Result<_, _>>()?;
    all.sort();
    Ok(all)
}

/// The measurements under a setting.
pub(crate) fn read(tx: &Transaction<'_>, setting: &Conditions) -> rusqlite::Result<Measurements> {
    let mut all = Measurements::default();
    let Some(id) = id_of_setting(tx, setting)? else {
        return Ok(all);
    };
    let features = COLUMNS_OF_SHAPE.join(", ");
    let mut kernels = tx.prepare_cached(&format!(
        "SELECT signature, algorithm, seconds, workspace_bytes, family, flops, bytes, {features}
         FROM kernels JOIN shapes ON shapes.id = kernels.shape WHERE setting = ?1"
    ))?;
    for time in kernels.query_map([id], kernel_time)? {
        all.add([time?]);
    }
    let mut links = LinkTimes::default();
    let mut points = tx.prepare_cached(
        "SELECT bytes, seconds, host, operation, members FROM links
         WHERE setting = ?1 ORDER BY operation, members, point",
    )?;
    let mut rows = points.query([id])?;
    while let Some(row) = rows.next()? {
        let operation: String = row.get(3)?;
        // A later version may have other operations.
        if let Some(list) = points_of(&mut links, &operation, row.get(4)?) {
            list.push(transfer_time(row)?);
        }
    }
    if links != LinkTimes::default() {
        all.links = Some(links);
    }
    let mut points = tx.prepare_cached(
        "SELECT bytes, seconds, host, what FROM loads WHERE setting = ?1 ORDER BY what, point",
    )?;
    let mut rows = points.query([id])?;
    while let Some(row) = rows.next()? {
        let list = all.loads.entry(row.get(3)?).or_default();
        list.push(transfer_time(row)?);
    }
    Ok(all)
}

/// Writes measurements under a setting. Kernels without features are left out.
pub(crate) fn write(
    tx: &Transaction<'_>,
    setting: &Conditions,
    new: &Measurements,
    conflict: Conflict,
) -> rusqlite::Result<()> {
    let values = params_of_setting(setting);
    let mut insert = tx.prepare_cached(&format!(
        "INSERT INTO settings ({COLUMNS_OF_SETTING}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT DO NOTHING"
    ))?;
    insert.execute(&values[..])?;
    let id = id_of_setting(tx, setting)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    write_kernels(tx, id, new, conflict)?;
    if let Some(links) = &new.links {
        let mut lists = Points::of_links(tx, conflict)?;
        lists.write(params![id, MESSAGE, 0], &links.message)?;
        for (operation, times) in COLLECTIVES.iter().zip(collectives(links)) {
            for (members, points) in times {
                lists.write(params![id, operation, members], points)?;
            }
        }
    }
    let mut lists = Points::of_loads(tx, conflict)?;
    for (what, points) in &new.loads {
        lists.write(params![id, what], points)?;
    }
    Ok(())
}

fn write_kernels(
    tx: &Transaction<'_>,
    setting: i64,
    new: &Measurements,
    conflict: Conflict,
) -> rusqlite::Result<()> {
    let columns = ["family", "flops", "bytes"]
        .into_iter()
        .chain(COLUMNS_OF_SHAPE);
    let columns: Vec<&str> = columns.collect();
    let set = columns
        .iter()
        .map(|name| format!("{name} = excluded.{name}"));
    let (of_shape, of_kernel) = match conflict {
        Conflict::Keep => ("NOTHING".to_owned(), "NOTHING"),
        Conflict::Replace => (
            format!("UPDATE SET {}", set.collect::<Vec<_>>().join(", ")),
            "UPDATE SET seconds = excluded.seconds,
             workspace_bytes = coalesce(excluded.workspace_bytes, workspace_bytes)",
        ),
    };
    let (names, marks) = (columns.join(", "), vec!["?"; columns.len() + 1].join(", "));
    let mut shape = tx.prepare_cached(&format!(
        "INSERT INTO shapes (signature, {names}) VALUES ({marks}) ON CONFLICT (signature) DO {of_shape}"
    ))?;
    let mut find = tx.prepare_cached("SELECT id FROM shapes WHERE signature = ?1")?;
    let mut kernel = tx.prepare_cached(&format!(
        "INSERT INTO kernels (setting, shape, algorithm, seconds, workspace_bytes)
         VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO {of_kernel}"
    ))?;
    for (signature, algorithms) in &new.kernels {
        if let Some(features) = new.shapes.get(signature) {
            insert_shape(&mut shape, signature, features)?;
        }
        let Some(id) = optional(find.query_row([signature], |row| row.get::<_, i64>(0)))? else {
            continue;
        };
        for (algorithm, seconds) in algorithms {
            let workspace = new.workspace(signature, algorithm);
            let workspace = workspace.map(|bytes| bytes.0);
            kernel.execute(params![setting, id, algorithm, seconds.0, workspace])?;
        }
    }
    Ok(())
}

fn insert_shape(
    insert: &mut Statement<'_>,
    signature: &str,
    features: &Features,
) -> rusqlite::Result<()> {
    let Features {
        family,
        flops,
        bytes,
        shape,
    } = features;
    let values: [&dyn rusqlite::ToSql; 4] = [&signature, family, flops, bytes];
    let shape = shape.iter().map(|value| value as &dyn rusqlite::ToSql);
    let values: Vec<&dyn rusqlite::ToSql> = values.into_iter().chain(shape).collect();
    insert.execute(&values[..]).map(drop)
}

/// Statements that write lists of points under a key.
struct Points<'t> {
    conflict: Conflict,
    find: rusqlite::CachedStatement<'t>,
    clear: rusqlite::CachedStatement<'t>,
    insert: rusqlite::CachedStatement<'t>,
}

impl<'t> Points<'t> {
    fn of_links(tx: &'t Transaction<'_>, conflict: Conflict) -> rusqlite::Result<Self> {
        let key = "setting = ?1 AND operation = ?2 AND members = ?3";
        Self::new(tx, conflict, "links", key)
    }

    fn of_loads(tx: &'t Transaction<'_>, conflict: Conflict) -> rusqlite::Result<Self> {
        Self::new(tx, conflict, "loads", "setting = ?1 AND what = ?2")
    }

    fn new(
        tx: &'t Transaction<'_>,
        conflict: Conflict,
        table: &str,
        key: &str,
    ) -> rusqlite::Result<Self> {
        let marks = vec!["?"; key.split(" AND ").count() + 4].join(", ");
        Ok(Self {
            conflict,
            find: tx.prepare_cached(&format!("SELECT 1 FROM {table} WHERE {key}"))?,
            clear: tx.prepare_cached(&format!("DELETE FROM {table} WHERE {key}"))?,
            insert: tx.prepare_cached(&format!("INSERT INTO {table} VALUES ({marks})"))?,
        })
    }

    fn write(
        &mut self,
        key: &[&dyn rusqlite::ToSql],
        points: &[TransferTime],
    ) -> rusqlite::Result<()> {
        if points.is_empty() || self.conflict == Conflict::Keep && self.find.exists(key)? {
            return Ok(());
        }
        self.clear.execute(key)?;
        for (number, point) in (0_i64..).zip(points) {
            let TransferTime {
                bytes,
                seconds,
                host,
            } = point;
            let values = params![number, bytes.0, seconds.0, host.0];
            self.insert.execute(&[key, values].concat()[..])?;
        }
        Ok(())
    }
}

fn params_of_setting(setting: &Conditions) -> [&dyn rusqlite::ToSql; 7] {
    let Conditions {
        processor,
        cores,
        simd,
        backend,
        ranks,
        at_work,
        threads,
    } = setting;
    [processor, cores, simd, backend, ranks, at_work, threads]
}

fn id_of_setting(tx: &Transaction<'_>, setting: &Conditions) -> rusqlite::Result<Option<i64>> {
    let mut find = tx.prepare_cached(
        "SELECT id FROM settings WHERE processor = ?1 AND cores = ?2 AND simd = ?3 AND backend = ?4
         AND ranks = ?5 AND at_work = ?6 AND threads = ?7",
    )?;
    optional(find.query_row(&params_of_setting(setting)[..], |row| row.get(0)))
}

fn optional<T>(row: rusqlite::Result<T>) -> rusqlite::Result<Option<T>> {
    match row {
        Ok(value) => Ok(Some(value)),
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        Err(error) => Err(error),
    }
}

fn kernel_time(row: &Row<'_>) -> rusqlite::Result<KernelTime> {
    let mut shape = [0.0; Features::NAMES.len()];
    for (at, value) in shape.iter_mut().enumerate() {
        *value = row.get(7 + at)?;
    }
    Ok(KernelTime {
        key: KernelKey {
            signature: row.get(0)?,
            algorithm: row.get(1)?,
        },
        seconds: Seconds(row.get(2)?),
        workspace: row.get::<_, Option<u64>>(3)?.map(Bytes),
        features: Features {
            family: row.get(4)?,
            flops: row.get(5)?,
            bytes: row.get(6)?,
            shape,
        },
    })
}

fn transfer_time(row: &Row<'_>) -> rusqlite::Result<TransferTime> {
    Ok(TransferTime {
        bytes: Bytes(row.get(0)?),
        seconds: Seconds(row.get(1)?),
        host: Seconds(row.get(2)?),
    })
}

/// In the order of [`COLLECTIVES`].
fn collectives(links: &LinkTimes) -> [&TimesByMembers; 4] {
    let LinkTimes {
        message: _,
        allreduce,
        allgather,
        reduce_scatter,
        alltoall,
    } = links;
    [allreduce, allgather, reduce_scatter, alltoall]
}

/// The list of points of an operation; none if the operation is not known.
fn points_of<'l>(
    links: &'l mut LinkTimes,
    operation: &str,
    members: usize,
) -> Option<&'l mut Vec<TransferTime>> {
    if operation == MESSAGE {
        return Some(&mut links.message);
    }
    let all = [
        &mut links.allreduce,
        &mut links.allgather,
        &mut links.reduce_scatter,
        &mut links.alltoall,
    ];
    let mut all = COLLECTIVES.iter().zip(all);
    let (_, times) = all.find(|(name, _)| **name == operation)?;
    Some(times.entry(members).or_default())
}
