"""Read results of other tools, write the requests of runs, and compare runs side by side."""

from analysis.exchange.compared import CapacityRatio, compare, is_foreign, load_foreign
from analysis.exchange.exporting import FORMATS, export
from analysis.exchange.foreign import Foreign

__all__ = ["FORMATS", "CapacityRatio", "Foreign", "compare", "export", "is_foreign", "load_foreign"]
