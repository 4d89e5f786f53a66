"""Writes what transformers makes of the models in float32: NAME.json beside this file.

    python make_oracle.py NAME FOLDER

FOLDER is the one that make_folder.py makes. Needs torch (2.15.0) besides requirements.txt. For each prompt: its ids, 64
greedy tokens, and for each of them the five largest logits with their ids. Where the two largest differ by less than
0.01, another program may choose the other: those are near ties.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
STEPS, TOP = 64, 5


def main(name, folder):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    prompts = []
    for text in json.loads((HERE / "prompts.json").read_text()):
        ids = tokenizer(text)["input_ids"]
        row, cache, tokens, top = torch.tensor([ids]), None, [], []
        with torch.no_grad():
            for _ in range(STEPS):
                out = model(input_ids=row, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                logits, best = out.logits[0, -1].topk(TOP)
                tokens.append(best[0].item())
                top.append([[token, round(logit, 4)] for token, logit in zip(best.tolist(), logits.tolist())])
                row = best[:1].unsqueeze(0)
        prompts.append({"text": text, "ids": ids, "greedy": tokens, "top": top})
        print(len(prompts), repr(tokenizer.decode(tokens))[:90], flush=True)
    lines = ",\n".join(json.dumps(prompt, ensure_ascii=False, separators=(",", ":")) for prompt in prompts)
    (HERE / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
