"""Event files without TensorBoard's packages; tests/trackers reads them back with TensorBoard itself."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kunren.trackers.event_file import EventFile, _checksum, _float, _varint
from kunren.trackers.tensorboard import TensorBoardTracker


def records(path: Path) -> list[bytes]:
    """The messages of a file whose lengths and checksums are right."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert data[8:12] == _checksum(data[:8])
        message = data[12 : 12 + length]
        assert data[12 + length : 16 + length] == _checksum(message)
        found.append(message)
        data = data[16 + length :]
    return found


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),  # the check value of CRC-32C
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (bytes([255] * 32), 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"", 0),
    ],
)
def test_checksums(data: bytes, crc: int) -> None:
    (masked,) = struct.unpack("<I", _checksum(data))
    rotated = (masked - 0xA282EAD8) % 2**32
    assert (rotated >> 17 | rotated << 15) % 2**32 == crc


def test_numbers_of_any_size() -> None:
    assert [_varint(number) for number in (0, 127, 128, 300)] == [b"\x00", b"\x7f", b"\x80\x01", b"\xac\x02"]
    assert struct.unpack("<f", _float(1e300)) == (math.inf,)
    assert struct.unpack("<f", _float(-1e300)) == (-math.inf,)
    assert math.isnan(struct.unpack("<f", _float(math.nan))[0])


def test_a_file_is_complete_when_it_is_flushed(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "runs" / "first", purge_step=7)
    (path,) = (tmp_path / "runs" / "first").iterdir()
    assert path.name.startswith("events.out.tfevents.")
    file.flush()
    version, purge = records(path)
    assert version.endswith(b"\x1a\x0dbrain.Event:2")
    assert purge[9:] == b"\x10\x07\x3a\x02\x08\x01"
    file.add_scalars({"train/loss": 0.5, "train/epoch": 2}, 300, at=1.5)
    file.add_scalars({"train/loss": 0.25}, 301, at=2.5)
    file.add_text("outcome", "訓練", 0, at=3.5)
    file.flush()
    written = records(path)[2:]
    assert [struct.unpack("<d", message[1:9])[0] for message in written] == [1.5, 2.5, 3.5]
    loss = b"\x0a\x11\x0a\x0atrain/loss\x15"
    assert written[0][9:] == b"\x10\xac\x02\x2a\x27" + loss + struct.pack("<f", 0.5) + (
        b"\x0a\x12\x0a\x0btrain/epoch\x15" + struct.pack("<f", 2.0)
    )
    assert written[1].endswith(loss + struct.pack("<f", 0.25))
    assert "訓練".encode() in written[2]
    file.close()
    EventFile(tmp_path / "runs" / "first").close()
    assert len(list((tmp_path / "runs" / "first").iterdir())) == 2


class Writer:
    """As a SummaryWriter of torch or of tensorboardX."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))


def test_a_writer_of_the_users_own_is_used(tmp_path: Path) -> None:
    writer = Writer()
    tracker = TensorBoardTracker(writer)
    run = SimpleNamespace(folder=tmp_path, resumed_id=None, arguments={"seed": 1}, model_config={}, num_parameters=5)
    tracker.start(run)  # type: ignore[arg-type]
    tracker.log_past({"loss": 0.5, "note": "warm"}, 3, 1.25)
    tracker.finish("finished")
    assert [call[:3] for call in writer.calls if call[0] != "flush"] == [
        ("add_text", "args", '{\n  "seed": 1\n}'),
        ("add_text", "model/num_parameters", "5"),
        ("add_text", "train/note", "warm"),
        ("add_scalar", "train/loss", 0.5),
        ("add_text", "outcome", "finished"),
        ("close",),
    ]
    assert ("add_scalar", "train/loss", 0.5, 3, 1.25) in writer.calls
    assert tracker.run_id() is None
    assert list(tmp_path.iterdir()) == []
