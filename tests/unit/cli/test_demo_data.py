"""The data of the demos: read from what packages carry, cached, and missing things told with the remedy."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kunren.cli import demo_data

TWEETS = "1\t2.7\tSuch a good day\n2\t-1.4\tNot the best day\n3\t0.1\tIt is a day\n"
REVIEWS = "1_1\t-0.9\tno picture\n1_2\t3.1\tthe best player\n"


def tar(files: dict[str, bytes]) -> bytes:
    """A tar.gz archive of the given files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def source_package() -> bytes:
    """A source package of the same shape as the real one."""
    ratings = {"tweets_GroundTruth.txt": TWEETS, "amazonReviewSnippets_GroundTruth.txt": REVIEWS}
    inner = tar({f"hutto_ICWSM_2014/{name}": text.encode() for name, text in ratings.items()})
    return tar({"vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz": inner})


class Pip:
    """Takes the place of `pip download`: writes what it is told to and counts how often it was asked."""

    def __init__(self, content: bytes | None) -> None:
        self.content, self.calls = content, 0

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        assert command[1:4] == ["-m", "pip", "download"] and "vaderSentiment==3.3.2" in command
        if self.content is None:
            return subprocess.CompletedProcess(command, 1, stdout="no matching distribution")
        (Path(command[command.index("--dest") + 1]) / demo_data.VADER_ARCHIVE).write_bytes(self.content)
        return subprocess.CompletedProcess(command, 0, stdout="")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUNREN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_labels_come_from_ratings_and_neutral_rows_go(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = Pip(source_package())
    monkeypatch.setattr(subprocess, "run", pip)
    first, second = demo_data.vader_sentiment(), demo_data.vader_sentiment()
    expected = {"Such a good day": 1, "Not the best day": 0, "no picture": 0, "the best player": 1}
    assert dict(zip(*first, strict=True)) == expected
    assert first == second  # the order is fixed
    assert pip.calls == 1  # the second time it was in the cache
    assert [path.name for path in cache.iterdir()] == [demo_data.VADER_ARCHIVE]


def test_a_failed_download_says_what_to_do_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Pip(None))
    with pytest.raises(RuntimeError, match="no matching distribution") as error:
        demo_data.vader_sentiment()
    assert f"put {demo_data.VADER_ARCHIVE} into {cache}" in str(error.value)
    assert list(cache.iterdir()) == []


def test_a_missing_package_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps some-package"):
        demo_data.package_folder("some_package_that_nobody_has", "some-package")


def test_names_that_men_and_women_share_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "first_name_man_org.csv").write_text("たろう,tarou,太郎,多朗\nひかる,hikaru,光\n", "utf-8")
    (tmp_path / "dataset" / "first_name_woman_org.csv").write_text("ひかる,hikaru,光,光瑠\n", "utf-8")
    monkeypatch.setattr(demo_data, "package_folder", lambda module, package: tmp_path)
    assert dict(zip(*demo_data.japanese_names(), strict=True)) == {"太郎": 0, "多朗": 0, "光瑠": 1}


def test_the_cache_is_the_users_own_unless_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUNREN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert demo_data.cache_folder() == tmp_path / "kunren"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert demo_data.cache_folder() == tmp_path / ".cache" / "kunren"
