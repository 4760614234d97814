#!/usr/bin/env python3
"""Compares the trainer's forward pass (quantisation on) with golden data of a random checkpoint.

    check_golden.py GOLDEN_CASE_DIR      e.g. the `mini8` case described with the golden data
"""
import json
import os
import sys

import numpy as np
import torch

import checkpoint
import ops
from model import Cache, Model


def main(folder):
    g = checkpoint.read_file(os.path.join(folder, "golden.safetensors"))
    meta = json.load(open(os.path.join(folder, "golden.json")))
    side = {k: v for k, (_, v) in checkpoint.read_file(os.path.join(folder, "engram.safetensors")).items()}
    model = Model(os.path.join(folder, "config.json"), side)
    model.allocate()
    checkpoint.load(model, folder)
    ops.set_quant(True)
    gold = lambda k: torch.from_numpy(checkpoint.to_f32(*g[k]).copy())
    run = next(n for n in meta["runs"] if f"{n}/x.0" in g)
    ids = g[f"{run}/ids"][1].astype(np.int64)[None]
    trace = {}
    with torch.no_grad():
        out = model.forward(ids, trace=trace)
        logits = torch.mm(out["h"], model.head.w.t())
        for l in range(model.c.L + 1):
            want = gold(f"{run}/x.{l}").reshape(len(ids[0]), -1)
            err = (trace[f"x.{l}"] - want).abs().amax(1) / want.abs().amax(1)
            pe = (trace[f"pre.{l}"] - gold(f"{run}/pre.{l}")).abs().amax()
            extra = ""
            if f"sel.{l}" in trace:
                a, b = trace[f"sel.{l}"], gold(f"{run}/sel.{l}").int()
                same = sum(set(x.tolist()) - {-1} == set(y.tolist()) - {-1} for x, y in zip(a, b))
                extra = f"  selections equal {same}/{len(a)}"
            print(f"layer {l}: row error median {err.median():.5f} p95 {err.quantile(.95):.4f} pre {pe:.4f}{extra}")
        want = gold(f"{run}/logits")
        err = ((logits - want).pow(2).mean(1).sqrt() / want.std(1))
        print(f"logits: median {err.median():.4f} p95 {err.quantile(.95):.4f} "
              f"argmax {(logits.argmax(1) == want.argmax(1)).float().mean():.3f}")
        # token by token through the cache
        cache, rows = Cache(model.c, 1, ids.shape[1]), []
        for p in range(ids.shape[1]):
            o = model.forward(ids[:, :p + 1], cache, 1)
            rows.append(torch.mm(o["h"], model.head.w.t()))
        err = ((torch.cat(rows) - want).pow(2).mean(1).sqrt() / want.std(1))
        print(f"token by token: median {err.median():.4f} p95 {err.quantile(.95):.4f}")
        taps = gold(f"{run}/taps")
        for p, d in meta["runs"][run]["drafts"].items():
            p, token = int(p), d["token"]
            trace = {}
            h, u = model.draft_hidden(taps, taps.shape[0], np.array([p]), np.array([token]), trace=trace)
            got, conf, z = model.draft_tokens(h, u, [token])
            w = gold(f"{run}/draft.{p}.logits")
            errs = []
            for k in range(model.c.stages + 1):
                x = trace[f"x.{k}"]
                diff = (x - gold(f"{run}/draft.{p}.x.{k}").reshape(x.shape)).abs().amax(1)
                errs.append(float((diff / x.abs().amax(1)).median()))
            ze = ((z[0] - w).pow(2).mean(1).sqrt() / w.std(1)).median()
            ce = np.abs(conf[0].numpy() - np.array(d["confidence"])).max()
            print(f"draft {p}: stage errors {' '.join(f'{e:.4f}' for e in errs)} logits {ze:.5f} "
                  f"ids equal {got[0].tolist() == d['ids']} confidence {ce:.4f}")


if __name__ == "__main__":
    main(sys.argv[1])
