//! The driver of a device: all that launch code and memory need of OpenCL, or of another such library.
//!
//! Handles are typed, and nobody but a driver looks into them. Who owns one holds it as [`Owned`].

use crate::arg::Arg;
use crate::device::{CallError, DeviceFacts};
pub(crate) use crate::handle::{
    BufferHandle, EventHandle, KernelHandle, ModuleHandle, Object, QueueHandle,
};
use std::sync::Arc;

/// A device that a library found.
pub(crate) struct Found {
    pub facts: DeviceFacts,
    pub open: Box<dyn FnOnce() -> Result<Arc<dyn Driver>, CallError>>,
}

/// A device that was opened. Any thread may call it, but the arguments of one kernel are those of one queue.
///
/// Errors: those of the library.
pub(crate) trait Driver: Send + Sync {
    /// One that keeps when commands ran.
    fn create_queue(&self) -> Result<QueueHandle, CallError>;

    fn create_buffer(&self, bytes: usize) -> Result<BufferHandle, CallError>;

    /// With a word of the preprocessor that is defined. Errors: also the log of the compiler.
    fn compile(&self, source: &str, defined: Option<&str>) -> Result<ModuleHandle, CallError>;

    fn create_kernel(
        &self,
        module: ModuleHandle,
        name: &'static str,
    ) -> Result<KernelHandle, CallError>;

    /// Gives a kernel to a queue, on this many work-groups of this many work-items.
    ///
    /// # Safety
    /// The kernel accesses only memory that its arguments describe.
    unsafe fn launch(
        &self,
        queue: QueueHandle,
        kernel: KernelHandle,
        args: &[Arg],
        sizes: (usize, usize),
    ) -> Result<EventHandle, CallError>;

    /// When a command that has ended was given, began and ended, in nanoseconds of the device's clock.
    fn times(&self, event: EventHandle) -> Result<[u64; 3], CallError>;

    fn has_ended(&self, event: EventHandle) -> Result<bool, CallError>;

    fn wait_for(&self, event: EventHandle) -> Result<(), CallError>;

    /// Returns when the bytes have been read, after all commands of the queue.
    fn read(
        &self,
        queue: QueueHandle,
        from: (BufferHandle, u64),
        to: &mut [u8],
    ) -> Result<(), CallError>;

    /// Begins to read the first bytes of a buffer after a command of another queue.
    ///
    /// # Safety
    /// Nothing else accesses `to` before the command that is returned has ended.
    unsafe fn start_read(
        &self,
        queue: QueueHandle,
        from: BufferHandle,
        to: &mut [u8],
        after: EventHandle,
    ) -> Result<EventHandle, CallError>;

    /// Returns when the bytes have been copied, after all commands of the queue.
    fn write(
        &self,
        queue: QueueHandle,
        to: (BufferHandle, u64),
        from: &[u8],
    ) -> Result<(), CallError>;

    /// Of a number of bytes that 4 divides.
    fn fill_zeros(
        &self,
        queue: QueueHandle,
        buffer: BufferHandle,
        bytes: u64,
    ) -> Result<(), CallError>;

    /// Sees to it that the commands of a queue begin though nobody waits for them.
    fn flush(&self, queue: QueueHandle) -> Result<(), CallError>;

    /// Waits for all commands of a queue.
    fn finish(&self, queue: QueueHandle) -> Result<(), CallError>;

    /// Releases an object; an error changes nothing. Commands under way keep what they use until they end.
    ///
    /// # Safety
    /// The caller owns it, and no longer uses it.
    unsafe fn release(&self, object: Object);
}

/// A handle that is released with its owner.
pub(crate) struct Owned<H: Copy + Into<Object>> {
    driver: Arc<dyn Driver>,
    handle: H,
}

impl<H: Copy + Into<Object>> Owned<H> {
    /// Takes over a handle that this driver has just made.
    pub(crate) fn new(driver: &Arc<dyn Driver>, handle: H) -> Self {
        let driver = Arc::clone(driver);
        Self { driver, handle }
    }

    pub(crate) fn get(&self) -> H {
        self.handle
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }
}

impl<H: Copy + Into<Object>> Drop for Owned<H> {
    fn drop(&mut self) {
        // SAFETY: owned.
        unsafe { self.driver.release(self.handle.into()) };
    }
}
