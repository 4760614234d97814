#!/usr/bin/env python3
"""Backbone training on CPU.

    train.py --data DIR --run DIR --minutes M [--resume]

DIR of --data is written by data.py. The run directory receives `ckpt.pt` every few minutes.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch

import checkpoint
import common
import ops

SEQ, KL_WEIGHT = 256, .1


class Batches:
    """Sequences of SEQ + 1 tokens; half start at a document start. Documents are drawn in
    proportion to their length, so that short entries are not seen more often than long chapters."""

    def __init__(self, data):
        self.tokens = np.load(os.path.join(data, "train.npy")).astype(np.int64)
        starts = np.array(json.load(open(os.path.join(data, "docs.json")))["train"]["starts"])
        starts = starts[starts < len(self.tokens) - SEQ - 1]
        self.starts = starts
        size = np.diff(np.append(starts, len(self.tokens))).astype(float)
        self.p = size / size.sum()

    def take(self, rng, n):
        at = np.where(rng.random(n) < .5, rng.choice(self.starts, n, p=self.p),
                      rng.integers(0, len(self.tokens) - SEQ - 1, n))
        return np.stack([self.tokens[a:a + SEQ + 1] for a in at])


def step_work(batches, sequences, scale, drop, row_drop):
    def work(model, progress, seed):
        rng = np.random.default_rng([17, seed])
        ops.set_seed(seed + 1)
        torch.manual_seed(seed + 1)
        t = batches.take(rng, sequences)
        logs = {}
        out = model.forward(t[:, :-1], explore=8 if progress < .6 else 0, want_kl=True, drop=drop,
                            row_drop=row_drop, logs=logs, rng=rng)
        target = torch.from_numpy(t[:, 1:].reshape(-1).astype(np.int32))
        ce = ops.cross_entropy(out["h"], model.head, target)
        kl = sum(out["kl"])
        ((ce + KL_WEIGHT * kl) * scale).backward()
        return [float(ce), float(kl), target.numel()], {l: g["load"] for l, g in logs.items()}
    return work


def heldout_loss(model, tokens, windows, batch=8, seq=SEQ):
    """Mean nats per token over the first `windows` windows."""
    loss = n = 0
    with torch.no_grad():
        for i in range(0, windows, batch):
            t = np.stack([tokens[j * seq:j * seq + seq + 1] for j in range(i, min(i + batch, windows))])
            out = model.forward(t[:, :-1])
            target = torch.from_numpy(t[:, 1:].reshape(-1).astype(np.int32))
            loss += float(ops.cross_entropy(out["h"], model.head, target))
            n += t[:, 1:].size
    return loss / n


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--data", required=True)
    ap.add_argument("--run", required=True)
    ap.add_argument("--minutes", type=float, required=True)
    ap.add_argument("--lr", type=float, default=3.5e-3)
    ap.add_argument("--micro", type=int, default=4, help="micro-batches per step")
    ap.add_argument("--sequences", type=int, default=2, help="sequences per micro-batch")
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--drop", type=float, default=.1, help="dropout of attention and MoE outputs")
    ap.add_argument("--row-drop", type=float, default=.5, help="share of Engram rows blanked in training")
    ap.add_argument("--table-lr", type=float, default=1.5)
    ap.add_argument("--decay", type=float, default=.1)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--quant-from", type=float, default=0., help="progress at which fake-quantisation starts")
    ap.add_argument("--resume", action="store_true")
    a = ap.parse_args()
    common.restart_with_allocator()
    os.makedirs(a.run, exist_ok=True)
    model = common.new_model(a.data)
    model.allocate(shared=True, workers=a.workers)
    model.set_biases(model.biases.share_memory_())
    common.init_params(model.backbone_params, a.seed)
    common.init_params(model.draft_params, a.seed + 1)
    path = os.path.join(a.run, "ckpt.pt")
    per_step = a.micro * a.sequences * SEQ
    batches, held = Batches(a.data), np.load(os.path.join(a.data, "heldout.npy")).astype(np.int64)
    bytes_per_token = json.load(open(os.path.join(a.data, "docs.json")))["heldout"]["bytes"] / len(held)
    trainer = common.Trainer(model, model.store, model.layers, a.workers, a.micro,
                             step_work(batches, a.sequences, 1 / per_step, a.drop, a.row_drop))
    if a.resume:
        d = checkpoint.load_raw(model, path)
        model.store.m.copy_(d["m"])
        model.store.v.copy_(d["v"])
        trainer.steps = d["steps"]
    model.store.requantise()
    ops.set_quant(a.quant_from <= 0)
    mean, saved, t_last = [None], [time.time()], [time.time(), 0]

    def lr_at(x):
        warm = min(1, x * a.minutes * 60 / 60)                       # one minute of warm-up
        return a.lr * warm * (.04 + .96 * .5 * (1 + math.cos(math.pi * x)))

    def report(step, t, lr, norm, stats, worst):
        loss = stats[0] / stats[2]
        mean[0] = loss if mean[0] is None else .98 * mean[0] + .02 * loss
        if step % 20 == 0:
            now = time.time()
            rate = (step - t_last[1]) * per_step / (now - t_last[0])
            t_last[:] = [now, step]
            print(f"step {step} {t / 60:.1f} min loss {loss:.3f} mean {mean[0]:.3f} kl {stats[1] / stats[2]:.3f} "
                  f"norm {norm:.2f} lr {lr:.5f} load {worst:.2f} {rate:.0f} tok/s", flush=True)
        if time.time() - saved[0] > 300:
            save(step)

    def save(step):
        saved[0] = time.time()
        nats = heldout_loss(model, held, 64)
        print(f"held out (64 windows): {nats:.4f} nats/token {nats / math.log(2) / bytes_per_token:.4f} bits/byte "
              f"at step {step}", flush=True)
        checkpoint.save_raw(model, path, {"m": model.store.m, "v": model.store.v, "steps": step})
    trainer.run(a.minutes, lr_at, (a.decay, 0., a.decay / a.table_lr), a.table_lr, .002, report)
    save(trainer.steps)


if __name__ == "__main__":
    main()
