//! GPUs as a leaf: the kernels of programs in OpenCL C, compiled by the driver of the device at run time.
//!
//! Does: finds devices, holds the memory of a rank on one, and computes kernels there.
//! Knows: drivers of devices behind one trait, such as the C functions of OpenCL 1.2, which are looked for at run time;
//! kernels and views of programs.
//! Must not know: models, strategies, the environment, other implementations of kernels, or who chooses among them.
//!
//! OpenCL computes on processors too, where PoCL or another such driver is installed: there the kernels are tested.

mod arg;
mod device;
mod device_buffer;
mod driver;
mod epilogue;
mod handle;
mod kernels;
mod launch;
mod memory;
mod menu;
mod method;
mod opencl;
mod opened;
mod queue;
mod tensor;
mod transfer;

pub use device::{DeviceError, DeviceFacts, DeviceKind, DeviceTraffic};
pub use kernels::{GpuKernels, arena};
pub use menu::GpuMenu;
pub use opened::Device;
