"""Start-up, initialisation and the two-process optimiser loop shared by both training phases."""
import json
import multiprocessing
import os
import sys
import time

import numpy as np
import torch

import engram_sidecar
import ops
import shape
from model import BF16, F32, ROW8, Model

# Without these, glibc maps every large tensor anew; they are read at process start.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "17179869184",
          "MALLOC_TOP_PAD_": "268435456", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def restart_with_allocator():
    if any(os.environ.get(k) != v for k, v in MALLOC.items()):
        os.environ.update(MALLOC)
        os.execv(sys.executable, [sys.executable] + sys.argv)
    torch.set_num_threads(1)


def new_model(data):
    """A model of the tiny shape; writes data/config.json from data/tokenizer.json."""
    tokenizer = json.load(open(os.path.join(data, "tokenizer.json"), encoding="utf-8"))
    path = os.path.join(data, "config.json")
    cfg = shape.config(tokenizer)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(cfg, f, indent=1)
    return Model(path, engram_sidecar.derive(tokenizer, cfg["text_config"]), 1024)


def init_params(params, seed):
    g = torch.Generator().manual_seed(seed)
    for p in params:
        key, n = p.name.split(".")[-1], p.shape[-1]
        m = p.master
        if p.name in ("embed.weight", "head.weight"):
            m.normal_(0, .3 if p.name == "embed.weight" else .03, generator=g)
        elif p.kind == ROW8:
            m.normal_(0, .3, generator=g)
        elif key.startswith("hc_"):
            what = key.split("_")[-1]
            if what == "fn":
                m.normal_(0, .02, generator=g)
            elif what == "scale":
                m.fill_(.5)
            else:
                m.zero_()
                m[:4] = -1.1
                m[8:] = 2.5 * torch.eye(4).view(-1)
                m += .4 * torch.randn(24, generator=g)
        elif key == "sink":
            m.zero_()
        elif len(p.shape) == 1 or key in ("eq", "ek"):
            m.fill_(1)
        elif "markov" in p.name:
            m.normal_(0, .3 if "embed" in p.name else .03, generator=g)
        elif "confidence" in p.name:
            m.zero_()
        else:
            m.normal_(0, n ** -.5 * (.4 if key in ("wo_b", "e2", "s2") else 1), generator=g)


class Trainer:
    """Synchronous data-parallel steps of two single-threaded processes.

    Micro-batches are handed out by a shared counter; each is a function of (step, index) only, so
    the batches do not depend on which worker takes them. Then each worker reduces, clips and
    updates its half of the flat parameter range and requantises its share of the tensors."""

    def __init__(self, model, store, blocks, workers, micro, work):
        self.model, self.store, self.blocks, self.workers, self.micro, self.work = \
            model, store, blocks, workers, micro, work
        store.moments()
        ctx = multiprocessing.get_context("fork")
        self.barrier, self.counter = ctx.Barrier(workers), ctx.Value("i", 0)
        self.shared = torch.zeros(16, dtype=torch.float64).share_memory_()      # lr, progress, stop, norms
        self.stats = torch.zeros(workers, 16, dtype=torch.float64).share_memory_()
        self.load = torch.zeros(workers, len(blocks), 64).share_memory_()
        self.ctx = ctx
        self.steps = 0

    def run(self, minutes, lr_at, decay, table_lr, bias_speed, report, beta2=.95):
        """work(model, progress, seed) -> (stats dict-like list, {layer: load}) runs one micro-batch
        (forward and backward); lr_at(progress) with progress in 0..1 of the time budget."""
        args = (minutes, lr_at, decay, table_lr, bias_speed, report, beta2)
        others = [self.ctx.Process(target=self.worker, args=(i,) + args) for i in range(1, self.workers)]
        for p in others:
            p.start()
        try:
            self.worker(0, *args)
        finally:
            for p in others:
                p.join(30)

    def worker(self, me, minutes, lr_at, decay, table_lr, bias_speed, report, beta2):
        torch.set_num_threads(1)
        store, n = self.store, self.store.n
        store.bind(me)
        cut = [n * i // self.workers // 64 * 64 for i in range(self.workers)] + [n]
        mine = (cut[me], cut[me + 1])
        t0, step = time.time(), self.steps
        sh, begin = self.shared, self.steps
        while True:
            if me == 0:
                progress = (time.time() - t0) / (minutes * 60)
                sh[0], sh[1], sh[2] = lr_at(min(progress, 1)), progress, float(progress >= 1)
                self.counter.value = 0
            self.barrier.wait()
            if sh[2]:
                break
            self.stats[me].zero_()
            self.load[me].zero_()
            while True:
                with self.counter.get_lock():
                    i = self.counter.value
                    self.counter.value += 1
                if i >= self.micro:
                    break
                stats, loads = self.work(self.model, float(sh[1]), step * self.micro + i)
                self.stats[me, :len(stats)] += torch.tensor(stats, dtype=torch.float64)
                for j, b in enumerate(self.blocks):
                    self.load[me, j, :b.E] += loads[b.li]
            self.barrier.wait()
            g = store.grads[0][mine[0]:mine[1]]
            for w in range(1, self.workers):
                ops.call("k_add", g, store.grads[w][mine[0]:mine[1]], ops.i64(g.numel()))
            sh[4 + me] = ops.call("k_sumsq", g, ops.i64(g.numel()))
            self.barrier.wait()
            norm = float(sh[4:4 + self.workers].sum()) ** .5
            scale = min(1., 1. / (norm + 1e-12))
            k, lr = step - begin + 1, float(sh[0])
            for grp, (a, b) in enumerate(store.groups):
                a, b = max(a, mine[0]), min(b, mine[1])
                if a < b:
                    ops.call("k_adam", store.master[a:b], store.grads[0][a:b], store.m[a:b], store.v[a:b],
                             ops.i64(b - a), scale, lr * (table_lr if grp == 2 else 1.), decay[grp], .9, beta2,
                             1 / (1 - .9 ** k), 1 / (1 - beta2 ** k))
            if me == 0 and bias_speed:
                total = self.load.sum(0)
                for j, b in enumerate(self.blocks):
                    x = total[j, :b.E]
                    b.bias += bias_speed * torch.sign(x.mean() - x)
            self.barrier.wait()
            store.requantise(me, self.workers)
            step += 1
            if me == 0:
                total = self.load.sum(0)
                worst = max(float(total[j, :b.E].max() / total[j, :b.E].mean()) for j, b in enumerate(self.blocks))
                report(step, time.time() - t0, float(sh[0]), norm, self.stats.sum(0).tolist(), worst)
            self.steps = step
