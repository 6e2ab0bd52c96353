"""Weights go to disk and back for transformers models, adapters and any torch module."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kunren.checkpoint.weights import load_weights, match_names, save_weights

transformers = pytest.importorskip("transformers")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embedding.weight


class Odd(nn.Module):
    """Strides of every kind, memory seen through several windows, and a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.transposed = nn.Parameter(torch.randn(4, 6).t())
        base = torch.randn(10)
        self.register_buffer("left", base[:6])
        self.register_buffer("right", base[4:])
        self.register_buffer("expanded", torch.randn(3, 1).expand(3, 5))
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("empty_too", torch.empty(0))
        self.register_buffer("count", torch.tensor(3))
        self.epoch = 5

    def get_extra_state(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def randomize(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()


def bert(**config: Any) -> nn.Module:
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    settings = transformers.BertConfig(**sizes, intermediate_size=16, max_position_embeddings=16, **config)
    return transformers.BertForSequenceClassification(settings)  # type: ignore[no-any-return]


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16)
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def test_a_plain_module_round_trips(tmp_path: Path) -> None:
    model, other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    save_weights(model, tmp_path)
    assert os.listdir(tmp_path) == ["model.safetensors"]
    parameter = other[0].weight
    assert load_weights(other, tmp_path) == ([], [])
    assert equal(tensors(model), tensors(other))
    assert other[0].weight is parameter
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    save_weights(model, tmp_path)
    assert list(load_file(tmp_path / "model.safetensors")) == ["embedding.weight"]
    assert load_weights(other, tmp_path) == ([], [])
    assert other.head.weight is other.embedding.weight
    assert torch.equal(other.head.weight, model.head.weight)


def test_a_tie_that_is_gone_when_loading(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    other.head.weight = nn.Parameter(torch.zeros(7, 3))
    save_weights(model, tmp_path)
    assert load_weights(other, tmp_path) == ([], [])
    assert torch.equal(other.head.weight, model.embedding.weight)


def test_odd_memory_round_trips(tmp_path: Path) -> None:
    model, other = Odd(), Odd()
    randomize(model)
    model.epoch = 9
    before = tensors(model)
    save_weights(model, tmp_path)
    assert equal(tensors(model), before)
    assert load_weights(other, tmp_path) == ([], [])
    assert equal(tensors(other), before)
    assert other.epoch == 9
    assert other.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert not other.transposed.is_contiguous()


def test_an_expanded_tensor_takes_no_many_values(tmp_path: Path) -> None:
    model = Odd()
    model.expanded = torch.randn(3, 5)
    save_weights(model, tmp_path)
    with pytest.raises(ValueError, match="expanded is one value seen many times"):
        load_weights(Odd(), tmp_path)


def test_meta_tensors_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    save_weights(model, tmp_path)
    assert sorted(load_file(tmp_path / "model.safetensors")) == ["0.bias", "0.weight"]
    assert "1.weight has no values" in caplog.text


def test_a_given_state_dict_replaces_the_models_own(tmp_path: Path) -> None:
    gathered = {"weight": torch.ones(2, 2), "bias": torch.zeros(2)}
    save_weights(nn.Linear(2, 2), tmp_path / "plain", state_dict=gathered)
    assert equal(load_file(tmp_path / "plain" / "model.safetensors"), gathered)
    model = gpt2()
    state = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
    save_weights(model, tmp_path / "hf", state_dict=state)
    assert all((value == 1).all() for value in load_file(tmp_path / "hf" / "model.safetensors").values())


@pytest.mark.parametrize("make", [gpt2, bert], ids=["gpt2", "bert"])
def test_a_transformers_model_is_read_by_from_pretrained(tmp_path: Path, make: Any) -> None:
    model, other = make(), make()
    save_weights(model, tmp_path)
    assert (tmp_path / "config.json").is_file()
    assert (tmp_path / "generation_config.json").is_file() == (make is gpt2)
    assert equal(tensors(type(model).from_pretrained(tmp_path)), tensors(model))
    assert load_weights(other, tmp_path) == ([], [])
    assert equal(tensors(other), tensors(model))
    if make is gpt2:
        assert other.lm_head.weight is other.transformer.wte.weight


def test_a_transformers_model_with_a_tie_of_the_users(tmp_path: Path) -> None:
    def tie(model: Any) -> nn.Module:
        layers = model.bert.encoder.layer
        layers[1].output.dense.weight = layers[0].output.dense.weight
        return model  # type: ignore[no-any-return]

    model, other = tie(bert()), tie(bert())
    save_weights(model, tmp_path)
    assert load_weights(other, tmp_path) == ([], [])
    assert equal(tensors(other), tensors(model))
    layers = other.bert.encoder.layer
    assert layers[1].output.dense.weight is layers[0].output.dense.weight
    assert equal(tensors(type(model).from_pretrained(tmp_path)), tensors(model))


def test_a_mixture_of_experts_whose_files_have_other_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def mixtral() -> nn.Module:
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.MixtralConfig(vocab_size=32, num_key_value_heads=1, num_local_experts=2, **sizes)
        return transformers.MixtralForCausalLM(config)  # type: ignore[no-any-return]

    model, other = mixtral(), mixtral()
    save_weights(model, tmp_path)
    assert not set(load_file(tmp_path / "model.safetensors")) >= set(model.state_dict())
    before = torch.random.get_rng_state()
    assert load_weights(other, tmp_path) == ([], [])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert equal(tensors(other), tensors(model))
    assert "left as they were" not in caplog.text


def test_sharded_files(tmp_path: Path) -> None:
    model, other = gpt2(), gpt2()
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert load_weights(other, tmp_path) == ([], [])
    assert equal(tensors(other), tensors(model))
    shard = sorted(tmp_path.glob("model-*.safetensors"))[0]
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=shard.name):
        load_weights(other, tmp_path)


def test_an_index_cannot_point_elsewhere(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2, 2)}, tmp_path / "secret.safetensors")
    (tmp_path / "run").mkdir()
    index = {"weight_map": {"weight": "../secret.safetensors"}}
    (tmp_path / "run" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="not the name of a file beside it"):
        load_weights(nn.Linear(2, 2), tmp_path / "run")


