"""Images of ten classes: small ones that come with scikit-learn, and Fashion-MNIST."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.files import open_file
from fedpoint.data.dataset import Dataset

FOLDER = Path("/usr/share/datasets/fashion-mnist")  # where Debian puts it
LARGEST = 1 << 28  # bytes that are unpacked of a file, of which the largest one has 47 million
CLOTHES = ["T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"]


@checked
def digits() -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels, from 0 to 1, as they come with scikit-learn; y is 0 to 9.

    Nobody's by nature: groups is None.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    return Dataset(
        X=found.data / 16,
        y=found.target,
        groups=None,
        features=[f"pixel {i},{j}" for i in range(8) for j in range(8)],
        target="digit",
        licence="digits: CC BY 4.0 (UCI Machine Learning Repository), a copy in scikit-learn; not in fedpoint",
        source="Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, its test set; scikit-learn",
    )


@checked
def fashion_mnist(folder: str | Path | None = None) -> Dataset:
    """70,000 pictures of clothes, 28 x 28 pixels from 0 to 1 in single precision (Debian dataset-fashion-mnist).

    y is 0 to 9, named in `fedpoint.data.images.CLOTHES`; extra["test"] is True for the 10,000 to test on. Nobody's by
    nature: groups is None. Xiao, Rasul and Vollgraf (2017), "Fashion-MNIST: a novel image dataset for benchmarking
    machine learning algorithms", arXiv:1708.07747.

    Args:
        folder: where the four files *-ubyte.gz are, if not at Debian's place.
    """
    place = FOLDER if folder is None else Path(folder)
    parts = [(_idx(place / f"{part}-images-idx3-ubyte.gz"), _idx(place / f"{part}-labels-idx1-ubyte.gz"))
             for part in ("train", "t10k")]  # fmt: skip
    X = np.concatenate([images.reshape(len(images), -1) for images, _ in parts]).astype(np.float32)
    X /= 255
    return Dataset(
        X=X,
        y=np.concatenate([labels for _, labels in parts]).astype(int),
        groups=None,
        features=[f"pixel {i},{j}" for i in range(28) for j in range(28)],
        target="piece of clothing",
        licence="Fashion-MNIST: MIT, (c) 2017 Zalando SE, read from Debian's dataset-fashion-mnist; not in fedpoint",
        source="Xiao, Rasul and Vollgraf (2017), arXiv:1708.07747",
        extra={"test": np.repeat([False, True], [len(labels) for _, labels in parts])},
    )


def _idx(path: Path) -> np.ndarray:
    """An array of bytes in the IDX format: a word that ends with the number of axes, their lengths, the numbers."""
    try:
        with open_file(path) as file:
            raw = gzip.GzipFile(fileobj=file).read(LARGEST)
    except FileNotFoundError:
        raise FedpointError(
            f"there is no {path}: apt-get install dataset-fashion-mnist, or give folder= with its four files"
        ) from None
    except (OSError, EOFError) as error:
        raise FedpointError(f"{path} cannot be read: {error}") from None
    axes = raw[3] if len(raw) > 4 and raw[:3] == b"\0\0\x08" else 0
    shape = tuple(np.frombuffer(raw, ">u4", axes, 4).tolist()) if len(raw) >= 4 + 4 * axes else ()
    if not axes or len(raw) != 4 + 4 * axes + int(np.prod(shape)):
        raise FedpointError(f"{path} is not a Fashion-MNIST file: it should hold bytes in the IDX format")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)
