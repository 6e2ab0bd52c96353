"""`args.layer_decay`: each layer learns more slowly than the one above it, in any model whose layers are numbered.

The rate is lr * decay ** depth, as in BEiT (Bao et al. 2021, arXiv:2106.08254, appendix) and ELECTRA (Clark et al.
2020, arXiv:2003.10555): depth 0 is the head, 1 the last layer, and the embeddings are one below the first.

Layers are found from names alone: `encoder.layer.3.`, `model.layers.7.`, `h.2.`, `layer4.`, or the places of an
nn.Sequential. Of several numbers in a name the outermost counts, unless it is that of a wrapper. Lists side by side, as
those of an encoder and a decoder, are each counted from their own end.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from os.path import commonprefix

from torch import nn

# A list of layers ("encoder.layer.", or "layer" for layer1, layer2, ...) -> number -> names of the parameters in it.
Lists = dict[str, dict[int, list[str]]]

_NUMBERED = re.compile(r"(.*?)(\d+)")
_WRAPPER = 0.9  # an entry with that share of a list's weights, and a list inside, is a model and its list a wrapper
_MAIN = 0.1  # a list with less than that share of the largest one's weights is no body: a stem, or a head
_EMBEDDING = re.compile(r"embed|position|(?:^|[._])(?:wte|wpe|stem|(?:cls|mask|dist|class|register)_tokens?)(?:[._]|$)")
_HEAD = re.compile(r"head|classif|final|pooler|logit|score|(?:^|[._])out(?:put)?(?:[._]|$)")


def depths(model: nn.Module) -> dict[int, int]:
    """For each parameter, by `id`, how many steps of decay it gets; a ValueError for a model without layers."""
    parameters = dict(model.named_parameters())
    sizes = {name: parameter.numel() for name, parameter in parameters.items()}
    body = _main_lists(sizes)
    if not body:
        raise ValueError(
            f"layer_decay needs layers that are numbered, as in 'encoder.layer.3.' or 'blocks.3.': "
            f"{type(model).__name__} has none. Give rates with parameter_groups instead."
        )
    embeddings = {
        id(weight) for module in model.modules() if isinstance(module, nn.Embedding) for weight in module.parameters()
    }
    found: dict[str, int] = {}
    for entries in body.values():
        for rank, number in enumerate(sorted(entries)):
            found.update(dict.fromkeys(entries[number], len(entries) - rank))
    order = {name: place for place, name in enumerate(sizes)}
    for name in sizes.keys() - found.keys():
        near = _nearest(name, body)
        begins = min(order[first] for key in near for first in next(iter(body[key].values())))
        below = order[name] < begins and not _HEAD.search(name.lower())
        if id(parameters[name]) in embeddings or _EMBEDDING.search(name.lower()) or below:
            found[name] = 1 + max(len(body[key]) for key in near)
        else:
            found[name] = 0
    top = min(found.values())  # 1 where nothing stands above the last layer
    return {id(parameters[name]): depth - top for name, depth in found.items()}


def _numbers(name: str) -> Iterator[tuple[str, int]]:
    """The lists that a parameter is in, outermost first, with its number in each."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        match = _NUMBERED.fullmatch(part)
        # `weight2` is a parameter, no layer; a number alone is one of an nn.ParameterList.
        if match is not None and (not match[1] or place < len(parts) - 1):
            yield ".".join([*parts[:place], match[1]]), int(match[2])


def _is_plain(key: str) -> bool:
    """Whether it is a list by construction, not by names that end in digits."""
    return not key or key.endswith(".")


def _main_lists(sizes: dict[str, int]) -> Lists:
    """The lists that make up the body of the model."""
    every: Lists = defaultdict(lambda: defaultdict(list))
    for name in sizes:
        for key, number in _numbers(name):
            every[key][number].append(name)
    usable = {
        key
        for key, entries in every.items()
        if (_is_plain(key) or len(entries) > 1) and not _is_wrapper(key, every, sizes)
    }
    chosen: Lists = defaultdict(lambda: defaultdict(list))
    for name in sizes:
        for key, number in _numbers(name):
            if key in usable:
                chosen[key][number].append(name)
                break
    weights = {key: sum(sizes[name] for names in entries.values() for name in names) for key, entries in chosen.items()}
    largest = max(weights.values(), default=0)
    return {key: entries for key, entries in chosen.items() if weights[key] >= _MAIN * largest}


def _is_wrapper(key: str, every: Lists, sizes: dict[str, int]) -> bool:
    weights = {number: sum(sizes[name] for name in names) for number, names in every[key].items()}
    number, largest = max(weights.items(), key=lambda entry: entry[1])
    inside = f"{key}{number}."
    return largest >= _WRAPPER * sum(weights.values()) and any(
        other.startswith(inside) and _is_plain(other) and len(entries) > 1 for other, entries in every.items()
    )


def _nearest(name: str, body: Lists) -> list[str]:
    """The lists that share the most of a name: those of its own tower, where there are several."""
    shared = {key: len(commonprefix([name.split("."), key.split(".")])) for key in body}
    return [key for key, length in shared.items() if length == max(shared.values())]
