#!/usr/bin/env python3
"""Drafter training on a frozen backbone.

    draft.py --data DIR --run DIR --minutes M

Reads RUN/ckpt.pt, makes a bank of sequences (real text and text sampled by the backbone itself)
with their taps and final hidden rows, trains the drafter blocks and heads, writes RUN/final.pt.
With --resume it continues from RUN/final.pt on a fresh bank (give another --seed and a lower --lr).
"""
import argparse
import math
import multiprocessing
import os
import time

import numpy as np
import torch

import checkpoint
import common
import ops
from generate import generate
from train import SEQ, Batches

ANCHORS, SEQUENCES, PROMPT = 40, 4, 16


class Bank:
    """tokens [N, SEQ], taps [N, SEQ, 3D] and hidden rows h [N, SEQ, D], the latter two as the upper
    halves of f32 (they are bf16 values, so this is exact). Shared memory; filled by both workers."""

    def __init__(self, c, n):
        self.n, self.D = n, c.D
        self.tokens = torch.zeros(n, SEQ, dtype=torch.int64).share_memory_()
        self.taps = torch.zeros(n, SEQ, 3 * c.D, dtype=torch.int16).share_memory_()
        self.h = torch.zeros(n, SEQ, c.D, dtype=torch.int16).share_memory_()

    @staticmethod
    def pack(x):
        return (x.view(torch.int32) >> 16).to(torch.int16)

    @staticmethod
    def unpack(x):
        return (x.to(torch.int32) << 16).view(torch.float32)

    def fill(self, model, batches, real, jobs, seed, batch=64):
        while True:
            with jobs.get_lock():
                a = jobs.value
                jobs.value += batch
            if a >= self.n:
                return
            b = min(a + batch, self.n)
            rng = np.random.default_rng([seed, a])
            t = batches.take(rng, b - a)[:, :SEQ]
            if a >= real:
                temp = np.choose(np.arange(b - a) % 3, [.2, .7, 1.])
                temp[::6] = 0.
                t = generate(model, t[:, :PROMPT], SEQ - PROMPT, temp, rng)
            with torch.no_grad():
                for i in range(0, b - a, 8):
                    out = model.forward(t[i:i + 8])
                    k = slice(a + i, a + min(i + 8, b - a))
                    self.tokens[k] = torch.from_numpy(t[i:i + 8])
                    self.taps[k] = self.pack(out["taps"]).view(-1, SEQ, 3 * self.D)
                    self.h[k] = self.pack(out["h"]).view(-1, SEQ, self.D)


def draft_work(bank, micro, resumed):
    def work(model, progress, seed):
        c, block = model.c, model.c.dspark_block_size
        rng = np.random.default_rng([23, int(resumed), seed])
        pick = torch.from_numpy(rng.integers(0, bank.n, SEQUENCES))
        tokens = bank.tokens[pick].numpy().reshape(-1)
        taps = bank.unpack(bank.taps[pick]).reshape(-1, 3 * c.D)
        hidden = bank.unpack(bank.h[pick]).reshape(-1, c.D)
        anchors = np.concatenate([s * SEQ + np.sort(rng.choice(SEQ - block - 1, ANCHORS, replace=False))
                                  for s in range(SEQUENCES)])
        rows = torch.from_numpy((anchors[:, None] + 1 + np.arange(block)[None]).reshape(-1))
        prev = torch.from_numpy(tokens)[rows]
        hard = torch.from_numpy(tokens[rows.numpy() + 1].astype(np.int32))
        logs, stats = {}, {}
        h, u = model.draft_hidden(taps, SEQ, anchors, tokens[anchors + 1], logs)
        m = ops.rows(model.markov_embed, prev.view(-1, 1))
        z = torch.mm(h, model.head.w.t()) + ops.lin(m, model.markov_head, False)
        target = torch.mm(hidden[rows], model.head.w.t())
        k = torch.arange(block, dtype=torch.float32)
        rw = torch.exp(-k / 5).repeat(len(anchors)) / (len(rows) * micro)
        cw = .1 if resumed else 1 - .9 * min(progress, 1)
        loss = ops.draft_loss(z, target, hard, rw, cw, .9, stats)
        conf = ops.lin(torch.cat([u, m.detach()], 1), model.conf, False)[:, 0]
        bce = (torch.nn.functional.binary_cross_entropy_with_logits(conf, stats["overlap"].clamp(0, 1),
                                                                    reduction="none") * rw).sum()
        (loss + bce).backward()
        run = stats["hit"].view(-1, block).cumprod(1).float()
        return ([float(loss), float(bce), len(anchors), float(run.sum()), float(run[:, :3].sum()),
                 float(stats["overlap"].sum()) / block], {l: g["load"] for l, g in logs.items()})
    return work


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--data", required=True)
    ap.add_argument("--run", required=True)
    ap.add_argument("--minutes", type=float, required=True)
    ap.add_argument("--real", type=int, default=1024, help="sequences of real text")
    ap.add_argument("--sampled", type=int, default=1536, help="sequences sampled by the backbone")
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--micro", type=int, default=4)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--resume", action="store_true")
    a = ap.parse_args()
    common.restart_with_allocator()
    model = common.new_model(a.data)
    model.allocate(shared=True, workers=a.workers, draft_only=True)
    model.set_biases(model.biases.share_memory_())
    checkpoint.load_raw(model, os.path.join(a.run, "final.pt" if a.resume else "ckpt.pt"))
    if not a.resume:
        common.init_params(model.draft_params, a.seed + 1)
    model.draft_store.requantise()
    ops.set_quant(True)
    batches, t0 = Batches(a.data), time.time()
    bank = Bank(model.c, a.real + a.sampled)
    ctx = multiprocessing.get_context("fork")
    jobs = ctx.Value("i", 0)
    procs = [ctx.Process(target=bank.fill, args=(model, batches, a.real, jobs, 100 + a.seed)) for _ in range(a.workers)]
    for p in procs:
        p.start()
    for p in procs:
        p.join()
        if p.exitcode:
            raise SystemExit("bank worker failed")
    print(f"bank of {bank.n} sequences in {time.time() - t0:.0f} s", flush=True)
    trainer = common.Trainer(model, model.draft_store, model.stages, a.workers, a.micro,
                             draft_work(bank, a.micro, a.resume))
    mean = [None, time.time()]

    def lr_at(x):
        return a.lr * min(1, x * a.minutes * 60 / 20) * (.03 + .97 * .5 * (1 + math.cos(math.pi * x)))

    def report(step, t, lr, norm, s, worst):
        now = np.array(s[:6]) / np.array([1, 1, s[2], s[2], s[2], s[2]])
        mean[0] = now if mean[0] is None else .95 * mean[0] + .05 * now
        if step % 25 == 0:
            m = mean[0]
            print(f"step {step} {t / 60:.1f} min loss {m[0]:.3f} bce {m[1]:.3f} accepted of 5 {m[3]:.3f} "
                  f"of 3 {m[4]:.3f} overlap {m[5]:.3f} norm {norm:.2f} lr {lr:.5f} load {worst:.2f}", flush=True)
        if time.time() - mean[1] > 180:
            mean[1] = time.time()
            checkpoint.save_raw(model, os.path.join(a.run, "final.pt"))
    trainer.run(a.minutes, lr_at, (.05, 0., 0.), 1., .002, report)
    checkpoint.save_raw(model, os.path.join(a.run, "final.pt"))


if __name__ == "__main__":
    main()
