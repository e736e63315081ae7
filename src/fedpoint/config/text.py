"""A user's text file, or one clear message why it cannot be read."""

from __future__ import annotations

from pathlib import Path

from fedpoint.errors import FedpointError


def read_text(path: Path, encoding: str = "utf-8", advice: str = "") -> str:
    """The file's content; `advice` follows the message when it is not text."""
    try:
        return path.read_bytes().decode(encoding)
    except FileNotFoundError:
        raise FedpointError(f"there is no file {path}") from None
    except OSError as error:
        raise FedpointError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FedpointError(f"{path} is not UTF-8 text (byte {error.start}){advice}") from None
