"""The joined class: its fields against transformers', its ways as a dataclass, and what building it leaves alone."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.arguments import AcceleratorConfig, TrainingArguments
from kunren.arguments.choices import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from kunren.arguments.training_arguments import GROUPS

DEVIATING_DEFAULTS = {"logging_nan_inf_filter": False, "restore_callback_states_from_checkpoint": True}
# transformers asks whether a GPU is there and turns it off; kunren leaves the question to the loader.
# What kunren has beyond the fields of transformers.
ADDED = {
    "async_save", "bad_sample_limit", "bad_sample_policy", "batching", "chunked_loss", "layer_decay", "max_minutes",
    "metrics", "mixture_weights", "nonfinite", "nonfinite_limit", "parameter_groups", "peak_tflops", "profile_steps",
    "run_report", "save_best_limit", "save_minutes", "token_budget", "watchdog_minutes",
}  # fmt: skip
DEVIATING_VALUES = {*DEVIATING_DEFAULTS, "dataloader_pin_memory", "accelerator_config", "hub_token"}
# Noted before any test runs: the parser of transformers writes into the fields that it reads.
DECLARED = {item.name: item.type for item in dataclasses.fields(TrainingArguments)}
FACTS = Path(__file__).parents[3].parent / "shared" / "docs" / "api_facts.json"


def default_of(item: dataclasses.Field[object]) -> object:
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


def test_fields_and_defaults_are_those_of_transformers() -> None:
    theirs = pytest.importorskip("transformers").TrainingArguments
    expected = {item.name: default_of(item) for item in dataclasses.fields(theirs)}
    got = {item.name: default_of(item) for item in dataclasses.fields(TrainingArguments) if item.name not in ADDED}
    assert got == expected | DEVIATING_DEFAULTS
    assert next(iter(got)) == "output_dir"


def test_values_after_building_are_those_of_transformers(tmp_path: Path) -> None:
    theirs = pytest.importorskip("transformers").TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=False)
    theirs = theirs.to_dict()
    got = TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=False).to_dict()
    assert {name for name in theirs if theirs[name] != got[name]} == DEVIATING_VALUES


def test_fields_are_those_of_the_recorded_api() -> None:
    if not FACTS.exists():
        pytest.skip("the recorded API is not beside this checkout")
    facts = json.loads(FACTS.read_text())["training_arguments"]
    recorded = {item["name"]: item for group in facts["groups"].values() for item in group}
    own = {item.name: item for item in dataclasses.fields(TrainingArguments) if item.name not in ADDED}
    assert own.keys() == recorded.keys()
    assert len(own) == facts["count"]
    kinds = {name: DECLARED[name] for name, item in recorded.items() if item["type"] in ("int", "float", "bool")}
    assert kinds.pop("max_grad_norm") == "float | None"  # None is no clipping
    assert kinds == {name: recorded[name]["type"] for name in kinds}
    for name in (*facts["properties"], *facts["methods"]):
        private = name.startswith("_") and name not in ("_setup_devices", "_no_sync_in_gradient_accumulation")
        assert private or hasattr(TrainingArguments, name), name


def test_every_field_is_explained() -> None:
    assert [item.name for item in dataclasses.fields(TrainingArguments) if not item.metadata.get("help")] == []


def test_the_parser_of_transformers_reads_the_fields() -> None:
    parser = pytest.importorskip("transformers").HfArgumentParser(TrainingArguments)
    line = "--output_dir out --learning_rate 1e-4 --bf16 --fsdp true --eval_strategy epoch --report_to wandb"
    (args,) = parser.parse_args_into_dataclasses([*line.split(), "--lr_scheduler_kwargs", '{"num_cycles": 2}'])
    assert (args.learning_rate, args.bf16, args.fsdp, args.eval_strategy) == (1e-4, True, True, "epoch")
    assert (args.report_to, args.lr_scheduler_kwargs) == (["wandb"], {"num_cycles": 2})


def test_each_field_is_declared_by_one_group() -> None:
    declared = [name for group in GROUPS for name in group.__dict__.get("__annotations__", {})]
    assert len(declared) == len(set(declared))
    assert {item.name for item in dataclasses.fields(TrainingArguments)} <= {
        name for base in TrainingArguments.__mro__ for name in base.__dict__.get("__annotations__", {})
    }


def test_building_has_no_side_effects(tmp_path: Path) -> None:
    script = """
