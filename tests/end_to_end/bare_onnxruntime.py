import json
import sys

import numpy as np
import onnxruntime
import tokenizers

folder, *texts = sys.argv[1:]
about = json.load(open(f"{folder}/bundle.json", encoding="utf-8"))  # noqa: PTH123, SIM115
tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
tokenizer.enable_truncation(about["max_length"])
tokenizer.enable_padding(pad_id=about["pad_id"])
rows = tokenizer.encode_batch(texts)
feeds = {"input_ids": [r.ids for r in rows], "attention_mask": [r.attention_mask for r in rows]}
session = onnxruntime.InferenceSession(f"{folder}/plain.onnx")
for row in session.run(["logits"], {k: np.array(v, dtype=np.int64) for k, v in feeds.items()})[0]:
    print(about["labels"][row.argmax()], *row)