def test_pickled_weights_load_and_run_nothing(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert load_weights(other, tmp_path) == ([], [])
    assert equal(tensors(other), tensors(model))

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "was-here"),))

    torch.save({"weight": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model.bin cannot be read: .*can run code"):
        load_weights(other, tmp_path)
    with (tmp_path / "pytorch_model.bin").open("wb") as file:
        pickle.dump(Evil(), file, protocol=2)
    with pytest.raises(ValueError, match="can run code"):
        load_weights(other, tmp_path)
    assert not (tmp_path / "was-here").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match=f"{name} cannot be read"):
        load_weights(nn.Linear(2, 2), tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no weights: none of model.safetensors"):
        load_weights(nn.Linear(2, 2), tmp_path)


def test_other_names_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_weights(nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}), tmp_path)
    keys = load_weights(nn.ModuleDict({"a": nn.Linear(2, 2), "c": nn.Linear(2, 2)}), tmp_path)
    assert keys.missing == ["c.weight", "c.bias"]
    assert sorted(keys.unexpected) == ["b.bias", "b.weight"]
    assert "left as they were: c.weight, c.bias" in caplog.text
    assert "but not in the model: b." in caplog.text


def test_other_shapes_are_an_error_and_nothing_is_changed(tmp_path: Path) -> None:
    save_weights(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), tmp_path)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 4))
    before = tensors(model)
    with pytest.raises(ValueError, match=r"1.weight is \(3, 2\) in the checkpoint and \(4, 2\) in the model"):
        load_weights(model, tmp_path)
    assert equal(tensors(model), before)


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "module._orig_mod."])
@pytest.mark.parametrize("own_prefix", ["", "_orig_mod.", "module."])
def test_wrappers_prefixes(prefix: str, own_prefix: str) -> None:
    names = ["layer.weight", "module.weight"]  # a layer may be called `module`
    found = match_names([prefix + name for name in names], [own_prefix + name for name in names])
    expected = {prefix + name: own_prefix + name for name in names}
    assert found == expected


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_modules_are_saved_as_what_they_wrap(tmp_path: Path) -> None:
    inner = nn.Sequential(nn.Linear(2, 2), torch.compile(nn.Linear(2, 2)))
    save_weights(torch.compile(inner), tmp_path)
    assert sorted(load_file(tmp_path / "model.safetensors")) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    other = nn.Sequential(nn.Linear(2, 2), torch.compile(nn.Linear(2, 2)))
    assert load_weights(torch.compile(other), tmp_path) == ([], [])
    assert equal(tensors(other), tensors(inner))
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    torch.save(torch.compile(inner).state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert load_weights(plain, tmp_path) == ([], [])
    assert list(tensors(plain).values())[0].equal(list(tensors(inner).values())[0])


def test_the_processor_is_saved_beside(tmp_path: Path) -> None:
    class Processor:
        def save_pretrained(self, folder: Path) -> None:
            (folder / "processor.json").write_text("{}")

    save_weights(nn.Linear(2, 2), tmp_path / "a", processing_class=Processor())
    assert (tmp_path / "a" / "processor.json").is_file()
    save_weights(nn.Linear(2, 2), tmp_path / "b", processing_class=object())


# ------------------------------------------------------------------ adapters


OF_PEFT = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"


def lora(model: nn.Module, **names: str) -> Any:
    peft = pytest.importorskip("peft")
    first, *more = names.items() or [("default", "query")]
    wrapped = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=[first[1]], task_type="SEQ_CLS"), adapter_name=first[0]
    )
    for name, target in more:
        wrapped.add_adapter(name, peft.LoraConfig(r=2, target_modules=[target]))
    randomize_adapters(wrapped)
    return wrapped


