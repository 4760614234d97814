#!/usr/bin/env python3
"""Derives `engram.safetensors` (what the Engram n-gram hash needs) for a release directory.

    engram_sidecar.py DIR [-o OUT]     needs DIR/tokenizer.json and DIR/config.json
    engram_sidecar.py --self-test      checks the constants of the released model

Tensors: compressed_ids I32 [vocab], and per Engram layer multipliers.<layer> I64 [n-gram size],
primes.<layer> I64 [(n-gram size - 1) * heads] in row-offset order.
"""
import argparse
import json
import os
import re
import struct
import sys
import unicodedata

import numpy as np

# Unicode White_Space: what the tokenizer library's strip removes (Python's strip takes more).
_WHITE = "\t\n\x0b\x0c\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200b))) + "\u2028\u2029\u202f\u205f\u3000"


def byte_alphabet():
    """The byte-level BPE alphabet: character -> byte."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out = {chr(b): b for b in keep}
    spare = 256
    for b in range(256):
        if b not in out.values():
            out[chr(spare)] = b
            spare += 1
    return out


def normalise(text):
    """Key text of a token: case, accents, compatibility forms and whitespace runs folded."""
    s = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    s = "".join(ch for ch in s if unicodedata.category(ch) != "Mn")
    s = "".join(ch.lower() for ch in s)           # per character: no final-sigma rule
    s = re.sub(r"[ \t\r\n]+", " ", s)
    if s != " ":
        s = s.strip(_WHITE)
    return s or text


def compressed_ids(tokenizer, vocab_size):
    """token id -> compressed id, handed out in first-seen order over ascending token ids."""
    raw = {i: t for t, i in tokenizer["model"]["vocab"].items()}
    added = {t["id"]: t["content"] for t in tokenizer.get("added_tokens", [])}
    alphabet = byte_alphabet()
    seen, out = {}, np.empty(vocab_size, np.int32)
    for i in range(vocab_size):
        token = added.get(i, raw.get(i, ""))
        text = token
        if i not in added:
            try:
                text = bytes(alphabet[ch] for ch in token).decode("utf-8", "replace")
            except KeyError:                      # not a byte-level string: stands for itself
                text = token
        out[i] = seen.setdefault(token if "\ufffd" in text else normalise(text), len(seen))
    return out, len(seen)


def is_prime(n):
    if n < 2 or n % 2 == 0:
        return n == 2
    return all(n % d for d in range(3, int(n ** 0.5) + 1, 2))


def primes(layers, orders, heads, start):
    """layer -> list of primes; each (layer, order) search restarts at `start`, all are distinct."""
    used, out = set(), {}
    for layer in layers:
        out[layer] = []
        for _ in range(orders):
            n = start
            for _ in range(heads):
                while n in used or not is_prime(n):
                    n += 1
                used.add(n)
                out[layer].append(n)
    return out


def multipliers(layer, ngram, compressed):
    bound = max(1, (2 ** 63 - 1) // compressed // 2)
    return np.random.default_rng(10007 * layer).integers(0, bound, ngram, dtype=np.int64) * 2 + 1


def derive(tokenizer, text_config):
    c = text_config
    cmap, n = compressed_ids(tokenizer, c["vocab_size"])
    want = c.get("engram_compressed_vocab_size")
    if want not in (None, n):
        raise SystemExit(f"tokenizer gives {n} compressed ids, the config says {want}")
    out = {"compressed_ids": cmap}
    table = primes(c["engram_layer_ids"], c["engram_max_ngram_size"] - 1, c["engram_n_heads"], c["engram_vocab_size"])
    for i, layer in enumerate(c["engram_layer_ids"]):
        rows = c.get("engram_num_embeddings")
        if rows and rows[i] != sum(table[layer]):
            raise SystemExit(f"layer {layer}: primes sum to {sum(table[layer])}, the config says {rows[i]} rows")
        out[f"multipliers.{layer}"] = multipliers(layer, c["engram_max_ngram_size"], n)
        out[f"primes.{layer}"] = np.array(table[layer], np.int64)
    return out


def save(path, tensors):
    head, at = {}, 0
    for name, a in tensors.items():
        head[name] = {"dtype": "I32" if a.dtype == np.int32 else "I64", "shape": list(a.shape),
                      "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    h = json.dumps(head, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h)
        for a in tensors.values():
            f.write(a.tobytes())


class Hasher:
    """Row ids of n-gram windows, vectorised over a batch of token sequences."""

    def __init__(self, tensors, c):
        self.cmap = np.asarray(tensors["compressed_ids"], np.int64)
        self.pad = self.cmap[c.engram_pad_token_id]
        self.n, self.heads = c.engram_max_ngram_size, c.engram_n_heads
        self.mult = {l: np.asarray(tensors[f"multipliers.{l}"]) for l in c.engram_layer_ids}
        self.primes = {l: np.asarray(tensors[f"primes.{l}"]) for l in c.engram_layer_ids}

    def rows(self, layer, tokens, start):
        """tokens [B, total] -> ids [B, total - start, (n - 1) * heads]; history before 0 is the pad id."""
        B, total = tokens.shape
        t = np.full((B, total + self.n - 1), self.pad, np.int64)
        t[:, self.n - 1:] = self.cmap[tokens]
        m, p = self.mult[layer], self.primes[layer]
        off = np.concatenate([[0], np.cumsum(p)[:-1]])
        r, out = None, []
        for s in range(self.n):
            a = self.n - 1 + start - s
            part = t[:, a:a + total - start] * m[s]
            r = part if r is None else r ^ part
            if s:
                i = slice((s - 1) * self.heads, s * self.heads)
                out.append(r[..., None] % p[i] + off[i])
        return np.concatenate(out, -1)


def self_test():
    p = primes([1, 14], 3, 8, 16000000)
    assert p[1][:8] == [16000000 + x for x in (57, 79, 81, 97, 121, 129, 133, 183)], p[1][:8]
    assert p[14][:8] == [16000000 + x for x in (477, 487, 499, 507, 511, 573, 609, 627)], p[14][:8]
    assert (p[1][-1], p[14][-1]) == (16000463, 16000889)
    assert (sum(p[1]), sum(p[14])) == (384006168, 384016682)
    m = {l: multipliers(l, 4, 99092).tolist() for l in (1, 14)}
    assert m[1] == [76632096046245, 4839876093313, 35959672319349, 73987337458391], m[1]
    assert m[14] == [67716810739261, 51510806800915, 30921347202721, 82619226485591], m[14]
    for text, key in ((" The", "the"), ("\n\n", " "), (" ", " "), ("\u00c9t\u00e9", "ete"), ("\uff21", "a"),
                      ("   x ", "x")):
        assert normalise(text) == key, text
    print("engram_sidecar: self-test passed")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("dir", nargs="?")
    ap.add_argument("-o", "--out")
    ap.add_argument("--self-test", action="store_true")
    a = ap.parse_args()
    if a.self_test:
        return self_test()
    if not a.dir:
        ap.error("DIR is missing")
    config = json.load(open(os.path.join(a.dir, "config.json"), encoding="utf-8"))
    tokenizer = json.load(open(os.path.join(a.dir, "tokenizer.json"), encoding="utf-8"))
    out = a.out or os.path.join(a.dir, "engram.safetensors")
    save(out, derive(tokenizer, config.get("text_config", config)))
    print(out)


if __name__ == "__main__":
    sys.exit(main())
