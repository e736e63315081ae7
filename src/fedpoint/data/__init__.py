"""Tables of one's own, and real data from packages that hold them: nothing is downloaded at run time."""

from fedpoint.data.colorado import colorado
from fedpoint.data.dataset import Dataset
from fedpoint.data.dialysis import dialysis
from fedpoint.data.images import digits, fashion_mnist
from fedpoint.data.lending_club import lending_club
from fedpoint.data.on_disk import on_disk
from fedpoint.data.partitions import partition
from fedpoint.data.spread import Spread, spread
from fedpoint.data.states import Panel, contiguity, produc
from fedpoint.data.tables import Table, read_table
from fedpoint.problems.stored import StoredRows

__all__ = [
    "Dataset",
    "Panel",
    "Spread",
    "StoredRows",
    "Table",
    "colorado",
    "contiguity",
    "dialysis",
    "digits",
    "fashion_mnist",
    "lending_club",
    "on_disk",
    "partition",
    "produc",
    "read_table",
    "spread",
]
