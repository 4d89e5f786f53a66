"""Writes blocks.json beside it: random blocks of every type, and their values by the `gguf` package.

    python3 -m venv venv && venv/bin/pip install gguf==0.19.0 numpy
    venv/bin/python generate.py
"""

import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

# Places of binary16 numbers in a block.
FLOATS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}
BLOCKS = 3

random = np.random.default_rng(49)
cases = []
for name, floats in FLOATS.items():
    kind = Type[name]
    values, size = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for place in floats:
        scales = random.normal(0, 0.01, BLOCKS).astype(np.float16)
        # One of each type is subnormal.
        scales[1] = np.float16(3e-7)
        blocks[:, place:place + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
    if name == "MXFP4":
        blocks[:, 0] = [0, 1, 120]
    result = dequantize(blocks, kind).reshape(-1)
    assert result.dtype == np.float32 and result.size == BLOCKS * values
    bits = result.view(np.uint32)
    cases.append({"type": name, "blocks": blocks.tobytes().hex(), "values": bits.astype("<u4").tobytes().hex()})
lines = ",\n".join(json.dumps(case) for case in cases)
(Path(__file__).parent / "blocks.json").write_text(f"[\n{lines}\n]\n")
