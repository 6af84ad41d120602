//! A scan of a JPEG file: passes its blocks without their values, and says whether all are there.
//!
//! Source: ITU-T T.81, sections F.2.2 (sequential) and G.1.2, G.2 (progressive).

use super::Tables;
use super::bits::{Bits, Codes, Fault};
use super::frame::{Frame, LAST, Scan};

/// Which coefficients of each block of a component are not 0, one in a bit.
pub(super) type Nonzero = Vec<u64>;

/// Passes the blocks of a scan from `at` on; returns where the marker behind it is.
pub(super) fn pass(
    bytes: &[u8],
    at: usize,
    (frame, scan): (&Frame, &Scan),
    tables: &Tables,
    nonzero: &mut [Nonzero],
) -> Result<usize, Fault> {
    let units = frame.units(scan);
    let interval = match tables.interval {
        0 => units.max(1),
        interval => interval,
    };
    let (mut at, mut done) = (at, 0);
    for restart in 0.. {
        let end = (done + interval).min(units);
        let mut pass = Pass {
            bits: Bits::new(bytes, at),
            scan,
            run: 0,
        };
        if frame.is_progressive && scan.band.0 > 0 {
            let codes = tables.other(scan.components[0].other_codes)?;
            let blocks = &mut nonzero[scan.components[0].number][done..end];
            pass.others(codes, blocks)?;
        } else {
            for _ in done..end {
                pass.unit(frame, tables)?;
            }
        }
        at = pass.bits.end()?;
        done = end;
        if done == units {
            break;
        }
        at = restart_marker(bytes, at, restart)?;
    }
    Ok(at)
}

/// Passes a restart marker, which are numbered from 0 to 7 again and again.
fn restart_marker(bytes: &[u8], mut at: usize, restart: usize) -> Result<usize, Fault> {
    while bytes.get(at..at + 2) == Some(&[0xff, 0xff]) {
        at += 1;
    }
    if bytes.get(at..at + 2) == Some(&[0xff, 0xd0 + (restart % 8) as u8]) {
        return Ok(at + 2);
    }
    Err(Fault::Short)
}

struct Pass<'a> {
    bits: Bits<'a>,
    scan: &'a Scan,
    /// Blocks that end where they begin.
    run: usize,
}

impl Pass<'_> {
    /// The blocks of one unit of a scan of whole blocks, or of first coefficients.
    fn unit(&mut self, frame: &Frame, tables: &Tables) -> Result<(), Fault> {
        let scan = self.scan;
        for component in &scan.components {
            let blocks = match scan.components.len() {
                1 => 1,
                _ => frame.components[component.number].blocks_per_unit(),
            };
            if scan.bits.0 > 0 {
                self.bits.skip(blocks)?;
                continue;
            }
            let first = tables.first(component.first_codes)?;
            for _ in 0..blocks {
                self.magnitude(first)?;
                if !frame.is_progressive {
                    self.sequential(tables.other(component.other_codes)?)?;
                }
            }
        }
        Ok(())
    }

    /// The first coefficient of a block.
    fn magnitude(&mut self, codes: &Codes) -> Result<(), Fault> {
        let bits = self.bits.symbol(codes)?;
        if bits > 15 {
            return Err(Fault::Invalid);
        }
        self.bits.skip(bits.into())
    }

    /// The other coefficients of a block.
    fn sequential(&mut self, codes: &Codes) -> Result<(), Fault> {
        let mut at = 1;
        while at <= LAST {
            let symbol = self.bits.symbol(codes)?;
            match (symbol >> 4, symbol & 15) {
                (0, 0) => return Ok(()),
                (15, 0) => at += 16,
                (_, 0) => return Err(Fault::Invalid),
                (zeros, bits) => {
                    at += usize::from(zeros) + 1;
                    self.bits.skip(bits.into())?;
                }
            }
        }
        if at > LAST + 1 {
            return Err(Fault::Invalid);
        }
        Ok(())
    }

    /// Coefficients of a band of blocks of one component.
    fn others(&mut self, codes: &Codes, blocks: &mut [u64]) -> Result<(), Fault> {
        let is_refinement = self.scan.bits.0 > 0;
        let mut at = 0;
        while at < blocks.len() {
            if self.run > 0 && !is_refinement {
                // Nothing is coded for any of them.
                let now = self.run.min(blocks.len() - at);
                self.run -= now;
                at += now;
                continue;
            }
            if is_refinement {
                self.refine(codes, &mut blocks[at])?;
            } else {
                self.band(codes, &mut blocks[at])?;
            }
            at += 1;
        }
        if self.run > 0 {
            return Err(Fault::Short);
        }
        Ok(())
    }

    /// How many blocks end here, this one among them.
    fn end_of_band(&mut self, symbol: u8) -> Result<usize, Fault> {
        let more = self.bits.take(symbol.into())?;
        Ok((1 << symbol) + more as usize)
    }

    fn band(&mut self, codes: &Codes, nonzero: &mut u64) -> Result<(), Fault> {
        let (start, end) = self.scan.band;
        let (mut at, end) = (usize::from(start), usize::from(end));
        while at <= end {
            let symbol = self.bits.symbol(codes)?;
            match (symbol >> 4, symbol & 15) {
                (15, 0) => at += 16,
                (run, 0) => {
                    self.run = self.end_of_band(run)? - 1;
                    return Ok(());
                }
                (zeros, bits) => {
                    at += usize::from(zeros);
                    if at > end {
                        return Err(Fault::Invalid);
                    }
                    self.bits.skip(bits.into())?;
                    *nonzero |= 1 << at;
                    at += 1;
                }
            }
        }
        if at > end + 1 {
            return Err(Fault::Invalid);
        }
        Ok(())
    }

    /// One more bit of each coefficient; those that were 0 until now are coded as in a band.
    fn refine(&mut self, codes: &Codes, nonzero: &mut u64) -> Result<(), Fault> {
        let (start, end) = self.scan.band;
        let (mut at, end) = (usize::from(start), usize::from(end));
        let before = *nonzero;
        while self.run == 0 && at <= end {
            let symbol = self.bits.symbol(codes)?;
            let (mut zeros, bits) = (symbol >> 4, symbol & 15);
            if bits == 0 && zeros < 15 {
                self.run = self.end_of_band(zeros)?;
                break;
            }
            if bits > 1 {
                return Err(Fault::Invalid);
            }
            self.bits.skip(bits.into())?;
            while at <= end && (before >> at & 1 == 1 || zeros > 0) {
                if before >> at & 1 == 1 {
                    self.bits.skip(1)?;
                } else {
                    zeros -= 1;
                }
                at += 1;
            }
            if at > end {
                return Err(Fault::Invalid);
            }
            *nonzero |= u64::from(bits) << at;
            at += 1;
        }
        if self.run > 0 {
            if at <= end {
                let rest = before & (u64::MAX << at) & (u64::MAX >> (LAST - end));
                self.bits.skip(rest.count_ones())?;
            }
            self.run -= 1;
        }
        Ok(())
    }
}
