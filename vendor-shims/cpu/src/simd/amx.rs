//! Products of whole tiles of signed bytes (AMX). A tile product is sixteen rows by sixteen columns
//! over up to 64 bytes, summed exactly.
//!
//! The compiler does not support tile registers, so all code that uses them is assembly. A
//! configuration is valid from [`Amx::configure`] until it is dropped. Linux gives the registers to
//! a process only on request.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::dot::Avx512Vnni;

/// Rows of a tile, which also has this many columns.
pub const SIDE: usize = 16;
/// Most bytes of a row.
pub const MOST_BYTES: usize = 64;

/// Exact sums of a tile product.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Sums(pub [[i32; SIDE]; SIDE]);

impl Sums {
    pub const ZERO: Sums = Sums([[0; SIDE]; SIDE]);
}

/// Proof that the processor has tile products of bytes in addition to [`Avx512Vnni`], and that the
/// system permits their use.
#[derive(Clone, Copy, Debug)]
pub struct Amx(Avx512Vnni);

impl Amx {
    /// Returns the token if the processor has the instructions and the system grants the registers.
    /// Requests the registers once per process.
    #[inline]
    pub fn detect() -> Option<Self> {
        static GRANTED: OnceLock<bool> = OnceLock::new();
        let vnni = Avx512Vnni::detect()?;
        GRANTED.get_or_init(|| exists() && granted()).then_some(Amx(vnni))
    }

    /// Returns the token for vector operations.
    #[inline(always)]
    pub fn vectors(self) -> Avx512Vnni {
        self.0
    }

    /// Prepares this thread's registers for products over `bytes` bytes at a time.
    ///
    /// # Panics
    /// When `bytes` is zero, above [`MOST_BYTES`], or not a multiple of four.
    pub fn configure(self, bytes: usize) -> Configured {
        assert!((1..=MOST_BYTES).contains(&bytes) && bytes.is_multiple_of(4), "tiles of {bytes} bytes");
        let mut configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            column_bytes: [0; 16],
            rows: [0; 16],
        };
        for register in 0..8 {
            // 0–3 are sums, 4 and 5 rows of the left operand, 6 and 7 quads of the right operand.
            let (rows, columns) = match register {
                0..4 => (SIDE, 4 * SIDE),
                4..6 => (SIDE, bytes),
                _ => (bytes / 4, 4 * SIDE),
            };
            configuration.rows[register] = rows as u8;
            configuration.column_bytes[register] = columns as u16;
        }
        // SAFETY: `self` proves the instruction. The configuration is legal as asserted and has 64
        // bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, preserves_flags)) };
        Configured { bytes, thread: PhantomData }
    }
}

/// Operand of `LDTILECFG` (Intel's Software Developer's Manual, volume 1, chapter 18).
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    column_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Checks leaf 7 of CPUID: bit 24 for tiles, bit 25 for products of bytes.
fn exists() -> bool {
    let leaf = __cpuid_count(7, 0);
    leaf.edx >> 24 & 3 == 3
}

