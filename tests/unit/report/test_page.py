"""The page as a text: whole, small, offline, and with nothing of the run's taken for markup."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.report.page import MAX_BYTES, page, page_data
from kunren.report.run_files import RunRecord, read_run

HOSTILE = "</script><img src=x onerror=alert(1)><!--\"'&amp;"
VOID = {"meta", "link", "br", "img", "input"}


class Outline(HTMLParser):
    """The elements with their attributes, the texts, and whatever is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open[-1:] == ["script"] else self.texts).append(data)

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads("".join(self.scripts[:1]))
        return found


def run_of(folder: Path, logs: list[Any], events: list[Any] | None = None) -> RunRecord:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logs), encoding="utf-8")
    if events is not None:
        (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events), encoding="utf-8")
    return read_run(folder)


def begin(**more: Any) -> dict[str, Any]:
    return {"event": "begin", "time": 1e9, "step": 0, "max_steps": 40, **more}


ACCOUNT = {"steps": 5, "seconds": {"data": 3.0, "forward": 2.0}, "samples": 40, "tokens": 80, "wall": 5.0, "mfu": 0.4}
LOGS = [
    {"loss": 2.0, "step": 5, "time": 1e9 + 5, "account": ACCOUNT},
    {"eval_loss": 1.5, "eval_f1": 0.5, "step": 5, "time": 1e9 + 6},
    {"loss": 1.0, "step": 10, "time": 1e9 + 11, "account": ACCOUNT},
    {"eval_loss": 1.7, "eval_f1": 0.75, "step": 10, "time": 1e9 + 12},
]


def test_it_is_made_without_torch() -> None:
    code = "import sys, kunren.report.page; assert not {'torch', 'numpy', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("language", ["en", "ja"])
def test_what_the_files_tell_stands_in_the_page(tmp_path: Path, language: str) -> None:
    events = [
        begin(
            arguments={"learning_rate": 3e-4}, environment={"torch": "2.13.0"}, model={"class": "Net", "parameters": 7}
        ),
        *[{"event": "warning", "time": 1e9, "step": step, "text": "the gradient was odd"} for step in (3, 4)],
        {"event": "end", "time": 1e9 + 20, "step": 12, "outcome": "failed", "error": "ValueError: 17"},
    ]
    (tmp_path / "mine" / "checkpoint-10").mkdir(parents=True)
    text = page([run_of(tmp_path / "mine", LOGS, events)], language)
    outline = Outline(text)
    shown = " ".join(" ".join(outline.texts).split())
    for wanted in ("mine", "ValueError: 17", "0.75", "learning_rate", "0.0003", "2.13.0", "Net", "checkpoint-10"):
        assert wanted in shown, wanted
    assert shown.count("the gradient was odd") == 1 and ("2 times, steps 3 to 4" in shown) == (language == "en")
    assert outline.elements[0] == ("html", {"lang": language})
    assert ("dataloader_num_workers" in shown) and ("60%" in shown)
    assert ("データ待ち" in shown) == (language == "ja")


def test_several_runs_are_compared(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path / "a", LOGS, [begin(arguments={"seed": 1, "learning_rate": 1.0, "alike": 3})]),
        run_of(tmp_path / "b", LOGS[:2], [begin(arguments={"learning_rate": 2.0, "alike": 3})]),
    ]
    text = page(runs)
    outline = Outline(text)
    assert len(outline.data["curves"]) == 2 and [run["name"] for run in outline.data["runs"]] == ["a", "b"]
    parts = page_data(runs)["parts"]["details"]
    assert "seed" in parts and "learning_rate" in parts and "alike" not in parts and "default" in parts
    assert re.search(r'class="first">0\.75<', parts) and re.search(r'class="">0\.5<', parts)


def test_a_picture_stands_in_the_page_without_scripts(tmp_path: Path) -> None:
    before = page([run_of(tmp_path / "a", LOGS)]).partition("<script")[0]
    outline = re.findall(r'<path class="line s0 d0" d="(M[^"]+)"', before)
    assert len(outline) == 1 and outline[0].count("L") == 1


