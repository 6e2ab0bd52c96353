"""What test_sentence_transformers.py has both libraries do; nothing here knows on which of them it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset, disable_progress_bars
from sentence_transformers import (
    MultiVectorEncoderTrainer,
    MultiVectorEncoderTrainingArguments,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    SparseEncoderTrainer,
    SparseEncoderTrainingArguments,
    losses,
)
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.evaluation import CrossEncoderCorrelationEvaluator
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from transformers import TrainerCallback

from downstream.runner import outcome
from downstream.sentence_models import (
    cross_encoder,
    labelled,
    multi_vector_encoder,
    pairs,
    scored,
    sentence_encoder,
    sentences,
    sparse_encoder,
)

disable_progress_bars()
SETTINGS: dict[str, Any] = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 5,
    "learning_rate": 5e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}
WITH_THE_BEST: dict[str, Any] = {
    "eval_strategy": "steps",
    "eval_steps": 3,
    "save_strategy": "steps",
    "save_steps": 3,
    "load_best_model_at_end": True,
}


class StopAfter(TrainerCallback):
    """Ends the training with a checkpoint, as a job that is cut off after its last save."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        if state.global_step == self.step:
            control.should_training_stop = control.should_save = True
        return control


def arguments(folder: Path, kind: type = SentenceTransformerTrainingArguments, **settings: Any) -> Any:
    return kind(output_dir=str(folder / "run"), **{**SETTINGS, **settings})


def similarity(seed: int = 3) -> EmbeddingSimilarityEvaluator:
    rows = scored(16, seed)
    return EmbeddingSimilarityEvaluator(rows["sentence1"], rows["sentence2"], rows["score"], name="dev")


def of_pairs(folder: Path, dropout: float = 0.2, rows: int = 22, caches: bool = False, **settings: Any) -> Any:
    """With `caches`, the loss goes back through the model by itself, in a hook of the backward pass."""
    model = sentence_encoder(folder, dropout)
    cached = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=2)
    return SentenceTransformerTrainer(
        model,
        arguments(folder, **settings),
        train_dataset=pairs(rows),
        loss=cached if caches else losses.MultipleNegativesRankingLoss(model),
    )


def of_classes(folder: Path, dropout: float = 0.2, rows: int = 26, **settings: Any) -> Any:
    model = sentence_encoder(folder, dropout)
    return SentenceTransformerTrainer(
        model,
        arguments(folder, **settings),
        train_dataset=labelled(rows, 4),
        loss=losses.BatchAllTripletLoss(model),
    )


def of_inferences(folder: Path, dropout: float = 0.2, **settings: Any) -> Any:
    """With a loss that has weights of its own, which the optimizer trains and the model does not hold."""
    model = sentence_encoder(folder, dropout)
    torch.manual_seed(1)
    loss = losses.SoftmaxLoss(model, model.get_embedding_dimension(), 3)
    rows = pairs(22).add_column("label", [row % 3 for row in range(22)])
    return SentenceTransformerTrainer(model, arguments(folder, **settings), train_dataset=rows, loss=loss)


def evaluated(folder: Path, has_evaluation_set: bool = True, **settings: Any) -> Any:
    model = sentence_encoder(folder)
    return SentenceTransformerTrainer(
        model,
        arguments(folder, **{**WITH_THE_BEST, "metric_for_best_model": "eval_dev_spearman_cosine", **settings}),
        train_dataset=scored(32),
        eval_dataset=scored(16, 2) if has_evaluation_set else None,
        loss=losses.CoSENTLoss(model),
        evaluator=similarity(),
    )


def of_several_sets(folder: Path, dropout: float = 0.0, evaluates: bool = True, **settings: Any) -> Any:
    """Three sets, each with a loss, prompts for some, and a rate of its own for the weights of one loss."""
    model = sentence_encoder(folder, dropout)
    torch.manual_seed(1)
    of_set = {
        "ranked": losses.MultipleNegativesRankingLoss(model),
        "scored": losses.CoSENTLoss(model),
        "inferred": losses.SoftmaxLoss(model, model.get_embedding_dimension(), 3),
    }
    sets = {
        "ranked": pairs(18),
        "scored": scored(30, 4),
        "inferred": pairs(20, 5).add_column("label", [row % 3 for row in range(20)]),
    }
    further = {"eval_strategy": "epoch", **settings} if evaluates else settings
    prompts = {"ranked": "w1 w2 ", "scored": {"sentence1": "w3 "}, "inferred": ""}
    return SentenceTransformerTrainer(
        model,
        arguments(folder, prompts=prompts, learning_rate_mapping={"classifier": 0.1}, weight_decay=0.1, **further),
        train_dataset=sets,
        eval_dataset={"scored": scored(12, 9), "ranked": pairs(7, 11)} if evaluates else None,
        loss=of_set,
        evaluator=similarity() if evaluates else None,
    )


def of_stream(folder: Path, dropout: float = 0.2, **settings: Any) -> Any:
    model = sentence_encoder(folder, dropout)
    rows: IterableDataset = pairs(22).to_iterable_dataset()
    return SentenceTransformerTrainer(
        model,
        arguments(folder, **{"max_steps": 9, **settings}),
        train_dataset=rows,
        loss=losses.MultipleNegativesRankingLoss(model),
    )


