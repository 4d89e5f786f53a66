"""Runs the towers that `e2b_towers` left in a directory on PyTorch, with Hugging Face transformers.

    python e2b_towers.py DIRECTORY [runs] [threads]

Prints times by element type, and how far the rows are from those of `e2b_towers`: in float32 they
must be equal within 1e-3 of the largest. Needs torch and transformers 5.23.0.
"""

import sys
import time

import numpy as np
import torch
from transformers import AutoModelForImageTextToText

SIDE, POOL = (60, 42), 3


def patches():
    columns, rows = SIDE[0] // POOL, SIDE[1] // POOL
    places = [
        (POOL * column + at % POOL, POOL * row + at // POOL)
        for row in range(rows)
        for column in range(columns)
        for at in range(POOL * POOL)
    ]
    return torch.tensor([places])


def main():
    directory = sys.argv[1]
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    threads = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    torch.set_num_threads(threads)

    def floats(name, *shape):
        return torch.from_numpy(np.fromfile(f"{directory}/{name}.f32", np.float32).reshape(shape))

    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForImageTextToText.from_pretrained(directory, dtype=dtype).eval().model
        pixels = floats("picture.features", 1, 2520, 768).to(dtype)
        frames = floats("clip.features", 1, 2998, 128).to(dtype)
        mask = torch.ones(1, 2998, dtype=torch.bool)
        positions = patches()
        passes = {
            "picture": lambda: model.get_image_features(pixels, positions, return_dict=True),
            "clip": lambda: model.get_audio_features(frames, mask, return_dict=True),
        }
        for name, run in passes.items():
            times = []
            with torch.inference_mode():
                for _ in range(runs + 1):
                    start = time.perf_counter()
                    found = run()
                    times.append(1e3 * (time.perf_counter() - start))
            times = sorted(times[1:])
            found = found.pooler_output
            # Pictures come as a list, clips as a batch.
            found = (found[0] if isinstance(found, (tuple, list)) or found.ndim == 3 else found).float()
            # Soft rows are divided by the root of their width, as embedding rows are.
            ours = floats(f"{name}.rows", -1, found.shape[-1]) * found.shape[-1] ** 0.5
            worst = ((found - ours).abs().max() / ours.abs().max()).item()
            cosine = torch.nn.functional.cosine_similarity(found.flatten(), ours.flatten(), 0).item()
            middle = times[len(times) // 2]
            print(
                f"{name}, {dtype}, {threads} threads: {middle:.0f} ms "
                f"({times[len(times) // 4]:.0f} to {times[len(times) * 3 // 4]:.0f}); "
                f"{worst:.1e} of the largest, cosine {cosine:.6f}"
            )
            assert dtype != torch.float32 or worst < 1e-3, name


if __name__ == "__main__":
    main()
