#!/usr/bin/env python3
"""Gemma 4's decoder layers through ONNX Runtime's QNN provider, in the vendor's simulated cycles.

The provider compiles an ONNX model with QuantizeLinear/DequantizeLinear pairs through the library our shim uses, and the
library estimates the cycles of the compiled graph for SoC id 72 (v81) while the session is created; nothing is executed.
This program builds the layers below, searches the provider's best over forms of the same mathematics and over its
finalization modes, and writes every trial as JSON. `cargo xtask bench qnn` runs it, then our side, then makes the table.

    qnn_peer.py --out PEER.json [--search full|quick] [--only sliding,1,w8] [--jobs 2]
    qnn_peer.py --table PEER.json OURS.json          prints Markdown
    qnn_peer.py --check                              every form computes what numpy does, by the CPU provider

Our side's file is {"cells": [{"layer": "sliding", "rows": 1, "weights": "w8", "cycles": …, "microseconds": …,
"read_bytes": …, "uncosted": 0, "variant": "…", "tried": 9, "searched": {"cycles": …, "microseconds": …, "variant": "…", …}}]}.

THE LAYER (shapes of Gemma 4 E2B; R rows, hidden H = 1536, 8 query heads, 1 kv head, d = head size, F = width of the MLP)

    inputs, u16 with scale and zero point:  h [R, H], per-layer input p [R, 256], cos and sin [R, d/2], mask [R, keys]
    inputs, u8:                             state_k, state_v [512, d]
    outputs:                                h' [R, H] u16; for a layer with its own keys k_new, v_new [R, d] u8

      a  = rms(h) * w_input                                      all norms: eps 1e-6, plain weight
      q  = rope(rms_d(a Wq) * w_q)                               Wq [H, 8 d]; rms per head
      k  = rope(rms_d(a Wk) * w_k), v = rms_d(a Wv)              own keys only; the norm of v has no weight (ones)
      K  = [state_k ; k], V = [state_v ; v]  in u8               own keys: 512 + R rows; shared keys: the state's 512 rows,
                                                                 which hold the donor's new rows already
      c  = softmax(q K^T + mask) V                               scale 1, softmax leaves with scale 1/65536
      h  = h + rms(c Wo) * w_post_attention                      Wo [8 d, H]
      m  = rms(h) * w_pre_feedforward
      h  = h + rms((gelu_tanh(m Wgate) * (m Wup)) Wdown) * w_post_feedforward
      g  = gelu_tanh(h Wple_gate) * p                            [H, 256]
      h' = (h + rms(g Wple) * w_post_ple) * layer_scalar         [256, H]; the scalar is one static u16 value

    rope, spelled out so that it costs something: pairs (i, i + d/2); out = x cos + rotated(x) sin with cos, sin [R, d/2].

    sliding: d 256, F 6144, own keys.   full: d 512, F 12288, shared keys (no Wk, Wv).
    Products have 8 or 4 bit weights per output channel (symmetric); everything else computes in u16, K and V in u8.
"""

import argparse
import concurrent.futures
import csv
import hashlib
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time

SOC, ARCH = "72", "81"
HIDDEN, HEADS, PER_LAYER, CONTEXT = 1536, 8, 256, 512
LAYERS = {"sliding": (256, 6144, True), "full": (512, 12288, False)}
ROWS = (1, 64)
WEIGHTS = ("w8", "w4")
EPSILON = 1e-6
# A trial takes a few seconds, but the compiler sometimes hangs.
TRIAL_SECONDS = 90
# As low as the provider's own opset allows: its RMSNormalization is the standard's of opset 23.
OPSET, IR_VERSION = 23, 11

# Forms of the same mathematics. The first of each is where the search starts.
FORMS = {
    # The provider's node for the eight matrices.
    "product": ("matmul", "gemm", "convolution"),
    # Queries per head: with one key-value head they need no transposing at all (flat), else rows and heads change places
    # before the norm, between norm and rotation, or after both.
    "heads": ("flat", "rotate-first", "norm-first", "transpose-first"),
    # One product over [state ; rows], or one over each.
    "keys": ("joined", "split"),
    # Layout of keys: [keys, d] or [d, keys]. The latter is not the layout of the state in our runtime.
    "stored": ("rows", "transposed"),
    "norm": ("op", "spelled"),
    "gelu": ("op", "spelled"),
    # Halves separate and concatenated; or the whole row and a copy with exchanged halves, one half of it or of sin negated.
    "rotary": ("halves", "exchanged", "signed-sine"),
    # The mask is added to scores of [rows, heads, keys], or repeated for the heads first.
    "mask": ("broadcast", "repeated"),
    # Keys and values of one head, or repeated for the eight first, as grouped attention is often exported.
    "groups": ("broadcast", "repeated"),
    # Gate and up separate, or one matrix twice as wide with its result split in two.
    "gate_up": ("apart", "joined"),
    # New keys and values converted to u8 at the end, or computed into u8 by their last operation.
    "rows8": ("converted", "direct"),
    # Leading dimensions of one in front of the rows, and of heads and rows.
    "rank": (2, 3, 4),
    # Finalization. Mode 2 produced the same code as 0 in a hundred of a hundred graphs.
    "mode": ("3", "0", "1"),
}