def of_new_model(folder: Path, **settings: Any) -> Any:
    """Made by `model_init`, with a loss that is made for each model, and weights of a layer that nobody saved."""

    def model_init() -> SentenceTransformer:
        return sentence_encoder(folder, 0.2)

    return SentenceTransformerTrainer(
        None,
        arguments(folder, **settings),
        train_dataset=pairs(22),
        loss=losses.MultipleNegativesRankingLoss,
        model_init=model_init,
    )


def crossing(folder: Path, dropout: float = 0.0, evaluates: bool = True, **settings: Any) -> Any:
    model = cross_encoder(folder, dropout)
    held_out = scored(16, 3)
    asked = list(zip(held_out["sentence1"], held_out["sentence2"], strict=True))
    best = {**WITH_THE_BEST, "metric_for_best_model": "eval_dev_spearman"} if evaluates else {}
    return CrossEncoderTrainer(
        model,
        arguments(folder, CrossEncoderTrainingArguments, **{**best, **settings}),
        train_dataset=scored(22, column="label"),
        eval_dataset=scored(8, 1, column="label") if evaluates else None,
        loss=BinaryCrossEntropyLoss(model),
        evaluator=CrossEncoderCorrelationEvaluator(asked, held_out["score"], name="dev") if evaluates else None,
    )


def sparse(folder: Path, dropout: float = 0.0, evaluates: bool = True, **settings: Any) -> Any:
    """With the default loss, which returns its parts and has weights that a callback lets grow."""
    further = {"eval_strategy": "epoch", **settings} if evaluates else settings
    return SparseEncoderTrainer(
        sparse_encoder(folder, dropout),
        arguments(folder, SparseEncoderTrainingArguments, **further),
        train_dataset=pairs(24),
        eval_dataset=pairs(9, 1) if evaluates else None,
    )


def of_many_vectors(folder: Path, dropout: float = 0.0, evaluates: bool = True, **settings: Any) -> Any:
    further = {"eval_strategy": "epoch", **settings} if evaluates else settings
    return MultiVectorEncoderTrainer(
        multi_vector_encoder(folder, dropout),
        arguments(folder, MultiVectorEncoderTrainingArguments, **further),
        train_dataset=pairs(24),
        eval_dataset=pairs(9, 1) if evaluates else None,
    )


def train(folder: Path, what: str, **settings: Any) -> Any:
    """Train what a function above makes."""
    trainer = globals()[what](folder, **settings)
    result = trainer.train()
    return {**outcome(trainer, result), "of_losses": weights_of_losses(trainer)}


def weights_of_losses(trainer: Any) -> list[list[float]]:
    """Of losses with weights of their own, these."""
    several = trainer.loss.values() if isinstance(trainer.loss, dict) else [trainer.loss]
    model = {id(weight) for weight in trainer.model.parameters()}
    return [w.flatten().tolist() for loss in several for w in loss.parameters() if id(w) not in model]


def cut_off(folder: Path, what: str, step: int, **settings: Any) -> Any:
    trainer = globals()[what](folder, save_strategy="steps", save_steps=1000, **settings)
    trainer.add_callback(StopAfter(step))
    trainer.train()
    return sorted(path.name for path in (folder / "run").glob("checkpoint-*"))


def go_on(folder: Path, what: str, **settings: Any) -> Any:
    trainer = globals()[what](folder, save_strategy="steps", save_steps=1000, **settings)
    result = trainer.train(resume_from_checkpoint=True)
    return {**outcome(trainer, result), "of_losses": weights_of_losses(trainer)}


def save(folder: Path, what: str, **settings: Any) -> Any:
    """Train, save, load what was saved, and give embeddings by both, the card and the files."""
    trainer = globals()[what](folder, **settings)
    trainer.train()
    trainer.save_model(str(folder / "saved"))
    kind = type(trainer.model)
    asked = sentences(3, 77)
    before, after = trainer.model.encode(asked), kind(str(folder / "saved"), device="cpu").encode(asked)
    return {
        "before": torch.as_tensor(before).to_dense().tolist(),
        "after": torch.as_tensor(after).to_dense().tolist(),
        "files": sorted(str(path.relative_to(folder / "saved")) for path in (folder / "saved").rglob("*")),
        "card": (folder / "saved" / "README.md").read_text(),
    }


def evaluate(folder: Path, what: str, **settings: Any) -> Any:
    trainer = globals()[what](folder, **settings)
    named = {} if not isinstance(trainer.eval_dataset, dict) else {"by_name": trainer.evaluate("scored")}
    other: Dataset = scored(6, 8)
    if "label" in trainer.train_dataset.column_names:
        other = other.rename_column("score", "label")
    several = isinstance(trainer.loss, dict)
    given = {} if several else {"given": trainer.evaluate(other, metric_key_prefix="test")}
    return {"own": trainer.evaluate(), **given, **named}


def uneven_windows(folder: Path, rows: int) -> Any:
    """A window of two batches, of four rows and of fewer: the step that it makes, and the loss it logs."""
    trainer = of_mean(folder, rows, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    trainer.train()
    one = of_mean(folder, rows, per_device_train_batch_size=8)
    one.train()
    return {
        "accumulated": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "at_once": [entry["loss"] for entry in one.state.log_history if "loss" in entry],
    }


def of_mean(folder: Path, rows: int, **settings: Any) -> Any:
    """With a loss that is a mean over rows."""
    model = sentence_encoder(folder)
    return SentenceTransformerTrainer(
        model,
        arguments(folder, **{**settings, "num_train_epochs": 3}),
        train_dataset=scored(rows),
        loss=losses.CosineSimilarityLoss(model),
    )
