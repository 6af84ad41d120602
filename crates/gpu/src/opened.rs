//! A device that was opened, and the kernels compiled for it.

use crate::device::{CallError, DeviceError, DeviceFacts, DeviceKind, DeviceTraffic};
use crate::driver::{Driver, Found, ModuleHandle, Owned};
use crate::opencl;
use partita_program::Dtype;
use partita_space::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The sources of all kernels, in an order in which each knows what it needs.
const SOURCE: &str = concat!(
    include_str!("source/common.cl"),
    include_str!("source/contents.cl"),
    include_str!("source/pointwise.cl"),
    include_str!("source/sums.cl"),
    include_str!("source/norm.cl"),
    include_str!("source/rows.cl"),
    include_str!("source/pool.cl"),
    include_str!("source/convolution.cl"),
    include_str!("source/attention.cl"),
    include_str!("source/loss.cl"),
    include_str!("source/update.cl"),
);

#[derive(Default)]
struct TrafficCounters {
    read: AtomicU64,
    written: AtomicU64,
    waits: AtomicU64,
}

/// A device that was opened, shared by all ranks of a process that compute on it.
pub struct Device {
    driver: Arc<dyn Driver>,
    facts: DeviceFacts,
    traffic: TrafficCounters,
    /// Kernels for activations in f32, in bf16 and in f16, compiled when they are first needed.
    modules: [OnceLock<Result<Owned<ModuleHandle>, DeviceError>>; 3],
}

impl Device {
    /// All devices, those of a driver in its order.
    ///
    /// Errors: there is no OpenCL, or it has no driver.
    pub fn list() -> Result<Vec<DeviceFacts>, DeviceError> {
        let all = opencl::find()?.into_iter();
        Ok(all.map(|found| found.facts).collect())
    }

    /// All devices of a kind.
    ///
    /// Errors: there is none, or one cannot be used.
    pub fn open_all(kind: DeviceKind) -> Result<Vec<Arc<Self>>, DeviceError> {
        let all = match kind {
            DeviceKind::Gpu | DeviceKind::Software => opencl::find()?,
        };
        let names: Vec<String> = all.iter().map(|found| found.facts.to_string()).collect();
        let of_kind = all.into_iter().filter(|found| found.facts.kind == kind);
        let open: Vec<Arc<Self>> = of_kind
            .map(|found| Self::open(found).map(Arc::new))
            .collect::<Result<_, _>>()?;
        if open.is_empty() {
            let found = names.join(", ");
            return Err(DeviceError::Missing { kind, found });
        }
        Ok(open)
    }

    fn open(Found { facts, open }: Found) -> Result<Self, DeviceError> {
        if !facts.has_f64 {
            let device = facts.name;
            return Err(DeviceError::NoDoubles { device });
        }
        let driver = open().map_err(|error| DeviceError::of_call(&facts.name, error))?;
        Ok(Self {
            driver,
            facts,
            traffic: TrafficCounters::default(),
            modules: [const { OnceLock::new() }; 3],
        })
    }

    /// What it says of itself.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// What has gone between it and the host.
    pub fn traffic(&self) -> DeviceTraffic {
        let TrafficCounters {
            read,
            written,
            waits,
        } = &self.traffic;
        DeviceTraffic {
            read: Bytes(read.load(Ordering::Relaxed)),
            written: Bytes(written.load(Ordering::Relaxed)),
            waits: waits.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn count(&self, more: DeviceTraffic) {
        let counters = &self.traffic;
        counters.read.fetch_add(more.read.0, Ordering::Relaxed);
        counters
            .written
            .fetch_add(more.written.0, Ordering::Relaxed);
        counters.waits.fetch_add(more.waits, Ordering::Relaxed);
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// What a call gave, or an error that names the device.
    pub(crate) fn checked<T>(&self, done: Result<T, CallError>) -> Result<T, DeviceError> {
        done.map_err(|error| DeviceError::of_call(&self.facts.name, error))
    }

    /// As [`Self::checked`], of a kernel.
    pub(crate) fn checked_of<T>(
        &self,
        done: Result<T, CallError>,
        kernel: &str,
    ) -> Result<T, DeviceError> {
        self.checked(done.map_err(|error| CallError {
            detail: format!(" for the kernel {kernel}{}", error.detail),
            ..error
        }))
    }

    /// The kernels for activations of a type, compiled by the first call.
    ///
    /// Errors: those of the compiler.
    pub(crate) fn module(&self, activations: Dtype) -> Result<ModuleHandle, DeviceError> {
        let (number, defined) = match activations {
            Dtype::F32 => (0, None),
            Dtype::Bf16 => (1, Some("ACTIVATIONS_IN_BF16")),
            Dtype::F16 => (2, Some("ACTIVATIONS_IN_F16")),
            Dtype::F64 | Dtype::I16 => panic!("no kernels on activations in {activations:?}"),
        };
        let compiled = self.modules[number].get_or_init(|| {
            let module = self.checked(self.driver.compile(SOURCE, defined))?;
            Ok(Owned::new(&self.driver, module))
        });
        compiled.as_ref().map(Owned::get).map_err(Clone::clone)
    }
}
