"""Run one model family or feature on a virtual GPU in this process; each stage is printed as a line of JSON.

`python -m benchmarks.virtual.public.child family llama inside` runs a family whose module is first imported inside the
block, and `... feature compile before` a feature whose modules are imported before the virtual GPU exists.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gpulab
from benchmarks.virtual.public.families import Family
from benchmarks.virtual.public.registry import FAMILIES
from gpulab.errors import GpulabError

STEPS, NEW_TOKENS = 2, 6
GPU = "h100"


def main() -> None:
    """Run what the arguments name."""
    kind, name, when = sys.argv[1:4]
    warnings.simplefilter("ignore")
    if kind == "feature":
        features = importlib.import_module("benchmarks.virtual.public.features")
        run_stages(when, lambda: features.load(name), lambda: report_stage("trains", features.FEATURES[name]))
    else:
        family = FAMILIES[name]
        run_stages(when, lambda: load_classes(name, family), lambda: run_family(family))


def run_stages(when: str, load: Callable[[], Any], play: Callable[[], object]) -> None:
    """Import the module before the virtual GPU exists or inside its block, then play the program there."""
    if when == "before" and not report_stage("imports", load):
        return
    with gpulab.virtual_gpu(GPU):
        if when == "inside" and not report_stage("imports", load):
            return
        play()


def load_classes(name: str, family: Family) -> None:
    """Import the modules of a model family, and its classes, which Transformers looks up when they are first used."""
    for part in ("configuration", "modeling"):
        importlib.import_module(f"transformers.models.{name}.{part}_{name}")
    import transformers

    getattr(transformers, family.model), getattr(transformers, family.config)


def run_family(family: Family) -> None:
    """Train a small model of the family for two steps, then let it write a few tokens."""
    models: list[Any] = []
    if not report_stage("builds", lambda: models.append(build(family))):
        return
    report_stage("trains", lambda: train(models[0], family))
    if family.generates:
        report_stage("generates", lambda: generate(models[0], family))


def build(family: Family) -> Any:
    """Return a small model of the family on the GPU."""
    import transformers

    config = getattr(transformers, family.config)(**family.sizes)
    return getattr(transformers, family.model)(config).cuda()


def inputs_on_gpu(family: Family) -> dict[str, Any]:
    """Return the inputs of a step, moved to the GPU as a training loop does."""
    inputs = family.inputs(torch)
    return {name: value.to("cuda") if hasattr(value, "to") else value for name, value in inputs.items()}


def train(model: Any, family: Family) -> None:
    """Forward, loss, backward and optimizer step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=family.autocast):
            loss = model(**inputs_on_gpu(family)).loss
        loss.backward()
        optimizer.step()
    assert loss.device.type == "cuda"
    assert loss.dim() == 0


def generate(model: Any, family: Family) -> None:
    """Let the model write tokens."""
    model.eval()
    inputs = {name: value for name, value in inputs_on_gpu(family).items() if name not in ("labels", "return_loss")}
    prompt = inputs.get("input_ids")
    out = model.generate(**inputs, max_new_tokens=NEW_TOKENS)
    if prompt is not None and not model.config.is_encoder_decoder:
        assert out.shape == (prompt.shape[0], prompt.shape[1] + NEW_TOKENS), tuple(out.shape)


def report_stage(stage: str, action: Callable[[], Any]) -> bool:
    """Run a stage and print its outcome; return whether it worked."""
    print(json.dumps({"stage": stage, "outcome": "begun"}), flush=True)
    try:
        action()
    except Exception as error:  # whatever a public program raises is the result of the stage
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
        outer = [line for frame, line in zip(frames, lines, strict=True) if "/gpulab/" not in frame.filename]
        outcome = "refused" if isinstance(error, GpulabError) else "failed"
        result = {"stage": stage, "outcome": outcome, "error": f"{type(error).__name__}: {error}"[:600],
                  "line": (outer or lines)[-1]}  # fmt: skip
        print(json.dumps(result), flush=True)
        traceback.print_exc()
        return False
    print(json.dumps({"stage": stage, "outcome": "works"}), flush=True)
    return True


if __name__ == "__main__":
    main()
