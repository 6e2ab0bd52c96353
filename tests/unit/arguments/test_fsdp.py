"""FSDP's settings: every spelling means one plan, and what means nothing is refused with what was meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.fsdp import BackwardPrefetch, ShardingStrategy

from kunren import TrainingArguments
from kunren.arguments.fsdp import KEYS, SHARDING


def settings(fsdp: Any = True, config: Any = None) -> Any:
    return TrainingArguments("out", fsdp=fsdp, fsdp_config=config).fsdp_config


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "fsdp", [True, "true", "full_shard", "full_shard auto_wrap", "full_shard,auto_wrap", ["full_shard", "auto_wrap"]]
)
@pytest.mark.parametrize("prefix", ["", "fsdp_"])
def test_every_spelling_means_the_same(tmp_path: Path, fsdp: Any, prefix: str) -> None:
    config = {f"{prefix}transformer_layer_cls_to_wrap": "Block, Head", f"{prefix}cpu_offload": "true"}
    path = tmp_path / "fsdp.json"
    path.write_text(json.dumps(config))
    for given in (config, json.dumps(config), str(path), path):
        found = settings(fsdp, given)
        assert found.pop("reshard_after_forward", True) is True
        assert found == {
            "transformer_layer_cls_to_wrap": ["Block", "Head"],
            "cpu_offload": True,
            "min_num_params": 0,
            "xla": False,
            "xla_fsdp_v2": False,
            "xla_fsdp_grad_ckpt": False,
        }


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("version", [1, "1"])
@pytest.mark.parametrize("name", ["full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"])
def test_strategies_of_the_first_version(version: Any, name: str) -> None:
    for found in (
        settings(name, {"version": version}),
        settings(True, {"version": version, "reshard_after_forward": name.upper()}),
        settings(True, {"fsdp_sharding_strategy": name.upper(), "version": version}),
        settings(True, {"version": version, "sharding_strategy": name, "reshard_after_forward": name}),
        settings(True, {"version": version, "sharding_strategy": SHARDING.index(name) + 1}),
        settings(True, {"version": version, "sharding_strategy": list(ShardingStrategy)[SHARDING.index(name)]}),
    ):
        assert (found["version"], found["reshard_after_forward"]) == (1, name)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"reshard_after_forward": "False"}, {"reshard_after_forward": False}),
        ({"reshard_after_forward": 4}, {"reshard_after_forward": 4}),
        ({"sharding_strategy": "SHARD_GRAD_OP"}, {"reshard_after_forward": False}),
        ({"version": 1, "reshard_after_forward": True}, {"reshard_after_forward": "full_shard"}),
        ({"version": 1, "reshard_after_forward": False}, {"reshard_after_forward": "shard_grad_op"}),
        ({"version": 1, "backward_prefetch": BackwardPrefetch.BACKWARD_POST}, {"backward_prefetch": "backward_post"}),
        ({"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": "100"}, {"min_num_params": 100}),
        ({"state_dict_type": "SHARDED_STATE_DICT"}, {"state_dict_type": "sharded_state_dict"}),
    ],
)
def test_values_are_understood(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert expected.items() <= settings(True, given).items()


def test_what_is_not_set_is_not_there() -> None:
    assert settings(True, dict.fromkeys(KEYS)) == settings(True)


REFUSED: list[tuple[Any, list[str]]] = [
    ({"reshard_after_foward": True}, ["'reshard_after_foward'", "Did you mean 'reshard_after_forward'?"]),
    ({"fsdp_cpu_offlod": True}, ["'fsdp_cpu_offlod'", "Did you mean 'cpu_offload'?"]),
    ({"fsdp_offload_params": True}, ["Did you mean 'cpu_offload'?"]),
    ({"shardng_strategy": "FULL_SHARD"}, ["Did you mean 'sharding_strategy'?"]),
    ({"sharding_strategy": "FULL_SHRD"}, ["sharding_strategy='FULL_SHRD'", "Did you mean 'full_shard'?"]),
    ({"sharding_strategy": 6}, ["sharding_strategy=6", "1 to 5"]),
    ({"sharding_strategy": "NO_SHARD"}, ["only FSDP 1 has it", "'version': 1"]),
    ({"version": 1, "sharding_strategy": 1, "reshard_after_forward": "no_shard"}, ["sharding_strategy=1", "keep one"]),
    ({"cpu_offload": True, "fsdp_cpu_offload": False}, ["cpu_offload=True", "fsdp_cpu_offload=False"]),
    ({"min_num_params": 5, "transformer_layer_cls_to_wrap": ["Block"]}, ["min_num_params", "keep one"]),
    ({"auto_wrap_policy": "size_based_wrap"}, ["auto_wrap_policy='size_based_wrap'", "min_num_params=0"]),
    ({"auto_wrap_policy": "no_wrap", "min_num_params": 5}, ["auto_wrap_policy='no_wrap'", "neither"]),
    ({"auto_wrap_policy": "transformer_based_wrap", "min_num_params": 5}, ["'transformer_based_wrap'"]),
    ({"auto_wrap_policy": "by_layer"}, ["auto_wrap_policy='by_layer'", "no_wrap"]),
    ({"backward_prefetch": "backward_pree"}, ["Did you mean 'backward_pre'?"]),
    ({"state_dict_type": "LOCAL_STATE_DICT"}, ["LOCAL_STATE_DICT", "sharded_state_dict"]),
    ({"cpu_offload": 3}, ["cpu_offload=3", "true or false"]),
    ({"min_num_params": -1}, ["min_num_params=-1"]),
    ({"min_num_params": "many"}, ["min_num_params='many'"]),
    ({"version": 3}, ["version=3"]),
    ({"transformer_layer_cls_to_wrap": 3}, ["transformer_layer_cls_to_wrap=3", "names of classes"]),
    ({"reshard_after_forward": "full_shard"}, ["reshard_after_forward='full_shard'", "'version': 1"]),
    ({"version": 1, "reshard_after_forward": "full_shad"}, ["Did you mean 'full_shard'?"]),
    ('{"cpu_offload": true,\n "xla" false}', ["not valid JSON", "line 2 column 8"]),
]


@pytest.mark.parametrize(("config", "named"), REFUSED)
def test_refused_with_the_remedy(config: Any, named: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        settings(True, config)
    for part in named:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["fsdp_config", "deepspeed", "accelerator_config"])
def test_a_syntax_error_has_line_and_column(name: str) -> None:
    options: dict[str, Any] = {"fsdp": True} if name == "fsdp_config" else {}
    with pytest.raises(ValueError, match=f"{name}=.*not valid JSON.*line 3 column 6"):
        TrainingArguments("out", **{**options, name: '{\n "a": 1,\n "b" 2\n}'})


@pytest.mark.parametrize("name", ["fsdp_config", "accelerator_config"])
def test_so_has_one_in_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{\n "a": 1,\n "b" 2\n}')
    with pytest.raises(ValueError, match=r"settings.json.*line 3 column 6"):
        TrainingArguments("out", fsdp=True, **{name: str(path)})


def test_names_are_checked_where_fsdp_is_off() -> None:
    with pytest.raises(ValueError, match="Did you mean 'cpu_offload'"):
        settings(None, {"cpu_offlod": True})
    assert settings(None, {"fsdp_cpu_offload": True}) == {"cpu_offload": True}


def test_arguments_survive_json() -> None:
    args = TrainingArguments(
        "out",
        fsdp=True,
        fsdp_config={"version": 1, "reshard_after_forward": "hybrid_shard", "backward_prefetch": "no_prefetch"},
    )
    assert TrainingArguments(**json.loads(args.to_json_string())) == args
