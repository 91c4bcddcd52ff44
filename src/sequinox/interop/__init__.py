"""Weights from and to PyTorch."""

from .._room import close_room as _close_room
from ._modules import from_torch as from_torch
from ._weights import load_torch as load_torch, save_safetensors as save_safetensors, to_torch as to_torch

_close_room(__name__)
