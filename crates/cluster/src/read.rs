//! Reads a machine file, with the line of every fault.

use crate::error::MachineError;
use crate::machine::{
    Allreduce, AllreduceLink, Basis, ConvEfficiency, ConvSaturation, Device, Efficiency, Exchange,
    Fact, Io, Machine, PrecisionEfficiency, ProcessorKind, Rates, Share, Tiles,
};
use crate::quantity::{Quantity, bare};
use partita_files::line_at;
use partita_space::BytesPerSecond;
use partita_space::help::Expected;
use partita_space::near;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ops::Range;
use toml::{Spanned, Value};

mod calibration;
mod links;
mod software;

use calibration::RawCalibration;
use links::{RawLinks, RawNetwork};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMachine {
    name: Spanned<String>,
    nodes: RawFact,
    devices_per_node: RawFact,
    host_memory: Option<RawFact>,
    device: RawDevice,
    links: RawLinks,
    network: Option<RawNetwork>,
    allreduce: Option<RawAllreduce>,
    exchange: Option<RawLink>,
    io: Option<RawIo>,
    calibration: Option<RawCalibration>,
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a number with its source, { value = ..., source = \"...\" }"
)]
struct RawFact {
    value: Spanned<Value>,
    basis: Option<Spanned<String>>,
    source: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDevice {
    name: Spanned<String>,
    kind: Spanned<Value>,
    memory: RawFact,
    peak_flops_f32: RawFact,
    memory_bandwidth: RawFact,
    host_bandwidth: Option<RawFact>,
    kernel_start: Option<RawFact>,
    #[serde(default)]
    rates: RawRates,
    processors: Option<RawFact>,
    tiles: Option<RawTiles>,
    efficiency: RawEfficiency,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRates {
    tf32: Option<RawFact>,
    bf16: Option<RawFact>,
    f16: Option<RawFact>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTiles {
    rows: RawFact,
    columns: RawFact,
    half_side: RawFact,
    start: RawFact,
    alignment: RawFact,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEfficiency {
    conv2d: RawConvEfficiency,
    conv3d: RawConvEfficiency,
    memory_bound: RawFact,
    #[serde(default)]
    tf32: RawPrecisionEfficiency,
    #[serde(default)]
    bf16: RawPrecisionEfficiency,
    #[serde(default)]
    f16: RawPrecisionEfficiency,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPrecisionEfficiency {
    conv2d: Option<RawConvEfficiency>,
    conv3d: Option<RawConvEfficiency>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConvEfficiency {
    forward: RawFact,
    backward_data: RawFact,
    backward_weight: RawFact,
    saturation: Option<RawSaturation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSaturation {
    channels_forward: RawFact,
    channels_backward: RawFact,
    thickness: RawFact,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    latency: RawFact,
    bandwidth: RawFact,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAllreduce {
    occupancy: Option<RawFact>,
    intra: RawAllreduceLink,
    inter: RawAllreduceLink,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAllreduceLink {
    latency: RawFact,
    bandwidth: RawFact,
    growth: Option<RawFact>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawIo {
    bandwidth_total: RawFact,
    bandwidth_per_node: RawFact,
    latency: RawFact,
}

impl Machine {
    /// Reads the text of a machine file; `file` is the name that errors give it.
    ///
    /// Errors: the first fault, with its line, its key and what is possible there.
    pub fn parse(text: &str, file: &str) -> Result<Machine, MachineError> {
        let reader = Reader { text, file };
        let other = |file| MachineError::IsSoftware { file };
        reader.machine(reader.raw((&KEYS, &software::KEYS), other)?)
    }
}

/// Keys that every machine file has, and no software profile.
const KEYS: [&str; 3] = ["nodes", "device", "links"];

/// The text being read, for the lines of faults.
struct Reader<'a> {
    text: &'a str,
    file: &'a str,
}

impl Reader<'_> {
    /// The text as it is written. One that has keys of another kind of file and none of this one's is called so.
    fn raw<T: DeserializeOwned>(
        &self,
        (own, others): (&[&str], &[&str]),
        other: fn(String) -> MachineError,
    ) -> Result<T, MachineError> {
        toml::from_str(self.text).map_err(|error| {
            let table = self.text.parse::<toml::Table>().unwrap_or_default();
            let has_any = |keys: &[&str]| keys.iter().any(|key| table.contains_key(*key));
            if has_any(others) && !has_any(own) {
                other(self.file.to_owned())
            } else {
                self.refuse(&error)
            }
        })
    }

    fn machine(&self, raw: RawMachine) -> Result<Machine, MachineError> {
        let nodes = self.fact("nodes", raw.nodes)?;
        let network = raw.network.map(|raw| self.network(raw, nodes.value));
        Ok(Machine {
            name: self.word("name", raw.name)?,
            nodes,
            devices_per_node: self.fact("devices_per_node", raw.devices_per_node)?,
            host_memory: self.maybe("host_memory", raw.host_memory)?,
            device: self.device(raw.device)?,
            links: self.links(raw.links)?,
            network: network.transpose()?,
            allreduce: raw.allreduce.map(|raw| self.allreduce(raw)).transpose()?,
            exchange: raw
                .exchange
                .map(|raw| self.exchange_at("exchange", raw))
                .transpose()?,
            io: raw.io.map(|raw| self.io(raw)).transpose()?,
            calibration: raw
                .calibration
                .map(|raw| self.calibration(raw))
                .transpose()?,
        })
    }

    fn device(&self, raw: RawDevice) -> Result<Device, MachineError> {
        let kinds = ProcessorKind::ALL.map(|kind| (kind.name(), kind));
        Ok(Device {
            name: self.word("device.name", raw.name)?,
            kind: self.plain_choice("device.kind", &raw.kind, &kinds)?,
            memory: self.fact("device.memory", raw.memory)?,
            peak_flops_f32: self.fact("device.peak_flops_f32", raw.peak_flops_f32)?,
            memory_bandwidth: self.fact("device.memory_bandwidth", raw.memory_bandwidth)?,
            host_bandwidth: self.maybe("device.host_bandwidth", raw.host_bandwidth)?,
            kernel_start: self.maybe("device.kernel_start", raw.kernel_start)?,
            rates: self.rates(raw.rates)?,
            tiles: self.tiles(raw.tiles, raw.processors.as_ref())?,
            processors: self.maybe("device.processors", raw.processors)?,
            efficiency: self.efficiency("device.efficiency", raw.efficiency)?,
        })
    }

    fn rates(&self, raw: RawRates) -> Result<Rates, MachineError> {
        let rate = |name: &str, raw: Option<RawFact>| {
            raw.map(|raw| self.fact(&format!("device.rates.{name}"), raw))
                .transpose()
        };
        Ok(Rates {
            tf32: rate("tf32", raw.tf32)?,
            bf16: rate("bf16", raw.bf16)?,
            f16: rate("f16", raw.f16)?,
        })
    }

    fn tiles(
        &self,
        raw: Option<RawTiles>,
        processors: Option<&RawFact>,
    ) -> Result<Option<Tiles>, MachineError> {
        let Some(raw) = raw else {
            return Ok(None);
        };
        if processors.is_none() {
            let expected =
                "the number of processors that compute tiles, as `device.tiles` is given";
            let offset = raw.rows.value.span().start;
            return Err(self.bad("device.processors", offset, "missing", expected.to_owned()));
        }
        Ok(Some(Tiles {
            rows: self.fact("device.tiles.rows", raw.rows)?,
            columns: self.fact("device.tiles.columns", raw.columns)?,
            half_side: self.fitted("device.tiles.half_side", raw.half_side)?,
            start: self.fact("device.tiles.start", raw.start)?,
            alignment: self.fact("device.tiles.alignment", raw.alignment)?,
        }))
    }

    fn efficiency(&self, key: &str, raw: RawEfficiency) -> Result<Efficiency, MachineError> {
        Ok(Efficiency {
            conv2d: self.conv_efficiency(&format!("{key}.conv2d"), raw.conv2d)?,
            conv3d: self.conv_efficiency(&format!("{key}.conv3d"), raw.conv3d)?,
            memory_bound: self.at_most_all(
                &format!("{key}.memory_bound"),
                raw.memory_bound,
                "no kernel moves bytes faster than the peak",
            )?,
            tf32: self.by_precision(&format!("{key}.tf32"), raw.tf32)?,
            bf16: self.by_precision(&format!("{key}.bf16"), raw.bf16)?,
            f16: self.by_precision(&format!("{key}.f16"), raw.f16)?,
        })
    }

    fn by_precision(
        &self,
        key: &str,
        raw: RawPrecisionEfficiency,
    ) -> Result<PrecisionEfficiency, MachineError> {
        let conv = |name: &str, raw: Option<RawConvEfficiency>| {
            raw.map(|raw| self.conv_efficiency(&format!("{key}.{name}"), raw))
                .transpose()
        };
        Ok(PrecisionEfficiency {
            conv2d: conv("conv2d", raw.conv2d)?,
            conv3d: conv("conv3d", raw.conv3d)?,
        })
    }

    fn conv_efficiency(
        &self,
        key: &str,
        raw: RawConvEfficiency,
    ) -> Result<ConvEfficiency, MachineError> {
        Ok(ConvEfficiency {
            forward: self.fitted(&format!("{key}.forward"), raw.forward)?,
            backward_data: self.fitted(&format!("{key}.backward_data"), raw.backward_data)?,
            backward_weight: self.fitted(&format!("{key}.backward_weight"), raw.backward_weight)?,
            saturation: raw
                .saturation
                .map(|raw| self.saturation(&format!("{key}.saturation"), raw))
                .transpose()?,
        })
    }

    fn saturation(&self, key: &str, raw: RawSaturation) -> Result<ConvSaturation, MachineError> {
        let half = |name: &str, raw| self.fitted(&format!("{key}.{name}"), raw);
        Ok(ConvSaturation {
            channels_forward: half("channels_forward", raw.channels_forward)?,
            channels_backward: half("channels_backward", raw.channels_backward)?,
            thickness: half("thickness", raw.thickness)?,
        })
    }

    /// A number that no vendor states, which must have a basis.
    fn fitted<T: Quantity>(&self, key: &str, raw: RawFact) -> Result<Fact<T>, MachineError> {
        if raw.basis.is_none() {
            let expected = format!("one of {}", listed(&bases()));
            let key = format!("{key}.basis");
            return Err(self.bad(&key, raw.value.span().start, "missing", expected));
        }
        self.fact(key, raw)
    }

    fn at_most_all(&self, key: &str, raw: RawFact, why: &str) -> Result<Fact<Share>, MachineError> {
        let number = bare(raw.value.get_ref());
        if number > 0.0 && number <= 1.0 {
            return self.fitted(key, raw);
        }
        let expected = format!("a number such as 0.5, above 0 and at most 1, since {why}");
        Err(self.bad(key, raw.value.span().start, &shown(&raw.value), expected))
    }

    fn allreduce(&self, raw: RawAllreduce) -> Result<Allreduce, MachineError> {
        let link = |key: &str, raw: RawAllreduceLink| {
            let growth = format!("{key}.growth");
            let why = "twice the nodes at most double the time of a byte";
            Ok::<_, MachineError>(AllreduceLink {
                latency: self.fact(&format!("{key}.latency"), raw.latency)?,
                bandwidth: self.fact(&format!("{key}.bandwidth"), raw.bandwidth)?,
                growth: raw
                    .growth
                    .map(|raw| self.at_most_all(&growth, raw, why))
                    .transpose()?,
            })
        };
        let why = "a sum takes no more than all of a device";
        let occupancy = raw
            .occupancy
            .map(|raw| self.at_most_all("allreduce.occupancy", raw, why));
        Ok(Allreduce {
            occupancy: occupancy.transpose()?,
            intra: link("allreduce.intra", raw.intra)?,
            inter: link("allreduce.inter", raw.inter)?,
        })
    }

    fn exchange_at(&self, key: &str, raw: RawLink) -> Result<Exchange, MachineError> {
        Ok(Exchange {
            latency: self.fact(&format!("{key}.latency"), raw.latency)?,
            bandwidth: self.fact(&format!("{key}.bandwidth"), raw.bandwidth)?,
        })
    }

    fn io(&self, raw: RawIo) -> Result<Io, MachineError> {
        let total_offset = raw.bandwidth_total.value.span().start;
        let io = Io {
            bandwidth_total: self.fact("io.bandwidth_total", raw.bandwidth_total)?,
            bandwidth_per_node: self.fact("io.bandwidth_per_node", raw.bandwidth_per_node)?,
            latency: self.fact("io.latency", raw.latency)?,
        };
        self.at_most(
            ("io.bandwidth_per_node", &io.bandwidth_per_node),
            ("io.bandwidth_total", &io.bandwidth_total),
            total_offset,
        )?;
        Ok(io)
    }

    fn at_most(
        &self,
        (part_key, part): (&str, &Fact<BytesPerSecond>),
        (whole_key, whole): (&str, &Fact<BytesPerSecond>),
        whole_offset: usize,
    ) -> Result<(), MachineError> {
        if part.value.0 <= whole.value.0 {
            return Ok(());
        }
        let given = whole.value.write().to_string();
        let expected = format!("at least {part_key}, which is {}", part.value.write());
        Err(self.bad(whole_key, whole_offset, &given, expected))
    }

    fn quantity<T: Quantity>(&self, key: &str, raw: &Spanned<Value>) -> Result<T, MachineError> {
        T::read(raw.get_ref())
            .map_err(|expected| self.bad(key, raw.span().start, &shown(raw), expected))
    }

    fn maybe<T: Quantity>(
        &self,
        key: &str,
        raw: Option<RawFact>,
    ) -> Result<Option<Fact<T>>, MachineError> {
        raw.map(|raw| self.fact(key, raw)).transpose()
    }

    fn fact<T: Quantity>(&self, key: &str, raw: RawFact) -> Result<Fact<T>, MachineError> {
        let value = self.quantity(key, &raw.value)?;
        let basis = match &raw.basis {
            Some(word) => self.choice(&format!("{key}.basis"), word, &bases())?,
            None => Basis::Stated,
        };
        let source = self.word(&format!("{key}.source"), raw.source)?;
        Ok(Fact {
            value,
            basis,
            source,
        })
    }

    pub(super) fn word(&self, key: &str, raw: Spanned<String>) -> Result<String, MachineError> {
        if raw.get_ref().trim().is_empty() {
            let expected = "a text that is not blank".to_owned();
            return Err(self.bad(key, raw.span().start, "empty", expected));
        }
        Ok(raw.into_inner())
    }

    fn choice<T: Copy>(
        &self,
        key: &str,
        raw: &Spanned<String>,
        choices: &[(&str, T)],
    ) -> Result<T, MachineError> {
        let given = raw.get_ref();
        if let Some(&(_, choice)) = choices.iter().find(|&(name, _)| name == given) {
            return Ok(choice);
        }
        let expected = Expected {
            text: format!("one of {}", listed(choices)),
            nearest: near(given, choices.iter().map(|&(name, _)| name))
                .map(|name| format!("\"{name}\"")),
        };
        Err(self.bad(key, raw.span().start, &format!("\"{given}\""), expected))
    }

    /// As [`Self::choice`], of a value that must be a text alone, without a source.
    fn plain_choice<T: Copy>(
        &self,
        key: &str,
        raw: &Spanned<Value>,
        choices: &[(&str, T)],
    ) -> Result<T, MachineError> {
        match raw.get_ref().as_str() {
            Some(text) => self.choice(key, &Spanned::new(raw.span(), text.to_owned()), choices),
            None => {
                let expected = format!("a text alone, one of {}", listed(choices));
                Err(self.bad(key, raw.span().start, &shown(raw), expected))
            }
        }
    }

    pub(super) fn bad(
        &self,
        key: &str,
        offset: usize,
        given: &str,
        expected: impl Into<Expected>,
    ) -> MachineError {
        MachineError::BadValue {
            file: self.file.to_owned(),
            line: self.line(offset).0,
            key: key.to_owned(),
            given: given.to_owned(),
            expected: Box::new(expected.into()),
        }
    }

    /// The error of the TOML reader, as [`MachineError::UnknownKey`] or [`MachineError::MissingKey`] if it is one.
    fn refuse(&self, error: &toml::de::Error) -> MachineError {
        let (line, text) = self.line(error.span().map_or(0, |span| span.start));
        let file = self.file.to_owned();
        if error.message().starts_with("unknown field") {
            // serde has no structured form of this error: the names are in backticks.
            let mut names = error.message().split('`').skip(1).step_by(2);
            let key = names.next().unwrap_or_default().to_owned();
            let possible: Vec<String> = names.map(str::to_owned).collect();
            let nearest = near(&key, possible.iter().map(String::as_str)).map(str::to_owned);
            return MachineError::UnknownKey {
                file,
                line,
                key,
                possible,
                nearest,
            };
        }
        let missing = error.message().strip_prefix("missing field `");
        if let Some(key) = missing.and_then(|rest| rest.strip_suffix('`')) {
            // All of the file begins where a table in its first line does.
            let is_part = |span: &Range<usize>| {
                span.start > 0 || text.starts_with('[') && span.end <= text.len()
            };
            let table = error.span().filter(is_part);
            let table = table.map(|_| (line, text.to_owned()));
            let key = key.to_owned();
            return MachineError::MissingKey { file, key, table };
        }
        // Whole numbers of TOML have 64 bits; the reader names types of its own beyond them.
        let message = if error.message().contains("` as i128") {
            "a whole number of more than 64 bits".to_owned()
        } else {
            error.message().to_owned()
        };
        MachineError::Malformed {
            file,
            line,
            text: text.to_owned(),
            message,
        }
    }

    /// The line (from 1) of a byte offset, and its text.
    fn line(&self, offset: usize) -> (usize, &str) {
        let line = line_at(self.text, offset);
        let text = self.text.lines().nth(line - 1).unwrap_or_default();
        (line, text.trim())
    }
}

/// A value as it is given; a long one is cut.
fn shown(value: &Spanned<Value>) -> String {
    let text = value.get_ref().to_string();
    match value.get_ref() {
        _ if text.chars().count() <= SHOWN_MAX => text,
        Value::Float(number) => format!("{number:e}"),
        Value::String(_)
        | Value::Integer(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Array(_)
        | Value::Table(_) => text.chars().take(SHOWN_MAX).collect::<String>() + "...",
    }
}

/// Characters of a value that a message shows.
const SHOWN_MAX: usize = 60;

fn bases() -> [(&'static str, Basis); 5] {
    Basis::ALL.map(|basis| (basis.name(), basis))
}

fn listed<T>(choices: &[(&str, T)]) -> String {
    let names: Vec<String> = choices
        .iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    names.join(", ")
}
