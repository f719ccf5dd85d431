"""The vendor of a GPU, by its name."""

from __future__ import annotations


def is_amd(name: str) -> bool:
    """Whether a GPU of this name is made by AMD."""
    return "AMD" in name or "Radeon" in name or "Instinct" in name or name.startswith("gfx")


def is_amd_instinct(name: str) -> bool:
    """Whether a GPU of this name is an AMD data-centre GPU, not a gaming card."""
    return is_amd(name) and "Instinct" in name
