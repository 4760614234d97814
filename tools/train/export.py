#!/usr/bin/env python3
"""Writes a checkpoint in the published layout.

    export.py --data DIR --from RUN/final.pt --out OUTDIR
"""
import argparse
import json
import os
import shutil

import checkpoint
import common
import engram_sidecar
import ops


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--data", required=True)
    ap.add_argument("--from", dest="source", required=True)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    common.restart_with_allocator()
    os.makedirs(a.out, exist_ok=True)
    model = common.new_model(a.data)
    model.allocate()
    checkpoint.load_raw(model, a.source)
    n = checkpoint.export(model, os.path.join(a.out, "model.safetensors"))
    for f in ("config.json", "tokenizer.json", "heldout.txt"):
        shutil.copy(os.path.join(a.data, f), os.path.join(a.out, f))
    load = lambda f: json.load(open(os.path.join(a.out, f), encoding="utf-8"))
    engram_sidecar.save(os.path.join(a.out, "engram.safetensors"),
                        engram_sidecar.derive(load("tokenizer.json"), load("config.json")["text_config"]))
    with open(os.path.join(a.out, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<｜begin▁of▁sentence｜>",
                   "eos_token": "<｜end▁of▁sentence｜>", "pad_token": "<｜▁pad▁｜>", "add_bos_token": True,
                   "add_eos_token": False, "clean_up_tokenization_spaces": False, "model_max_length": 1024},
                  f, ensure_ascii=False, indent=1)
    # read back: the file must hold exactly the values training used
    back = common.new_model(a.data)
    back.allocate()
    checkpoint.load(back, a.out)
    same = bool((back.store.used == model.store.used).all() and (back.draft_store.used == model.draft_store.used).all()
                and (back.biases == model.biases).all())
    print(f"{n} tensors, {os.path.getsize(os.path.join(a.out, 'model.safetensors')) / 1e6:.2f} MB, "
          f"read back {'equal' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