def test_nothing_of_a_run_is_markup(tmp_path: Path) -> None:
    logs = [{HOSTILE: 1.0 * step, f"eval_{HOSTILE}": 1.0, "loss": 1.0, "step": step, "time": 1e9} for step in (1, 2)]
    named = {"run_name": HOSTILE, "arguments": {HOSTILE: HOSTILE}, "environment": {HOSTILE: HOSTILE}}
    events = [
        begin(**named, model={"class": HOSTILE}),
        {"event": "warning", "time": 1e9, "step": 1, "text": HOSTILE},
        {"event": "end", "time": 1e9, "step": 2, "outcome": "failed", "error": HOSTILE},
    ]
    runs = [run_of(tmp_path / HOSTILE.replace("/", ""), logs, events), run_of(tmp_path / "b", LOGS, [begin()])]
    for shown in (runs[:1], runs):
        outline = Outline(page(shown))
        assert not any(tag == "img" or any(name.startswith("on") for name in found) for tag, found in outline.elements)
        assert [tag for tag, _ in outline.elements].count("script") == 2
        assert any(HOSTILE in text for text in outline.texts)
        assert HOSTILE in outline.data["names"]


def test_nothing_is_asked_of_the_network(tmp_path: Path) -> None:
    text = page([run_of(tmp_path / "a", LOGS)])
    allowed = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"(?:https?:)?//[a-z][\w./-]*\.[a-z]+[\w./-]*", re.sub(r"//( |\n).*", "", text))) <= allowed
    assert not re.search(r"@import|url\((?!#|`?#)", text) and not re.search(r"<(img|iframe|object|embed)", text)
    links = [
        found.get("href", found.get("src")) for _, found in Outline(text).elements if "href" in found or "src" in found
    ]
    assert all(link and link.startswith(("#", "data:,")) for link in links)
    assert "connect-src 'none'" in text and "connect-src 'self'" in page([run_of(tmp_path / "a", LOGS)], live=True)


def test_the_script_has_all_its_texts(tmp_path: Path) -> None:
    outline = Outline(page([run_of(tmp_path / "a", LOGS)]))
    asked = set(re.findall(r"\btext\.(?!replace)([a-z][a-z_]+)", "".join(outline.scripts[1:])))
    assert len(asked) > 20 and asked <= outline.data["text"].keys()
    titles = {chart["title"] for chart in outline.data["charts"] if not chart["isName"]}
    assert titles <= outline.data["text"].keys()


def test_no_run_is_an_error_and_no_number_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        page([])
    page_data([])
    assert "Nothing has been logged as a number yet" in page([run_of(tmp_path / "a", [{"note": "x", "step": 1}])])


def test_a_long_run_of_many_metrics_stays_small(tmp_path: Path) -> None:
    """100,000 lines and 60 metrics, the lines made rather than read: reading has its own test."""
    noise = random.Random(0)
    logs = [
        {"loss": noise.random(), "learning_rate": noise.random(), "step": step, "time": 1e9 + step}
        for step in range(1, 100_001)
    ]
    for entry in logs[::100]:
        entry.update({f"router/layer_{at}/share_of_tokens": noise.random() for at in range(60)})
    made = page([RunRecord(tmp_path, "long", logs, [], [])])
    assert 300_000 < len(made.encode()) < MAX_BYTES


