"""The network: parameter layout, forward pass (whole sequences or cached continuation), drafter.

Everything is driven by a release-style config.json. Tensors are flat [rows, width] with
rows = batch * tokens; the four residual streams of a row are stored copy-major [rows, 4*D].
"""
import json
import math

import numpy as np
import torch

import engram_sidecar
import ops
from ops import Param

F32, BF16, FP8, FP4, ROW8 = range(5)      # weight kinds, as in k_weight
HC = 4


class Config:
    def __init__(self, path):
        self.raw = json.load(open(path))
        t = self.raw["text_config"]
        for k, v in t.items():
            setattr(self, k, v)
        self.D, self.L, self.V = self.hidden_size, self.num_hidden_layers, self.vocab_size
        self.H, self.hd, self.rd = self.num_attention_heads, self.head_dim, self.qk_rope_head_dim
        self.W = self.sliding_window
        self.stages = self.num_nextn_predict_layers
        self.ratios = list(self.compress_ratios) + [0] * (self.L + self.stages - len(self.compress_ratios))


class Store:
    """Flat storage of all parameters: master f32, used (quantised) values, gradient, Adam moments.
    Order: decayed matrices, undecayed vectors, Engram tables, each group contiguous."""

    def __init__(self, params, shared=False, workers=1):
        def group(p):
            return 2 if p.kind == ROW8 else 1 if len(p.shape) == 1 or p.kind == F32 else 0
        self.params = sorted(params, key=group)
        self.groups, at = [[0, 0], [0, 0], [0, 0]], 0
        for g in range(3):
            self.groups[g][0] = at
            for p in self.params:
                if group(p) == g:
                    p.at, at = at, at + int(np.prod(p.shape))
            self.groups[g][1] = at
        self.n = at
        mk = (lambda: torch.zeros(at).share_memory_()) if shared else (lambda: torch.zeros(at))
        self.master, self.used = mk(), mk()
        self.grads = [mk() for _ in range(workers)]
        self.m = self.v = None
        self.mk = mk
        for p in self.params:
            n = int(np.prod(p.shape))
            p.master = self.master[p.at:p.at + n].view(p.shape)
            p.w = self.used[p.at:p.at + n].view(p.shape)
        self.bind(0)

    def bind(self, worker):
        for p in self.params:
            p.g = self.grads[worker][p.at:p.at + int(np.prod(p.shape))].view(p.shape)

    def moments(self):
        self.m, self.v = self.mk(), self.mk()

    def requantise(self, part=0, parts=1):
        for i, p in enumerate(self.params):
            if i % parts == part:
                quantise(p)


def quantise(p, codes=None, scales=None):
    shape = p.shape if len(p.shape) == 2 else (1, p.shape[0])
    ops.call("k_weight", p.kind, p.master, p.w, shape[0], shape[1], codes, scales)


