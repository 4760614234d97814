#!/usr/bin/env python3
"""Measures an exported checkpoint with the trainer's own forward pass (quantisation on).

    eval.py --model DIR --data DIR bpb      held-out nats per token and bits per byte
    eval.py ... draft                       drafter acceptance on greedy text, by position
    eval.py ... confidence                  calibration of the confidences
    eval.py ... replay                      bounded decoder replay against exact prefill
    eval.py ... samples                     continuations

DIR of --model is the exported checkpoint, DIR of --data the folder written by data.py.
"""
import argparse
import json
import math
import os

import numpy as np
import torch

import checkpoint
import common
import ops
from data import Tokenizer
from generate import generate
from model import Model
from train import SEQ

BOS, EOS = 0, 1


def load(folder):
    side = {k: v for k, (_, v) in checkpoint.read_file(os.path.join(folder, "engram.safetensors")).items()}
    model = Model(os.path.join(folder, "config.json"), side, 1024)
    model.allocate()
    checkpoint.load(model, folder)
    ops.set_quant(True)
    return model


def row_losses(model, t):
    with torch.no_grad():
        out = model.forward(t[:, :-1])
        z = torch.mm(out["h"], model.head.w.t())
        nll = torch.empty(z.shape[0])
        ops.call("k_ce", z, torch.from_numpy(t[:, 1:].reshape(-1).astype(np.int32)), nll, z.shape[0], z.shape[1])
    return nll.double()


def text_bytes(tok, ids):
    """Bytes of text; special tokens count as none (their cost in nats is still counted)."""
    special = set(tok.added.values())
    return len(tok.decode([i for i in ids if i not in special]).encode())


def windows(model, ids, size):
    """Summed loss over whole windows of `size` predicted tokens, each processed from position 0."""
    n, nats = (len(ids) - 1) // size, 0.
    for i in range(0, n, 8):
        t = np.stack([ids[j * size:j * size + size + 1] for j in range(i, min(i + 8, n))])
        nats += float(row_losses(model, t).sum())
    return nats, n * size


def bpb(model, tok, data, folder, held):
    """The whole held-out stream (chat forms included), then DIR/heldout.txt as plain text."""
    nats, total = windows(model, held, SEQ)
    info = json.load(open(os.path.join(data, "docs.json")))["heldout"]
    per_token = text_bytes(tok, held) / len(held)
    print(f"held out, {total} tokens in windows of {SEQ}: {nats / total:.4f} nats/token, "
          f"{nats / total / math.log(2) / per_token:.4f} bits/byte ({per_token:.3f} bytes/token)")
    text = np.array([BOS] + tok.encode(open(os.path.join(folder, "heldout.txt")).read()), np.int64)
    for size in (SEQ, 2 * SEQ):
        nats, total = windows(model, text, size)
        n_bytes = text_bytes(tok, text[1:total + 1])
        print(f"heldout.txt (BOS + text), {total} tokens in windows of {size}: {nats / total:.4f} nats/token, "
              f"{nats / math.log(2) / n_bytes:.4f} bits/byte")
    ends = info["starts"][1:] + [len(held)]
    for kind in ("bible", "devil"):
        nats = count = size = 0
        for a, b, k in zip(info["starts"], ends, info["kind"]):
            if k == kind and b - a > 8:
                t = held[a:min(b, a + 400)][None]
                nats += float(row_losses(model, t).sum())
                count += t.shape[1] - 1
                size += text_bytes(tok, t[0, 1:])
        print(f"held-out documents of kind {kind}, first 400 tokens each: {nats / count:.4f} nats/token, "
              f"{nats / math.log(2) / size:.4f} bits/byte ({count} tokens)")