import os, sys, builtins
import torch, numpy
before, known = dict(os.environ), set(sys.modules)
state = torch.get_rng_state()
from kunren.arguments import TrainingArguments
args = TrainingArguments("out", bf16=True, tf32=True, full_determinism=True, deepspeed={"zero_optimization": {}},
                         torch_compile=True, report_to="all", push_to_hub=True, ddp_backend="gloo")
str(args), args.to_dict()
assert dict(os.environ) == before, "environment"
assert not torch.distributed.is_initialized()
assert not torch.cuda.is_initialized()
assert torch.equal(torch.get_rng_state(), state)
assert torch.backends.cuda.matmul.allow_tf32 is False and not torch.are_deterministic_algorithms_enabled()
assert os.listdir() == [], os.listdir()
new = {name.partition(".")[0] for name in set(sys.modules) - known}
outside = {name for name in new if name not in sys.stdlib_module_names} - {"kunren", "torch", "numpy"}
assert not outside, outside
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@dataclass
class Extended(TrainingArguments):
    """In the manner of trl: changed defaults, new fields, work after the base's own."""

    learning_rate: float = field(default=2e-5, metadata={"help": "another default"})
    gradient_checkpointing: bool = True
    max_length: int | None = 1024
    warmup_ratio: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.doubled = (self.max_length or 0) * 2


class WithOwnInit(TrainingArguments):
    def __init__(self, flavour: str, **keywords: object) -> None:
        self.flavour = flavour
        super().__init__(**keywords)


def test_dataclass_subclass() -> None:
    args = Extended("out", max_length=3)
    assert (args.learning_rate, args.activation_checkpointing, args.doubled) == (2e-5, True, 6)
    assert args.output_dir == "out"
    with pytest.raises(TypeError, match="Extended has no argument 'max_lenght'. Did you mean 'max_length'"):
        Extended("out", max_lenght=3)
    with pytest.warns(FutureWarning, match="evaluation_strategy -> eval_strategy"):
        assert Extended("out", evaluation_strategy="epoch").eval_strategy == "epoch"


def test_a_subclass_may_have_a_field_of_an_old_name(recwarn: pytest.WarningsRecorder) -> None:
    args = Extended("out", warmup_ratio=0.25)
    assert (args.warmup_ratio, args.warmup_steps) == (0.25, 0)
    assert not recwarn.list


def test_subclass_with_its_own_init() -> None:
    with pytest.warns(FutureWarning, match="no_cuda"):
        args = WithOwnInit("sweet", output_dir="out", no_cuda=True)
    assert (args.flavour, args.use_cpu) == ("sweet", True)
    with pytest.raises(TypeError, match="bogus"):
        WithOwnInit("sweet", bogus=1)


def test_an_explicit_twin_beats_a_default_of_the_subclass() -> None:
    assert Extended("out", activation_checkpointing=False).gradient_checkpointing is False
    assert Extended("out", gradient_checkpointing=False).activation_checkpointing is False


def test_the_two_names_of_recomputation_stay_equal() -> None:
    options = {"use_reentrant": False}
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        args = TrainingArguments("out", **{name: True, f"{name}_kwargs": options})
        assert args.gradient_checkpointing is args.activation_checkpointing is True
        assert args.gradient_checkpointing_kwargs == args.activation_checkpointing_kwargs == options
        setattr(args, name, False)
        assert args.gradient_checkpointing is args.activation_checkpointing is False
    with pytest.raises(TypeError, match="two names of one setting"):
        TrainingArguments("out", gradient_checkpointing=True, activation_checkpointing=False)


