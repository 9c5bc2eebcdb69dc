"""The posterior of the capacity, computed from counted windows."""
