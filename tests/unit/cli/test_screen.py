"""A terminal that is drawn on: shows what it was given, writes little, and is given back as it was."""

from __future__ import annotations

import io
import os
import pty
import signal
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.cli.terminal import Picture

from kunren.cli import screen as screens
from kunren.cli.screen import Screen, has_colours, is_ascii_only, size_of


class Recorded(io.StringIO):
    """A stream that remembers what was written since it was last asked."""

    encoding = "utf-8"

    def taken(self) -> str:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


@pytest.fixture
def terminal() -> Iterator[tuple[int, TextIO]]:
    """Our end of a pseudo terminal, and the program's."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0), os.fdopen(theirs, "r+b", buffering=0) as raw:
        yield ours, io.TextIOWrapper(raw, encoding="utf-8", write_through=True)


LINES = st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20), max_size=12)


@settings(deadline=None, max_examples=40)
@given(st.lists(LINES, min_size=1, max_size=5), st.sampled_from([3, 8, 24]))
def test_it_shows_what_it_was_given(pictures: list[list[str]], height: int) -> None:
    output, seen = Recorded(), Picture()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screens, "size_of", lambda _: (80, height))
        with Screen(output) as screen:
            for lines in pictures:
                screen.draw(lines)
                seen.feed(output.taken())
                assert seen.text().rstrip("\n") == "\n".join(lines[:height]).rstrip("\n")


def test_only_what_has_changed_is_written() -> None:
    output = Recorded()
    with Screen(output) as screen:
        screen.draw(["one", "two", "three"])
        output.taken()
        screen.draw(["one", "two", "three"])
        assert output.taken() == ""
        screen.draw(["one", "2", "three"])
        assert output.taken() == "\x1b[2;1H2\x1b[K"
        screen.draw(["one"])
        assert "one" not in output.taken()


def test_another_size_draws_everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([(80, 24), (40, 10), (40, 10)])
    monkeypatch.setattr(screens, "size_of", lambda _: next(sizes))
    output = Recorded()
    with Screen(output) as screen:
        screen.draw(["one"])
        output.taken()
        assert screen.wait(30) == ""
        screen.draw(["one"])
        assert output.taken() == "\x1b[2J\x1b[1;1Hone\x1b[K"


def test_keys_are_read_without_being_shown_and_settings_put_back(terminal: tuple[int, TextIO]) -> None:
    ours, stream = terminal
    before = termios.tcgetattr(stream)
    with Screen(stream, stream) as screen:
        assert not termios.tcgetattr(stream)[3] & (termios.ECHO | termios.ICANON)
        screen.draw([])
        os.write(ours, b"q")
        assert screen.wait(30) == "q"
        assert screen.wait(0.01) == ""
    assert termios.tcgetattr(stream) == before
    picture = Picture()
    picture.feed(written(ours))
    assert picture.modes == {"7", "25"}  # lines are wrapped, the cursor is seen, and it is the usual screen


def written(ours: int) -> str:
    """Everything up to the sequence that leaves the screen: a terminal may give it in pieces."""
    raw = b""
    while b"\x1b[?1049l" not in raw:
        raw += os.read(ours, 1 << 16)
    return raw.decode()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_the_terminal_is_given_back_however_it_ends(terminal: tuple[int, TextIO], error: type[BaseException]) -> None:
    ours, stream = terminal
    before, handler = termios.tcgetattr(stream), signal.getsignal(signal.SIGTERM)
    with pytest.raises(error), Screen(stream, stream):
        raise error
    assert termios.tcgetattr(stream) == before and signal.getsignal(signal.SIGTERM) is handler
    assert written(ours).endswith("\x1b[?1049l")


def test_what_a_terminal_can_show(terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
    _, stream = terminal
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_colours(stream) and not is_ascii_only(stream)
    monkeypatch.setenv("TERM", "linux")
    assert has_colours(stream) and is_ascii_only(stream)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colours(stream)
    file = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    assert is_ascii_only(file) and not has_colours(file)
    monkeypatch.setenv("COLUMNS", "123")
    assert size_of(file)[0] == 123