def test_replace_copy_and_pickle() -> None:
    args = TrainingArguments("out", report_to=["wandb"], eval_strategy="steps", fsdp=True, seed=7)
    changed = dataclasses.replace(args, learning_rate=0.5)
    assert (changed.learning_rate, changed.seed, changed.report_to) == (0.5, 7, ["wandb"])
    assert changed != args
    for twin in (dataclasses.replace(args), copy.deepcopy(args), pickle.loads(pickle.dumps(args))):
        assert twin == args
    with pytest.raises(TypeError, match="Did you mean 'learning_rate'"):
        dataclasses.replace(args, learning_rat=0.5)


def test_the_token_is_shown_nowhere() -> None:
    secret = "hf_secret"
    for args in (TrainingArguments("out", hub_token=secret), Extended("out", hub_token=secret)):
        for text in (repr(args), str(args), args.to_json_string(), str(args.to_sanitized_dict())):
            assert secret not in text
        assert args.hub_token == secret
        assert args.to_dict()["hub_token"] == "<HUB_TOKEN>"
        assert TrainingArguments("out", hub_token=args.to_dict()["hub_token"]).hub_token is None


def test_names_become_enum_members_that_compare_as_strings() -> None:
    theirs = pytest.importorskip("transformers").trainer_utils
    args = TrainingArguments("out", eval_strategy=theirs.IntervalStrategy.EPOCH, save_strategy="best")
    assert args.eval_strategy is IntervalStrategy.EPOCH
    assert args.save_strategy is SaveStrategy.BEST
    assert args.hub_strategy is HubStrategy.EVERY_SAVE
    assert args.lr_scheduler_type is SchedulerType.LINEAR
    assert args.optim is OptimizerNames.ADAMW_TORCH_FUSED
    assert args.eval_strategy == "epoch"
    # YAML reads `no` as False.
    assert TrainingArguments("out", save_strategy=False).save_strategy is SaveStrategy.NO


@pytest.mark.parametrize(
    ("given_names", "expected"),
    [
        ({"report_to": None}, {"report_to": []}),
        ({"report_to": "none"}, {"report_to": []}),
        ({"report_to": ["none"]}, {"report_to": []}),
        ({"report_to": "wandb"}, {"report_to": ["wandb"]}),
        ({"report_to": ("wandb", "mlflow")}, {"report_to": ["wandb", "mlflow"]}),
        ({"debug": "underflow_overflow"}, {"debug": ["underflow_overflow"]}),
        ({"eval_strategy": "steps", "logging_steps": 7}, {"eval_steps": 7, "do_eval": True}),
        ({"eval_strategy": "steps", "eval_steps": 0.5}, {"eval_steps": 0.5}),
        ({"logging_steps": 20.0}, {"logging_steps": 20}),
        ({"include_num_input_tokens_seen": True}, {"include_num_input_tokens_seen": "all"}),
        ({"include_for_metrics": "loss"}, {"include_for_metrics": ["loss"]}),
        ({"label_names": "labels"}, {"label_names": ["labels"]}),
        ({"lr_scheduler_kwargs": '{"num_cycles": 2}'}, {"lr_scheduler_kwargs": {"num_cycles": 2}}),
        ({"torch_compile": True}, {"torch_compile_backend": "inductor"}),
        ({"torch_compile_mode": "default"}, {"torch_compile": True, "torch_compile_backend": "inductor"}),
        ({"torch_compile_backend": "eager"}, {"torch_compile": True, "torch_compile_backend": "eager"}),
        ({"learning_rate": "5e-5"}, {"learning_rate": 5e-5}),
        ({"max_steps": "1e2", "bf16": "true"}, {"max_steps": 100, "bf16": True}),
        ({"per_device_train_batch_size": 4.0}, {"per_device_train_batch_size": 4}),
        ({"max_grad_norm": None}, {"max_grad_norm": None}),
        ({"log_level": "INFO"}, {"log_level": "info"}),
        ({"bf16": None}, {"bf16": False}),
        ({"load_best_model_at_end": True, "eval_strategy": "epoch"}, {"metric_for_best_model": "loss"}),
        ({"load_best_model_at_end": True, "eval_strategy": "epoch"}, {"greater_is_better": False}),
        ({"metric_for_best_model": "quality"}, {"greater_is_better": True}),
        ({"metric_for_best_model": "eval_wer"}, {"greater_is_better": False}),
        ({"metric_for_best_model": "wer", "greater_is_better": True}, {"greater_is_better": True}),
        ({"save_strategy": "best", "eval_strategy": "steps"}, {"metric_for_best_model": "loss"}),
        ({"output_dir": None}, {"output_dir": "trainer_output"}),
        ({"output_dir": Path("some") / "where"}, {"output_dir": str(Path("some") / "where")}),
        ({"output_dir": "~/x"}, {"output_dir": str(Path.home() / "x")}),
    ],
)
def test_values_are_brought_into_one_form(given_names: dict[str, object], expected: dict[str, object]) -> None:
    args = TrainingArguments(**given_names)
    for name, value in expected.items():
        assert getattr(args, name) == value
        assert type(getattr(args, name)) is type(value) or isinstance(value, str)


