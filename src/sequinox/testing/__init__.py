"""Checking that a layer keeps the promises of the contract."""

from ._check import check_layer as check_layer
