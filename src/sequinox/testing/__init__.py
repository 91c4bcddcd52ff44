"""Checking that a layer keeps the promises of the contract."""

from .._room import close_room as _close_room
from ._check import check_layer as check_layer

_close_room(__name__)