def yarn_table(c, ratio, length):
    """[length, rd/2, (cos, sin)] for a layer of the given ratio."""
    rd = c.rd
    i = np.arange(rd // 2, dtype=np.float64)
    if ratio == 0:
        f = float(c.rope_theta) ** (-2 * i / rd)
    else:
        base, s = float(c.compress_rope_theta), c.rope_scaling
        f = base ** (-2 * i / rd)
        orig = s["original_max_position_embeddings"]

        def dim_of(r):
            return rd * math.log(orig / (2 * math.pi * r)) / (2 * math.log(base))
        lo = max(math.floor(dim_of(s["beta_fast"])), 0)
        hi = min(math.ceil(dim_of(s["beta_slow"])), rd - 1)
        ramp = np.clip((i - lo) / max(hi - lo, 1e-3), 0, 1)
        f = f / s["factor"] * ramp + f * (1 - ramp)
    ang = np.arange(length, dtype=np.float32)[:, None] * f.astype(np.float32)[None]
    return torch.from_numpy(np.stack([np.cos(ang), np.sin(ang)], -1).astype(np.float32))


def dropout(v, p):
    return torch.nn.functional.dropout(v, p) if p else v


class Block:
    """Parameters of one layer (backbone layer or drafter stage)."""

    def __init__(self, c, prefix, li, experts):
        D, hd, r, I = c.D, c.hd, c.q_lora_rank, c.moe_intermediate_size
        self.prefix, self.li, self.E = prefix, li, experts
        self.ratio = c.ratios[li]
        backbone = li < c.L
        self.kv_source = backbone and li in c.kv_source_layer_ids
        self.index_source = backbone and li in c.index_source_layer_ids
        self.cand_source = backbone and li == c.candidate_source_layer_id
        self.reindex = self.index_source and not self.kv_source
        self.ps = {}
        add = self.add
        for half in ("attn", "ffn"):
            add(f"{half}_norm", (D,), BF16, f"{half}_norm.weight")
            add(f"hc_{half}_fn", (24, HC * D), F32, f"hc_{half}_fn")
            add(f"hc_{half}_base", (24,), F32, f"hc_{half}_base")
            add(f"hc_{half}_scale", (3,), F32, f"hc_{half}_scale")
        add("wq_kv", (r + hd, D), FP8, "attn.wq_a.weight", r, "attn.wkv.weight")
        add("q_norm", (r,), BF16, "attn.q_norm.weight")
        add("kv_norm", (hd,), BF16, "attn.kv_norm.weight")
        add("wq_b", (c.H * hd, r), FP8, "attn.wq_b.weight")
        add("sink", (c.H,), F32, "attn.attn_sink")
        add("wo_a", (c.o_groups * c.o_lora_rank, c.H * hd // c.o_groups), FP8, "attn.wo_a.weight")
        add("wo_b", (D, c.o_groups * c.o_lora_rank), FP8, "attn.wo_b.weight")
        if self.kv_source:
            if self.ratio == 2:
                add("comp", (2 * hd, D), BF16, "attn.compressor.wkv.weight", hd, "attn.compressor.wgate.weight")
            else:
                add("comp", (hd, D), BF16, "attn.compressor.wkv.weight")
            add("comp_norm", (hd,), BF16, "attn.compressor.norm.weight")
            add("wk", (c.index_head_dim, hd), BF16, "attn.indexer.wk.weight")
            add("k_norm", (c.index_head_dim,), BF16, "attn.indexer.k_norm.weight")
        if self.index_source:
            add("iq", (c.index_n_heads * c.index_head_dim, r), FP8, "attn.indexer.wq_b.weight")
            add("iw", (c.index_n_heads, D), BF16, "attn.indexer.weights_proj.weight")
        add("gate", (experts, D), BF16, "ffn.gate.weight")
        names = []
        for e in range(experts):
            names += [f"ffn.experts.{e}.w1.weight", I, f"ffn.experts.{e}.w3.weight", I]
        add("e13", (experts * 2 * I, D), FP4, *names[:-1])
        names = []
        for e in range(experts):
            names += [f"ffn.experts.{e}.w2.weight", D]
        add("e2", (experts * D, I), FP4, *names[:-1])
        add("s13", (2 * I, D), FP8, "ffn.shared_experts.w1.weight", I, "ffn.shared_experts.w3.weight")
        add("s2", (D, I), FP8, "ffn.shared_experts.w2.weight")
        if backbone and li in c.engram_layer_ids:
            n = (c.engram_max_ngram_size - 1) * c.engram_n_heads
            rows = c.engram_num_embeddings[c.engram_layer_ids.index(li)]
            add("table", (rows, c.engram_head_dim), ROW8, "engram.embed.weight")
            add("ewkv", (5 * D, n * c.engram_head_dim), FP8, "engram.wkv.weight")
            add("eq", (HC, D), BF16, "engram.q_weight")
            add("ek", (HC, D), BF16, "engram.k_weight")
        self.bias = None                      # router bias, not trained by gradient

    def add(self, key, shape, kind, *parts):
        """parts = official name [, rows, name [, rows, name ...]] of the stacked pieces."""
        p = Param(f"{self.prefix}.{key}", shape, kind)
        p.parts, at = [], 0
        for i in range(0, len(parts), 2):
            n = parts[i + 1] if i + 1 < len(parts) else shape[0] - at
            p.parts.append((f"{self.prefix}.{parts[i]}", at, at + n))
            at += n
        self.ps[key] = p
        setattr(self, key, p)


class Cache:
    """Growing state of a batch whose sequences all have the same length (B sequences)."""

    def __init__(self, c, B, S):
        self.B, self.S, self.len = B, S, 0
        n = c.L
        self.swa = [torch.zeros(B, S, c.hd) for _ in range(n)]
        self.main = {l: torch.zeros(B, S // c.ratios[l] + 1, c.hd) for l in c.kv_source_layer_ids}
        self.index = {l: torch.zeros(B, S // c.ratios[l] + 1, c.index_head_dim) for l in c.kv_source_layer_ids}
        self.tail = {}


class Model:
    def __init__(self, config_path, sidecar=None, maxpos=2048):
        c = self.c = Config(config_path)
        self.layers = [Block(c, f"layers.{l}", l, c.n_routed_experts) for l in range(c.L)]
        self.stages = [Block(c, f"mtp.{k}", c.L + k, c.dspark_n_routed_experts) for k in range(c.stages)]
        self.top = {}

        def top(key, shape, kind, name):
            p = Param(name, shape, kind)
            p.parts = [(name, 0, shape[0])]
            self.top[key] = p
            setattr(self, key, p)
        top("embed", (c.V, c.D), BF16, "embed.weight")
        top("head", (c.V, c.D), BF16, "head.weight")
        top("norm", (c.D,), BF16, "norm.weight")
        last, R = f"mtp.{c.stages - 1}", c.dspark_markov_rank
        self.draft_top = ["main_proj", "main_norm", "draft_norm", "markov_embed", "markov_head", "conf"]
        top("main_proj", (c.D, c.D * len(c.dspark_target_layer_ids)), FP8, "mtp.0.main_proj.weight")
        top("main_norm", (c.D,), BF16, "mtp.0.main_norm.weight")
        top("draft_norm", (c.D,), BF16, f"{last}.norm.weight")
        top("markov_embed", (c.V, R), BF16, f"{last}.markov_head.embed.weight")
        top("markov_head", (c.V, R), BF16, f"{last}.markov_head.head.weight")
        top("conf", (1, c.D + R), BF16, f"{last}.confidence_head.proj.weight")
        self.backbone_params = [p for b in self.layers for p in b.ps.values()] + [self.embed, self.head, self.norm]
        self.draft_params = [p for b in self.stages for p in b.ps.values()] + [self.top[k] for k in self.draft_top]
        self.biases = torch.zeros(len(self.layers) + len(self.stages), 64)
        self.set_biases(self.biases)
        self.table = {r: yarn_table(c, r, maxpos) for r in (0, 1)}
        self.hasher = sidecar and engram_sidecar.Hasher(sidecar, c)
        self.first = torch.zeros(1, 24)
        self.first[0, 0] = 1.0

    def set_biases(self, t):
        self.biases = t
        for i, b in enumerate(self.layers + self.stages):
            b.bias = t[i, :b.E]

    def allocate(self, shared=False, workers=1, draft_only=False):
        """Backbone and drafter stores (the backbone keeps one gradient buffer per worker)."""
        self.store = Store(self.backbone_params, shared, 1 if draft_only else workers)
        self.draft_store = Store(self.draft_params, shared, workers if draft_only else 1)

    # ---- forward -----------------------------------------------------------------------------
    def tokens_to_x(self, ids, frozen=False):
        """Embedding rows copied to the four streams; frozen: no gradient for the embedding."""
        e = self.embed.w[ids.reshape(-1)] if frozen else ops.rows(self.embed, ids.reshape(-1, 1))
        return e.repeat(1, HC)

    def attention_inputs(self, b, x, pos):
        """qr, q (roped), own SWA rows (roped, quantised)."""
        c, table = self.c, self.table[1 if b.ratio else 0]
        y = ops.lin(ops.q8(x), b.wq_kv)
        qr = ops.rms(y, b.q_norm, 0, c.q_lora_rank)
        w = ops.rms(y, b.kv_norm, c.q_lora_rank)
        w = ops.rope(w, table, pos, 1, c.rd, 1, ops.Q_8)
        qrq = ops.q8(qr)
        q = ops.rope(ops.lin(qrq, b.wq_b), table, pos, c.H, c.rd)
        return qrq, q, w

    def attention_output(self, b, o, pos):
        c = self.c
        o = ops.rope(o, self.table[1 if b.ratio else 0], pos, c.H, c.rd, -1)
        a = ops.group_lin(o, b.wo_a, c.o_groups)
        return ops.lin(ops.q8(a), b.wo_b)

    def ffn_half(self, b, X, P, log, drop=0.):
        c = self.c
        h, Pf = ops.mix(X, P, b.hc_ffn_fn, b.hc_ffn_base, b.hc_ffn_scale, b.ffn_norm)
        k = c.num_experts_per_tok if b.li < c.L else c.dspark_num_experts_per_tok
        v = ops.moe(h, b.gate, b.bias, b.e13, b.e2, b.s13, b.s2, k, c.routed_scaling_factor, c.swiglu_limit, log)
        return ops.expand(dropout(v, drop), X, Pf), Pf

    def compress(self, b, x, st):
        """New global rows (latent -> main rows, index rows) of a KV source; st as in forward()."""
        c, r = self.c, b.ratio
        B, n, s = st["B"], st["n"], st["start"]
        if r == 2:
            y = ops.lin(x, b.comp, rnd=False)
            if st["cache"] is not None:
                tail = st["cache"].tail.get(b.li)
                y = y.view(B, n, -1)
                if s % 2:
                    y = torch.cat([tail, y], 1)
                if (s + n) % 2:
                    st["cache"].tail[b.li] = y[:, -1:].clone()
                    y = y[:, :-1]
                if y.shape[1] == 0:
                    return None, None
                y = y.reshape(-1, y.shape[-1])
            m = ops.pair(y)
        else:
            m = ops.lin(x, b.comp)
        latent = ops.rms(m, b.comp_norm)
        rows = latent.shape[0] // B
        pos = (torch.arange(rows, dtype=torch.int32) + s // r) * r
        pos = pos.repeat(B)
        ik = ops.rms(ops.lin(latent.detach(), b.wk), b.k_norm)
        ik = ops.rope(ik, self.table[1], pos, 1, c.rd, 1, ops.Q_4I)
        main = ops.rope(latent, self.table[1], pos, 1, c.rd, 1, ops.Q_4K)
        return main, ik

    def select(self, b, x, qrq, st):
        """Index source: publishes the chosen rows (and candidates) in st; returns KL inputs."""
        c = self.c
        Hi, di = c.index_n_heads, c.index_head_dim
        qi = ops.lin(qrq.detach(), b.iq)
        qi = ops.rope(qi, self.table[1], st["pos"], Hi, c.rd, 1, ops.Q_4I)
        wt = ops.lin(x.detach(), b.iw) * (di ** -0.5 * Hi ** -0.5)
        ik = st["ik"]
        vis = torch.div(st["pos"] + 1, b.ratio, rounding_mode="floor").to(torch.int32)
        per_seq = ik.shape[0] // st["B"]
        base = torch.arange(st["B"], dtype=torch.int32).repeat_interleave(st["n"]) * per_seq
        block = c.candidate_block_size
        nb = (per_seq + block - 1) // block
        sel, cand = ops.index_select(qi, wt, ik, vis, base, c.index_topk, per_seq,
                                     st["cand"] if b.reindex and b.li >= c.candidate_source_layer_id else None,
                                     b.cand_source, nb, block, c.candidate_topk_blocks, st["explore"])
        if b.cand_source:
            st["cand"] = cand
        if "force_sel" in st:
            sel = st["force_sel"].setdefault(b.li, sel)
        st["sel"] = sel
        return qi, wt, ik

    def attn_half(self, b, X, P, st):
        c = self.c
        x, Pa = ops.mix(X, P, b.hc_attn_fn, b.hc_attn_base, b.hc_attn_scale, b.attn_norm)
        qrq, q, w = self.attention_inputs(b, x, st["pos"])
        cache, B, n, s = st["cache"], st["B"], st["n"], st["start"]
        if cache is not None:
            cache.swa[b.li][:, s:s + n] = w.view(B, n, -1)
            w = cache.swa[b.li].view(-1, c.hd)
        G = idx = kl = None
        if b.kv_source and "bridged" not in st:
            main, ik = self.compress(b, x, st)
            if cache is not None:
                if main is not None:
                    g0 = s // b.ratio
                    m = main.view(B, -1, c.hd)
                    cache.main[b.li][:, g0:g0 + m.shape[1]] = m
                    cache.index[b.li][:, g0:g0 + m.shape[1]] = ik.view(B, -1, c.index_head_dim)
                main = cache.main[b.li].view(-1, c.hd)
                ik = cache.index[b.li].view(-1, c.index_head_dim)
            st["main"], st["ik"] = main, ik
        if b.ratio:
            if b.index_source:
                kl = self.select(b, x, qrq, st)
            G, idx = st["main"], st["sel"]
        o, hs = ops.attn(q, w, st["lo"], st["hi"], G, idx, b.sink, c.W)
        if kl is not None and st["kl"] is not None:
            st["kl"].append(ops.index_kl(*kl, idx, hs))
        v = self.attention_output(b, o, st["pos"])
        return ops.expand(dropout(v, st["drop"]), X, Pa), Pa

    def forward(self, tokens, cache=None, new=None, explore=0, want_kl=False, drop=0., row_drop=0.,
                logs=None, trace=None, force_sel=None, rng=None, replay=0):
        """tokens: int64 array [B, total]; the last `new` (default all) are processed. Returns a dict:
        h [rows, D] (normed, ready for the head), u, taps [rows, 3D], kl (list of summed KLs).
        drop: dropout of every attention and MoE output; row_drop: share of Engram rows blanked.
        replay > 0: bounded decoder replay, i.e. layers from the last KV source on run on the last
        `replay` rows only, with windows truncated at the first of them (no cache)."""
        c = self.c
        B, total = tokens.shape
        n = new or total
        s = total - n
        pos = torch.arange(s, total, dtype=torch.int32).repeat(B)
        stride = cache.S if cache is not None else total
        seq = torch.arange(B, dtype=torch.int32).repeat_interleave(n) * stride
        st = {"B": B, "n": n, "start": s, "pos": pos, "cache": cache, "explore": explore, "cand": None,
              "lo": (seq + (pos - c.W + 1).clamp(min=0)).to(torch.int32), "hi": (seq + pos + 1).to(torch.int32),
              "kl": [] if want_kl else None, "drop": drop}
        if force_sel is not None:
            st["force_sel"] = force_sel
        ids = torch.from_numpy(np.ascontiguousarray(tokens[:, s:]))
        X = self.tokens_to_x(ids)
        P = self.first.repeat(B * n, 1)
        taps = {}
        for b in self.layers:
            if replay and b.li == c.kv_source_layer_ids[-1] and replay < n:
                X, P = self.bridge(b, X, P, st, replay)
                n = replay
            if trace is not None:
                trace[f"x.{b.li}"], trace[f"pre.{b.li}"] = X, P[:, :HC]
            if "table" in b.ps:
                hashed = self.hasher.rows(b.li, tokens, s)
                mask = None
                if row_drop:
                    mask = torch.from_numpy((rng.random(hashed.size) < row_drop).astype(np.uint8))
                e = ops.rows(b.table, torch.from_numpy(hashed.reshape(B * n, -1)), mask)
                X = ops.engram(X, ops.lin(ops.q8(e), b.ewkv), b.eq, b.ek)
            if b.li in c.dspark_target_layer_ids:
                t = torch.empty(B * n, c.D)
                ops.call("k_mean4", X.detach(), t, B * n, c.D)
                taps[b.li] = t
            X, P = self.attn_half(b, X, P, st)
            log = None
            if logs is not None:
                log = logs.setdefault(b.li, {})
            X, P = self.ffn_half(b, X, P, log, drop)
            if trace is not None and b.index_source:
                trace[f"sel.{b.li}"] = st["sel"]
        if trace is not None:
            trace[f"x.{c.L}"], trace[f"pre.{c.L}"] = X, P[:, :HC]
        h, u = ops.collapse(X, P, self.norm)
        return {"h": h, "u": u, "taps": torch.cat([taps[l] for l in c.dspark_target_layer_ids], 1), "kl": st["kl"]}

    def bridge(self, b, X, P, st, R):
        """Global rows of the cut layer for all tokens, then st, X, P narrowed to the last R rows."""
        x, _ = ops.mix(X, P, b.hc_attn_fn, b.hc_attn_base, b.hc_attn_scale, b.attn_norm)
        st["main"], st["ik"] = self.compress(b, x, st)
        B, n = st["B"], st["n"]
        last = torch.arange(n - R, n).repeat(B) + torch.arange(B).repeat_interleave(R) * n
        pos = st["pos"][last]
        base = torch.arange(B, dtype=torch.int32).repeat_interleave(R) * R - (n - R)
        st.update(n=R, pos=pos, bridged=True, hi=(base + pos + 1).to(torch.int32),
                  lo=(base + (pos - self.c.W + 1).clamp(min=n - R)).to(torch.int32))
        return X[last].contiguous(), P[last].contiguous()

    # ---- drafter -----------------------------------------------------------------------------
    def draft_hidden(self, taps, seq_len, anchors, token, logs=None, trace=None):
        """taps [B*S, 3D] of B sequences of seq_len S; anchors: int array [N] of flat row numbers
        (the last processed position p of each draft); token: [N] input token t at p+1.
        Returns y [N*block, D] (collapsed) and its normed form."""
        c, n = self.c, self.c.dspark_block_size
        N = len(anchors)
        main = ops.rms(ops.lin(ops.q8(taps), self.main_proj), self.main_norm)
        mq = ops.q8(main)
        ring_pos = torch.arange(seq_len, dtype=torch.int32).repeat(taps.shape[0] // seq_len)
        p = anchors % seq_len
        off = np.arange(c.W)
        idx = (anchors - p)[:, None] + p[:, None] - off[None]          # newest first; order is irrelevant
        idx[p[:, None] - off[None] < 0] = -1
        idx = torch.from_numpy(np.repeat(idx, n, 0).astype(np.int32))
        pos = torch.from_numpy((p[:, None] + 1 + np.arange(n)[None]).reshape(-1).astype(np.int32))
        lo = torch.arange(N, dtype=torch.int32).repeat_interleave(n) * n
        hi = lo + n
        ids = np.full((N, n), c.dspark_noise_token_id, np.int64)
        ids[:, 0] = token
        X = self.tokens_to_x(torch.from_numpy(ids), frozen=True)
        P = self.first.repeat(N * n, 1)
        for k, b in enumerate(self.stages):
            if trace is not None:
                trace[f"x.{k}"], trace[f"pre.{k}"] = X, P[:, :HC]
            wkv = b.wq_kv.rows(c.q_lora_rank, c.q_lora_rank + c.hd)
            ring = ops.rope(ops.rms(ops.lin(mq, wkv), b.kv_norm), self.table[0], ring_pos, 1, c.rd, 1, ops.Q_8)
            x, Pa = ops.mix(X, P, b.hc_attn_fn, b.hc_attn_base, b.hc_attn_scale, b.attn_norm)
            _, q, w = self.attention_inputs(b, x, pos)
            o, _ = ops.attn(q, w, lo, hi, ring, idx, b.sink, n)
            X = ops.expand(self.attention_output(b, o, pos), X, Pa)
            X, P = self.ffn_half(b, X, Pa, None if logs is None else logs.setdefault(b.li, {}))
        if trace is not None:
            trace[f"x.{c.stages}"], trace[f"pre.{c.stages}"] = X, P[:, :HC]
        return ops.collapse(X, P, self.draft_norm)

    def draft_tokens(self, h, u, token):
        """Greedy draft ids [N, block], confidence logits [N, block] and draft logits [N, block, V]."""
        c, n = self.c, self.c.dspark_block_size
        N = len(token)
        base = torch.mm(h, self.head.w.t()).view(N, n, -1)
        u = u.view(N, n, -1)
        cur = torch.from_numpy(np.asarray(token, np.int64))
        ids, conf, logits = [], [], []
        for j in range(n):
            m = self.markov_embed.w[cur]
            z = base[:, j] + torch.mm(m, self.markov_head.w.t())
            cur = z.argmax(1)
            ids.append(cur)
            logits.append(z)
            conf.append(torch.mm(torch.cat([u[:, j], m], 1), self.conf.w.t())[:, 0])
        return torch.stack(ids, 1), torch.stack(conf, 1), torch.stack(logits, 1)

