"""Model cards: right numbers, metadata that the hub takes, and nobody's own words lost."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import datasets
import peft
import pytest
import torch
import transformers
import yaml
from huggingface_hub import ModelCard
from parity import models, rows
from torch import nn

import kunren
from kunren.hub import card_facts, card_text


def card_of(trainer: Any) -> ModelCard:
    return ModelCard.load(Path(trainer.args.output_dir) / "README.md")


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean()), "answers": 8.0}


@pytest.fixture
def trained(build: Any) -> Any:
    """A training with three evaluations, not pushed."""
    trainer = build(
        push_to_hub=False,
        save_strategy="no",
        max_steps=6,
        eval_strategy="steps",
        eval_steps=2,
        learning_rate=5e-2,
        weight_decay=0.1,
        gradient_accumulation_steps=2,
        warmup_steps=2,
        trainer={"compute_metrics": accuracy},
    )
    trainer.train()
    return trainer


def test_the_card_loads_and_its_numbers_are_those_of_the_state(trained: Any, tmp_path: Path) -> None:
    trained.create_model_card(
        language=["en", "ja"],
        license="mit",
        tags="tiny",
        model_name="my-model",
        finetuned_from="google/tiny-bert",
        tasks="text-classification",
        dataset_tags="me/reviews",
        dataset="Reviews",
        dataset_args="default",
    )
    card = card_of(trained)
    trained.save_state()
    history = json.loads((tmp_path / "model" / "trainer_state.json").read_text())["log_history"]
    entries = [entry for entry in history if "eval_loss" in entry]
    data = card.data
    assert (data.language, data.license, data.library_name) == (["en", "ja"], "mit", "transformers")
    assert (data.base_model, data.datasets, data.metrics) == ("google/tiny-bert", ["me/reviews"], ["accuracy"])
    assert data.tags == ["tiny", "generated_from_trainer"]
    (result,) = data.eval_results
    assert (result.task_type, result.dataset_type, result.dataset_name) == (
        "text-classification",
        "me/reviews",
        "Reviews",
    )
    assert (result.metric_type, result.metric_value) == ("accuracy", entries[-1]["eval_accuracy"])
    assert data.model_name == "my-model"
    lines = [line.split("|")[1:-1] for line in card.text.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in lines[0]] == [
        "Training Loss", "Epoch", "Step", "Validation Loss", "Accuracy", "Answers",
    ]  # fmt: skip
    losses = {entry["step"]: entry["loss"] for entry in history if "loss" in entry}
    for cells, entry in zip(lines[2:], entries, strict=True):
        shown = [float(cell) for cell in cells]
        true = [losses[entry["step"]], entry["epoch"], entry["step"], entry["eval_loss"], entry["eval_accuracy"], 8.0]
        assert shown == pytest.approx(true, rel=5e-4)
    assert f"Loss: {card_text.shown(entries[-1]['eval_loss'])}\n" in card.text and "at step 6:" in card.text
    assert "[google/tiny-bert](https://huggingface.co/google/tiny-bert), trained on Reviews." in card.text


def test_hyperparameters_are_those_that_were_used(trained: Any) -> None:
    trained.create_model_card()
    text = card_of(trained).text
    for line in (
        "learning_rate: 0.05", "train_batch_size: 4", "eval_batch_size: 8", "seed: 42", "weight_decay: 0.1",
        "gradient_accumulation_steps: 2", "total_train_batch_size: 8", "lr_scheduler_type: linear",
        "optimizer: adamw_torch_fused with betas=(0.9,0.999) and epsilon=1e-08",
        "lr_scheduler_warmup_steps: 2", "training_steps: 6",
        f"kunren {kunren.__version__}", f"Transformers {transformers.__version__}", f"PyTorch {torch.__version__}",
    ):  # fmt: skip
        assert f"\n- {line}" in text
    assert "mixed_precision" not in text and "num_devices" not in text and "PEFT" not in text


def test_metadata_equals_that_of_transformers(build: Any, tmp_path: Path) -> None:
    found = {}
    given = {
        "language": "en", "license": "mit", "tags": "tiny", "model_name": "mine", "finetuned_from": "google/tiny-bert",
        "dataset_tags": ["glue"], "dataset": ["GLUE"], "dataset_args": ["mrpc"],
    }  # fmt: skip
    for library in (transformers, kunren):
        trainer = build(
            library,
            output_dir=str(tmp_path / library.__name__),
            push_to_hub=False,
            save_strategy="no",
            eval_strategy="steps",
            eval_steps=2,
            trainer={"compute_metrics": accuracy},
        )
        trainer.train()
        trainer.create_model_card(**given)
        content = (tmp_path / library.__name__ / "README.md").read_text()
        found[library] = yaml.safe_load(content.split("---\n")[1])
    (result,) = found[transformers]["model-index"][0]["results"]
    assert result["dataset"].pop("args") == "mrpc"
    (ours,) = found[kunren]["model-index"][0]["results"]
    assert ours["dataset"].pop("args") == "mrpc" and ours["dataset"].pop("config") == "mrpc"
    assert found[kunren] == found[transformers]


def test_a_model_from_nowhere_claims_nothing(build: Any) -> None:
    trainer = build(push_to_hub=False)
    trainer.create_model_card()
    card = card_of(trainer)
    assert card.data.to_dict() == {"library_name": "transformers", "tags": ["generated_from_trainer"]}
    assert "Trained on data without a name." in card.text
    assert "Results" not in card.text and "None" not in card.text and "huggingface.co/" not in card.text


def test_a_model_of_no_library(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.line(x)[:, 0] - labels).pow(2).mean()}

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    args = kunren.TrainingArguments(str(tmp_path / "mine"), use_cpu=True, bf16=True)
    trainer = kunren.Trainer(model, args, optimizers=(optimizer, None))
    trainer.create_model_card()
    card = card_of(trainer)
    assert card.data.library_name is None
    assert "- optimizer: SGD, given by the script" in card.text and "- learning_rate: 0.25" in card.text
    assert "- mixed_precision_training: bf16" in card.text and "\n# mine\n" in card.text


def test_names_of_this_machine_are_no_base_models(tmp_path: Path) -> None:
    model = models.bert()
    for name, expected in {
        "google/bert": "google/bert",
        "bert-base": "bert-base",
        str(tmp_path): None,
        "/gone/away": None,
        "./models/bert": None,
        "a/b/c": None,
        "": None,
    }.items():
        model.config._name_or_path = name
        assert card_facts.base_model_of(model) == expected


def test_the_best_step_is_what_is_claimed_where_its_weights_are_shared(build: Any) -> None:
    scores = {2: 0.5, 4: 0.9, 6: 0.1}
    trainer = build(
        push_to_hub=False,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        trainer={"compute_metrics": lambda prediction: {"accuracy": scores.get(trainer.state.global_step, 0.0)}},
    )
    trainer.train()
    trainer.create_model_card(dataset_tags="me/reviews", tasks="text-classification")
    card = card_of(trainer)
    assert card.data.eval_results[0].metric_value == 0.9
    assert "at step 4, the best one, whose weights these are:" in card.text and card.text.count("\n|") == 5
    scores[6] = 0.8
    trainer.evaluate()
    trainer.create_model_card(dataset_tags="me/reviews", tasks="text-classification")
    assert card_of(trainer).data.eval_results[0].metric_value == 0.8  # measured on what is shared


def test_several_evaluation_sets_stand_in_one_row(build: Any) -> None:
    sets = {"easy": rows.sentences(8), "hard": rows.sentences(8)}
    trainer = build(
        push_to_hub=False, max_steps=2, save_strategy="no", eval_strategy="steps", eval_steps=1,
        trainer={"eval_dataset": sets, "compute_metrics": accuracy},
    )  # fmt: skip
    trainer.train()
    trainer.create_model_card()
    table = [line for line in card_of(trainer).text.splitlines() if line.startswith("|")]
    assert len(table) == 4 and "Easy Loss" in table[0] and "Hard Accuracy" in table[0]


def test_small_numbers_keep_their_digits_and_odd_ones_harm_nothing() -> None:
    shown = [
        card_text.shown(value) for value in (0.123456, 0.000012345, 12.0, 0.0, 123456.7891, float("nan"), 3, "a|b")
    ]
    assert shown == ["0.1235", "1.234e-05", "12", "0", "123456.7891", "nan", "3", "a\\|b"]
    one = card_facts.Evaluation(1, 1.0, None, {"accuracy": float("nan"), "f1": 1})
    assert card_text._known_metrics(one) == {"f1": 1}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
@pytest.mark.filterwarnings("ignore:Could not find a config file")
@pytest.mark.parametrize("name", ["meta/tiny-llama", "/home/me/tiny-llama"])
def test_an_adapter_is_one_of_peft(name: str, tmp_path: Path) -> None:
    base = models.llama()
    base.config._name_or_path = base.name_or_path = name
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    args = kunren.TrainingArguments(str(tmp_path / "adapter"), use_cpu=True, report_to="none")
    trainer = kunren.Trainer(model, args)
    trainer.save_model()
    trainer.create_model_card()
    card = card_of(trainer)
    assert {"lora", "generated_from_trainer"} <= set(card.data.tags)
    assert (card.data.library_name, card.data.pipeline_tag) == ("peft", "text-generation")
    assert f"- PEFT {peft.__version__}" in card.text and "Model Card for Model ID" not in card.text
    if name.startswith("/"):  # the hub would refuse it
        assert card.data.base_model is None and "/home/me" not in str(card)
    else:
        assert card.data.base_model == name and f"base_model:adapter:{name}" in card.data.tags


def test_what_a_person_wrote_stays(trained: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kunren")
    path = Path(trained.args.output_dir) / "README.md"
    own = "---\nlicense: apache-2.0\ntags:\n- mine\nwidget:\n- text: Hello\n---\n# By hand\n\nMy words.\n"
    path.write_text(own)
    trained.create_model_card(license="mit", language="en")
    card = card_of(trained)
    assert card.text.strip() == "# By hand\n\nMy words." and "is yours" in caplog.text
    assert (card.data.license, card.data.language, card.data["widget"]) == ("apache-2.0", ["en"], [{"text": "Hello"}])
    assert set(card.data.tags) == {"mine", "generated_from_trainer"}


def test_a_generated_card_is_renewed_around_what_was_added(trained: Any) -> None:
    trained.create_model_card(language="en", tags=["first"], model_name="mine")
    path = Path(trained.args.output_dir) / "README.md"
    text = path.read_text().replace("## Model description\n\nMore information needed", "## Model description\n\nSmall.")
    path.write_text(text.replace("at step 6", "at step 1"))
    trained.create_model_card(tags="second", model_name="mine")
    new = card_of(trained)
    assert "## Model description\n\nSmall." in new.text and "at step 6" in new.text and "at step 1" not in new.text
    assert new.data.language == ["en"] and set(new.data.tags) == {"first", "second", "generated_from_trainer"}
    before = path.read_text()
    trained.create_model_card(tags="second", model_name="mine")
    assert path.read_text() == before


def test_metadata_that_cannot_be_read_is_left_alone(trained: Any, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(trained.args.output_dir) / "README.md"
    path.write_text("---\ntags: [a\n---\nMine.\n")
    trained.create_model_card()
    assert path.read_text() == "---\ntags: [a\n---\nMine.\n" and "is left as it is" in caplog.text


@pytest.mark.parametrize(
    ("given", "error", "advice"),
    [
        ({"language": "English"}, ValueError, "language='English': give a code such as 'en'"),
        ({"language": ["en", 1]}, TypeError, "language="),
        ({"license": "Apache 2.0"}, ValueError, "license='Apache 2.0': give a word such as 'apache-2.0'"),
        ({"dataset_tags": [None]}, TypeError, "dataset_tags"),
    ],
)
def test_names_that_the_hub_would_refuse(given: Any, error: type[Exception], advice: str, trained: Any) -> None:
    with pytest.raises(error, match=advice):
        trained.create_model_card(**given)
    assert not (Path(trained.args.output_dir) / "README.md").exists()


def test_what_datasets_knows_is_told_and_no_more(build: Any) -> None:
    data = datasets.Dataset.from_list([{"x": 1}])
    trainer = build(push_to_hub=False, trainer={"eval_dataset": data})
    assert card_facts.data_source_of(trainer) is None
    data.info.builder_name = "parquet"
    assert card_facts.data_source_of(trainer) is None
    data.info.config_name, data._split = "default", datasets.Split.VALIDATION
    data.info.download_checksums = {"hf://datasets/me/reviews@0123/data.parquet": {"num_bytes": 1}}
    assert card_facts.data_source_of(trainer) == card_facts.DataSource(
        "me/reviews", "me/reviews", "default", "validation"
    )


def test_the_licence_of_the_base_model_is_taken_over(hub: Any, build: Any) -> None:
    hub.licenses["google/tiny-bert"] = "apache-2.0"
    trainer = build(push_to_hub=False)
    trainer.create_model_card(finetuned_from="google/tiny-bert")
    assert card_of(trainer).data.license == "apache-2.0"


def test_the_hub_takes_the_card(hub: Any, build: Any) -> None:
    trainer = build(hub_strategy="end", trainer={"compute_metrics": accuracy}, eval_strategy="steps", eval_steps=4)
    trainer.train()
    trainer.push_to_hub(language="en", dataset_tags="me/reviews", tasks="text-classification")
    assert "POST /api/validate-yaml" in hub.requests
    assert b"model-index" in hub.only().files()["README.md"]
