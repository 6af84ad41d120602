//! Writes a machine as a file that reads back equal.

use crate::calibration::{Calibration, CalibrationError, LinkFit, MeasuredKernel, TransferTime};
use crate::machine::{Basis, ConvEfficiency, Fact, Machine, Rates};
use crate::network::Network;
use crate::quantity::Quantity;
use partita_space::Seconds;
use toml::Value;

mod software;

impl Machine {
    /// The text of a machine file; reading it back gives an equal machine.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        word(&mut text, "name", &self.name);
        fact(&mut text, "nodes", &self.nodes);
        fact(&mut text, "devices_per_node", &self.devices_per_node);
        if let Some(memory) = &self.host_memory {
            fact(&mut text, "host_memory", memory);
        }
        self.write_device(&mut text);
        self.write_links(&mut text);
        if let Some(exchange) = &self.exchange {
            table(&mut text, "exchange");
            fact(&mut text, "latency", &exchange.latency);
            fact(&mut text, "bandwidth", &exchange.bandwidth);
        }
        if let Some(io) = &self.io {
            table(&mut text, "io");
            fact(&mut text, "bandwidth_total", &io.bandwidth_total);
            fact(&mut text, "bandwidth_per_node", &io.bandwidth_per_node);
            fact(&mut text, "latency", &io.latency);
        }
        if let Some(calibration) = &self.calibration {
            write_calibration(&mut text, calibration);
        }
        text
    }

    fn write_device(&self, text: &mut String) {
        let device = &self.device;
        table(text, "device");
        word(text, "name", &device.name);
        word(text, "kind", device.kind.name());
        fact(text, "memory", &device.memory);
        fact(text, "peak_flops_f32", &device.peak_flops_f32);
        fact(text, "memory_bandwidth", &device.memory_bandwidth);
        if let Some(bandwidth) = &device.host_bandwidth {
            fact(text, "host_bandwidth", bandwidth);
        }
        if let Some(start) = &device.kernel_start {
            fact(text, "kernel_start", start);
        }
        if let Some(processors) = &device.processors {
            fact(text, "processors", processors);
        }
        write_rates(text, &device.rates);
        if let Some(tiles) = &device.tiles {
            table(text, "device.tiles");
            fact(text, "rows", &tiles.rows);
            fact(text, "columns", &tiles.columns);
            fact(text, "half_side", &tiles.half_side);
            fact(text, "start", &tiles.start);
            fact(text, "alignment", &tiles.alignment);
        }
        table(text, "device.efficiency");
        fact(text, "memory_bound", &device.efficiency.memory_bound);
        conv(text, "device.efficiency.conv2d", &device.efficiency.conv2d);
        conv(text, "device.efficiency.conv3d", &device.efficiency.conv3d);
        for (name, shares) in [
            ("tf32", &device.efficiency.tf32),
            ("bf16", &device.efficiency.bf16),
            ("f16", &device.efficiency.f16),
        ] {
            for (dims, shares) in [("conv2d", &shares.conv2d), ("conv3d", &shares.conv3d)] {
                if let Some(shares) = shares {
                    conv(text, &format!("device.efficiency.{name}.{dims}"), shares);
                }
            }
        }
    }

    fn write_links(&self, text: &mut String) {
        let (intra, inter) = (&self.links.intra, &self.links.inter);
        table(text, "links.intra");
        fact(text, "latency", &intra.latency);
        fact(text, "bandwidth", &intra.bandwidth);
        if let Some(bandwidth) = &intra.bus_bandwidth {
            fact(text, "bus_bandwidth", bandwidth);
        }
        if let Some(kind) = intra.kind {
            word(text, "kind", kind.name());
        }
        table(text, "links.inter");
        fact(text, "latency", &inter.latency);
        fact(text, "bandwidth", &inter.bandwidth);
        fact(text, "node_bandwidth", &inter.node_bandwidth);
        fact(text, "nics_per_node", &inter.nics_per_node);
        if let Some(reduction) = inter.reduction {
            word(text, "reduction", reduction.name());
        }
        if let Some(network) = &self.network {
            write_network(text, network);
        }
        let Some(allreduce) = &self.allreduce else {
            return;
        };
        table(text, "allreduce");
        if let Some(occupancy) = &allreduce.occupancy {
            fact(text, "occupancy", occupancy);
        }
        for (name, link) in [
            ("allreduce.intra", &allreduce.intra),
            ("allreduce.inter", &allreduce.inter),
        ] {
            table(text, name);
            fact(text, "latency", &link.latency);
            fact(text, "bandwidth", &link.bandwidth);
            if let Some(growth) = &link.growth {
                fact(text, "growth", growth);
            }
        }
    }
}

fn write_rates(text: &mut String, rates: &Rates) {
    let rates = [
        ("tf32", &rates.tf32),
        ("bf16", &rates.bf16),
        ("f16", &rates.f16),
    ];
    if rates.iter().all(|(_, rate)| rate.is_none()) {
        return;
    }
    table(text, "device.rates");
    for (name, rate) in rates {
        if let Some(rate) = rate {
            fact(text, name, rate);
        }
    }
}

