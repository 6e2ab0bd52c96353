"""Audio: the language of recorded announcements, and Morse code, whose signals are made here."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC, Wav2Vec2ForSequenceClassification

import kunren
from tasks.data import arguments, task

pytestmark = task()

# Debian: apt-get install asterisk-core-sounds-{en,es,fr,it,ru}-gsm
SOUNDS = Path("/usr/share/asterisk/sounds")
LANGUAGES = ["en", "es", "fr", "it", "ru"]
RATE, LONGEST = 8000, 12000  # samples a second, samples of a recording that are used
ACCURACY_FLOOR, CHARACTER_ERROR_CEILING = 0.70, 0.20

LETTERS = {
    "E": ".",
    "T": "-",
    "A": ".-",
    "N": "-.",
    "I": "..",
    "M": "--",
    "S": "...",
    "O": "---",
    "R": ".-.",
    "K": "-.-",
}
UNIT = 60  # samples of a dot
DROPOUTS = [f"{part}_dropout" for part in ("hidden", "attention", "activation", "feat_proj", "final")]


class Recordings(torch.utils.data.Dataset):
    """Announcements of a telephone exchange; in training, another second and a half of each every time."""

    def __init__(self, files: list[tuple[Path, int]], crops_at_random: bool) -> None:
        self.files, self.crops_at_random = files, crops_at_random
        self.read: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        import soundfile

        path, language = self.files[index]
        if index not in self.read:
            raw = {"format": "RAW", "subtype": "GSM610", "samplerate": RATE, "channels": 1}
            self.read[index] = soundfile.read(path, dtype="float32", **raw)[0]
        samples = self.read[index]
        spare = max(0, len(samples) - LONGEST)
        start = int(torch.randint(spare + 1, ())) if self.crops_at_random else spare // 2
        samples = samples[start : start + LONGEST]
        return {"input_values": (samples - samples.mean()) / (samples.std() + 1e-5), "labels": language}


def recordings() -> tuple[list[tuple[Path, int]], list[tuple[Path, int]]]:
    """Training and test files. What is said decides, so that no announcement is in both, in whatever language."""
    train, test = [], []
    for folder in sorted(SOUNDS.iterdir()):
        for path in sorted(folder.rglob("*.gsm")):
            said = str(path.relative_to(folder))
            if path.stat().st_size > 33 * 30 and "silence" not in said:  # frames of 20 ms: 0.6 s or more
                part = test if zlib.crc32(said.encode()) % 5 == 0 else train
                part.append((path, LANGUAGES.index(folder.name[:2])))
    return train, test


def encoder(**options: Any) -> Wav2Vec2Config:
    return Wav2Vec2Config(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        num_conv_pos_embeddings=15,
        num_conv_pos_embedding_groups=4,
        apply_spec_augment=False,
        layerdrop=0.0,
        **options,
    )


@pytest.mark.skipif(not SOUNDS.is_dir(), reason="needs Debian's packages asterisk-core-sounds-{en,es,fr,it,ru}-gsm")
def test_a_small_wav2vec2_tells_languages_apart(tmp_path: Path, report: Callable[..., None]) -> None:
    pytest.importorskip("soundfile")
    kunren.set_seed(0)
    train, test = recordings()
    assert {language for _, language in train} == set(range(len(LANGUAGES)))
    config = encoder(
        conv_dim=[32, 32, 64, 64],
        conv_kernel=[10, 8, 4, 4],
        conv_stride=[5, 4, 4, 2],
        classifier_proj_size=64,
        num_labels=len(LANGUAGES),
    )
    trainer = kunren.Trainer(
        model=Wav2Vec2ForSequenceClassification(config),
        args=arguments(
            tmp_path,
            num_train_epochs=5,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=50,
            learning_rate=2e-3,
            lr_scheduler_type="cosine",
            warmup_steps=0.1,
            metrics=["accuracy", "f1_macro"],
        ),
        train_dataset=Recordings(train, crops_at_random=True),
        eval_dataset=Recordings(test, crops_at_random=False),
        # It has a padding value, so batches are padded with it.
        processing_class=Wav2Vec2FeatureExtractor(sampling_rate=RATE, return_attention_mask=True),
    )
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    after = trainer.evaluate()
    report(
        "audio classification, announcements in 5 languages, small Wav2Vec2",
        accuracy=after["eval_accuracy"],
        f1_macro=after["eval_f1_macro"],
        accuracy_before=before,
    )
    assert after["eval_accuracy"] > ACCURACY_FLOOR


class Morse(torch.utils.data.Dataset):
    """SYNTHETIC: one to four letters keyed on a tone of any pitch, in noise."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        draw = random.Random(self.seed * 1_000_003 + index)
        word = draw.choices(sorted(LETTERS), k=draw.randint(1, 4))
        keyed = [0.0] * draw.randint(1, 4)  # in units of a dot
        for letter in word:
            for sign in LETTERS[letter]:
                keyed += [1.0] * (1 if sign == "." else 3) + [0.0]
            keyed += [0.0, 0.0]
        envelope = np.repeat(np.float32(keyed), UNIT)
        tone = np.sin(draw.uniform(0.8, 1.2) * np.arange(len(envelope), dtype=np.float32))
        noise = np.random.default_rng(draw.getrandbits(32)).normal(0, 0.1, len(envelope)).astype(np.float32)
        return {
            "input_values": envelope * tone + noise,
            "labels": [1 + sorted(LETTERS).index(letter) for letter in word],
        }


