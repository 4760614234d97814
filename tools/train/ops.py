"""ctypes bindings of kernels.c and the autograd functions built on them.

Weights are `Param` objects, not autograd leaves: every function accumulates straight into
`Param.g` (a view of the worker's flat gradient buffer). `ANCHOR` is a dummy tensor that requires
grad; passing it makes autograd call backward even if no activation input requires grad (first
layer, detached indexer inputs).
"""
import ctypes
import hashlib
import os
import subprocess
import tempfile

import numpy as np
import torch
from torch.autograd import Function

HERE = os.path.dirname(os.path.abspath(__file__))
Q_NONE, Q_8, Q_4K, Q_4I = range(4)
ANCHOR = torch.zeros(1, requires_grad=True)


def _build():
    src = os.path.join(HERE, "kernels.c")
    tag = hashlib.sha1(open(src, "rb").read()).hexdigest()[:12]
    folder = os.environ.get("WEFT_TRAIN_BUILD") or os.path.join(tempfile.gettempdir(), "weft-train")
    os.makedirs(folder, exist_ok=True)
    lib = os.path.join(folder, f"kernels-{tag}.so")
    if not os.path.exists(lib):
        tmp = f"{lib}.{os.getpid()}"
        subprocess.check_call(["gcc", "-O3", "-march=native", "-ffast-math", "-fno-reciprocal-math",
                               "-Wall", "-Wextra", "-shared", "-fPIC", "-o", tmp, src, "-lm"])
        os.replace(tmp, lib)
    return ctypes.CDLL(lib)


# -ffast-math makes the library flush denormals process-wide; numpy probes them once, so let it first.
np.finfo(np.float32), np.finfo(np.float64)
_lib = _build()
for _f in ("k_ce", "k_index_kl", "k_draft_loss", "k_sumsq"):
    getattr(_lib, _f).restype = ctypes.c_double


def call(name, *args):
    """Calls a kernel: tensors by address (they must be contiguous), ints as int32, floats as f32."""
    out = []
    for a in args:
        if a is None:
            out.append(ctypes.c_void_p(0))
        elif isinstance(a, torch.Tensor):
            assert a.is_contiguous(), name
            out.append(ctypes.c_void_p(a.data_ptr()))
        elif isinstance(a, float):
            out.append(ctypes.c_float(a))
        elif isinstance(a, int):
            out.append(ctypes.c_int32(a))
        else:
            out.append(a)
    return getattr(_lib, name)(*out)


def strided(t):
    """Address of a tensor whose rows are strided (last dimension contiguous)."""
    assert t.stride(-1) == 1
    return ctypes.c_void_p(t.data_ptr())


i64 = ctypes.c_int64
_quant = False


def set_quant(on):
    global _quant
    _quant = bool(on)
    _lib.set_quant(int(on))


def quant_on():
    return _quant


def set_seed(seed):
    _lib.set_seed(ctypes.c_uint64(seed))


def round_(t):
    if _quant:
        call("k_round", t, i64(t.numel()))
    return t


class Param:
    """One (possibly stacked) weight: w = values used (quantised), g = gradient, both views."""

    def __init__(self, name, shape, kind):
        self.name, self.shape, self.kind = name, tuple(shape), kind
        self.w = self.g = self.master = None

    def rows(self, a, b):
        p = Param(f"{self.name}[{a}:{b}]", (b - a,) + self.shape[1:], self.kind)
        p.w, p.g, p.master = self.w[a:b], self.g[a:b], self.master[a:b]
        return p


class Lin(Function):
    """y = x W^T, rounded to bf16 when rnd. x is expected to be quantised already where W is FP8/FP4."""

    @staticmethod
    def forward(ctx, anchor, x, p, rnd):
        ctx.save_for_backward(x)
        ctx.p = p
        y = torch.mm(x, p.w.t())
        return round_(y) if rnd else y

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        g = g.contiguous()
        ctx.p.g.addmm_(g.t(), x)
        return None, (torch.mm(g, ctx.p.w) if ctx.needs_input_grad[1] else None), None, None


def lin(x, p, rnd=True):
    return Lin.apply(ANCHOR, x, p, rnd)


