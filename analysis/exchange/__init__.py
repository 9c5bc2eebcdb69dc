"""Read results of other tools, write the requests of runs, and compare runs side by side."""

from analysis.exchange.exporting import FORMATS, export
from analysis.exchange.foreign import Foreign
from analysis.exchange.readers import is_foreign, load_foreign
from analysis.exchange.side_by_side import CapacityRatio, compare

__all__ = ["FORMATS", "CapacityRatio", "Foreign", "compare", "export", "is_foreign", "load_foreign"]
