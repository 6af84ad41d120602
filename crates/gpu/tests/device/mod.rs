//! The device of a test.

use partita_gpu::{Device, DeviceKind};
use partita_testkit::not_run;
use std::sync::{Arc, OnceLock};

/// A GPU, or else the processor as a device; where there is none, that is written past the capture of outputs.
pub fn device(test: &str) -> Option<Arc<Device>> {
    static OPEN: OnceLock<Result<Arc<Device>, String>> = OnceLock::new();
    let open = OPEN.get_or_init(|| {
        let found =
            Device::open_all(DeviceKind::Gpu).or_else(|_| Device::open_all(DeviceKind::Software));
        let first = found.map(|all| Arc::clone(&all[0]));
        first.map_err(|error| error.to_string())
    });
    match open {
        Ok(device) => Some(Arc::clone(device)),
        Err(error) => {
            not_run(test, error);
            None
        }
    }
}
