//! A model whose next token is a function of the last one, for replies that are known beforehand.

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde_json::json;
use shardwright_text::Tokenizer;

use crate::checkpoints::{Copy, DEMO_MODEL};

/// Width of the residual stream: one dimension for each pair of a script, and one for all other
/// tokens.
const WIDTH: usize = 32;

/// Makes a checkpoint that generates the second token of a pair after the first, and `<turn|>`
/// after all other tokens. It has the demo model's tokenizer and chat template.
///
/// Its single Llama layer has no effect. Embeddings are unit vectors, one for each pair. A row of
/// the head is the sum of the embeddings of the tokens before it.
pub fn scripted(pairs: &[(&str, &str)]) -> Copy {
    let copy = Copy::of(DEMO_MODEL);
    let tokenizer = Tokenizer::from_checkpoint(copy.path()).expect("a tokenizer");
    let id = |token: &str| match &tokenizer.encode(token, false).expect("ids")[..] {
        [id] => *id as usize,
        other => panic!("{token:?} is {other:?}"),
    };
    let rows = tokenizer.vocabulary_size();
    let (mut embedding, mut head) = (vec![0.0f32; rows * WIDTH], vec![0.0f32; rows * WIDTH]);
    for token in 0..rows {
        let pair = pairs.iter().position(|(first, _)| id(first) == token);
        let axis = pair.map_or(0, |pair| pair + 1);
        embedding[token * WIDTH + axis] = 1.0;
    }
    head[id("<turn|>") * WIDTH] = 1.0;
    for (pair, (_, next)) in pairs.iter().enumerate() {
        head[id(next) * WIDTH + pair + 1] = 1.0;
    }
    let square = ["q", "k", "v", "o"].map(|part| (format!("self_attn.{part}_proj"), vec![WIDTH, WIDTH]));
    let gated = ["gate", "up", "down"].map(|part| (format!("mlp.{part}_proj"), vec![WIDTH, WIDTH]));
    let norms = ["input", "post_attention"].map(|part| (format!("{part}_layernorm"), vec![WIDTH]));
    let layer = square.into_iter().chain(gated).chain(norms);
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = layer
        .map(|(name, shape)| {
            let values = vec![0.0; shape.iter().product()];
            (format!("model.layers.0.{name}.weight"), shape, values)
        })
        .collect();
    tensors.push(("model.embed_tokens.weight".to_owned(), vec![rows, WIDTH], embedding));
    tensors.push(("lm_head.weight".to_owned(), vec![rows, WIDTH], head));
    tensors.push(("model.norm.weight".to_owned(), vec![WIDTH], vec![1.0; WIDTH]));
    let stored = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|(_, _, values)| stored(values)).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a tensor"))
    });
    let written = serialize(views, None).expect("serialised");
    copy.with("model.safetensors", written).json("config.json", |config| {
        *config = json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": rows,
            "hidden_size": WIDTH,
            "intermediate_size": WIDTH,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": WIDTH / 2,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": false,
        });
    })
}
