//! The calibration in a machine file.

use super::{
    Calibration, CalibrationError, HostGroup, LinkFit, MeasuredKernel, NetworkCalibration,
    TransferTime,
};
use crate::entry::{At, Entry, FileText, push_line, quoted, shown};
use crate::error::MachineError;
use crate::quantity::Quantity;
use partita_space::Seconds;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::{Spanned, Value};

/// Longest valid time in seconds, a day.
const SECONDS_MAX: f64 = 86400.0;

/// Largest valid feature; features are mostly logarithms.
const FEATURE_MAX: f64 = 1000.0;

/// Names of collectives.
const COLLECTIVES: [&str; 4] = ["allgather", "allreduce", "alltoall", "reduce_scatter"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCalibration {
    date: Spanned<String>,
    processor: Spanned<String>,
    cores: Spanned<Value>,
    simd: Spanned<String>,
    kernels: Spanned<String>,
    world: Spanned<String>,
    ranks: Spanned<Value>,
    threads: Spanned<Value>,
    validation: Spanned<CalibrationError>,
    message: Option<Spanned<LinkFit>>,
    #[serde(default)]
    collectives: RawCollectives,
    network: Option<RawNetwork>,
    #[serde(default)]
    coordinates: Vec<String>,
    measured: Vec<Spanned<MeasuredKernel>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNetwork {
    message: Spanned<LinkFit>,
    messages_together: Spanned<LinkFit>,
    #[serde(default)]
    collectives: RawCollectives,
}

/// Fits by the name of a collective, then by the group.
type RawCollectives = BTreeMap<Spanned<String>, BTreeMap<Spanned<String>, Spanned<LinkFit>>>;

/// Fits by the name of a collective, then by the group.
type Fits<Group> = BTreeMap<String, BTreeMap<Group, LinkFit>>;

/// The text of a number of members, if it is one.
fn members(text: &str) -> Option<String> {
    let is_number = text.parse().is_ok_and(|members: u32| members > 1);
    is_number.then(|| text.to_owned())
}

impl Entry for Calibration {
    fn read(at: &At<'_>) -> Result<Self, MachineError> {
        Reader(at.file).calibration(at.by_serde()?)
    }

    fn write_tables(&self, key: &str, text: &mut String) {
        write(text, key, self);
    }
}

/// The text being read, for the lines of faults.
struct Reader<'a>(FileText<'a>);

impl Reader<'_> {
    fn calibration(&self, raw: RawCalibration) -> Result<Calibration, MachineError> {
        let members = (
            members as fn(&str) -> Option<String>,
            "a number of members, at least 2",
        );
        Ok(Calibration {
            date: self.day("calibration.date", raw.date)?,
            processor: self.word("calibration.processor", raw.processor)?,
            cores: self.count("calibration.cores", &raw.cores)?,
            simd: self.word("calibration.simd", raw.simd)?,
            kernels: self.word("calibration.kernels", raw.kernels)?,
            world: self.word("calibration.world", raw.world)?,
            ranks: self.count("calibration.ranks", &raw.ranks)?,
            threads: self.count("calibration.threads", &raw.threads)?,
            validation: self.errors("calibration.validation", &raw.validation)?,
            message: raw
                .message
                .map(|fit| self.fit("calibration.message", &fit))
                .transpose()?,
            collectives: self.collectives("calibration.collectives", raw.collectives, &members)?,
            network: raw
                .network
                .map(|raw| self.measured_network(raw))
                .transpose()?,
            coordinates: raw.coordinates,
            measured: self.measured(raw.measured)?,
        })
    }

    fn word(&self, key: &str, raw: Spanned<String>) -> Result<String, MachineError> {
        if raw.get_ref().trim().is_empty() {
            let expected = "a text that is not blank";
            return Err(self.0.bad(key, raw.span().start, "empty", expected));
        }
        Ok(raw.into_inner())
    }

    fn count(&self, key: &str, raw: &Spanned<Value>) -> Result<usize, MachineError> {
        usize::read(raw.get_ref()).map_err(|expected| {
            self.0
                .bad(key, raw.span().start, &shown(raw.get_ref()), expected)
        })
    }

    fn day(&self, key: &str, raw: Spanned<String>) -> Result<String, MachineError> {
        let parts: Vec<Option<u32>> = raw
            .get_ref()
            .split('-')
            .map(|part| part.parse().ok())
            .collect();
        let is_day = match parts[..] {
            [Some(_), Some(month), Some(day)] => {
                (1..=12).contains(&month) && (1..=31).contains(&day)
            }
            _ => false,
        };
        if is_day {
            return Ok(raw.into_inner());
        }
        let given = format!("\"{}\"", raw.get_ref());
        Err(self.0.bad(
            key,
            raw.span().start,
            &given,
            "a date such as \"2026-11-22\"".to_owned(),
        ))
    }

    fn errors(
        &self,
        key: &str,
        raw: &Spanned<CalibrationError>,
    ) -> Result<CalibrationError, MachineError> {
        let errors = *raw.get_ref();
        let sizes = [errors.median, errors.mean_by_time];
        let is_size = |size: &f64| size.is_finite() && *size >= 0.0;
        if sizes.iter().all(is_size) && errors.total.is_finite() && errors.total >= -1.0 {
            return Ok(errors);
        }
        let expected = "errors that are finite, `median` and `mean_by_time` of 0 or more, `total` of -1 or \
                        more";
        let given = format!("{errors:?}");
        Err(self
            .0
            .bad(key, raw.span().start, &given, expected.to_owned()))
    }

    fn fit(&self, key: &str, raw: &Spanned<LinkFit>) -> Result<LinkFit, MachineError> {
        let fit = raw.get_ref();
        let numbers = [
            ("latency", fit.latency.0),
            ("seconds_per_byte", fit.seconds_per_byte),
            ("host_seconds_per_byte", fit.host_seconds_per_byte),
        ];
        let mut wrong = numbers
            .into_iter()
            .filter(|(_, number)| !(0.0..=SECONDS_MAX).contains(number));
        let bad = |name: &str, given: &str, expected: String| {
            Err(self
                .0
                .bad(&format!("{key}.{name}"), raw.span().start, given, expected))
        };
        if let Some((name, number)) = wrong.next() {
            let expected = format!("seconds from 0 to {SECONDS_MAX}");
            return bad(name, &number.to_string(), expected);
        }
        let is_time = |seconds: &Seconds| (0.0..=SECONDS_MAX).contains(&seconds.0);
        let is_point = |point: &&TransferTime| is_time(&point.seconds) && is_time(&point.host);
        if let Some(point) = fit.points.iter().find(|point| !is_point(point)) {
            let expected = format!("seconds from 0 to {SECONDS_MAX}");
            return bad("points", &format!("{point:?}"), expected);
        }
        if let Some(pair) = fit
            .points
            .windows(2)
            .find(|pair| pair[0].bytes >= pair[1].bytes)
        {
            let expected = format!("more than {} bytes, by ascending size", pair[0].bytes.0);
            return bad("points", &pair[1].bytes.0.to_string(), expected);
        }
        Ok(fit.clone())
    }

    fn measured_network(&self, raw: RawNetwork) -> Result<NetworkCalibration, MachineError> {
        let group = (
            HostGroup::parse as fn(&str) -> Option<HostGroup>,
            "hosts and ranks on each, as in \"2x4\", with at least 2 hosts",
        );
        let key = "calibration.network";
        Ok(NetworkCalibration {
            message: self.fit(&format!("{key}.message"), &raw.message)?,
            messages_together: self
                .fit(&format!("{key}.messages_together"), &raw.messages_together)?,
            collectives: self.collectives(
                &format!("{key}.collectives"),
                raw.collectives,
                &group,
            )?,
        })
    }

    /// Fits of collectives; `group` reads a group, and says what is expected of its text.
    fn collectives<Group: Ord>(
        &self,
        key: &str,
        raw: RawCollectives,
        (group, expected): &(fn(&str) -> Option<Group>, &str),
    ) -> Result<Fits<Group>, MachineError> {
        let mut all = BTreeMap::new();
        for (name, fits) in raw {
            let word = name.get_ref();
            if !COLLECTIVES.contains(&word.as_str()) {
                return Err(self.0.unknown_key(word, name.span().start, &COLLECTIVES));
            }
            let mut by_group = BTreeMap::new();
            for (members, fit) in fits {
                let (text, key) = (members.get_ref(), format!("{key}.{word}"));
                let Some(of) = group(text) else {
                    let expected = (*expected).to_owned();
                    return Err(self.0.bad(&key, members.span().start, text, expected));
                };
                by_group.insert(of, self.fit(&format!("{key}.{text}"), &fit)?);
            }
            all.insert(name.into_inner(), by_group);
        }
        Ok(all)
    }

    fn measured(
        &self,
        raw: Vec<Spanned<MeasuredKernel>>,
    ) -> Result<Vec<MeasuredKernel>, MachineError> {
        let coordinates = raw.first().map_or(0, |row| row.get_ref().3.len());
        for row in &raw {
            let MeasuredKernel(family, flops, bytes, shape, alone, together) = row.get_ref();
            let bad = |given: String, expected: String| {
                Err(self
                    .0
                    .bad("calibration.measured", row.span().start, &given, expected))
            };
            if family.trim().is_empty() {
                return bad("\"\"".to_owned(), "the name of a family".to_owned());
            }
            if shape.len() != coordinates {
                let expected = format!("{coordinates} as in the first row");
                return bad(format!("a row with {} features", shape.len()), expected);
            }
            let mut counts = [*flops, *bytes].into_iter();
            if let Some(count) = counts.find(|count| !(count.is_finite() && *count >= 0.0)) {
                return bad(count.to_string(), "flops and bytes of 0 or more".to_owned());
            }
            if let Some(at) = shape
                .iter()
                .find(|at| !(0.0..=FEATURE_MAX).contains(&at.abs()))
            {
                let expected = format!("features from -{FEATURE_MAX} to {FEATURE_MAX}");
                return bad(at.to_string(), expected);
            }
            let mut times = [alone.0, together.0].into_iter();
            if let Some(time) = times.find(|time| !(*time > 0.0 && *time <= SECONDS_MAX)) {
                return bad(
                    time.to_string(),
                    format!("seconds above 0, at most {SECONDS_MAX}"),
                );
            }
        }
        Ok(raw.into_iter().map(Spanned::into_inner).collect())
    }
}

