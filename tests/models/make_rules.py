"""Writes the tokens that transformers excludes by the rules of a generation config.

    python make_rules.py > ../../host/text/tests/text/token_rules.json

Needs torch and transformers 5.23.0. Each case has the fields of a `generation_config.json`, a
history whose first `prompt` ids are the prompt, and the ids whose scores become -inf.
"""

import json
import random

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation import LogitsProcessorList

VOCABULARY = 12
EOS = [3, 9]

model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
)


def excluded(fields, history, prompt):
    config = GenerationConfig(eos_token_id=EOS, **fields)
    model._prepare_special_tokens(config, device="cpu")
    processors = model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=prompt,
        encoder_input_ids=torch.tensor([history[:prompt]]),
        prefix_allowed_tokens_fn=None,
        logits_processor=LogitsProcessorList(),
        device="cpu",
    )
    scores = processors(torch.tensor([history]), torch.zeros(1, VOCABULARY))
    return [id for id, score in enumerate(scores[0].tolist()) if score == float("-inf")]


def rules(rng):
    ids = lambda most: rng.sample(range(VOCABULARY), rng.randint(1, most))
    choices = {
        "suppress_tokens": lambda: ids(3),
        "begin_suppress_tokens": lambda: ids(3),
        "bad_words_ids": lambda: [[rng.randrange(4) for _ in range(rng.randint(1, 3))] for _ in range(3)],
        "no_repeat_ngram_size": lambda: rng.randint(1, 4),
        "min_new_tokens": lambda: rng.randint(1, 4),
        "min_length": lambda: rng.randint(1, 8),
        "forced_bos_token_id": lambda: rng.randrange(VOCABULARY),
    }
    return {name: choices[name]() for name in rng.sample(sorted(choices), rng.randint(1, 3))}


rng = random.Random(5)
cases = []
while len(cases) < 300:
    fields, prompt = rules(rng), rng.randint(1, 4)
    history = [rng.randrange(4) for _ in range(prompt + rng.randint(0, 5))]
    try:
        found = excluded(fields, history, prompt)
    except ValueError:
        # Rules that contradict each other.
        continue
    if len(found) < VOCABULARY:
        cases.append({"fields": fields, "prompt": prompt, "history": history, "excluded": found})
print(json.dumps({"vocabulary": VOCABULARY, "eos_token_id": EOS, "cases": cases}, separators=(",", ":")))
