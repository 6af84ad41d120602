//! What moves between the memory of a rank on a device and the host, beside its kernels.
//!
//! The queue of kernels packs boxes into a slot and unpacks them from one; two others copy between slots and the host. So
//! what is sent waits for no kernel that was given after it, and the host waits for none to give what has arrived.

use crate::device::{DeviceError, DeviceTraffic};
use crate::device_buffer::{Command, DeviceBuffer};
use crate::driver::{BufferHandle, Owned, QueueHandle};
use crate::opened::Device;
use partita_run::{DeviceView, Prefetch};
use partita_space::{Bytes, Seconds};
use std::ops::Range;
use std::sync::Arc;

/// What slots take together, if no single one is larger; whoever needs more waits for the oldest.
const ROOM: Bytes = Bytes(64 << 20);

/// Sizes of large slots are multiples of this many bytes, those of small ones powers of two.
const GRAIN: u64 = 1 << 20;

/// Copies between a device and the host.
pub(crate) struct Transfers {
    /// What messages will send.
    fetches: Vec<Fetch>,
    /// In the order of their last use.
    slots: Vec<Slot>,
    next: u64,
    reads: Owned<QueueHandle>,
    writes: Owned<QueueHandle>,
}

/// Memory that boxes pass through.
pub(crate) struct Slot {
    pub buffer: DeviceBuffer,
    /// The last command that uses it.
    pub last: Option<Command>,
}

/// Boxes that the device packs, and what is read of them.
struct Fetch {
    number: u64,
    /// Where each lies among the bytes.
    boxes: Vec<(DeviceView, Range<usize>)>,
    bytes: Vec<u8>,
    /// Where the memory of the boxes has changed since.
    changed: Vec<Range<u64>>,
    /// The first command that packs, and the one that reads.
    commands: [Command; 2],
}

impl Drop for Fetch {
    fn drop(&mut self) {
        // The command writes to the bytes until it ends. After a failure it does no more.
        let [_, read] = &self.commands;
        let _ = read.driver().wait_for(read.get());
    }
}

impl Transfers {
    pub(crate) fn new(device: &Device) -> Result<Self, DeviceError> {
        let queue = || {
            let queue = device.checked(device.driver().create_queue());
            queue.map(|queue| Owned::new(device.driver(), queue))
        };
        Ok(Self {
            fetches: Vec::new(),
            slots: Vec::new(),
            next: 0,
            reads: queue()?,
            writes: queue()?,
        })
    }

    /// A slot of at least this many bytes that no command uses.
    pub(crate) fn slot(&mut self, device: &Device, bytes: Bytes) -> Result<Slot, DeviceError> {
        let driver = device.driver();
        for slot in &mut self.slots {
            let last = slot.last.as_ref();
            let ended = last.map_or(Ok(true), |last| driver.has_ended(last.get()));
            if device.checked(ended)? {
                slot.last = None;
            }
        }
        let is_free = |slot: &Slot| slot.last.is_none();
        let fits = |slot: &Slot| is_free(slot) && slot.buffer.bytes() >= bytes;
        if let Some(number) = self.slots.iter().position(fits) {
            return Ok(self.slots.remove(number));
        }
        let held = |slots: &[Slot]| slots.iter().map(|slot| slot.buffer.bytes().0).sum::<u64>();
        while !self.slots.is_empty() && held(&self.slots) + bytes.0 > ROOM.0 {
            let number = self.slots.iter().position(is_free).unwrap_or(0);
            let slot = self.slots.remove(number);
            if let Some(last) = &slot.last {
                device.count(WAIT);
                device.checked(driver.wait_for(last.get()))?;
            }
            if slot.buffer.bytes() >= bytes {
                return Ok(slot);
            }
        }
        // As few sizes as there need be, so that slots serve again.
        let size = match bytes.0 {
            0..=GRAIN => bytes.0.next_power_of_two().max(4096),
            more => more.next_multiple_of(GRAIN),
        };
        let buffer = DeviceBuffer::new(device, Bytes(size))?;
        Ok(Slot { buffer, last: None })
    }

    /// Puts a slot back that a command uses.
    pub(crate) fn put(&mut self, slot: Slot, last: Command) {
        let last = Some(last);
        self.slots.push(Slot { last, ..slot });
    }

    /// Returns when the bytes are there. No command under way may use that memory.
    pub(crate) fn write(
        &mut self,
        device: &Device,
        to: BufferHandle,
        from: &[u8],
    ) -> Result<(), DeviceError> {
        if from.is_empty() {
            return Ok(());
        }
        device.count(DeviceTraffic {
            written: Bytes(from.len() as u64),
            ..DeviceTraffic::default()
        });
        device.checked(device.driver().write(self.writes.get(), (to, 0), from))
    }

