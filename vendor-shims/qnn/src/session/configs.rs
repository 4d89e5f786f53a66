//! The vendor's options of a graph.

use super::check::Composer;
use super::node::scalar;
use super::{FinalizeValue, GraphOptions};
use crate::failure::Result;
use crate::ffi::{self, number};
use crate::graph::Param;
use std::ffi::CString;

/// The vendor's options of a graph, with the values that their pointers refer to.
pub(super) struct Configs {
    pub(super) customs: Vec<ffi::GraphCustomConfig>,
    _texts: Vec<CString>,
}

impl Configs {
    pub(super) fn new(composer: &Composer<'_, '_>, options: &GraphOptions) -> Result<Configs> {
        let (mut customs, mut texts) = (Vec::new(), Vec::new());
        let word = |value: u64| ffi::GraphCustomValue { all: [value, 0, 0, 0, 0, 0] };
        let mut push = |option: u32, value: ffi::GraphCustomValue| {
            customs.push(ffi::GraphCustomConfig { option, value });
        };
        if let Some(megabytes) = options.vtcm_megabytes {
            push(number::GRAPH_VTCM_MB, word(u64::from(megabytes)));
        }
        if options.precision_f16 {
            push(number::GRAPH_PRECISION, word(1));
        }
        if let Some(threads) = options.hvx_threads {
            push(number::GRAPH_HVX_THREADS, word(threads));
        }
        let level = options.finalize_mode.map(|mode| (number::OPTIMISATION_LEVEL, mode as f32));
        for (kind, value) in level.into_iter().chain(options.optimisations.iter().copied()) {
            // Type and value are adjacent in one word. The other words are zero.
            push(number::GRAPH_OPTIMISATION, word(u64::from(kind) | u64::from(value.to_bits()) << 32));
        }
        for (option, value) in &options.numbers {
            push(*option, word(u64::from(*value)));
        }
        for (key, value) in &options.keys {
            let place = format!("finalize key {key:?}");
            let key = composer.text(&place, key)?;
            let value = match value {
                FinalizeValue::U32(value) => scalar(&Param::U32(*value)),
                FinalizeValue::I32(value) => scalar(&Param::I32(*value)),
                FinalizeValue::F32(value) => scalar(&Param::F32(*value)),
                FinalizeValue::Bool(value) => scalar(&Param::Bool(*value)),
                FinalizeValue::Text(text) => {
                    let text = composer.text(&place, text)?;
                    let value = ffi::ScalarValue { text: text.as_ptr() };
                    texts.push(text);
                    Some(ffi::Scalar { data_type: number::TEXT, value })
                }
            };
            if let Some(value) = value {
                let mut custom = word(0);
                custom.finalize_key = ffi::FinalizeKey { key: key.as_ptr(), value };
                push(number::GRAPH_FINALIZE_KEY, custom);
            }
            texts.push(key);
        }
        Ok(Configs { customs, _texts: texts })
    }
}
