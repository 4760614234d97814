#!/usr/bin/env python3
"""Corpus (from Debian packages, public domain) and the byte-level BPE tokenizer.

    data.py OUTDIR      writes tokenizer.json, train.npy, heldout.npy, heldout.txt and docs.json

Sources: the King James Bible (packages bible-kjv, bible-kjv-text) and The Devil's Dictionary
(package dict-devil). Every 20th chapter or entry is held out.
"""
import collections
import gzip
import json
import os
import random
import re
import subprocess
import sys

import numpy as np

from engram_sidecar import byte_alphabet

VOCAB = 2048
BOS, EOS, PAD = 0, 1, 2
LOW = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
HIGH = ["<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<｜action｜>", "<｜query｜>",
        "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>", "<｜latest_reminder｜>", "<｜deepseek_image｜>"]
FIRST_HIGH = VOCAB - len(HIGH)
SPECIAL = {s: i for i, s in enumerate(LOW)} | {s: FIRST_HIGH + i for i, s in enumerate(HIGH)}
SYS, USER, ASSISTANT, THINK, THINK_END = HIGH[:5]
EFFORT = "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n"

DIGITS = r"\p{N}{1,3}"
CJK = "[一-龥぀-ゟ゠-ヿ]+"
LONG = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# The same splits restricted to ASCII text, which is all the corpus has (`re` lacks \p classes).
_PS = r"!-/:-@\[-`{-~"
_LONG_ASCII = re.compile(rf"[{_PS}][A-Za-z]+|[^\r\nA-Za-z{_PS}]?[A-Za-z]+| ?[{_PS}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_DIGITS_ASCII = re.compile(r"([0-9]{1,3})")

BOOKS = """Ge Genesis,Exo Exodus,Lev Leviticus,Num Numbers,Deu Deuteronomy,Josh Joshua,Jdgs Judges,Ruth Ruth,
1Sm 1 Samuel,2Sm 2 Samuel,1Ki 1 Kings,2Ki 2 Kings,1Chr 1 Chronicles,2Chr 2 Chronicles,Ezra Ezra,Neh Nehemiah,
Est Esther,Job Job,Psa Psalm,Prv Proverbs,Eccl Ecclesiastes,SSol Song of Solomon,Isa Isaiah,Jer Jeremiah,
Lam Lamentations,Eze Ezekiel,Dan Daniel,Hos Hosea,Joel Joel,Amos Amos,Obad Obadiah,Jonah Jonah,Mic Micah,
Nahum Nahum,Hab Habakkuk,Zep Zephaniah,Hag Haggai,Zec Zechariah,Mal Malachi,Mat Matthew,Mark Mark,Luke Luke,
John John,Acts Acts,Rom Romans,1Cor 1 Corinthians,2Cor 2 Corinthians,Gal Galatians,Eph Ephesians,
Phi Philippians,Col Colossians,1Th 1 Thessalonians,2Th 2 Thessalonians,1Tim 1 Timothy,2Tim 2 Timothy,
Titus Titus,Phmn Philemon,Heb Hebrews,Jas James,1Pet 1 Peter,2Pet 2 Peter,1Jn 1 John,2Jn 2 John,3Jn 3 John,
Jude Jude,Rev Revelation"""
NAMES = dict(b.strip().split(" ", 1) for b in BOOKS.split(","))


def chapters():
    """[(title, text)] of all Bible chapters, one verse per line."""
    out = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    docs = collections.OrderedDict()
    for line in out.splitlines():
        m = re.match(r"(\w+?)(\d+):\d+ (.*)", line)
        if m:
            docs.setdefault(f"{NAMES[m[1]]} {m[2]}", []).append(m[3].strip())
    return [(t, "\n".join(v)) for t, v in docs.items()]


def entries():
    """[(headword, text)] of the dictionary; wrapped prose lines are joined, verse lines kept."""
    b64 = {c: i for i, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}
    raw = gzip.open("/usr/share/dictd/devil.dict.dz").read()

    def number(s):
        n = 0
        for ch in s:
            n = n * 64 + b64[ch]
        return n
    out = {}
    for line in open("/usr/share/dictd/devil.index", encoding="utf-8"):
        word, off, size = line.rstrip("\n").split("\t")
        if word.startswith("00"):
            continue
        text = raw[number(off):number(off) + number(size)].decode("latin-1")
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", text.strip())
        text = text.encode("ascii", "ignore").decode()
        head = re.match(r"[A-Z][A-Z' -]+", text)
        if head:
            out[number(off)] = (head[0].strip(" ,").lower(), text)
    return [out[k] for k in sorted(out)]


def documents(seed=1):
    """Two lists (train, held out) of (kind, text with special tokens written out)."""
    rng = random.Random(seed)
    train, held = [], []
    for i, (title, text) in enumerate(chapters()):
        if rng.random() < .7:
            doc = f"{title}\n\n{text}"
        else:
            system = f"{SYS}You read from the King James Bible." if rng.random() < .3 else ""
            doc = f"{system}{USER}Read {title}.{ASSISTANT}{THINK_END}{text}"
        (held if i % 20 == 7 else train).append(("bible", title, text, doc))
    for i, (word, text) in enumerate(entries()):
        r = rng.random()
        if r < .5:
            system = f"{SYS}You are a cynical dictionary." if rng.random() < .3 else ""
            doc = f"{system}{USER}Define {word}.{ASSISTANT}{THINK_END}{text}"
        elif r < .75:
            thought = f"The word is {word}. The Devil's Dictionary has an entry for it."
            doc = f"{SYS}{EFFORT}{USER}Define {word}.{ASSISTANT}{THINK}{thought}{THINK_END}{text}"
        else:
            doc = text
        (held if i % 20 == 7 else train).append(("devil", word, text, doc))
    return train, held


# ---- tokenizer ----------------------------------------------------------------------------------
def words(text):
    """Pre-token strings of ASCII text."""
    out = []
    for piece in _DIGITS_ASCII.split(text):
        if piece:
            out += [piece] if piece[0].isdigit() else _LONG_ASCII.findall(piece)
    return out


def train_bpe(texts, merges):
    """Most frequent pair first; an inverted index keeps each merge local to the words it occurs in."""
    to_char = {b: ch for ch, b in byte_alphabet().items()}
    count = collections.Counter(w for t in texts for w in words(t))
    seqs = [[to_char[b] for b in w.encode()] for w in count]
    freq = list(count.values())
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, s in enumerate(seqs):
        for p in zip(s, s[1:]):
            pairs[p] += freq[i]
            where[p].add(i)
    out = []
    while len(out) < merges:
        best = max(pairs, key=lambda p: (pairs[p], p))
        out.append(best)
        for i in list(where[best]):
            s = seqs[i]
            for p in zip(s, s[1:]):
                pairs[p] -= freq[i]
                where[p].discard(i)
            n, j = [], 0
            while j < len(s):
                if j + 1 < len(s) and (s[j], s[j + 1]) == best:
                    n.append(s[j] + s[j + 1])
                    j += 2
                else:
                    n.append(s[j])
                    j += 1
            seqs[i] = n
            for p in zip(n, n[1:]):
                pairs[p] += freq[i]
                where[p].add(i)
        pairs = +pairs
    return out


def tokenizer_json(merges):
    chars = {b: ch for ch, b in byte_alphabet().items()}
    vocab = {s: i for i, s in enumerate(LOW)}
    for b in range(256):
        vocab[chars[b]] = 3 + b
    for a, b in merges:
        vocab[a + b] = len(vocab)
    assert len(vocab) == FIRST_HIGH, len(vocab)

    def added(content, i):
        return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": not content.startswith(("<think", "</think"))}

    def split(regex):
        return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(s, i) for s, i in SPECIAL.items()],
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(DIGITS), split(CJK), split(LONG), {
            "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": vocab, "merges": [f"{a} {b}" for a, b in merges]},
    }