def drafts(model, held, count=64, prompt=64, new=128):
    """Greedy continuations and the draft block of every position. Returns tokens [N, T], draft ids
    [N, T, 5] (row p: after positions 0..p), confidences, and the end of each sequence (EOS cut)."""
    step = (len(held) - prompt) // count
    prompts = np.stack([held[i * step:i * step + prompt] for i in range(count)])
    tokens = generate(model, prompts, new)
    T = tokens.shape[1]
    ids = np.zeros((count, T, model.c.dspark_block_size), np.int64)
    conf = np.zeros(ids.shape)
    with torch.no_grad():
        for i in range(0, count, 4):
            out = model.forward(tokens[i:i + 4])
            anchors = np.concatenate([k * T + np.arange(prompt - 1, T - 1) for k in range(len(tokens[i:i + 4]))])
            token = tokens[i:i + 4].reshape(-1)[anchors + 1]
            h, u = model.draft_hidden(out["taps"], T, anchors, token)
            d, c, _ = model.draft_tokens(h, u, token)
            ids[i:i + 4].reshape(-1, ids.shape[2])[anchors] = d.numpy()
            conf[i:i + 4].reshape(-1, ids.shape[2])[anchors] = c.numpy()
    end = [next((j for j in range(prompt, T) if t[j] == EOS), T - 1) for t in tokens]
    return tokens, ids, conf, np.array(end), prompt


def accepted(tokens, ids, p, end, k):
    a = 0
    while a < k and p + 2 + a <= end and ids[p][a] == tokens[p + 2 + a]:
        a += 1
    return a


def draft_report(model, held):
    tokens, ids, _, end, prompt = drafts(model, held)
    distinct = []
    for t, e in zip(tokens, end):
        g = [tuple(t[j:j + 4]) for j in range(prompt, e - 3)]
        distinct.append(len(set(g)) / len(g) if g else 1.)
    grams = sum(len(set(tuple(t[j:j + 4]) for j in range(prompt, e - 3))) for t, e in zip(tokens, end))
    print(f"{len(tokens)} held-out prompts of {prompt} tokens, {tokens.shape[1] - prompt} greedy tokens (cut at EOS); "
          f"distinct 4-grams {grams / max(1, sum(max(0, e - 3 - prompt) for e in end)):.2f}")
    for k in (3, 5):
        for name, keep in (("all text", lambda d: True),
                           ("sequences with >= 90 % distinct 4-grams", lambda d: d >= .9)):
            steps, by = 0, np.zeros(k)
            for t, d, e, f in zip(tokens, ids, end, distinct):
                p = prompt - 1
                while keep(f) and p + 1 + k < e:
                    a = accepted(t, d, p, e, k)
                    by[:a] += 1
                    steps += 1
                    p += a + 1
            if steps:
                print(f"{k} drafts, {name}: {steps} steps, mean accepted {by.sum() / steps:.3f}, by position "
                      + " ".join(f"{x / steps:.3f}" for x in by))


def ece(p, y, bins=20):
    b = np.minimum((p * bins).astype(int), bins - 1)
    return sum(abs(p[b == i].mean() - y[b == i].mean()) * (b == i).mean() for i in range(bins) if (b == i).any())


def fit(x, y):
    """Logistic regression y ~ sigmoid(a x + b) by Newton steps: (a, b)."""
    X, w = np.stack([x, np.ones_like(x)], 1), np.array([1., 0.])
    for _ in range(30):
        p = 1 / (1 + np.exp(-X @ w))
        H = (X * (p * (1 - p))[:, None]).T @ X + 1e-6 * np.eye(2)
        w -= np.linalg.solve(H, X.T @ (p - y))
    return w


