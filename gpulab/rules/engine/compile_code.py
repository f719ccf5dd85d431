"""Code that compiles the user's own models."""

from __future__ import annotations

from gpulab.rules.engine.evidence import Evidence


def compile_code(evidence: Evidence, comment: str = "", options: str = "") -> str:
    """Return a line for each trained model that is not compiled yet, has a forward() and is in a variable.

    `comment` follows the first line; `options` follow the model: ', mode="reduce-overhead"'.
    """
    models = evidence.run.models
    runs_by_forward = [model for model in models if not model.compiled and model.has_forward is not False]
    names = list(dict.fromkeys(model.name for model in runs_by_forward if model.name))
    if models and not names:
        return ""
    lines = [f"{name} = torch.compile({name}{options})" for name in names or [evidence.names.model]]
    lines[0] += f"  # {comment}" if comment else ""
    return "\n".join(["import torch", "", *lines])