def default_forms():
    return {name: values[0] for name, values in FORMS.items()}


# ---- the model ---------------------------------------------------------------------------------------------------------


class Tensor:
    """A dequantised value inside the model: its name, its numbers (from one float run), its encoding."""

    def __init__(self, name, value, scale, zero, kind):
        self.name, self.value, self.scale, self.zero, self.kind = name, value, scale, zero, kind


class Model:
    """Builds an ONNX graph operation by operation, computing each in numpy to know its range."""

    def __init__(self):
        import numpy, onnx

        self.np, self.onnx = numpy, onnx
        self.nodes, self.constants, self.inputs, self.outputs = [], [], [], []
        self.known, self.counter = {}, 0
        # Values of the graph's inputs and outputs in the float run.
        self.float_inputs, self.results = {}, {}

    def name(self, stem):
        self.counter += 1
        return f"{stem}_{self.counter}"

    def constant(self, value):
        value = self.np.ascontiguousarray(value)
        key = (value.dtype.str, value.shape, value.tobytes() if value.size < 4096 else id(value))
        if key not in self.known:
            name = self.name("c")
            self.constants.append(self.onnx.numpy_helper.from_array(value, name))
            self.known[key] = (name, value)
        return self.known[key][0]

    def node(self, kind, inputs, stem=None, **attributes):
        output = self.name(stem or kind.lower())
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [output], name=f"n_{output}", **attributes))
        return output

    def encoding(self, value, kind):
        np = self.np
        low, high = min(float(value.min()), 0.0), max(float(value.max()), 0.0)
        steps = 65535 if kind == "u16" else 255
        scale = max((high - low) / steps, 1e-9)
        return np.float32(scale), int(round(-low / scale))

    def zero(self, zero, kind):
        return self.constant(self.np.array(zero, self.np.uint16 if kind == "u16" else self.np.uint8))

    def dequantise(self, quantised, value, scale, zero, kind):
        inputs = [quantised, self.constant(self.np.array(scale, self.np.float32)), self.zero(zero, kind)]
        return Tensor(self.node("DequantizeLinear", inputs), value, scale, zero, kind)

    def quantise(self, name, scale, zero, kind):
        inputs = [name, self.constant(self.np.array(scale, self.np.float32)), self.zero(zero, kind)]
        return self.node("QuantizeLinear", inputs)

    def input(self, name, value, kind="u16", encoding=None):
        scale, zero = encoding or self.encoding(value, kind)
        types = self.onnx.TensorProto
        element = types.UINT16 if kind == "u16" else types.UINT8
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, element, value.shape))
        self.float_inputs[name] = Tensor(name, value, scale, zero, kind)
        return self.dequantise(name, value, scale, zero, kind)

    def static(self, value, kind="u16"):
        """A quantised constant, one scale for all."""
        np = self.np
        value = np.asarray(value, np.float32)
        scale, zero = self.encoding(value, kind)
        stored = np.clip(np.round(value / scale) + zero, 0, 65535).astype(np.uint16)
        return self.dequantise(self.constant(stored), value, scale, zero, kind)

    def op(self, kind, inputs, value, encoding=None, to="u16", **attributes):
        """One operation and the encoding of its result: `encoding` for one that only moves its input."""
        names = [item.name if isinstance(item, Tensor) else item for item in inputs]
        result = self.node(kind, names, **attributes)
        scale, zero = encoding or self.encoding(value, to)
        return self.dequantise(self.quantise(result, scale, zero, to), value, scale, zero, to)

    def moved(self, kind, source, value, extra=(), **attributes):
        return self.op(kind, [source, *extra], value, (source.scale, source.zero), source.kind, **attributes)

    def output(self, name, tensor):
        types = self.onnx.TensorProto
        element = types.UINT16 if tensor.kind == "u16" else types.UINT8
        scale = self.constant(self.np.array(tensor.scale, self.np.float32))
        inputs = [tensor.name, scale, self.zero(tensor.zero, tensor.kind)]
        # The provider drops a dequantisation directly undone: the result leaves as it was computed.
        self.nodes.append(self.onnx.helper.make_node("QuantizeLinear", inputs, [name], name=f"n_{name}"))
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, element, tensor.value.shape))
        self.results[name] = tensor

    def bytes(self):
        helper = self.onnx.helper
        # A dequantisation that only a graph output reads is undone by its quantisation: neither is wanted.
        made = {node.output[0]: node for node in self.nodes}
        drop, rename = set(), {}
        for info in self.outputs:
            final = made[info.name]
            back = made[final.input[0]]
            rename[back.input[0]] = info.name
            drop.add(final.name)
        nodes = []
        for node in self.nodes:
            if node.name in drop:
                continue
            node = type(node).FromString(node.SerializeToString())
            for items in (node.input, node.output):
                for index, item in enumerate(items):
                    items[index] = rename.get(item, item)
            nodes.append(node)
        used = {item for node in nodes for item in node.input}
        nodes = [n for n in nodes if n.op_type != "DequantizeLinear" or n.output[0] in used]
        graph = helper.make_graph(nodes, "layer", self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        return model.SerializeToString()


class Weights:
    """Random matrices of one layer, made once per layer and width; the search only rearranges them."""

    def __init__(self, layer, width):
        import numpy as np

        d, f, own = LAYERS[layer]
        generator = np.random.default_rng(20260511)
        bits = 8 if width == "w8" else 4
        top = 2 ** (bits - 1) - 1
        self.bits = bits

        def matrix(n, k):
            real = generator.standard_normal((n, k), dtype=np.float32) / np.float32(np.sqrt(k))
            scale = (np.abs(real).max(axis=1) / top).astype(np.float32)
            stored = np.clip(np.round(real / scale[:, None]), -top, top).astype(np.int8)
            return stored, scale

        def gains(n):
            return (1 + 0.3 * generator.standard_normal(n, dtype=np.float32)).astype(np.float32)

        wide = HEADS * d
        self.matrices = {
            "q": matrix(wide, HIDDEN), "o": matrix(HIDDEN, wide),
            "gate": matrix(f, HIDDEN), "up": matrix(f, HIDDEN), "down": matrix(HIDDEN, f),
            "ple_gate": matrix(PER_LAYER, HIDDEN), "ple": matrix(HIDDEN, PER_LAYER),
        }
        gate, up = self.matrices["gate"], self.matrices["up"]
        self.matrices["gate_up"] = tuple(np.concatenate(pair) for pair in zip(gate, up))
        self.gains = {name: gains(HIDDEN) for name in ("input", "post_attention", "pre_feedforward", "post_feedforward", "post_ple")}
        # Weights of the query and key norms are small in trained models, so that the scores, which have no other scale, are.
        self.gains["q"] = gains(d) * np.float32(0.1)
        if own:
            self.matrices["k"], self.matrices["v"] = matrix(d, HIDDEN), matrix(d, HIDDEN)
            self.gains["k"] = gains(d)
        self.cache = {}

    def arranged(self, name, form):
        """The stored matrix as a product form wants it, with its axis of output channels, and its real values [N, K]."""
        import numpy as np

        key = (name, form)
        if key not in self.cache:
            stored, scale = self.matrices[name]
            shown = {"matmul": (stored.T, 1), "gemm": (stored, 0), "convolution": (stored[:, :, None, None], 0)}[form]
            self.cache[key] = (np.ascontiguousarray(shown[0]), shown[1])
        if ("real", name) not in self.cache:
            stored, scale = self.matrices[name]
            self.cache[("real", name)] = stored.astype(np.float32) * scale[:, None]
        return *self.cache[key], self.cache[("real", name)]


def build(layer, rows, weights, forms):
    """The layer as a serialised ONNX model."""
    model = Model()
    np, onnx = model.np, model.onnx
    d, f, own = LAYERS[layer]
    half, keys = d // 2, CONTEXT + (rows if own else 0)
    generator = np.random.default_rng(7)
    lead = (1,) * (forms["rank"] - 2)
    normal = lambda *shape: generator.standard_normal(shape, dtype=np.float32)

    def shape_constant(shape):
        return model.constant(np.array(shape, np.int64))

    def reshape(x, shape):
        if tuple(x.value.shape) == tuple(shape):
            return x
        return model.moved("Reshape", x, x.value.reshape(shape), [shape_constant(shape)])

    def transpose(x, order):
        return model.moved("Transpose", x, np.ascontiguousarray(x.value.transpose(order)), perm=list(order))

    def cut(x, start, end):
        extra = [model.constant(np.array([number], np.int64)) for number in (start, end, x.value.ndim - 1)]
        return model.moved("Slice", x, x.value[..., start:end], extra)

    def product(x, name):
        form = forms["product"]
        stored, axis, real = weights.arranged(name, form)
        scale = weights.matrices[name][1]
        if weights.bits == 4:
            packed = stored.reshape(-1).astype(np.uint8) & 15
            packed = (packed[0::2] | (packed[1::2] << 4)).astype(np.uint8)
            label = f"w_{name}"
            tensor = onnx.helper.make_tensor(label, onnx.TensorProto.INT4, stored.shape, packed.tobytes(), raw=True)
            zero_label = f"z_{name}"
            zero = onnx.helper.make_tensor(zero_label, onnx.TensorProto.INT4, scale.shape, bytes((len(scale) + 1) // 2), raw=True)
            model.constants += [tensor, zero]
        else:
            label, zero_label = model.constant(stored), model.constant(np.zeros(scale.shape, np.int8))
        weight = model.node("DequantizeLinear", [label, model.constant(scale), zero_label], axis=axis)
        value = x.value @ real.T
        if form == "matmul":
            return model.op("MatMul", [x, weight], value)
        flat = (int(np.prod(x.value.shape[:-1])), x.value.shape[-1])
        if form == "gemm":
            return reshape(model.op("Gemm", [reshape(x, flat), weight], value.reshape(flat[0], -1), transB=1), value.shape)
        # Channels first, as ONNX has it; the provider turns its convolutions to channels last and cancels the transposes.
        image = transpose(reshape(x, (1, 1, *flat)), (0, 3, 1, 2))
        made = value.reshape(1, 1, flat[0], -1).transpose(0, 3, 1, 2)
        image = model.op("Conv", [image, weight], np.ascontiguousarray(made), kernel_shape=[1, 1])
        return reshape(transpose(image, (0, 2, 3, 1)), value.shape)

    def norm(x, gain, **into):
        mean = (x.value**2).mean(-1, keepdims=True) + np.float32(EPSILON)
        value = x.value / np.sqrt(mean) * gain
        if forms["norm"] == "op":
            return model.op("RMSNormalization", [x, model.static(gain)], value, axis=-1, epsilon=EPSILON, **into)
        square = model.op("Mul", [x, x], x.value**2)
        average = model.op("ReduceMean", [square, model.constant(np.array([-1], np.int64))], mean, keepdims=1)
        shifted = model.op("Add", [average, model.static([EPSILON])], mean)
        root = model.op("Sqrt", [shifted], np.sqrt(mean))
        unit = model.op("Div", [x, root], x.value / np.sqrt(mean))
        return model.op("Mul", [unit, model.static(gain)], value, **into)

    def gelu(x):
        inner = np.tanh(np.sqrt(2 / np.pi) * (x.value + 0.044715 * x.value**3)).astype(np.float32)
        value = (0.5 * x.value * (1 + inner)).astype(np.float32)
        if forms["gelu"] == "op":
            return model.op("Gelu", [x], value, approximate="tanh")
        square = model.op("Mul", [x, x], x.value**2)
        part = model.op("Mul", [square, model.static([0.044715 * np.sqrt(2 / np.pi)])], x.value**2 * 0.044715 * np.sqrt(2 / np.pi))
        part = model.op("Add", [part, model.static([np.sqrt(2 / np.pi)])], part.value + np.sqrt(2 / np.pi))
        part = model.op("Mul", [part, x], part.value * x.value)
        part = model.op("Tanh", [part], np.tanh(part.value))
        part = model.op("Add", [part, model.static([1.0])], part.value + 1)
        scaled = model.op("Mul", [x, model.static([0.5])], x.value * 0.5)
        return model.op("Mul", [scaled, part], value)

    def add(a, b, **keywords):
        return model.op("Add", [a, b], a.value + b.value, **keywords)

    def multiply(a, b, **keywords):
        return model.op("Mul", [a, b], a.value * b.value, **keywords)

    def concat(parts, axis):
        first = parts[0]
        value = np.concatenate([part.value for part in parts], axis)
        return model.op("Concat", parts, value, (first.scale, first.zero), first.kind, axis=axis)

    # Inputs.
    h = model.input("h", normal(*lead, rows, HIDDEN) * 4)
    p = model.input("p", normal(*lead, rows, PER_LAYER))
    turned = 64 if layer == "full" else half
    frequency = np.where(np.arange(half) < turned, 1e6 ** (-2.0 * np.arange(half) / d), 0)
    angle = (np.arange(rows)[:, None] + 400) * frequency[None, :]
    unit = (np.float32(1 / 32768), 32768)
    cos = model.input("cos", np.cos(angle).astype(np.float32), encoding=unit)
    sin = model.input("sin", np.sin(angle).astype(np.float32), encoding=unit)
    # 448 rows of the state are visible, and of the new rows those not after the query.
    masked = np.full((rows, keys), -60, np.float32)
    masked[:, :448] = 0
    if own:
        masked[:, CONTEXT:] = np.triu(np.full((rows, rows), -60, np.float32), 1)
    mask = model.input("mask", masked)
    transposed = forms["stored"] == "transposed"
    state_k = normal(CONTEXT, d)
    state_v = normal(CONTEXT, d)
    kv = (np.float32(10 / 255), 128)
    state_k = model.input("state_k", np.ascontiguousarray(state_k.T) if transposed else state_k, "u8", kv)
    state_v = model.input("state_v", state_v, "u8", kv)

    def rotate(x, axis_of_rows, **into):
        """`axis_of_rows` of x [.., d] says where the rows are; cos and sin are broadcast over the other."""
        shape = [1] * x.value.ndim
        shape[axis_of_rows] = rows
        shape[-1] = half
        low, high = cut(x, 0, half), cut(x, half, d)
        if forms["rotary"] == "halves":
            c, s = reshape(cos, shape), reshape(sin, shape)
            first = np.float32(1) * (low.value * c.value - high.value * s.value)
            second = high.value * c.value + low.value * s.value
            both = np.concatenate([first, second], -1)
            into = into or {"encoding": model.encoding(both, "u16")}
            first = model.op("Sub", [multiply(low, c), multiply(high, s)], first, **into)
            second = model.op("Add", [multiply(high, c), multiply(low, s)], second, **into)
            return concat([first, second], x.value.ndim - 1)
        shape[-1] = d
        c = reshape(concat([cos, cos], 1), shape)
        s = reshape(concat([sin, sin], 1), shape)
        if forms["rotary"] == "signed-sine":
            negative = model.op("Neg", [sin], -sin.value, unit)
            s = reshape(concat([negative, sin], 1), shape)
            other = concat([high, low], x.value.ndim - 1)
        else:
            negative = model.op("Neg", [high], -high.value)
            joined = np.concatenate([-high.value, low.value], -1)
            other = model.op("Concat", [negative, low], joined, axis=x.value.ndim - 1)
        return add(multiply(x, c), multiply(other, s), **into)

    def to_u8(x):
        """The row of a key or value in the state's encoding."""
        if x.kind == "u8":
            return x
        quantised = model.quantise(x.name, kv[0], kv[1], "u8")
        return model.dequantise(quantised, x.value, kv[0], kv[1], "u8")

    # Attention. `front` is the leading one of rank 4; `by_head` says that heads come before rows.
    front = (1,) if forms["rank"] == 4 else ()

    def exchange(x):
        """Rows and heads change places."""
        return transpose(x, (0, 2, 1, 3) if front else (1, 0, 2))

    a = norm(h, weights.gains["input"])
    heads = forms["heads"]
    by_head = heads != "flat"
    q = reshape(product(a, "q"), (*front, rows, HEADS, d))
    if heads == "transpose-first":
        q = exchange(q)
    q = norm(q, weights.gains["q"])
    if heads == "norm-first":
        q = exchange(q)
    q = rotate(q, len(front) + (heads in ("transpose-first", "norm-first")))
    if heads == "rotate-first":
        q = exchange(q)
    if not by_head:
        q = reshape(q, (*front, rows * HEADS, d))

    def for_heads(x):
        """A key or value matrix [n, m] as the products want it."""
        if not by_head:
            return reshape(x, (*front, *x.value.shape))
        x = reshape(x, (*front, 1, *x.value.shape))
        if forms["groups"] == "repeated":
            repeats = np.array([1] * len(front) + [HEADS, 1, 1], np.int64)
            x = model.moved("Tile", x, np.tile(x.value, repeats), [model.constant(repeats)])
        return x

    k_parts, v_parts = [state_k], [state_v]
    if own:
        k = reshape(product(a, "k"), (rows, d))
        into = {"encoding": kv, "to": "u8"} if forms["rows8"] == "direct" else {}
        k = to_u8(rotate(norm(k, weights.gains["k"]), 0, **into))
        v = to_u8(norm(reshape(product(a, "v"), (rows, d)), np.ones(d, np.float32), **into))
        if transposed:
            k = transpose(k, (1, 0))
        model.output("k_new", k)
        model.output("v_new", v)
        k_parts.append(k)
        v_parts.append(v)
    if forms["keys"] == "joined" and own:
        k_parts = [concat(k_parts, 1 if transposed else 0)]
        v_parts = [concat(v_parts, 0)]

    all_keys = np.concatenate([part.value.T if transposed else part.value for part in k_parts], 0)
    scores_value = q.value @ all_keys.T
    scores_encoding = model.encoding(scores_value, "u16")
    scores = []
    for part in k_parts:
        part = for_heads(part if transposed else transpose(part, (1, 0)))
        scores.append(model.op("MatMul", [q, part], q.value @ part.value, scores_encoding))
    score = scores[0] if len(scores) == 1 else concat(scores, scores_value.ndim - 1)
    if forms["mask"] == "repeated":
        # In the order of the scores: heads before rows, or after them.
        shown = reshape(mask, (*front, 1, rows, keys) if by_head else (*front, rows, 1, keys))
        repeats = np.array([1] * len(front) + ([HEADS, 1, 1] if by_head else [1, HEADS, 1]), np.int64)
        shown = model.moved("Tile", shown, np.tile(shown.value, repeats), [model.constant(repeats)])
        shown = reshape(shown, score.value.shape)
    elif by_head:
        shown = reshape(mask, (*front, 1, rows, keys))
    else:
        score = reshape(score, (*front, rows, HEADS, keys))
        shown = reshape(mask, (*front, rows, 1, keys))
    score = add(score, shown)
    exponent = np.exp(score.value - score.value.max(-1, keepdims=True))
    value = exponent / exponent.sum(-1, keepdims=True)
    share = model.op("Softmax", [score], value, (np.float32(1 / 65536), 0), axis=-1)
    if not by_head:
        share = reshape(share, (*front, rows * HEADS, keys))
    context, start = None, 0
    for part in v_parts:
        count = part.value.shape[0]
        piece = share if len(v_parts) == 1 else cut(share, start, start + count)
        start += count
        part = for_heads(part)
        made = model.op("MatMul", [piece, part], piece.value @ part.value)
        context = made if context is None else add(context, made)
    if by_head:
        context = exchange(context)
    context = reshape(context, (*lead, rows, HEADS * d))
    h = add(h, norm(product(context, "o"), weights.gains["post_attention"]))

    # Feed-forward.
    m = norm(h, weights.gains["pre_feedforward"])
    if forms["gate_up"] == "joined":
        both = product(m, "gate_up")
        gate, up = cut(both, 0, f), cut(both, f, 2 * f)
    else:
        gate, up = product(m, "gate"), product(m, "up")
    wide = multiply(gelu(gate), up)
    h = add(h, norm(product(wide, "down"), weights.gains["post_feedforward"]))

    # Per-layer input and layer scalar.
    gated = multiply(gelu(product(h, "ple_gate")), p)
    h = add(h, norm(product(gated, "ple"), weights.gains["post_ple"]))
    h = multiply(h, model.static([0.8]))
    model.output("h_out", h)
    return model


def library():
    """The vendor's library: the one set for our side, otherwise the one shipped with the provider."""
    import onnxruntime_qnn

    said = os.environ.get("SHARDWRIGHT_QNN_LIB")
    if said and os.path.isdir(said):
        said = os.path.join(said, "libQnnHtp.so")
    return said or onnxruntime_qnn.get_qnn_htp_path()


# ---- a trial -----------------------------------------------------------------------------------------------------------


def compile_in_child(path, mode, folder, sender):
    """Creates the session and sends what the library estimated. Its own process: some encodings kill the compiler, and a
    library that starts anew keeps the trials independent."""
    # The library's output goes to a file, so that a failed trial can report the reason.
    log = os.open(os.path.join(folder, "log"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        import onnxruntime, onnxruntime_qnn

        onnxruntime.register_execution_provider_library("QNN", onnxruntime_qnn.get_library_path())
        device = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "QNN"][0]
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 2
        # Nothing may fall back to the CPU: the estimate would cover only a part.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        profile = os.path.join(folder, "profile.csv")
        options.add_provider_for_devices([device], {
            "backend_path": library(),
            "soc_model": SOC,
            "htp_arch": ARCH,
            "vtcm_mb": "8",
            "profiling_level": "basic",
            "profiling_file_path": profile,
            "htp_graph_finalization_optimization_mode": mode,
        })
        onnxruntime.InferenceSession(path, options)
        with open(profile, newline="") as lines:
            rows = list(csv.DictReader(lines))
        sender.send(estimate(rows))
    except Exception as error:
        sender.send({"error": f"{type(error).__name__}: {error}"[:600]})


def estimate(rows):
    """The figures of one profile; several graphs would mean that the model was not compiled as a whole."""
    names = {
        "Simulated (Accelerator exec cycles)": "cycles",
        "Simulated (Accelerator exec time us)": "microseconds",
        "Input Fill": "read_bytes",
        "Intermediate Fill": "filled_bytes",
        "Intermediate Spill": "spilled_bytes",
        "Output Spill": "written_bytes",
        "Missing Ops (Number of Ops with no Costs associated)": "uncosted",
    }
    found = {}
    for row in rows:
        name = names.get(row["Event Identifier"].strip())
        if name:
            if name in found:
                return {"error": "the provider cut the model into several graphs"}
            found[name] = int(row["Time"])
    missing = set(names.values()) - set(found)
    return {"error": f"no estimate: {sorted(missing)} missing"} if missing else found


def trial(model, mode):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        with open(path, "wb") as sink:
            sink.write(model)
        # Started anew, not forked: this process has threads of its own.
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(False)
        child = context.Process(target=compile_in_child, args=(path, mode, folder, sender))
        started = time.monotonic()
        child.start()
        sender.close()
        result = {"error": f"took more than {TRIAL_SECONDS} s"}
        try:
            if receiver.poll(TRIAL_SECONDS):
                result = receiver.recv()
        except EOFError:
            child.join(5)
            result = {"error": f"the compiler's process ended with code {child.exitcode}"}
        child.kill()
        child.join()
        result["seconds"] = round(time.monotonic() - started, 1)
        if "error" in result:
            with open(os.path.join(folder, "log"), errors="replace") as log:
                text = log.read()
            lines = [line for line in text.splitlines() if "rror" in line or "nsupported" in line]
            result["log"] = "\n".join(lines[-4:])[-800:]
        return result


# ---- the search --------------------------------------------------------------------------------------------------------


class Cell:
    """One layer, rows, weights: every form tried and the best of them."""

    def __init__(self, layer, rows, width):
        self.key = {"layer": layer, "rows": rows, "weights": width}
        self.weights = Weights(layer, width)
        self.tried = {}

    def try_forms(self, forms):
        shown = tuple(forms[name] for name in FORMS)
        if shown not in self.tried:
            model = build(self.key["layer"], self.key["rows"], self.weights, forms)
            result = trial(model.bytes(), forms["mode"])
            result["forms"] = dict(forms)
            self.tried[shown] = result
            said = result.get("cycles", result.get("error", "")[:120])
            cell = f"{self.key['layer']:7} {self.key['rows']:3} {self.key['weights']}"
            # The time of each trial is printed but not stored: equal libraries give equal files.
            seconds = result.pop("seconds")
            print(f"{cell} {said!s:>9}  {' '.join(map(str, shown))}  ({seconds} s)", file=sys.stderr, flush=True)
        result = self.tried[shown]
        # An estimate that omits operations would win unfairly.
        return result["cycles"] if result.get("uncosted") == 0 else float("inf")

    def search(self, thorough):
        own = LAYERS[self.key["layer"]][2]
        forms = {name: values for name, values in FORMS.items() if own or name not in ("keys", "rows8")}
        each = [{name: value} for name, values in forms.items() for value in values]
        if not thorough:
            each = [change for change in each if set(change) & {"heads", "stored", "rotary"}]
        best = self.improve(default_forms(), each)
        if thorough and self.key["rows"] > 1:
            # Together these decide how the compiler schedules. At one row bytes dominate, and differences are tenths of a percent.
            crossed = {name: forms[name] for name in ("heads", "stored", "rotary", "mask")}
            crossed["mode"] = ("3", "0")
            self.improve(best, [dict(zip(crossed, values)) for values in itertools.product(*crossed.values())])
        if thorough:
            # Once more around the best of each layout of keys.
            for stored in FORMS["stored"]:
                known = [item for item in self.costed() if item["forms"]["stored"] == stored]
                if known:
                    self.improve(known[0]["forms"], [change for change in each if "stored" not in change])
        return self.result()

    def improve(self, best, changes):
        """Applies each change that improves the best form; returns the best."""
        cycles = self.try_forms(best)
        for change in changes:
            forms = {**best, **change}
            if (found := self.try_forms(forms)) < cycles:
                best, cycles = forms, found
        return best

    def costed(self):
        """The forms that compiled with a cost for every operation, best first."""
        return sorted((item for item in self.tried.values() if item.get("uncosted") == 0), key=lambda item: item["cycles"])

    def result(self):
        costed = self.costed()
        same_layout = [item for item in costed if item["forms"]["stored"] == "rows"]
        shown = lambda item: {**item, "forms": " ".join(map(str, item["forms"].values()))}
        return {
            **self.key,
            "best": shown(costed[0]) if costed else None,
            "best_with_keys_in_rows": shown(same_layout[0]) if same_layout else None,
            "tried": [shown(item) for item in self.tried.values()],
        }


def versions():
    import numpy, onnx, onnxruntime, onnxruntime_qnn

    digest = hashlib.sha256()
    with open(library(), "rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return {
        "onnxruntime": onnxruntime.__version__, "onnxruntime_qnn": onnxruntime_qnn.__version__,
        "onnx": onnx.__version__, "numpy": numpy.__version__, "libQnnHtp_sha256": digest.hexdigest(),
    }


# ---- files and tables --------------------------------------------------------------------------------------------------


def write(path, result):
    """One trial a line and its forms in one text, so that a difference between two files can be read."""
    cells = []
    for cell in result["cells"]:
        parts = {name: json.dumps(value) for name, value in cell.items()}
        parts["tried"] = "[\n   " + ",\n   ".join(json.dumps(item) for item in cell["tried"]) + "\n  ]"
        cells.append("{\n  " + ",\n  ".join(f"{json.dumps(name)}: {text}" for name, text in parts.items()) + "\n }")
    head = {name: json.dumps(value) for name, value in result.items() if name != "cells"}
    head["cells"] = "[\n " + ",\n ".join(cells) + "\n]"
    text = "{\n" + ",\n".join(f"{json.dumps(name)}: {text}" for name, text in head.items()) + "\n}\n"
    with open(path + ".new", "w") as sink:
        sink.write(text)
    os.replace(path + ".new", path)


def kept(path, cells):
    """The cells of a file, with remeasured ones replaced."""
    key = lambda cell: (list(LAYERS).index(cell["layer"]), cell["rows"], WEIGHTS.index(cell["weights"]))
    found = {}
    if os.path.exists(path):
        with open(path) as source:
            found = {key(cell): cell for cell in json.load(source)["cells"]}
    found.update({key(cell): cell for cell in cells})
    return [found[place] for place in sorted(found)]


def table(peer, ours):
    """The comparison, as Markdown."""
    key = lambda cell: (cell["layer"], cell["rows"], cell["weights"])
    mine = {key(cell): cell for cell in ours["cells"]}
    shapes = {layer: f"{layer} {d}:{f}, {'own' if own else 'shared'} KV" for layer, (d, f, own) in LAYERS.items()}
    lines = [
        "| layer | rows | weights | ours, unasked: kilocycles (µs) | provider at its best | ratio | provider, keys in rows | ratio | ours, searched | ratio | MB read, ours / provider | searched form | provider's form |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in peer["cells"]:
        best, rows = cell["best"], cell["best_with_keys_in_rows"]
        found = mine.get(key(cell))
        form = best["forms"]
        kilocycles = lambda item: f"{item['cycles'] / 1000:.1f}"
        timed = lambda item: f"{kilocycles(item)} ({item['microseconds']})"
        if not found:
            columns = ["-", timed(best), "-", kilocycles(rows), "-", "-", "-", f"- / {best['read_bytes'] / 1e6:.2f}", "not measured", form]
        else:
            searched = found["searched"]
            ratio = lambda item, other: f"{item['cycles'] / other['cycles']:.4f}"
            columns = [
                timed(found), timed(best), f"**{ratio(found, best)}**", kilocycles(rows), ratio(found, rows),
                timed(searched), ratio(searched, best), f"{found['read_bytes'] / 1e6:.2f} / {best['read_bytes'] / 1e6:.2f}",
                f"{searched['variant']}, best of {found['tried']}", form,
            ]
        lines.append("| " + " | ".join([shapes[cell["layer"]], str(cell["rows"]), cell["weights"], *columns]) + " |")
    return "\n".join(lines)


def check():
    """Builds every form at few rows, runs it with the CPU provider and compares the outputs with the float run."""
    import numpy as np, onnxruntime

    onnxruntime.set_default_logger_severity(3)
    worst = 1.0
    for layer, rows, width in (("sliding", 3, "w4"), ("full", 2, "w8")):
        weights = Weights(layer, width)
        single = [{name: value} for name, values in FORMS.items() if name != "mode" for value in values]
        # Options of the heads only matter where heads are separate.
        for forms in single + [{"heads": "norm-first", **forms} for forms in single if "heads" not in forms]:
            model = build(layer, rows, weights, {**default_forms(), **forms})
            session = onnxruntime.InferenceSession(model.bytes(), providers=["CPUExecutionProvider"])
            fed = {}
            for name, tensor in model.float_inputs.items():
                stored = np.round(tensor.value / tensor.scale) + tensor.zero
                fed[name] = np.clip(stored, 0, 65535).astype(np.uint16) if tensor.kind == "u16" else np.clip(stored, 0, 255).astype(np.uint8)
            names = [output.name for output in session.get_outputs()]
            for name, stored in zip(names, session.run(names, fed)):
                wanted = model.results[name]
                got = (stored.astype(np.float64) - wanted.zero) * wanted.scale
                real = wanted.value.astype(np.float64)
                cosine = float((got * real).sum() / np.sqrt((got**2).sum() * (real**2).sum()))
                worst = min(worst, cosine)
                print(f"{layer:7} {forms} {name}: cosine {cosine:.6f}")
    if worst < 0.9995:
        sys.exit(f"a form computes something else: cosine {worst}")


def main():
    arguments = argparse.ArgumentParser(description="The peer of our Qualcomm lowering: see the head of this file.")
    arguments.add_argument("--out", help="where the result goes")
    arguments.add_argument("--search", choices=("quick", "full"), default="full")
    arguments.add_argument("--only", action="append", help="layer,rows,weights; may be repeated")
    arguments.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1, help="cells searched at a time")
    arguments.add_argument("--table", nargs=2, metavar=("PEER", "OURS"))
    arguments.add_argument("--check", action="store_true")
    options = arguments.parse_args()
    if options.table:
        with open(options.table[0]) as peer, open(options.table[1]) as ours:
            return print(table(json.load(peer), json.load(ours)))
    if options.check:
        return check()
    chosen = [tuple(item.split(",")) for item in options.only or []]
    head = {"soc": int(SOC), "context": CONTEXT, "vtcm_megabytes": 8, "forms": " ".join(FORMS), **versions()}
    keys = [key for key in itertools.product(LAYERS, ROWS, WEIGHTS) if not chosen or (key[0], str(key[1]), key[2]) in chosen]
    # Cells are independent of each other and cycles of the time a trial took, so several are searched at once.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        cells = []
        for cell in pool.map(searched, keys, itertools.repeat(options.search == "full")):
            cells.append(cell)
            if options.out:
                write(options.out, {**head, "cells": kept(options.out, cells) if chosen else cells})


def searched(key, thorough):
    return Cell(*key).search(thorough)


if __name__ == "__main__":
    main()