    /// Begins to read boxes that commands, of which these are the first and the last, pack into a slot.
    pub(crate) fn fetch(
        &mut self,
        device: &Device,
        slot: Slot,
        boxes: Vec<(DeviceView, Range<usize>)>,
        [first, last]: [Command; 2],
    ) -> Result<Prefetch, DeviceError> {
        let mut bytes = vec![0; boxes.last().map_or(0, |(_, range)| range.end)];
        device.count(DeviceTraffic {
            read: Bytes(bytes.len() as u64),
            ..DeviceTraffic::default()
        });
        let (driver, from, queue) = (device.driver(), slot.buffer.handle(), self.reads.get());
        // SAFETY: only after the command has ended are the bytes accessed or freed.
        let read = unsafe { driver.start_read(queue, from, &mut bytes, last.get()) };
        let read = Arc::new(Owned::new(driver, device.checked(read)?));
        self.put(slot, Arc::clone(&read));
        self.next += 1;
        self.fetches.push(Fetch {
            number: self.next,
            boxes,
            bytes,
            changed: Vec::new(),
            commands: [first, read],
        });
        device.checked(driver.flush(queue))?;
        Ok(Prefetch(self.next))
    }

    /// How long ago the device began to pack, once the boxes are on the host. A fetch that failed is there at once.
    pub(crate) fn fetched(
        &self,
        device: &Device,
        of: Prefetch,
        waits: bool,
    ) -> Result<Option<Seconds>, DeviceError> {
        let fetch = self.fetches.iter().find(|fetch| fetch.number == of.0);
        let Some([first, read]) = fetch.map(|fetch| &fetch.commands) else {
            return Ok(Some(Seconds(0.0)));
        };
        let driver = device.driver();
        if !device.checked(driver.has_ended(read.get()))? {
            if !waits {
                return Ok(None);
            }
            device.count(WAIT);
            device.checked(driver.wait_for(read.get()))?;
        }
        let times = [first, read].map(|command| driver.times(command.get()).ok());
        let [Some([_, begun, _]), Some([_, _, ended])] = times else {
            return Ok(Some(Seconds(0.0)));
        };
        Ok(Some(Seconds(ended.saturating_sub(begun) as f64 * 1e-9)))
    }

    pub(crate) fn release(&mut self, of: Prefetch) {
        self.fetches.retain(|fetch| fetch.number != of.0);
    }

    /// Copies a box that was fetched; whether one was.
    pub(crate) fn copy_fetched(&self, view: &DeviceView, packed: &mut [u8]) -> bool {
        let asked = span(view);
        let is_current = |fetch: &&Fetch| !fetch.changed.iter().any(|range| meet(range, &asked));
        for fetch in self.fetches.iter().filter(is_current) {
            let place = fetch.boxes.iter().find_map(|(held, place)| {
                let skipped = start_within(view, held)?;
                Some(place.start + skipped..place.start + skipped + packed.len())
            });
            let [_, read] = &fetch.commands;
            if let Some(place) = place
                && read.driver().wait_for(read.get()).is_ok()
            {
                packed.copy_from_slice(&fetch.bytes[place]);
                return true;
            }
        }
        false
    }

    /// Notes that elements change.
    pub(crate) fn forget(&mut self, changed: &DeviceView) {
        let changed = span(changed);
        for fetch in &mut self.fetches {
            let mut held = fetch.boxes.iter().map(|(held, _)| span(held));
            if held.any(|held| meet(&held, &changed)) {
                fetch.changed.push(changed.clone());
            }
        }
    }
}

const WAIT: DeviceTraffic = DeviceTraffic {
    read: Bytes(0),
    written: Bytes(0),
    waits: 1,
};

fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The bytes from the first to the last element.
fn span(view: &DeviceView) -> Range<u64> {
    let dims = view.extent.iter().zip(view.pitch);
    let last: usize = dims.map(|(extent, pitch)| (extent - 1) * pitch).sum();
    let bytes = (last + 1) * view.dtype.size();
    view.first..view.first + bytes as u64
}

/// At which packed byte of a box another begins that is the same, or a contiguous part of a contiguous one.
fn start_within(part: &DeviceView, whole: &DeviceView) -> Option<usize> {
    if part == whole {
        return Some(0);
    }
    let is_dense = |view: &DeviceView| {
        let elements: usize = view.extent.iter().product();
        let bytes = span(view);
        bytes.end - bytes.start == (elements * view.dtype.size()) as u64
    };
    let (inner, outer) = (span(part), span(whole));
    let is_inside = outer.start <= inner.start && inner.end <= outer.end;
    (is_inside && part.dtype == whole.dtype && is_dense(part) && is_dense(whole))
        .then(|| (inner.start - outer.start) as usize)
}
