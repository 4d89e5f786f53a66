//! Lowers attention to as few operations as possible.

use shardwright_shim_abi::Error;
use shardwright_shim_npu::attention::Attention;
use shardwright_shim_npu::lowering::Binary;
use shardwright_shim_npu::{Lowering as _, ValueId};

use super::import::Importer;

/// Writes an attention with the result `[R, kv · group · d]`.
///
/// The queries of one key head become rows of one product, ordered by row and then by head. So both
/// operands of a product have the same heads and no broadcast is needed. With one row or one key
/// head, no transpose is needed. The mask has the shape `[1, R, 1, S]`.
pub(super) fn write(importer: &mut Importer<'_, '_>, found: &Attention) -> Result<ValueId, Error> {
    let &Attention { kv, group, rows, width, slots, .. } = found;
    let query = importer.work.value(found.query)?;
    let query = match rows == 1 || kv == 1 {
        true => query,
        false => {
            let apart = importer.work.reshape(query, &[rows, kv, group, width]);
            importer.work.transpose(apart, &[1, 0, 2, 3])
        }
    };
    let query = importer.work.reshape(query, &[1, kv, rows * group, width]);
    let keys = heads(importer, found.keys, kv, slots, width)?;
    let values = heads(importer, found.values, kv, slots, width)?;

    let encoding = importer.work.encoding(found.scores)?;
    let scores = importer.mat_mul(query, keys, true, encoding);
    let scores = importer.between(found, scores)?;
    let mask = importer.work.stored(found.mask)?;
    let mask = importer.work.reshape(mask, &[1, rows, 1, slots]);
    // With one row, the mask already has a shape that broadcasts over all heads.
    let scores = match rows {
        1 => scores,
        _ => importer.work.reshape(scores, &[kv, rows, group, slots]),
    };
    let encoding = importer.work.encoding(found.masked)?;
    let masked = importer.binary(Binary::Add, scores, mask, encoding);
    let weights = importer.softmax(masked);
    let weights = importer.work.reshape(weights, &[1, kv, rows * group, slots]);
    let encoding = importer.work.encoding(found.mixed)?;
    let mixed = importer.mat_mul(weights, values, false, encoding);
    let mixed = match rows == 1 || kv == 1 {
        true => mixed,
        false => {
            let apart = importer.work.reshape(mixed, &[kv, rows, group, width]);
            importer.work.transpose(apart, &[1, 0, 2, 3])
        }
    };
    Ok(importer.work.reshape(mixed, &[rows, kv * group * width]))
}

/// Rearranges `[S, kv · d]` to `[1, kv, S, d]`.
fn heads(
    importer: &mut Importer<'_, '_>,
    tensor: u32,
    kv: u64,
    slots: u64,
    width: u64,
) -> Result<ValueId, Error> {
    let value = importer.work.value(tensor)?;
    let apart = importer.work.reshape(value, &[1, slots, kv, width]);
    Ok(match kv {
        1 => importer.work.reshape(apart, &[1, 1, slots, width]),
        _ => importer.work.transpose(apart, &[0, 2, 1, 3]),
    })
}
