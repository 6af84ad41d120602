//! The device of a test.

use partita_gpu::{Device, DeviceKind};
use std::io::Write;
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
            let line = format!("NOT RUN: {test}: {error}\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            None
        }
    }
}
