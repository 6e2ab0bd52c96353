"""TensorBoard's event files: its packages take a second to import, and ten times as long for a scalar.

A file is a row of records (TFRecord): length, its checksum, an `Event` message, its checksum. The numbers of the fields
are those of TensorBoard's event.proto, summary.proto and tensor.proto.
"""

from __future__ import annotations

import itertools
import os
import platform
import struct
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import final

_numbers = itertools.count()
_pack_float = struct.Struct("<f").pack


@final
class EventFile:
    """One new file in a folder, for numbers and text; what was added is in the file after `flush` or `close`."""

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        """`purge_step`: what other files of the folder hold from this step on is hidden."""
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{platform.node()}.{os.getpid()}.{next(_numbers)}"
        self._file = open(folder / name, "xb")  # noqa: SIM115 (open until `close`)
        self._heads: dict[str, bytes] = {}
        self._frames: dict[int, bytes] = {}
        self._write(now, 0, _text(3, "brain.Event:2"))
        if purge_step is not None:
            self._write(now, purge_step, _message(7, b"\x08\x01"))  # a session starts

    def add_scalars(self, values: Mapping[str, float], step: int, at: float) -> None:
        """Numbers of one step; `at` in seconds since 1970."""
        parts = []
        for name, value in values.items():
            head = self._heads.get(name)
            if head is None:
                tag = _text(1, name)
                head = self._heads[name] = b"\x0a" + _varint(len(tag) + 5) + tag + b"\x15"
            parts.append(head + _float(value))
        self._write(at, step, _message(5, b"".join(parts)))

    def add_text(self, name: str, text: str, step: int, at: float) -> None:
        """Markdown, as TensorBoard's text plugin shows it."""
        metadata = _message(1, _text(1, "text") + _message(2, b""))
        tensor = b"\x08\x07" + _message(2, _message(2, b"\x08\x01")) + _text(8, text)  # strings, of shape [1]
        value = _text(1, f"{name}/text_summary") + _message(8, tensor) + _message(9, metadata)
        self._write(at, step, _message(5, _message(1, value)))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, at: float, step: int, content: bytes) -> None:
        event = b"\x09" + struct.pack("<d", at) + b"\x10" + _varint(step) + content
        frame = self._frames.get(len(event))
        if frame is None:
            length = struct.pack("<Q", len(event))
            frame = self._frames[len(event)] = length + _checksum(length)
        self._file.write(frame + event + _checksum(event))


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode("utf-8", "backslashreplace"))


def _float(value: float) -> bytes:
    try:
        return _pack_float(value)
    except OverflowError:  # too large for 32 bits
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _checksum(data: bytes) -> bytes:
    """CRC-32C, two bytes at a time, rotated and shifted as TFRecord has it."""
    table, crc = _table(), 0xFFFFFFFF
    for pair in struct.unpack(f"<{len(data) // 2}H", data[: len(data) & ~1]):
        crc = table[(crc ^ pair) & 0xFFFF] ^ crc >> 16
    if len(data) % 2:
        crc = _after_bits((crc ^ data[-1]) & 0xFF, 8) ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _table() -> list[int]:
    of_byte = [_after_bits(byte, 8) for byte in range(256)]
    return [of_byte[of_byte[pair & 255] & 255 ^ pair >> 8] ^ of_byte[pair & 255] >> 8 for pair in range(1 << 16)]


def _after_bits(crc: int, bits: int) -> int:
    for _ in range(bits):
        crc = crc >> 1 ^ 0x82F63B78 if crc & 1 else crc >> 1
    return crc
