#!/usr/bin/env python3
"""Numerical check of the hand-written backward passes.

    check_grad.py --data DIR        (DIR written by data.py)

For every tensor: the directional derivative of the loss along the gradient's own sign pattern,
measured by central differences, against the inner product with the gradient, with expert choice
and row selection frozen (otherwise a small step flips routes and the check means nothing).
Quantisation is off; weights are used unquantised.
"""
import argparse

import numpy as np
import torch

import common
import ops
from train import KL_WEIGHT, Batches


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--data", required=True)
    a = ap.parse_args()
    common.restart_with_allocator()
    model = common.new_model(a.data)
    model.allocate()
    common.init_params(model.backbone_params, 1)
    common.init_params(model.draft_params, 2)
    for store in (model.store, model.draft_store):
        store.used.copy_(store.master)
    ops.set_quant(False)
    rng = np.random.default_rng(3)
    t = Batches(a.data).take(rng, 2)
    target = torch.from_numpy(t[:, 1:].reshape(-1).astype(np.int32))
    logs, sel = {}, {}

    def loss(back=False):
        for g in logs.values():
            g.setdefault("force", g.get("idx"))
        out = model.forward(t[:, :-1], want_kl=True, logs=logs, force_sel=sel)
        z = torch.mm(out["h"].detach().double(), model.head.w.t().double())
        ce = torch.nn.functional.cross_entropy(z, target.long(), reduction="sum")
        kl = sum(out["kl"])
        if back:
            (ops.cross_entropy(out["h"], model.head, target) + KL_WEIGHT * kl).backward()
        return float(ce), float(kl.double())
    loss()
    loss(back=True)
    report(model.store.params, loss)

    taps = torch.randn(2 * 64, 3 * model.c.D, generator=torch.Generator().manual_seed(5))
    anchors, token = np.array([3, 40, 63, 100]), np.array([5, 500, 900, 77])
    dlogs = {}
    pl = torch.randn(20, model.c.V, generator=torch.Generator().manual_seed(6)) * 2
    hard, rw, prev = torch.arange(20, dtype=torch.int32) * 7, torch.ones(20), torch.arange(20) * 3

    def draft(back=False):
        for g in dlogs.values():
            g.setdefault("force", g.get("idx"))
        h, _ = model.draft_hidden(taps, 64, anchors, token, dlogs)
        m = ops.rows(model.markov_embed, prev.view(-1, 1))
        z = ops.lin(h, model.head, False) + ops.lin(m, model.markov_head, False)
        l = ops.draft_loss(z, pl, hard, rw, .7, .9, {})
        if back:
            l.backward()
        return float(l), 0.
    draft()
    draft(back=True)
    report([p for p in model.draft_store.params if "confidence" not in p.name], draft)


INDEXER = ("wk", "k_norm", "iq", "iw")


def report(params, loss):
    bad = 0
    with torch.no_grad():
        for p in params:
            d = torch.sign(p.g) * torch.rand(p.shape, generator=torch.Generator().manual_seed(9))
            want = float((p.g.double() * d.double()).sum())
            only_kl = p.name.split(".")[-1] in INDEXER
            eps, keep = 5e-3 * max(float(p.w.pow(2).mean()) ** .5, 2.), p.w.clone()
            if len(p.shape) == 2 and p.w.std() > 0:
                eps = 2e-3 * float(p.w.std())
            vals = []
            for s in (1, -1):
                p.w.copy_(keep + s * eps * d)
                ce, kl = loss()
                vals.append(KL_WEIGHT * kl if only_kl else ce)
            p.w.copy_(keep)
            ratio = (vals[0] - vals[1]) / (2 * eps) / want if want else float("nan")
            mark = "" if abs(ratio - 1) < .05 else "   <--"
            bad += bool(mark)
            print(f"{p.name:32s} ratio {ratio:.4f}{mark}", flush=True)
    print("tensors outside 5 %:", bad)


if __name__ == "__main__":
    main()
