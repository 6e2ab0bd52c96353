"""What the scripts beside this file read and train when no file and no model is named: all of it works offline."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, load_dataset
from tokenizers import ByteLevelBPETokenizer, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.normalizers import Lowercase
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoTokenizer, BartConfig, BertConfig, GPT2Config, PreTrainedTokenizerFast
from transformers.trainer_utils import get_last_checkpoint

# Small public data sets, if they lie beside the checkout of kunren.
DATA = Path(os.environ.get("KUNREN_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
BUILDERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text"}
SPLITS = {"train": "train_file", "validation": "validation_file", "test": "test_file"}


def read_data(data_args: Any, folder: str, generate: Any, dataset: str | None = None) -> DatasetDict:
    """The splits of a named data set or of files; else those of `DATA / folder`; else what `generate` writes."""
    if name := data_args.dataset_name or dataset:
        return load_dataset(name, data_args.dataset_config_name)
    files = {split: getattr(data_args, field, None) for split, field in SPLITS.items()}
    files = {split: file for split, file in files.items() if file}
    if not files:
        files = {split: str(file) for split in SPLITS for file in (DATA / folder).glob(f"{split}.*")}
    if not files:
        sizes = {"train": 2000, "validation": 200, "test": 200}
        return DatasetDict(
            {split: Dataset.from_list(generate(size, seed)) for seed, (split, size) in enumerate(sizes.items())}
        )
    missing = [file for file in files.values() if not Path(file).is_file()]
    if missing:
        raise FileNotFoundError(f"There is no file {', '.join(missing)}.")
    suffix = Path(next(iter(files.values()))).suffix
    if suffix not in BUILDERS:
        raise ValueError(f"Files ending in {suffix!r} are not read: give one of {', '.join(BUILDERS)}.")
    return load_dataset(BUILDERS[suffix], data_files=files, **({"sep": "\t"} if suffix == ".tsv" else {}))


def checkpoint_to_resume(training_args: Any) -> str | None:
    """The checkpoint that was asked for, else the newest one in the output folder."""
    if training_args.resume_from_checkpoint is not None:
        return training_args.resume_from_checkpoint
    return get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None


def first(rows: Dataset, most: int | None) -> Dataset:
    return rows if most is None else rows.select(range(min(most, len(rows))))


def tokenizer_for(model_args: Any, make: Any, texts: Any) -> PreTrainedTokenizerFast:
    """That of the model, or a new one, learnt from the texts."""
    name = model_args.tokenizer_name or model_args.model_name_or_path
    return AutoTokenizer.from_pretrained(name, cache_dir=model_args.cache_dir) if name else make(texts)


def model_for(model_args: Any, auto: Any, small: Any, labels: dict[str, Any] | None = None, **options: Any) -> Any:
    """The model that was named; a new one of a named configuration; or a new small one."""
    labels = labels or {}
    if model_args.model_name_or_path:
        return auto.from_pretrained(model_args.model_name_or_path, cache_dir=model_args.cache_dir, **labels, **options)
    if model_args.config_name:
        return auto.from_config(AutoConfig.from_pretrained(model_args.config_name, **labels))
    return auto.from_config(small)


def label_maps(names: Any) -> dict[str, Any]:
    """What a configuration says of classes."""
    numbered = {number: str(name) for number, name in enumerate(names)}
    return {
        "num_labels": len(numbered),
        "id2label": numbered,
        "label2id": {name: number for number, name in numbered.items()},
    }


def word_pieces(texts: Any, size: int = 3000) -> PreTrainedTokenizerFast:
    """The commonest words in lower case, and single characters for all others; as BERT has them."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    normalizer, splitter = Lowercase(), pre_tokenizers.BertPreTokenizer()
    words = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    common = [word for word, _ in sorted(words.items(), key=lambda entry: (-entry[1], entry[0]))[:size]]
    characters = sorted({character for word in words for character in word})
    pieces = dict.fromkeys([*special, *common, *characters, *(f"##{character}" for character in characters)])
    # The trainer of the package breaks ties between pieces by chance: no two runs would be alike.
    model = models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, splitter, decoders.WordPiece()
    tokenizer.post_processor = TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def byte_pairs(texts: Any, size: int = 2000) -> PreTrainedTokenizerFast:
    """Byte pairs, as GPT-2 and BART have them, for text of any language; each text ends in </s>."""
    learnt = ByteLevelBPETokenizer()
    learnt.train_from_iterator(texts, size, special_tokens=["<pad>", "</s>"], show_progress=False)
    learnt._tokenizer.post_processor = TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=learnt._tokenizer, pad_token="<pad>", eos_token="</s>")


def small_bert(tokenizer: Any, **options: Any) -> BertConfig:
    size = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertConfig(vocab_size=len(tokenizer), **size, pad_token_id=tokenizer.pad_token_id, **options)


def small_gpt2(tokenizer: Any) -> GPT2Config:
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), tokenizer.eos_token_id)
    return GPT2Config(vocab_size=len(tokenizer), n_embd=128, n_layer=3, n_head=4, n_positions=256, **ends)


def small_bart(tokenizer: Any) -> BartConfig:
    size = {"layers": 2, "ffn_dim": 256, "attention_heads": 4}
    ends = dict.fromkeys(("eos_token_id", "bos_token_id", "decoder_start_token_id"), tokenizer.eos_token_id)
    return BartConfig(
        vocab_size=len(tokenizer),
        d_model=128,
        dropout=0.0,
        init_std=0.08,  # 1 / sqrt(d_model); the default is made for models eight times as wide
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        forced_eos_token_id=None,
        **ends,
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in size.items()},
    )