fn write(text: &mut String, key: &str, calibration: &Calibration) {
    push_line(text, format_args!("\n[{key}]"));
    calibration.date.write_line("date", text);
    calibration.processor.write_line("processor", text);
    push_line(text, format_args!("cores = {}", calibration.cores));
    calibration.simd.write_line("simd", text);
    calibration.kernels.write_line("kernels", text);
    calibration.world.write_line("world", text);
    push_line(text, format_args!("ranks = {}", calibration.ranks));
    push_line(text, format_args!("threads = {}", calibration.threads));
    let CalibrationError {
        kernels,
        median,
        mean_by_time,
        total,
    } = calibration.validation;
    push_line(
        text,
        format_args!(
            "validation = {{ kernels = {kernels}, median = {median:?}, mean_by_time = \
             {mean_by_time:?}, total = {total:?} }}"
        ),
    );
    if let Some(message) = &calibration.message {
        push_line(text, format_args!("message = {}", fit(message)));
    }
    let names: Vec<String> = calibration
        .coordinates
        .iter()
        .map(|name| quoted(name))
        .collect();
    push_line(text, format_args!("coordinates = [{}]", names.join(", ")));
    let columns = "# Family, flops, bytes, coordinates of the shape, seconds alone, seconds with all \
                   ranks at work.";
    push_line(text, format_args!("{columns}"));
    push_line(text, format_args!("measured = ["));
    for MeasuredKernel(family, flops, bytes, shape, alone, together) in &calibration.measured {
        let family = quoted(family);
        let (alone, together) = (alone.0, together.0);
        push_line(
            text,
            format_args!("  [{family}, {flops:?}, {bytes:?}, {shape:?}, {alone:?}, {together:?}],"),
        );
    }
    push_line(text, format_args!("]"));
    for (name, fits) in &calibration.collectives {
        push_line(text, format_args!("\n[{key}.collectives.{name}]"));
        for (members, one) in fits {
            push_line(text, format_args!("{members} = {}", fit(one)));
        }
    }
    let Some(network) = &calibration.network else {
        return;
    };
    push_line(text, format_args!("\n[{key}.network]"));
    push_line(text, format_args!("message = {}", fit(&network.message)));
    let together = fit(&network.messages_together);
    push_line(text, format_args!("messages_together = {together}"));
    for (name, fits) in &network.collectives {
        push_line(text, format_args!("\n[{key}.network.collectives.{name}]"));
        for (group, one) in fits {
            push_line(text, format_args!("{group} = {}", fit(one)));
        }
    }
}

fn fit(fit: &LinkFit) -> String {
    let LinkFit {
        latency: Seconds(latency),
        seconds_per_byte,
        host_seconds_per_byte,
        points,
    } = fit;
    let point = |point: &TransferTime| {
        let [bytes, seconds, host] = [
            point.bytes.0.to_string(),
            format!("{:?}", point.seconds.0),
            format!("{:?}", point.host.0),
        ];
        format!("{{ bytes = {bytes}, seconds = {seconds}, host = {host} }}")
    };
    let points: Vec<String> = points.iter().map(point).collect();
    format!(
        "{{ latency = {latency:?}, seconds_per_byte = {seconds_per_byte:?}, host_seconds_per_byte = \
         {host_seconds_per_byte:?}, points = [{}] }}",
        points.join(", ")
    )
}
