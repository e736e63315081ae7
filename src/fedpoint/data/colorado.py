"""Temperatures of stations in Colorado and around it, month by month for a century."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.data.dataset import Dataset, encoded, package
from fedpoint.graphs.network import Network

FILE = Path("/usr/lib/R/site-library/fields/data/COmonthlyMet.rda")  # where Debian puts it
WHAT = {"tmax": "mean daily maximum, °C", "tmin": "mean daily minimum, °C"}
KNOWN = 5  # neighbours of a station in the network


@checked
def colorado(what: str = "tmax", path: str | Path | None = None) -> Dataset:
    """Monthly temperatures of 376 stations, 1895 to 1997, with their coordinates (extra `data`, Debian r-cran-fields).

    y is the month's mean of daily maxima (or minima) in °C; columns are the seasons, cos and sin of the year and of
    half of it, and decades from 1946 on: five numbers and a constant are a station's climate. Months that were not
    measured are left out. extra has year, month, longitude, latitude and elevation (m) of every row; network joins each
    station to its five nearest.

    Args:
        what: "tmax" or "tmin".
        path: the file COmonthlyMet.rda of the R package fields, where it is not at Debian's place.
    """
    if what not in WHAT:
        raise FedpointError(f"colorado: unknown what {what!r}: {nearest(str(what), tuple(WHAT))}")
    file = FILE if path is None else Path(path)
    if not file.is_file():
        raise FedpointError(
            f"there is no {file}: apt-get install --no-install-recommends r-cran-fields; or, without R, apt-get "
            "download r-cran-fields, dpkg-deb -x r-cran-fields_*.deb fields, and give path= the COmonthlyMet.rda in it"
        )
    found = package("rdata").read_rda(str(file))
    values = np.asarray(found[f"CO.{what}"], dtype=float)  # (years, months, stations)
    station, year, month = np.nonzero(np.isfinite(values.transpose(2, 0, 1)))
    names = np.asarray(found["CO.id"], dtype=str)
    place, height = np.asarray(found["CO.loc"], dtype=float), np.asarray(found["CO.elev"], dtype=float)
    angle = 2 * np.pi * month / 12
    years = np.asarray(found["CO.years"], dtype=int)[year]
    X, features = encoded(
        {
            "cos year": np.cos(angle),
            "sin year": np.sin(angle),
            "cos half year": np.cos(2 * angle),
            "sin half year": np.sin(2 * angle),
            "decades from 1946": (years - 1946) / 10,
        }
    )
    flat = place * [np.cos(np.radians(39)), 1.0]  # degrees of equal length
    near = Network.knn(flat, KNOWN)
    network = Network(near.edges, near.weights, names.tolist())
    network.positions = flat
    return Dataset(
        X=X,
        y=values[year, month, station],
        groups=names[station],
        features=features,
        target=WHAT[what],
        licence="COmonthlyMet: R package fields, GPL (>= 2), read from Debian's r-cran-fields; not in fedpoint",
        source="the Colorado subset of monthly observations in the conterminous US, 1895 to 1997 (UCAR), in the R "
        "package fields (Nychka, Furrer, Paige and Sain)",
        extra={
            "year": years,
            "month": month + 1,
            "longitude": place[station, 0],
            "latitude": place[station, 1],
            "elevation": height[station],
        },
        network=network,
    )
