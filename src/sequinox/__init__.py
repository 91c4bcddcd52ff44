"""sequinox: sequence layers for Equinox that step and unroll with the same weights."""

__version__ = "0.1.0"