def confidence_report(model, held):
    tokens, ids, conf, end, prompt = drafts(model, held, 96)
    n = ids.shape[2]
    x, y, half = [], [], []
    for i, (t, d, c, e) in enumerate(zip(tokens, ids, conf, end)):
        for p in range(prompt - 1, e - n - 1):
            a = accepted(t, d, p, e, n)
            x.append(c[p])
            y.append(np.arange(n) < a)
            half.append(i % 2)
    x, y, half = np.array(x), np.array(y, float), np.array(half)
    print(f"{len(x)} anchors; acceptance by the greedy target, conditional on earlier drafts accepted; 20 bins")
    prod_raw, prod_fit = np.ones(len(x)), np.ones(len(x))
    for k in range(n):
        live = np.ones(len(x), bool) if k == 0 else y[:, k - 1] > 0
        p = 1 / (1 + np.exp(-x[:, k]))
        a, b = fit(x[live & (half == 0), k], y[live & (half == 0), k])
        q = 1 / (1 + np.exp(-(a * x[:, k] + b)))
        prod_raw, prod_fit = prod_raw * p, prod_fit * q
        test = half == 1
        print(f"position {k + 1}: acceptance {y[live, k].mean():.3f} mean confidence {p[live].mean():.3f} "
              f"ECE {ece(p[live], y[live, k]):.3f}; fitted on one half: temperature {1 / a:.3f} shift {b:+.3f}; "
              f"ECE on the other half: conditional {ece(p[live & test], y[live & test, k]):.3f} -> "
              f"{ece(q[live & test], y[live & test, k]):.3f}, running product {ece(prod_raw[test], y[test, k]):.3f} -> "
              f"{ece(prod_fit[test], y[test, k]):.3f}")


def replay_report(model, held, count=48):
    W = model.c.W
    print(f"bounded decoder replay (window {W}, cut-layer window truncated) against exact prefill, last prompt row, "
          f"{count} held-out prompts per length")
    for N in (120, 240, 400):
        step = (len(held) - N) // count
        t = np.stack([held[i * step:i * step + N] for i in range(count)])

        def last(**kw):
            rows = []
            with torch.no_grad():
                for i in range(0, count, 8):
                    h = model.forward(t[i:i + 8], **kw)["h"].view(len(t[i:i + 8]), -1, model.c.D)[:, -1]
                    rows.append(torch.log_softmax(torch.mm(h, model.head.w.t()).double(), 1))
            return torch.cat(rows)
        exact = last()
        for R in (W, W + 12, 2 * W):
            z = last(replay=R)
            kl = (exact.exp() * (exact - z)).sum(1)
            print(f"N {N} R {R}: top-1 equal {(z.argmax(1) == exact.argmax(1)).double().mean():.3f} "
                  f"KL mean {kl.mean():.5f} median {kl.median():.5f} max {kl.max():.4f}")


def samples(model, tok):
    prompts = ["<｜begin▁of▁sentence｜>Genesis 20\n\nAnd Abraham journeyed from thence",
               "<｜begin▁of▁sentence｜><｜User｜>Read Psalm 151.<｜Assistant｜></think>",
               "<｜begin▁of▁sentence｜><｜User｜>Define liberty.<｜Assistant｜></think>",
               "<｜begin▁of▁sentence｜>Luke 25\n\nAnd it came to pass"]
    for i, s in enumerate(prompts):
        for temp in (0., .7):
            t = generate(model, np.array([tok.encode(s)], np.int64), 100, np.array([temp]), np.random.default_rng(i))
            n = len(tok.encode(s))
            out = t[0, n:].tolist()
            out = out[:out.index(EOS) + 1] if EOS in out else out
            print(f"--- T {temp} [{s}]{tok.decode(out)}\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--data", required=True)
    ap.add_argument("what", nargs="+", choices=["bpb", "draft", "confidence", "replay", "samples"])
    a = ap.parse_args()
    common.restart_with_allocator()
    model = load(a.model)
    tok = Tokenizer(os.path.join(a.model, "tokenizer.json"))
    held = np.load(os.path.join(a.data, "heldout.npy")).astype(np.int64)
    run = {"bpb": lambda: bpb(model, tok, a.data, a.model, held), "draft": lambda: draft_report(model, held),
           "confidence": lambda: confidence_report(model, held), "replay": lambda: replay_report(model, held),
           "samples": lambda: samples(model, tok)}
    for what in a.what:
        run[what]()


if __name__ == "__main__":
    main()