def test_accelerator_config(tmp_path: Path) -> None:
    theirs = pytest.importorskip("transformers").trainer_pt_utils.AcceleratorConfig
    assert AcceleratorConfig().to_dict() == dataclasses.asdict(theirs())
    path = tmp_path / "config.json"
    path.write_text('{"split_batches": true}')
    for value in ({"split_batches": True}, '{"split_batches": true}', str(path), theirs(split_batches=True)):
        assert TrainingArguments("out", accelerator_config=value).accelerator_config.split_batches is True
    with pytest.raises(TypeError, match="Did you mean 'split_batches'"):
        TrainingArguments("out", accelerator_config={"split_batch": True})
    with pytest.raises(ValueError, match="no such file"):
        TrainingArguments("out", accelerator_config="nowhere.json")


NUMBERS = st.floats(min_value=0, max_value=0.99)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "learning_rate": NUMBERS,
        "warmup_steps": st.one_of(st.integers(0, 1000), NUMBERS),
        "adam_beta1": NUMBERS,
        "max_grad_norm": st.one_of(st.none(), NUMBERS),
        "num_train_epochs": st.floats(0, 100),
        "max_steps": st.integers(-1, 1000),
        "per_device_train_batch_size": st.integers(1, 64),
        "eval_strategy": st.sampled_from([*IntervalStrategy, "no", "steps", "epoch"]),
        "logging_steps": st.one_of(st.integers(1, 1000), st.floats(0.01, 0.9)),
        "lr_scheduler_type": st.sampled_from(sorted({*SchedulerType} - {"reduce_lr_on_plateau", "greedy"})),
        "optim": st.sampled_from(list(OptimizerNames)),
        "report_to": st.lists(st.sampled_from(["wandb", "mlflow", "none"])),
        "metric_for_best_model": st.sampled_from(["loss", "f1", "quality"]),
        "gradient_checkpointing": st.booleans(),
        "fsdp_config": st.dictionaries(st.sampled_from(["version", "cpu_offload"]), st.integers(1, 2)),
        "accelerator_config": st.dictionaries(st.sampled_from(["split_batches", "even_batches"]), st.booleans()),
        "debug": st.sampled_from(["", "underflow_overflow", "underflow_overflow tpu_metrics_debug"]),
    },
)


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_arguments_survive_a_dict_and_json(values: dict[str, object]) -> None:
    args = TrainingArguments("out", **values)
    assert TrainingArguments(**args.to_dict()) == args
    assert TrainingArguments(**json.loads(args.to_json_string())) == args
    assert dataclasses.replace(args) == args
