"""System calls of the checkpoint writer that fail, or that the process does not survive."""

from __future__ import annotations
