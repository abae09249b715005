"""Runs in optimum's environment: FOLDER TEXT … → each text's logits, a line of JSON each."""

from __future__ import annotations

import json
import sys

from optimum.onnxruntime import ORTModelForSequenceClassification
from transformers import AutoTokenizer

folder, *texts = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = ORTModelForSequenceClassification.from_pretrained(folder, file_name="plain.onnx")
given = tokenizer(texts, return_tensors="pt", padding=True, truncation=True)
for row in model(**given).logits.tolist():
    print(json.dumps({"label": model.config.id2label[row.index(max(row))], "logits": row}))
