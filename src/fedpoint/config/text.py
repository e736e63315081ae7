"""A user's text file, or one clear message why it cannot be read; and the files it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import read_file
from fedpoint.core.types import Plain


def read_text(path: Path, encoding: str = "utf-8", advice: str = "") -> str:
    """The file's content; `advice` follows the message when it is not text."""
    try:
        return read_file(path).decode(encoding)
    except FileNotFoundError:
        raise FedpointError(f"there is no file {path}") from None
    except OSError as error:
        raise FedpointError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FedpointError(f"{path} is not UTF-8 text (byte {error.start}){advice}") from None


def absolute(text: Plain, base: Path | None) -> Plain:
    """The same with the path of a file that it names made absolute, for a folder that is resumed from elsewhere."""
    if not isinstance(text, Mapping):
        return text
    named = {key: path for key in ("file", "trace") if isinstance(path := text.get(key), str)}
    return {**text, **{key: str(((base or Path()) / path).absolute()) for key, path in named.items()}}