/// Checks whether the system saves the registers and lets this process use them.
#[cfg(target_os = "linux")]
fn granted() -> bool {
    // The call is arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA). A kernel without this
    // request rejects it, and tiles are then unavailable.
    const ARCH_PRCTL: i64 = 158;
    const REQUEST: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let result: i64;
    // SAFETY: the call only changes the features that this process may use.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") REQUEST, in("rsi") TILE_DATA,
            out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn granted() -> bool {
    false
}

/// Registers that are configured on this thread. Dropping the value releases them.
#[derive(Debug)]
pub struct Configured {
    bytes: usize,
    // Registers are per thread.
    thread: PhantomData<*const ()>,
}

impl Configured {
    /// Bytes that a step of [`Configured::four`] prefetches.
    pub const FETCHED: usize = 512;

    /// Returns the bytes of a step.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Multiplies thirty-two rows by two times sixteen columns over `steps` steps. The order of
    /// `sums` is: upper rows left, upper right, lower left, lower right. Each step prefetches
    /// [`Configured::FETCHED`] bytes from `ahead` on into the second-level cache.
    ///
    /// # Safety
    /// From `rows` on there must be 32 rows at a distance of `stride`, each readable for
    /// `steps · bytes`. `left` and `right` must be readable for `steps · bytes · 16`.
    #[inline(always)]
    pub unsafe fn four(
        &self,
        rows: *const i8,
        stride: usize,
        [left, right]: [*const u8; 2],
        steps: usize,
        ahead: *const u8,
        sums: &mut [Sums; 4],
    ) {
        if steps == 0 {
            *sums = [Sums::ZERO; 4];
            return;
        }
        // SAFETY: the registers are configured for these shapes, and the caller guarantees the
        // memory.
        unsafe {
            let lower = rows.add(SIDE * stride);
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{upper} + {stride}*1]",
                "tileloadd tmm6, [{left} + {line}*1]",
                "tileloadd tmm7, [{right} + {line}*1]",
                "tileloadd tmm5, [{lower} + {stride}*1]",
                "tdpbssd tmm0, tmm4, tmm6",
                "prefetcht1 [{ahead}]",
                "prefetcht1 [{ahead} + 64]",
                "tdpbssd tmm1, tmm4, tmm7",
                "prefetcht1 [{ahead} + 128]",
                "prefetcht1 [{ahead} + 192]",
                "tdpbssd tmm2, tmm5, tmm6",
                "prefetcht1 [{ahead} + 256]",
                "prefetcht1 [{ahead} + 320]",
                "tdpbssd tmm3, tmm5, tmm7",
                "prefetcht1 [{ahead} + 384]",
                "prefetcht1 [{ahead} + 448]",
                "add {ahead}, {fetched}",
                "add {upper}, {bytes}",
                "add {lower}, {bytes}",
                "add {left}, {operand}",
                "add {right}, {operand}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {line}*1], tmm0",
                "tilestored [{sums} + {line}*1 + 1024], tmm1",
                "tilestored [{sums} + {line}*1 + 2048], tmm2",
                "tilestored [{sums} + {line}*1 + 3072], tmm3",
                upper = inout(reg) rows => _,
                lower = inout(reg) lower => _,
                left = inout(reg) left => _,
                right = inout(reg) right => _,
                steps = inout(reg) steps => _,
                ahead = inout(reg) ahead => _,
                fetched = const Configured::FETCHED,
                bytes = in(reg) self.bytes,
                operand = in(reg) self.bytes * SIDE,
                stride = in(reg) stride,
                line = in(reg) 64usize,
                sums = in(reg) sums.as_mut_ptr(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// Multiplies sixteen rows by sixteen columns over two steps, with separate sums.
    ///
    /// # Safety
    /// From each of `rows` on there must be sixteen rows at a distance of `stride`, each readable
    /// for `bytes`. Each of `columns` must be readable for `bytes · 16`.
    #[inline(always)]
    pub unsafe fn two_steps(
        &self,
        rows: [*const i8; 2],
        stride: usize,
        columns: [*const u8; 2],
        sums: &mut [Sums; 2],
    ) {
        // SAFETY: the registers are configured for these shapes, and the caller guarantees the
        // memory.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tileloadd tmm4, [{first} + {stride}*1]",
                "tileloadd tmm6, [{left} + {line}*1]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{second} + {stride}*1]",
                "tileloadd tmm7, [{right} + {line}*1]",
                "tdpbssd tmm1, tmm5, tmm7",
                "tilestored [{sums} + {line}*1], tmm0",
                "tilestored [{sums} + {line}*1 + 1024], tmm1",
                first = in(reg) rows[0],
                second = in(reg) rows[1],
                left = in(reg) columns[0],
                right = in(reg) columns[1],
                stride = in(reg) stride,
                line = in(reg) 64usize,
                sums = in(reg) sums.as_mut_ptr(),
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags),
            );
        }
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the token that configured the registers proved the instruction.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes `rows [32, steps · bytes]` by `columns [steps · bytes / 4, 16, 4]` by definition.
    fn product(rows: &[i8], length: usize, columns: &[i8]) -> [[i32; SIDE]; 2 * SIDE] {
        std::array::from_fn(|row| {
            std::array::from_fn(|column| {
                let term = |k: usize| {
                    i32::from(rows[row * length + k]) * i32::from(columns[k / 4 * 64 + column * 4 + k % 4])
                };
                (0..length).map(term).sum()
            })
        })
    }

    #[test]
    fn tiles_are_multiplied_exactly() {
        let Some(amx) = Amx::detect() else {
            return;
        };
        let value = |seed: usize| move |at: usize| ((at * 37 + seed * 101) % 256) as u8 as i8;
        for bytes in [4, 16, 32, 48, 64] {
            let configured = amx.configure(bytes);
            assert_eq!(configured.bytes(), bytes);
            for steps in [0, 1, 2, 5] {
                let length = bytes * steps;
                let rows: Vec<i8> = (0..32 * length).map(value(1)).collect();
                let columns = [2, 3].map(|seed| (0..16 * length).map(value(seed)).collect::<Vec<i8>>());
                let mut sums = [Sums([[7; SIDE]; SIDE]); 4];
                // SAFETY: rows and columns have the lengths that the steps require.
                unsafe {
                    let [left, right] = [columns[0].as_ptr().cast(), columns[1].as_ptr().cast()];
                    configured.four(rows.as_ptr(), length, [left, right], steps, left, &mut sums);
                }
                for (at, columns) in columns.iter().enumerate() {
                    let expected = product(&rows, length, columns);
                    assert_eq!(sums[at].0, expected[..SIDE]);
                    assert_eq!(sums[2 + at].0, expected[SIDE..]);
                }
                if steps == 2 {
                    let mut sums = [Sums::ZERO; 2];
                    // SAFETY: two steps, as above.
                    unsafe {
                        let (row, column) = (rows.as_ptr(), columns[0].as_ptr().cast::<u8>());
                        let columns = [column, column.add(16 * bytes)];
                        configured.two_steps([row, row.add(bytes)], length, columns, &mut sums);
                    }
                    let whole = product(&rows, length, &columns[0]);
                    let summed = sums[0].0.as_flattened().iter().zip(sums[1].0.as_flattened());
                    let whole = whole[..SIDE].as_flattened();
                    assert!(summed.map(|(first, second)| first + second).eq(whole.iter().copied()));
                }
            }
        }
    }
}
