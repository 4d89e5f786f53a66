//! The blob that a compilation stores and a restore reads: head and trailer as in
//! [`shardwright_neuron_files::simulated`], descriptions and code.
//!
//! The descriptions follow the head: two u32 counts, then each input and output. A description
//! consists of i32 type, u32 rank, u32 dimensions, f32 scale, i32 zero point and u64 size in bytes.
//!
//! The code starts at a multiple of 64: `SWNC`, u32 1, u64 length of the head, u64 length of the
//! data, the head (plan and network), zeros to a multiple of 64, the data (long constants).
//!
//! The trailer consists of a UUID derived from the code, a record, and the options as passed.

use std::ops::Range;
use std::sync::Arc;

use shardwright_neuron_adapter::RuntimeVersion;
use shardwright_neuron_adapter::result::BAD_DATA;
use shardwright_neuron_files::budget::Budget;
use shardwright_neuron_files::bytes::Bytes;
use shardwright_neuron_files::options::{CompilerOption, MAX_BYTES};
use shardwright_neuron_files::record::{Compiler, texts};
use shardwright_neuron_files::sequence::{Reader, Writer};
use shardwright_neuron_files::simulated::{self, HEAD, Head, MAGIC};

use crate::call::{Refused, refuse};
use crate::checksum::sum;
use crate::network::{Image, Network, Value};

const CODE_MAGIC: &[u8; 4] = b"SWNC";
const CODE_FORMAT: u32 = 1;
const CODE_HEAD: usize = 24;

/// Everything except the network that determines the code.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Honoured options, in the order in which they were passed.
    pub honoured: Vec<CompilerOption>,
    /// Optimisation hint, as bits.
    pub hint: u32,
    /// Execution preference.
    pub preference: i32,
    /// L1 memory in kilobytes that may be used, if the client set it.
    pub l1_kilobytes: Option<u32>,
}

impl Plan {
    fn encode(&self, out: &mut Writer) {
        out.count(self.honoured.len());
        for flag in &self.honoured {
            for text in [&flag.name, &flag.value] {
                out.count(text.len());
                out.bytes(text.as_bytes());
            }
        }
        out.u32(self.hint);
        out.u32(self.preference as u32);
        out.u32(self.l1_kilobytes.map_or(0, |kilobytes| kilobytes.saturating_add(1)));
        // Eight tile sizes, all derived from everything above, so that a changed option changes
        // many places of the code, as it does with a real compiler.
        let seed = sum(&out.bytes);
        for place in 0..8u32 {
            out.u32((seed.rotate_left(place * 8) >> 32) as u32 % 64 + 1);
        }
    }

    fn skip(from: &mut Reader<'_>) -> Option<()> {
        for _ in 0..from.count(1 << 12)? {
            for _ in 0..2 {
                let length = from.count(MAX_BYTES)?;
                from.bytes(length)?;
            }
        }
        from.bytes(4 * (3 + 8)).map(|_| ())
    }
}

/// A stored blob, and a network whose weights are located in it.
#[derive(Debug)]
pub struct Compiled {
    /// The whole blob.
    pub image: Arc<Image>,
    pub network: Network,
}

/// Returns the compiler's record.
fn record(version: RuntimeVersion) -> String {
    let build = sum(format!("shardwright-simulator {version}").as_bytes()) & 0xFF_FFFF_FFFF;
    Compiler::write("shardwright-simulator", version, &format!("{build:010x}"))
}

