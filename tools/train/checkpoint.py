"""Reading and writing checkpoints in the published layout (safetensors, official names)."""
import json
import os
import struct

import numpy as np
import torch

import ops
from model import BF16, F32, FP4, FP8, ROW8, quantise

NP = {"F32": np.float32, "I32": np.int32, "I64": np.int64, "U8": np.uint8, "I8": np.uint8, "F8_E4M3": np.uint8,
      "F8_E8M0": np.uint8, "BF16": np.uint16}


def read_file(path):
    """name -> (dtype, raw numpy array)"""
    data = np.memmap(path, np.uint8, "r")
    n = struct.unpack("<Q", data[:8].tobytes())[0]
    out = {}
    for name, t in json.loads(data[8:8 + n].tobytes()).items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        out[name] = (t["dtype"], np.frombuffer(data[8 + n + a:8 + n + b].tobytes(), NP[t["dtype"]]).reshape(t["shape"]))
    return out


def write_file(path, tensors, metadata=None):
    """tensors: name -> (dtype, numpy array)"""
    head, at = {}, 0
    if metadata:
        head["__metadata__"] = metadata
    for name, (dt, a) in tensors.items():
        head[name] = {"dtype": dt, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    h = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h)
        for _, a in tensors.values():
            f.write(np.ascontiguousarray(a).tobytes())


def read_dir(folder):
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.exists(index):
        return read_file(os.path.join(folder, "model.safetensors"))
    out = {}
    for f in sorted(set(json.load(open(index))["weight_map"].values())):
        out.update(read_file(os.path.join(folder, f)))
    return out


def to_f32(dt, a):
    if dt == "BF16":
        return (a.astype(np.uint32) << 16).view(np.float32)
    return a.astype(np.float32)


_E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_E4M3 = np.array([(-1) ** (i >> 7) * ((i & 7) / 8 * 2. ** -6 if not i >> 3 & 15 else
                                      (1 + (i & 7) / 8) * 2. ** ((i >> 3 & 15) - 7)) for i in range(256)], np.float32)


def dequantise(kind, tensors, name):
    dt, a = tensors[name]
    if kind in (F32, BF16):
        return to_f32(dt, a)
    s = np.exp2(tensors[name[:-len("weight")] + "scale"][1].astype(np.float32) - 127)
    if kind == FP4:
        v = np.empty((a.shape[0], a.shape[1] * 2), np.float32)
        v[:, 0::2], v[:, 1::2] = _E2M1[a & 15], _E2M1[a >> 4]
    else:
        v = _E4M3[a]
    if kind == FP8:
        s = np.repeat(s, 32, 0)[:v.shape[0]]
    return v * np.repeat(s, 32, 1)


def load(model, folder):
    """Fills model.store and model.draft_store with the values of a release directory."""
    t = read_dir(folder)
    for store in (model.store, model.draft_store):
        for p in store.params:
            for name, a, b in p.parts:
                v = torch.from_numpy(dequantise(p.kind, t, name).copy())
                (p.master if len(p.shape) == 1 else p.master[a:b]).copy_(v.view(-1) if len(p.shape) == 1 else v)
            p.w.copy_(p.master)
    for b in model.layers + model.stages:
        b.bias.copy_(torch.from_numpy(t[f"{b.prefix}.ffn.gate.bias"][1].copy()))


def export(model, path):
    """Writes model.safetensors from the masters; returns the number of tensors."""
    out = {}
    for p in model.backbone_params + model.draft_params:
        shape = p.shape if len(p.shape) == 2 else (1, p.shape[0])
        N, K = shape
        codes = scales = None
        if p.kind in (FP8, FP4, ROW8):
            codes = torch.zeros(N, K // 2 if p.kind == FP4 else K, dtype=torch.uint8)
            tr = 32 if p.kind == FP8 else 1
            scales = torch.zeros((N + tr - 1) // tr, K // 32, dtype=torch.uint8)
        quantise(p, codes, scales)
        for name, a, b in p.parts:
            if codes is not None:
                out[name] = ("I8" if p.kind == FP4 else "F8_E4M3", codes[a:b].numpy())
                out[name[:-len("weight")] + "scale"] = ("F8_E8M0", scales[a // tr:(b + tr - 1) // tr].numpy())
            else:
                v = (p.w if len(p.shape) == 1 else p.w[a:b]).numpy()
                out[name] = ("F32", v) if p.kind == F32 else ("BF16", (v.view(np.uint32) >> 16).astype(np.uint16))
    for b in model.layers + model.stages:
        out[f"{b.prefix}.ffn.gate.bias"] = ("F32", b.bias.numpy().copy())
        out[f"{b.prefix}.ffn.gate.bias_vl"] = ("F32", np.zeros(b.E, np.float32))
    write_file(path, out, {"format": "pt"})
    return len(out)


def save_raw(model, path, extra=None):
    torch.save({"master": model.store.master, "draft": model.draft_store.master, "biases": model.biases,
                **(extra or {})}, path + ".tmp")
    os.replace(path + ".tmp", path)


def load_raw(model, path):
    d = torch.load(path)
    model.store.master.copy_(d["master"])
    model.draft_store.master.copy_(d["draft"])
    model.biases.copy_(d["biases"])
    model.store.requantise()
    model.draft_store.requantise()
    return d
