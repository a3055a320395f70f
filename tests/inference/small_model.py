"""The small real model that tests use: converted once, kept in MODEL_DIR."""

from functools import cache
from pathlib import Path

from django.conf import settings
from tokenizers import Tokenizer

from inference import model_files

NAME = "smollm2-135m-instruct"


@cache
def folder() -> Path:
    """Its folder; filled at the first call."""
    path = Path(settings.MODEL_DIR) / NAME
    model_files.prepare(name=NAME, engine="vllm", source="", folder=path, say=print)
    return path


@cache
def tokenizer() -> Tokenizer:
    """Its tokenizer as it comes, to which text like <|im_end|> is a control token."""
    return Tokenizer.from_file(str(folder() / "tokenizer.json"))
