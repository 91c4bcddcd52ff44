"""Weights from and to PyTorch."""

from ._modules import from_torch as from_torch
from ._weights import load_torch as load_torch, save_safetensors as save_safetensors, to_torch as to_torch
