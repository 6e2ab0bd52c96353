"""Tokenizers for collators."""

from __future__ import annotations

from typing import Any

import pytest
from parity.tokenizer import make_tokenizer


@pytest.fixture
def tokenizer() -> Any:
    """A new one for each test, which may change it."""
    return make_tokenizer()


@pytest.fixture
def tokenizer_whose_end_pads() -> Any:
    return make_tokenizer(pad_token="[SEP]")
