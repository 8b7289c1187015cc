"""Seeds without state: every random draw names what it is for, so that a resumed run draws what the unbroken one drew."""

import hashlib

import torch


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from the name of a draw, e.g. `derive_seed(cfg.seed, "sampling", step)`."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def generator(*parts: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh torch generator seeded with `derive_seed(*parts)`."""
    return torch.Generator(device).manual_seed(derive_seed(*parts))