def test_whatever_is_large_is_cut(tmp_path: Path) -> None:
    long = "語<" * 1500
    logs = [{f"{long}{at}": 1.0 for at in range(300)} | {f"eval_{at}_{long}": 1.0 for at in range(300)} | {"step": 1}]
    events = [
        begin(arguments={f"{at}{long}": long for at in range(500)}, environment={str(at): long for at in range(99)})
    ]
    events += [{"event": "warning", "step": at, "text": f"{at}{long}"} for at in range(300)]
    run = run_of(tmp_path / "a", logs, [*events, {"event": "end", "outcome": "failed", "error": long * 9}])
    for runs in ([run], [run] * 40):
        assert len(page(runs).encode()) < MAX_BYTES


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["loss", "step", "time", "eval_f1", "account", "learning_rate", HOSTILE]) | st.text(max_size=6)
lines = st.fixed_dictionaries({"step": st.integers(0, 50)}, optional={"time": st.floats(0, 1e12)}).flatmap(
    lambda known: st.dictionaries(names, json_values, max_size=4).map(lambda more: {**more, **known})
)
event_names = [
    "step",
    "time",
    "arguments",
    "model",
    "max_steps",
    "run_name",
    "outcome",
    "error",
    "text",
    "environment",
    "data",
]
events_of_any_kind = st.fixed_dictionaries({"event": st.sampled_from(["begin", "warning", "end"])}).flatmap(
    lambda known: st.dictionaries(st.sampled_from(event_names), json_values, max_size=6).map(
        lambda more: {**more, **known}
    )
)


@settings(max_examples=60, deadline=None)
@given(
    logs=st.lists(lines | st.dictionaries(names, json_values, max_size=4), max_size=6),
    events=st.lists(events_of_any_kind, max_size=5),
    language=st.sampled_from(["en", "ja"]),
    twice=st.booleans(),
)
def test_any_files_give_a_page(
    tmp_path_factory: pytest.TempPathFactory, logs: list[Any], events: list[Any], language: str, twice: bool
) -> None:
    run = run_of(tmp_path_factory.mktemp("run"), logs, events)
    text = page([run, run] if twice else [run], language)
    outline = Outline(text)
    assert [tag for tag, _ in outline.elements].count("script") == 2 and outline.data["runs"]
    assert not any(name.startswith("on") for _, found in outline.elements for name in found)
    assert len(text.encode()) < MAX_BYTES
    json.dumps(page_data([run], language), allow_nan=False).encode()


def test_a_loss_that_is_lost_a_trace_and_earlier_trainings_are_told_of(tmp_path: Path) -> None:
    logs = [*LOGS, *({"loss": None, "eval_loss": None, "step": step, "time": 1e9 + step} for step in (15, 20))]
    events = [begin(time=1e8), begin(), {"event": "end", "time": 1e9 + 20, "step": 20, "outcome": "finished"}]
    (tmp_path / "a" / "profile").mkdir(parents=True)
    (tmp_path / "a" / "profile" / "steps-1-2.json").write_text("{}")
    run = run_of(tmp_path / "a", logs, events)
    shown = " ".join(" ".join(Outline(page([run])).texts).split())
    assert "Last loss NaN not finite since step 15" in shown and "profile/steps-1-2.json" in shown
    assert "holds an earlier training" in shown
    compared = " ".join(" ".join(Outline(page([run, run_of(tmp_path / "b", LOGS)])).texts).split())
    assert "NaN" in compared and "1.5 at step 5 Last NaN" in compared
    nothing = run_of(tmp_path / "c", logs[-2:], [begin()])
    assert "Last loss NaN not finite since step 15" in " ".join(" ".join(Outline(page([nothing])).texts).split())


def test_a_run_without_a_log_shows_what_it_failed_with_and_where(tmp_path: Path) -> None:
    failed = {"event": "end", "time": 1e9, "step": 0, "outcome": "failed", "error": "ValueError: 17"}
    (tmp_path / "a").mkdir()
    events = [begin(environment={"threads": "4"}), {**failed, "traceback": "train.py:3 in loss: <odd>"}]
    (tmp_path / "a" / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events))
    text = page([read_run(tmp_path / "a")], "ja")
    assert re.search(r"<details><summary>エラーの発生箇所</summary><pre[^>]*>train.py:3 in loss: &lt;odd&gt;", text)
    assert "ValueError: 17" in text and "CPU スレッド数" in text
    assert "ValueError: 17" in page([read_run(tmp_path / "a"), run_of(tmp_path / "b", LOGS)])