fn write_network(text: &mut String, network: &Network) {
    table(text, "network");
    word(text, "kind", network.kind());
    match network {
        Network::FatTree(levels) => {
            for level in levels {
                line(text, format_args!("\n[[network.levels]]"));
                fact(text, "nodes", &level.nodes);
                fact(text, "oversubscription", &level.oversubscription);
                fact(text, "latency", &level.latency);
            }
        }
        Network::Dragonfly(one) => {
            fact(text, "nodes_per_group", &one.nodes_per_group);
            fact(text, "group_bandwidth", &one.group_bandwidth);
            fact(text, "latency", &one.latency);
        }
        Network::Torus(torus) => {
            fact(text, "extents", &torus.extents);
            fact(text, "link_bandwidth", &torus.link_bandwidth);
            fact(text, "hop_latency", &torus.hop_latency);
        }
    }
}

fn write_calibration(text: &mut String, calibration: &Calibration) {
    table(text, "calibration");
    word(text, "date", &calibration.date);
    word(text, "processor", &calibration.processor);
    line(text, format_args!("cores = {}", calibration.cores));
    word(text, "simd", &calibration.simd);
    word(text, "kernels", &calibration.kernels);
    word(text, "world", &calibration.world);
    line(text, format_args!("ranks = {}", calibration.ranks));
    line(text, format_args!("threads = {}", calibration.threads));
    let CalibrationError {
        kernels,
        median,
        mean_by_time,
        total,
    } = calibration.validation;
    line(
        text,
        format_args!(
            "validation = {{ kernels = {kernels}, median = {median:?}, mean_by_time = \
             {mean_by_time:?}, total = {total:?} }}"
        ),
    );
    if let Some(message) = &calibration.message {
        line(text, format_args!("message = {}", fit(message)));
    }
    let names: Vec<String> = calibration
        .coordinates
        .iter()
        .map(|name| quoted(name))
        .collect();
    line(text, format_args!("coordinates = [{}]", names.join(", ")));
    let columns = "# Family, flops, bytes, coordinates of the shape, seconds alone, seconds with all \
                   ranks at work.";
    line(text, format_args!("{columns}"));
    line(text, format_args!("measured = ["));
    for MeasuredKernel(family, flops, bytes, shape, alone, together) in &calibration.measured {
        let family = quoted(family);
        let (alone, together) = (alone.0, together.0);
        line(
            text,
            format_args!("  [{family}, {flops:?}, {bytes:?}, {shape:?}, {alone:?}, {together:?}],"),
        );
    }
    line(text, format_args!("]"));
    for (name, fits) in &calibration.collectives {
        table(text, &format!("calibration.collectives.{name}"));
        for (members, one) in fits {
            line(text, format_args!("{members} = {}", fit(one)));
        }
    }
    let Some(network) = &calibration.network else {
        return;
    };
    table(text, "calibration.network");
    line(text, format_args!("message = {}", fit(&network.message)));
    let together = fit(&network.messages_together);
    line(text, format_args!("messages_together = {together}"));
    for (name, fits) in &network.collectives {
        table(text, &format!("calibration.network.collectives.{name}"));
        for (group, one) in fits {
            line(text, format_args!("{group} = {}", fit(one)));
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

fn table(text: &mut String, name: &str) {
    line(text, format_args!("\n[{name}]"));
}

fn word(text: &mut String, key: &str, value: &str) {
    line(text, format_args!("{key} = {}", quoted(value)));
}

fn conv(text: &mut String, name: &str, efficiency: &ConvEfficiency) {
    table(text, name);
    fact(text, "forward", &efficiency.forward);
    fact(text, "backward_data", &efficiency.backward_data);
    fact(text, "backward_weight", &efficiency.backward_weight);
    if let Some(saturation) = &efficiency.saturation {
        table(text, &format!("{name}.saturation"));
        fact(text, "channels_forward", &saturation.channels_forward);
        fact(text, "channels_backward", &saturation.channels_backward);
        fact(text, "thickness", &saturation.thickness);
    }
}

fn fact<T: Quantity>(text: &mut String, key: &str, fact: &Fact<T>) {
    let value = fact.value.write();
    let (basis, source) = (fact.basis.name(), quoted(&fact.source));
    // The basis that is assumed when none is given stays unsaid, except for shares, which need one.
    let unsaid = fact.basis == Basis::Stated && !matches!(value, Value::Float(_));
    if unsaid {
        line(
            text,
            format_args!("{key} = {{ value = {value}, source = {source} }}"),
        );
    } else {
        line(
            text,
            format_args!("{key} = {{ value = {value}, basis = \"{basis}\", source = {source} }}"),
        );
    }
}

fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    text.push_str(&content.to_string());
    text.push('\n');
}