def collate(features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    signals = [torch.from_numpy(row["input_values"]) for row in features]
    labels = [torch.tensor(row["labels"]) for row in features]
    masks = [torch.ones(len(signal), dtype=torch.long) for signal in signals]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_values": pad(signals, batch_first=True),
        "attention_mask": pad(masks, batch_first=True),
        "labels": pad(labels, batch_first=True, padding_value=-100),
    }


def spelt(frames: Any) -> list[int]:
    """The letters of the likeliest class of each frame: repetitions are one, and 0 is none."""
    before = [0, *frames[:-1]]
    return [int(now) for now, last in zip(frames, before, strict=True) if now not in (0, last)]


def test_a_small_wav2vec2_reads_morse_code(tmp_path: Path, report: Callable[..., None]) -> None:
    from tasks.test_seq2seq import edits

    kunren.set_seed(0)
    config = encoder(
        conv_dim=[32, 64, 64],
        conv_kernel=[10, 8, 6],
        conv_stride=[5, 4, 3],
        vocab_size=1 + len(LETTERS),
        pad_token_id=0,
        ctc_loss_reduction="mean",
        ctc_zero_infinity=True,
        **dict.fromkeys(DROPOUTS, 0.0),
    )

    model, test = Wav2Vec2ForCTC(config), Morse(200, seed=1)
    lengths = [
        int(model._get_feat_extract_output_lengths(len(row["input_values"])))
        for row in map(test.__getitem__, range(200))
    ]

    def compute_metrics(prediction: Any) -> dict[str, float]:
        """What is heard in a row's own frames; what follows is padding."""
        pairs = zip(prediction.predictions, lengths, strict=True)
        answers = [spelt(frames[:length]) for frames, length in pairs]
        truths = [[int(label) for label in row if label > 0] for row in prediction.label_ids]
        wrong = sum(edits(answer, truth) for answer, truth in zip(answers, truths, strict=True))
        return {"character_error_rate": wrong / sum(map(len, truths))}

    def likeliest(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)

    trainer = kunren.Trainer(
        model=model,
        args=arguments(
            tmp_path,
            max_steps=600,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=50,
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            warmup_steps=50,
        ),
        train_dataset=Morse(8000, seed=0),
        eval_dataset=test,
        data_collator=collate,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=likeliest,
    )
    before = trainer.evaluate()["eval_character_error_rate"]
    trainer.train()
    after = trainer.evaluate()["eval_character_error_rate"]
    report(
        "speech-like recognition (CTC), synthetic Morse code, small Wav2Vec2",
        character_error_rate=after,
        character_error_rate_before=before,
    )
    assert after < CHARACTER_ERROR_CEILING
