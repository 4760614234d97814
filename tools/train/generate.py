"""Batched cached decoding, used for the drafter's bank and for evaluation."""
import numpy as np
import torch

from model import Cache


def generate(model, prompts, new, temperature=None, rng=None):
    """prompts int64 [B, n] -> [B, n + new]. temperature: None for greedy, or array [B] (0 = greedy)."""
    B, n = prompts.shape
    tokens = np.zeros((B, n + new), np.int64)
    tokens[:, :n] = prompts
    cache = Cache(model.c, B, n + new)
    with torch.no_grad():
        for p in range(n, n + new):
            out = model.forward(tokens[:, :p], cache, n if p == n else 1)
            h = out["h"].view(B, -1, model.c.D)[:, -1]
            z = torch.mm(h, model.head.w.t()).numpy()
            pick = z.argmax(1)
            if temperature is not None:
                g = -np.log(-np.log(rng.random(z.shape) + 1e-20) + 1e-20)
                t = np.maximum(temperature, 1e-3)[:, None]
                pick = np.where(temperature > 0, (z / t + g).argmax(1), pick)
            tokens[:, p] = pick
    return tokens