class Tokenizer:
    """Encoder/decoder for ASCII text from a tokenizer.json written here."""

    def __init__(self, path):
        t = json.load(open(path, encoding="utf-8"))
        self.vocab = t["model"]["vocab"]
        self.rank = {tuple(m.split(" ")): i for i, m in enumerate(t["model"]["merges"])}
        self.added = {a["content"]: a["id"] for a in t["added_tokens"]}
        self.byte_of = byte_alphabet()
        self.char_of = {b: ch for ch, b in self.byte_of.items()}
        self.text = {i: s for s, i in self.vocab.items()} | {i: s for s, i in self.added.items()}
        self.splitter = re.compile("(" + "|".join(map(re.escape, self.added)) + ")")
        self.cache = {}

    def word(self, w):
        if w not in self.cache:
            s = [self.char_of[b] for b in w.encode()]
            while len(s) > 1:
                r, i = min((self.rank.get(p, 1 << 30), i) for i, p in enumerate(zip(s, s[1:])))
                if r == 1 << 30:
                    break
                s[i:i + 2] = [s[i] + s[i + 1]]
            self.cache[w] = [self.vocab[x] for x in s]
        return self.cache[w]

    def encode(self, text):
        out = []
        for part in self.splitter.split(text):
            if part in self.added:
                out.append(self.added[part])
            elif part:
                for w in words(part):
                    out += self.word(w)
        return out

    def decode(self, ids):
        special = set(self.added.values())
        out = b""
        for i in ids:
            out += self.text[i].encode() if i in special else bytes(self.byte_of[ch] for ch in self.text[i])
        return out.decode("utf-8", "replace")


def main(out):
    os.makedirs(out, exist_ok=True)
    train, held = documents()
    strip = re.compile("|".join(map(re.escape, SPECIAL)))
    merges = train_bpe([p for d in train for p in strip.split(d[3])], FIRST_HIGH - 3 - 256)
    with open(os.path.join(out, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(tokenizer_json(merges), f, ensure_ascii=False, indent=0)
    tok = Tokenizer(os.path.join(out, "tokenizer.json"))
    info = {}
    for name, docs in (("train", train), ("heldout", held)):
        random.Random(2).shuffle(docs)
        ids = [[BOS] + tok.encode(d[3]) + [EOS] for d in docs]
        assert all(tok.decode(x[1:-1]) == d[3] for x, d in zip(ids, docs))
        np.save(os.path.join(out, f"{name}.npy"), np.array([t for x in ids for t in x], np.int16))
        starts = np.cumsum([0] + [len(x) for x in ids])[:-1]
        size = sum(len(strip.sub("", d[3])) for d in docs)
        info[name] = {"starts": starts.tolist(), "bytes": size, "kind": [d[0] for d in docs]}
        print(name, len(docs), "documents", size, "bytes of text", sum(map(len, ids)), "tokens")
    json.dump(info, open(os.path.join(out, "docs.json"), "w"))
    text, size = [], 0
    for kind, title, body, _ in held:
        part = f"{title}\n\n{body}\n\n" if kind == "bible" else body + "\n\n"
        if size + len(part) < 90000:
            text.append(part)
            size += len(part)
    with open(os.path.join(out, "heldout.txt"), "w") as f:
        f.write("".join(text))


if __name__ == "__main__":
    main(sys.argv[1])