def randomize_adapters(model: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.normal_()


def base_model() -> nn.Module:
    torch.manual_seed(0)
    return bert()


@pytest.mark.filterwarnings(OF_PEFT)
@pytest.mark.parametrize("names", [{}, {"mine": "query"}, {"default": "query", "two": "key"}], ids=str)
def test_adapters_round_trip_and_stay_as_trainable_as_they_were(tmp_path: Path, names: dict[str, str]) -> None:
    model, other = lora(base_model(), **names), lora(base_model(), **names)
    save_weights(model, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "adapter_model.safetensors").exists() == ("mine" not in names)
    other.train()
    trainable = {name: (value.requires_grad, value.dtype) for name, value in other.named_parameters()}
    active = other.active_adapters
    assert load_weights(other, tmp_path) == ([], [])
    assert equal(tensors(other), tensors(model))
    assert {name: (value.requires_grad, value.dtype) for name, value in other.named_parameters()} == trainable
    assert other.training
    assert other.active_adapters == active


@pytest.mark.filterwarnings(OF_PEFT)
def test_adapters_keep_their_dtype(tmp_path: Path) -> None:
    model, other = lora(base_model()).to(torch.bfloat16), lora(base_model()).to(torch.bfloat16)
    save_weights(model, tmp_path)
    load_weights(other, tmp_path)
    assert {value.dtype for value in other.parameters()} == {torch.bfloat16}
    assert equal(tensors(other), tensors(model))


@pytest.mark.filterwarnings(OF_PEFT)
def test_adapters_that_do_not_correspond(tmp_path: Path) -> None:
    save_weights(lora(base_model(), default="query", two="key"), tmp_path)
    keys = load_weights(lora(base_model(), default="query", three="key"), tmp_path)
    assert keys == (["the adapter 'three'"], ["the adapter 'two'"])
    with pytest.raises(ValueError, match="the model .BertForSequenceClassification. has no adapters"):
        load_weights(bert(), tmp_path)


def test_adapters_injected_into_a_transformers_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft")
    from transformers.integrations import peft as integration

    monkeypatch.setattr(integration, "check_peft_version", lambda **_: None)  # it asks for a newer one than there is

    def injected() -> Any:
        model: Any = base_model()
        model.add_adapter(peft.LoraConfig(r=2, target_modules=["query"], modules_to_save=["classifier"]))
        randomize_adapters(model)
        return model

    model, other = injected(), injected()
    save_weights(model, tmp_path)
    assert "model.safetensors" not in os.listdir(tmp_path)
    assert load_weights(other, tmp_path) == ([], [])
    assert equal(tensors(other), tensors(model))