fn uuid(code: u64) -> String {
    let (high, low) = (code, code.rotate_left(32).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    // Version 8 marks a UUID that is made by a custom rule.
    format!(
        "{:08x}-{:04x}-8{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xFFFF,
        high & 0xFFF,
        (low >> 48) & 0x3FFF | 0x8000,
        low & 0xFFFF_FFFF_FFFF
    )
}

fn describe_ends(network: &Network, out: &mut Writer) {
    out.count(network.inputs.len());
    out.count(network.outputs.len());
    for index in network.inputs.iter().chain(&network.outputs) {
        let layout = &network.operands[*index as usize].layout;
        out.u32(layout.kind as u32);
        out.count(layout.dimensions.len());
        for length in &layout.dimensions {
            // Dimensions were u32 values, so the cast does not truncate.
            out.u32(*length as u32);
        }
        out.u32(layout.scale.to_bits());
        out.u32(layout.zero_point as u32);
        out.u64(layout.bytes() as u64);
    }
}

/// Writes the blob of a network. Long constants are copied once, here. Afterwards the network
/// refers to them in the blob.
pub fn compile(
    mut network: Network,
    plan: &Plan,
    version: RuntimeVersion,
    soc: &str,
    options: &str,
) -> Compiled {
    let mut ends = Writer::default();
    ends.bytes(&[0; HEAD]);
    describe_ends(&network, &mut ends);
    ends.align(64);
    let code_start = ends.bytes.len();

    let mut head = Writer::default();
    plan.encode(&mut head);
    let data_length = network.encode(&mut head);
    let data_start = (code_start + CODE_HEAD + head.bytes.len()).next_multiple_of(64);
    let code_end = data_start + data_length;

    // The UUID has a fixed length, so the trailer can be measured before the code exists.
    let trailer = |uuid: &str| texts(&[uuid, &record(version), options]);
    let total = code_end + trailer(&uuid(0)).len();
    let mut image = Image::new(total);
    let bytes = image.bytes_mut();
    bytes[..ends.bytes.len()].copy_from_slice(&ends.bytes);
    let mut code_head = Writer::default();
    code_head.bytes(CODE_MAGIC);
    code_head.u32(CODE_FORMAT);
    code_head.u64(head.bytes.len() as u64);
    code_head.u64(data_length as u64);
    bytes[code_start..code_start + CODE_HEAD].copy_from_slice(&code_head.bytes);
    bytes[code_start + CODE_HEAD..][..head.bytes.len()].copy_from_slice(&head.bytes);
    network.write_data(&mut bytes[data_start..code_end]);
    let identity = uuid(sum(&bytes[code_start..code_end]));
    bytes[code_end..].copy_from_slice(&trailer(&identity));

    let (soc, operations) = (soc.to_owned(), network.operations.len() as u32);
    Head { version, soc, code: code_start..code_end, operations }.write(bytes);

    let image = Arc::new(image);
    let mut at = data_start;
    for operand in &mut network.operands {
        let length = operand.layout.bytes();
        if !matches!(operand.value, Value::Absent)
            && length > shardwright_neuron_adapter::setting::COPIED_AT_ONCE
        {
            operand.value = Value::Within(at..at + length);
            at += length.next_multiple_of(64);
        }
    }
    network.image = Some(image.clone());
    Compiled { image, network }
}

/// Reads a blob for a version and a processor. A blob of another major version or processor is
/// refused.
pub fn restore(bytes: &[u8], version: RuntimeVersion, soc: &str) -> Result<Compiled, Refused> {
    if !bytes.starts_with(&MAGIC) {
        return refuse(BAD_DATA, "the compiled network was not made by this simulator");
    }
    let damaged =
        |why: &str| Refused { code: BAD_DATA, message: format!("the compiled network is damaged: {why}") };
    let read = simulated::read(Bytes::new(bytes), &mut Budget::of(bytes.len()));
    let (head, _) = read.map_err(|error| damaged(&error.to_string()))?;
    if head.version.major != version.major {
        return refuse(
            BAD_DATA,
            format!(
                "the compiled network is of version {}, but this is {version}: major versions cannot read each other's networks",
                head.version
            ),
        );
    }
    if head.soc != soc {
        return refuse(BAD_DATA, format!("the compiled network is for {}, and this is {soc}", head.soc));
    }
    let mut image = Image::new(bytes.len());
    image.bytes_mut().copy_from_slice(bytes);
    let image = Arc::new(image);
    let network = read_code(image.clone(), head.code)
        .filter(|network| network.operations.len() == head.operations as usize)
        .ok_or_else(|| damaged("its code does not fit"))?;
    Ok(Compiled { image, network })
}

fn read_code(image: Arc<Image>, code: Range<usize>) -> Option<Network> {
    let shared = image.clone();
    let bytes = shared.bytes().get(code.clone())?;
    let mut from = Reader::new(bytes);
    (from.bytes(4)? == CODE_MAGIC && from.u32()? == CODE_FORMAT).then_some(())?;
    let head = usize::try_from(from.u64()?).ok()?;
    let data = usize::try_from(from.u64()?).ok()?;
    let data_start = code.start.checked_add(CODE_HEAD)?.checked_add(head)?.checked_next_multiple_of(64)?;
    (data_start.checked_add(data)? == code.end).then_some(())?;
    let mut from = Reader::new(from.bytes(head)?);
    Plan::skip(&mut from)?;
    Network::decode(&mut from, image, data_start..code.end)
}