class Q8(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        call("k_q8", x, y, x.shape[0], x.shape[1])
        return y

    @staticmethod
    def backward(ctx, g):
        return g


def q8(x):
    return Q8.apply(x) if _quant else x


class Rms(Function):
    """RMS norm over columns [a, b) of x."""

    @staticmethod
    def forward(ctx, anchor, x, p, a, b):
        ctx.save_for_backward(x)
        ctx.p, ctx.ab = p, (a, b)
        y = torch.empty(x.shape[0], b - a)
        call("k_rms", strided(x[:, a:b]), x.stride(0), p.w, y, x.shape[0], b - a)
        return y

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        a, b = ctx.ab
        gx = torch.zeros_like(x)
        call("k_rms_bwd", strided(x[:, a:b]), x.stride(0), ctx.p.w, g.contiguous(), strided(gx[:, a:b]),
             gx.stride(0), ctx.p.g, x.shape[0], b - a)
        return None, gx, None, None, None


def rms(x, p, a=0, b=None):
    return Rms.apply(ANCHOR, x, p, a, x.shape[1] if b is None else b)


class Rope(Function):
    @staticmethod
    def forward(ctx, x, table, pos, heads, rd, sign, kind):
        y = torch.empty_like(x)
        ctx.args = (table, pos, heads, rd, sign)
        call("k_rope", x, y, table, pos, x.shape[0], heads, x.shape[1] // heads, rd, float(sign), kind)
        return y

    @staticmethod
    def backward(ctx, g):
        table, pos, heads, rd, sign = ctx.args
        y = torch.empty_like(g)
        g = g.contiguous()
        was = _quant
        _lib.set_quant(0)
        call("k_rope", g, y, table, pos, g.shape[0], heads, g.shape[1] // heads, rd, float(-sign), Q_NONE)
        _lib.set_quant(int(was))
        return y, None, None, None, None, None, None


def rope(x, table, pos, heads, rd, sign=1, kind=Q_NONE):
    return Rope.apply(x, table, pos, heads, rd, sign, kind)


class Mix(Function):
    """First part of a half-layer: mixing weights P [T,24] from X, and the normed collapse of X with
    the previous half-layer's pre (first four columns of P_prev)."""

    @staticmethod
    def forward(ctx, anchor, X, P_prev, fn, base, scale, norm):
        T, D = X.shape[0], X.shape[1] // 4
        m = torch.mm(X, fn.w.t())
        r, P = torch.empty(T), torch.empty(T, 24)
        call("k_rowscale", X, r, T, 4 * D)
        call("k_mix", m, r, base.w, scale.w, P, T)
        u, h = torch.empty(T, D), torch.empty(T, D)
        call("k_collapse", X, P_prev, norm.w, u, h, T, D)
        ctx.save_for_backward(X, P_prev, m, r, u)
        ctx.ps = fn, base, scale, norm
        return h, P

    @staticmethod
    def backward(ctx, gh, gP):
        X, P_prev, m, r, u = ctx.saved_tensors
        fn, base, scale, norm = ctx.ps
        T, D = X.shape[0], X.shape[1] // 4
        gm, gr = torch.empty(T, 24), torch.empty(T)
        call("k_mix_bwd", m, r, base.w, scale.w, gP.contiguous(), gm, gr, base.g, scale.g, T)
        fn.g.addmm_(gm.t(), X)
        gX, gPp = torch.mm(gm, fn.w), torch.empty(T, 24)
        call("k_collapse_bwd", X, P_prev, norm.w, u, gh.contiguous(), r, gr, gX, gPp, norm.g, T, D)
        return None, gX, gPp, None, None, None, None


def mix(X, P_prev, fn, base, scale, norm):
    return Mix.apply(ANCHOR, X, P_prev, fn, base, scale, norm)


class Collapse(Function):
    """Final collapse: u (un-normed) and rms(u, norm); no gradient flows through u."""

    @staticmethod
    def forward(ctx, anchor, X, P, norm):
        T, D = X.shape[0], X.shape[1] // 4
        u, h = torch.empty(T, D), torch.empty(T, D)
        call("k_collapse", X, P, norm.w, u, h, T, D)
        ctx.save_for_backward(X, P, u)
        ctx.norm = norm
        ctx.mark_non_differentiable(u)
        return h, u

    @staticmethod
    def backward(ctx, gh, _):
        X, P, u = ctx.saved_tensors
        T, D = X.shape[0], X.shape[1] // 4
        gX, gP = torch.zeros_like(X), torch.empty(T, 24)
        call("k_collapse_bwd", X, P, ctx.norm.w, u, gh.contiguous(), None, None, gX, gP, ctx.norm.g, T, D)
        return None, gX, gP, None


def collapse(X, P, norm):
    return Collapse.apply(ANCHOR, X, P, norm)


class Expand(Function):
    @staticmethod
    def forward(ctx, v, X, P):
        Y = torch.empty_like(X)
        call("k_expand", v, X, P, Y, X.shape[0], v.shape[1])
        ctx.save_for_backward(v, X, P)
        return Y

    @staticmethod
    def backward(ctx, gY):
        v, X, P = ctx.saved_tensors
        gv, gX, gP = torch.empty_like(v), torch.empty_like(X), torch.empty_like(P)
        call("k_expand_bwd", v, X, P, gY.contiguous(), gv, gX, gP, X.shape[0], v.shape[1])
        return gv, gX, gP


expand = Expand.apply


class Attn(Function):
    """Sparse attention (see k_attn). Returns the output and the head-summed probability of the
    listed rows (not differentiable)."""

    @staticmethod
    def forward(ctx, anchor, q, A, lo, hi, G, idx, sink, W):
        T, H = q.shape[0], sink.shape[0]
        d = q.shape[1] // H
        K = idx.shape[1] if idx is not None else 0
        o, probs = torch.empty_like(q), torch.empty(T, H, W + K)
        hs = torch.empty(T, K)
        call("k_attn", q, A, lo, hi, G, idx, K, sink.w, o, probs, hs if K else None, W, T, H, d)
        ctx.save_for_backward(q, A, G, o, probs)
        ctx.args = lo, hi, idx, sink, W
        ctx.mark_non_differentiable(hs)
        return o, hs

    @staticmethod
    def backward(ctx, go, _):
        q, A, G, o, probs = ctx.saved_tensors
        lo, hi, idx, sink, W = ctx.args
        T, H = q.shape[0], sink.shape[0]
        K = idx.shape[1] if idx is not None else 0
        gq, gA = torch.empty_like(q), torch.zeros_like(A)
        gG = torch.zeros_like(G) if G is not None else None
        call("k_attn_bwd", q, A, lo, hi, G, idx, K, probs, o, go.contiguous(), gq, gA, gG, sink.g, W, T, H,
             q.shape[1] // H)
        return None, gq, gA, None, None, gG, None, None, None


def attn(q, A, lo, hi, G, idx, sink, W):
    return Attn.apply(ANCHOR, q, A, lo, hi, G, idx, sink, W)


class GroupLin(Function):
    """Grouped projection: group g of x [T, G*K] times rows g of W [G*N, K]."""

    @staticmethod
    def forward(ctx, anchor, x, p, groups):
        T, K, N = x.shape[0], x.shape[1] // groups, p.shape[0] // groups
        ctx.save_for_backward(x)
        ctx.args = p, groups
        y = torch.empty(T, groups * N)
        for g in range(groups):
            y[:, g * N:(g + 1) * N] = torch.mm(x[:, g * K:(g + 1) * K], p.w[g * N:(g + 1) * N].t())
        return round_(y)

    @staticmethod
    def backward(ctx, gy):
        x, = ctx.saved_tensors
        p, groups = ctx.args
        K, N = x.shape[1] // groups, p.shape[0] // groups
        gx = torch.empty_like(x)
        for g in range(groups):
            gg = gy[:, g * N:(g + 1) * N]
            p.g[g * N:(g + 1) * N].addmm_(gg.t(), x[:, g * K:(g + 1) * K])
            gx[:, g * K:(g + 1) * K] = torch.mm(gg, p.w[g * N:(g + 1) * N])
        return None, gx, None, None


def group_lin(x, p, groups):
    return GroupLin.apply(ANCHOR, x, p, groups)


class Pair(Function):
    @staticmethod
    def forward(ctx, x):
        n, d = x.shape[0] // 2, x.shape[1] // 2
        m = torch.empty(n, d)
        call("k_pair", x, m, n, d)
        ctx.save_for_backward(x)
        return m

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        gx = torch.empty_like(x)
        call("k_pair_bwd", x, g.contiguous(), gx, x.shape[0] // 2, x.shape[1] // 2)
        return gx


pair = Pair.apply


def index_select(qi, wt, IK, vis, base, K, maxvis, cand_in=None, want_cand=False, nb=0, block=1, keep=0,
                 explore=0):
    T, H = qi.shape[0], wt.shape[1]
    sel = torch.empty(T, K, dtype=torch.int32)
    cand = torch.empty(T, nb, dtype=torch.uint8) if want_cand else None
    call("k_index", qi, wt, IK, vis, base, K, cand_in, cand, nb, block, keep, explore, sel, None, maxvis, T, H,
         qi.shape[1] // H)
    return sel, cand


class IndexKL(Function):
    @staticmethod
    def forward(ctx, qi, wt, IK, sel, hs):
        gq, gw, gk = torch.empty_like(qi), torch.empty_like(wt), torch.zeros_like(IK)
        T, H = qi.shape[0], wt.shape[1]
        loss = call("k_index_kl", qi, wt, IK, sel, hs, sel.shape[1], gq, gw, gk, T, H, qi.shape[1] // H)
        ctx.save_for_backward(gq, gw, gk)
        return torch.tensor(loss)

    @staticmethod
    def backward(ctx, g):
        gq, gw, gk = ctx.saved_tensors
        return gq * g, gw * g, gk * g, None, None


index_kl = IndexKL.apply


class Moe(Function):
    """Routed experts and the shared expert. e13 [E*2I, D], e2 [E*D, I], s13 [2I, D], s2 [D, I].
    `log` (may be None) is a dict that receives/forces routing: log['force'] idx in, log['idx'],
    log['load'] out."""

    @staticmethod
    def forward(ctx, anchor, x, gate, bias, e13, e2, s13, s2, k, scale, lim, log):
        T, D = x.shape
        E, I = gate.shape[0], s13.shape[0] // 2
        z = torch.mm(x, gate.w.t())
        idx = torch.empty(T, k, dtype=torch.int32)
        s, w = torch.empty(T, k), torch.empty(T, k)
        order, inv = torch.empty(T * k, dtype=torch.int32), torch.empty(T * k, dtype=torch.int32)
        off = torch.empty(E + 1, dtype=torch.int32)
        force = log.get("force") if log is not None else None
        call("k_route", z, bias, idx, s, w, order, inv, off, force, T, E, k, float(scale))
        offs = off.tolist()
        if log is not None:
            log["idx"] = idx
            log["load"] = torch.tensor([offs[e + 1] - offs[e] for e in range(E)], dtype=torch.float32)
        xq = torch.empty_like(x)
        call("k_q8", x, xq, T, D)
        xg = torch.empty(T * k, D)
        call("k_gather", xq, order, xg, T * k, k, D)
        ab, h, y = torch.empty(T * k, 2 * I), torch.empty(T * k, I), torch.empty(T * k, D)
        for e in range(E):
            a, b = offs[e], offs[e + 1]
            if b > a:
                torch.mm(xg[a:b], e13.w[e * 2 * I:(e + 1) * 2 * I].t(), out=ab[a:b])
        call("k_swiglu", round_(ab), w, order, h, T * k, I, float(lim))
        for e in range(E):
            a, b = offs[e], offs[e + 1]
            if b > a:
                torch.mm(h[a:b], e2.w[e * D:(e + 1) * D].t(), out=y[a:b])
        sab, sh = round_(torch.mm(xq, s13.w.t())), torch.empty(T, I)
        call("k_swiglu", sab, None, None, sh, T, I, float(lim))
        sy, out = round_(torch.mm(sh, s2.w.t())), torch.empty(T, D)
        call("k_combine", round_(y), inv, sy, out, T, k, D, 1)
        ctx.save_for_backward(x, z, idx, s, w, order, inv, xq, xg, ab, h, sab, sh)
        ctx.args = gate, e13, e2, s13, s2, k, scale, lim, offs
        return out

    @staticmethod
    def backward(ctx, g):
        x, z, idx, s, w, order, inv, xq, xg, ab, h, sab, sh = ctx.saved_tensors
        gate, e13, e2, s13, s2, k, scale, lim, offs = ctx.args
        g = g.contiguous()
        T, D = x.shape
        E, I = gate.shape[0], s13.shape[0] // 2
        s2.g.addmm_(g.t(), sh)
        gsab = torch.empty_like(sab)
        call("k_swiglu_bwd", sab, None, None, torch.mm(g, s2.w), gsab, None, T, I, float(lim))
        s13.g.addmm_(gsab.t(), xq)
        gx = torch.mm(gsab, s13.w)
        gy, gh, gab = torch.empty(T * k, D), torch.empty_like(h), torch.empty_like(ab)
        call("k_gather", g, order, gy, T * k, k, D)
        for e in range(E):
            a, b = offs[e], offs[e + 1]
            if b > a:
                torch.mm(gy[a:b], e2.w[e * D:(e + 1) * D], out=gh[a:b])
                e2.g[e * D:(e + 1) * D].addmm_(gy[a:b].t(), h[a:b])
        gw = torch.empty(T * k)
        call("k_swiglu_bwd", ab, w, order, gh, gab, gw, T * k, I, float(lim))
        gxg = gy
        for e in range(E):
            a, b = offs[e], offs[e + 1]
            if b > a:
                we = slice(e * 2 * I, (e + 1) * 2 * I)
                torch.mm(gab[a:b], e13.w[we], out=gxg[a:b])
                e13.g[we].addmm_(gab[a:b].t(), xg[a:b])
        gz = torch.empty_like(z)
        call("k_route_bwd", z, idx, s, gw, gz, T, E, k, float(scale))
        gate.g.addmm_(gz.t(), x)
        gx.addmm_(gz, gate.w)
        out = torch.empty_like(x)
        call("k_combine", gxg, inv, gx, out, T, k, D, 0)
        return (None, out) + (None,) * 10


def moe(x, gate, bias, e13, e2, s13, s2, k, scale, lim, log=None):
    return Moe.apply(ANCHOR, x, gate, bias, e13, e2, s13, s2, k, scale, lim, log)


class Rows(Function):
    """Concatenated table rows ids [T, n] (int64)."""

    @staticmethod
    def forward(ctx, anchor, table, ids, drop):
        T, n, hd = ids.shape[0], ids.shape[1], table.shape[1]
        e = torch.empty(T, n * hd)
        call("k_rows", table.w, ids, drop, e, T, n, hd)
        ctx.args = table, ids, drop
        return e

    @staticmethod
    def backward(ctx, g):
        table, ids, drop = ctx.args
        call("k_rows_bwd", g.contiguous(), ids, drop, table.g, ids.shape[0], ids.shape[1], table.shape[1])
        return None, None, None, None


def rows(table, ids, drop=None):
    return Rows.apply(ANCHOR, table, ids, drop)


class Engram(Function):
    @staticmethod
    def forward(ctx, anchor, X, kv, qw, kw):
        T, D = X.shape[0], X.shape[1] // 4
        Y, gate, dot = torch.empty_like(X), torch.empty(T, 4), torch.empty(T, 4)
        call("k_engram", X, kv, qw.w, kw.w, Y, gate, dot, T, D)
        ctx.save_for_backward(X, kv, gate, dot)
        ctx.ps = qw, kw
        return Y

    @staticmethod
    def backward(ctx, gY):
        X, kv, gate, dot = ctx.saved_tensors
        qw, kw = ctx.ps
        gX, gkv = torch.empty_like(X), torch.empty_like(kv)
        call("k_engram_bwd", X, kv, qw.w, kw.w, gate, dot, gY.contiguous(), gX, gkv, qw.g, kw.g, X.shape[0],
             X.shape[1] // 4)
        return None, gX, gkv, None, None


def engram(X, kv, qw, kw):
    return Engram.apply(ANCHOR, X, kv, qw, kw)


class CrossEntropy(Function):
    """Sum of cross-entropies of h W^T against int32 targets (negative = skipped)."""

    @staticmethod
    def forward(ctx, h, head, target):
        gl = torch.mm(h, head.w.t())
        loss = call("k_ce", gl, target, None, h.shape[0], head.shape[0])
        ctx.save_for_backward(h, gl)
        ctx.head = head
        return torch.tensor(loss)

    @staticmethod
    def backward(ctx, g):
        h, gl = ctx.saved_tensors
        gl.mul_(g)
        ctx.head.g.addmm_(gl.t(), h)
        return torch.mm(gl, ctx.head.w), None, None


cross_entropy = CrossEntropy.apply


class DraftLoss(Function):
    """Loss of draft logits z against target logits pl (see k_draft_loss); z's gradient only."""

    @staticmethod
    def forward(ctx, z, pl, target, rw, cw, lw, stats):
        gz = z.clone()
        ov, hit = torch.empty(z.shape[0]), torch.empty(z.shape[0], dtype=torch.int32)
        loss = call("k_draft_loss", gz, pl, target, rw, float(cw), float(lw), ov, hit, z.shape[0], z.shape[1])
        stats["overlap"], stats["hit"] = ov, hit
        ctx.save_for_backward(gz)
        return torch.tensor(loss)

    @staticmethod
    def backward(ctx, g):
        return (ctx.saved_tensors[0] * g,) + (None,) * 6


draft_loss = DraftLoss.apply
