"""Code that compiles the user's own models."""

from __future__ import annotations

from gpulab.rules.engine.evidence import Evidence


def compile_code(evidence: Evidence, comment: str = "", options: str = "") -> str:
    """Return a line for each model that an optimizer trains, that is not compiled yet and that a variable holds.

    `comment` follows the first line; `options` follow the model: ', mode="reduce-overhead"'.
    """
    models = evidence.run.models
    names = list(dict.fromkeys(model.name for model in models if model.name and not model.compiled))
    if models and not names:
        return ""
    lines = [f"{name} = torch.compile({name}{options})" for name in names or [evidence.names.model]]
    lines[0] += f"  # {comment}" if comment else ""
    return "\n".join(["import torch", "", *lines])
