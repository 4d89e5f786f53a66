"""Makes a Hugging Face folder of a GGUF file: every tensor as float32, by the `gguf` package.

    python make_folder.py FILE.gguf FOLDER

Configuration and tokenizer are those of transformers' own conversion of such files, so that nothing of the folder
depends on the project's reader. `cargo xtask vendor models` installs requirements.txt and runs this.
"""

import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tokenizers.processors import TemplateProcessing
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer

# Facts that the files omit: what transformers has for the models they were made of.
CONFIGS = {
    "gemma3": {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 256,
    },
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"},
}

KEYS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim", "rope.freq_base": "rope_theta", "attention.sliding_window": "sliding_window",
}

PARTS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "post_ffw_norm": "post_feedforward_layernorm",
}
NORMS = {
    "gemma3": {"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm"},
    "llama": {"ffn_norm": "post_attention_layernorm"},
}


def value(field):
    found = field.contents()
    return found.item() if isinstance(found, np.generic) else found


def name_of(architecture, name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, kind = name.split(".")
    part = {**PARTS, **NORMS[architecture]}[part]
    return f"model.layers.{layer}.{part}.{kind}"


def unpaired(rows, heads):
    """The converter puts the rows of a pair that turns together one behind the other."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_tokenizer(reader, architecture, folder):
    """transformers' conversion, which needs no torch as long as no model is loaded."""
    found = {
        name: value(reader.fields[f"tokenizer.{key}"])
        for key, name in GGUF_TOKENIZER_MAPPING["tokenizer"].items() if f"tokenizer.{key}" in reader.fields
    }
    tokenizer, _ = convert_gguf_tokenizer(architecture, found)
    tokens = found["tokens"]
    adds_bos = reader.fields.get("tokenizer.ggml.add_bos_token")
    if adds_bos is not None and value(adds_bos):
        bos = tokens[found["bos_token_id"]]
        pair = f"{bos} $A {bos}:1 $B:1"
        tokenizer.post_processor = TemplateProcessing(f"{bos} $A", pair, [(bos, found["bos_token_id"])])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {f"{name}_token": tokens[found[f"{name}_token_id"]] for name in ["bos", "eos", "unk", "pad"]}
    template = reader.fields.get("tokenizer.chat_template")
    if template is not None:
        special["chat_template"] = value(template)
    (folder / "tokenizer_config.json").write_text(json.dumps(special, indent=1, ensure_ascii=False) + "\n")


def main(file, folder):
    folder.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(file)
    architecture = value(reader.fields["general.architecture"])
    config = {**CONFIGS[architecture], "dtype": "float32", "tie_word_embeddings": True}
    for key, field in KEYS.items():
        found = reader.fields.get(f"{architecture}.{key}")
        if found is not None:
            config[field] = value(found)
    for name in ["bos", "eos"]:
        config[f"{name}_token_id"] = value(reader.fields[f"tokenizer.ggml.{name}_token_id"])
    tensors = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape(tuple(reversed(tensor.shape.tolist())))
        name = name_of(architecture, tensor.name)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values - np.float32(1)
        if architecture == "llama" and name.endswith("q_proj.weight"):
            values = unpaired(values, config["num_attention_heads"])
        if architecture == "llama" and name.endswith("k_proj.weight"):
            values = unpaired(values, config["num_key_value_heads"])
        tensors[name] = np.ascontiguousarray(values)
    config["vocab_size"] = tensors["model.embed_tokens.weight"].shape[0]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(reader, architecture, folder)
    # Last: a folder with it is whole.
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
