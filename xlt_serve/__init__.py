"""Serve robust cross-lingual text classifiers: ``load(name_or_path).predict(texts)``."""

from xlt_serve.errors import XltError
from xlt_serve.pipeline import Classifier, load
from xlt_serve.schema import Failure, Prediction

__all__ = ["Classifier", "Failure", "Prediction", "XltError", "load"]
