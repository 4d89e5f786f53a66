//! The demo model with additional layers that have no effect: a model with the same replies that is
//! slower, for which the demo model is a perfect draft.

use std::fs;

use safetensors::Dtype;
use safetensors::tensor::{SafeTensors, TensorView, serialize};
use serde_json::{Value, json};

use crate::checkpoints::{Copy, DEMO_MODEL};

const WEIGHTS: &str = "model.safetensors";

/// Prefix of the names of a layer's tensors.
const LAYER: &str = "model.layers.";

/// Norms after each part of a layer. With zeros, the part adds nothing to the stream.
const ADDED: [&str; 3] = [
    "post_attention_layernorm.weight",
    "post_feedforward_layernorm.weight",
    "post_per_layer_input_norm.weight",
];

/// 1.0 as bfloat16.
const ONE: [u8; 2] = [0x80, 0x3f];

/// Name, shape and bytes of a bfloat16 tensor.
type Tensor = (String, Vec<usize>, Vec<u8>);

/// Returns the demo model with `layers` more layers in front of its own. Each is a copy of the
/// first layer with no effect.
pub fn deeper(layers: usize) -> Copy {
    let copy = Copy::of(DEMO_MODEL).json("config.json", |config| {
        let number = |name: &str| config[name].as_u64().expect("a number");
        let all = number("num_hidden_layers") + layers as u64;
        config["num_hidden_layers"] = json!(all);
        let types = config["layer_types"].as_array_mut().expect("a list");
        let first = types.first().cloned().expect("a layer");
        types.splice(0..0, std::iter::repeat_n(first, layers));
    });
    let config: Value =
        serde_json::from_slice(&fs::read(copy.file("config.json")).expect("read")).expect("JSON");
    let width = config["hidden_size_per_layer_input"].as_u64().expect("a width") as usize;
    let bytes = fs::read(copy.file(WEIGHTS)).expect("read");
    let stored = SafeTensors::deserialize(&bytes).expect("tensors");
    let mut tensors: Vec<Tensor> = Vec::new();
    for (name, tensor) in stored.tensors() {
        assert_eq!(tensor.dtype(), Dtype::BF16, "{name}");
        let (shape, data) = (tensor.shape().to_vec(), tensor.data().to_vec());
        let part = name.strip_prefix(LAYER).and_then(|rest| rest.split_once('.'));
        match (name.as_str(), part) {
            (_, Some((index, part))) => {
                let index: usize = index.parse().expect("an index");
                let copies = if index == 0 { layers } else { 0 };
                tensors.extend((0..copies).map(|layer| added(layer, part, &shape, &data)));
                tensors.push((format!("{LAYER}{}.{part}", index + layers), shape, data));
            }
            // A row contains the values of all layers.
            ("model.embed_tokens_per_layer.weight", _) => {
                let (row, more) = (shape[1] * 2, layers * width * 2);
                let rows = data.chunks(row).map(|own| [vec![0; more], own.to_vec()].concat());
                let data = rows.collect::<Vec<_>>().concat();
                tensors.push((name, vec![shape[0], shape[1] + layers * width], data));
            }
            ("model.per_layer_model_projection.weight", _) => {
                let more = vec![0; layers * width * shape[1] * 2];
                tensors.push((name, vec![shape[0] + layers * width, shape[1]], [more, data].concat()));
            }
            _ => tensors.push((name, shape, data)),
        }
    }
    let views = tensors.iter().map(|(name, shape, data)| {
        (name.as_str(), TensorView::new(Dtype::BF16, shape.clone(), data).expect("a tensor"))
    });
    let written = serialize(views, None).expect("serialised");
    copy.with(WEIGHTS, written)
}

/// Returns a tensor of a layer that adds nothing and scales by one.
fn added(layer: usize, part: &str, shape: &[usize], data: &[u8]) -> Tensor {
    let data = match part {
        part if ADDED.contains(&part) => vec![0; data.len()],
        "layer_scalar" => ONE.to_vec(),
        _ => data.to_vec(),
    };
    (format!("{LAYER}{layer}.{part}"), shape.to_vec(), data)
}
