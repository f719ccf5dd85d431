"""Run model families or features on a virtual GPU in this process; each stage is printed as a line of JSON.

`python -m benchmarks.virtual.public.child family inside llama mixtral` runs families whose modules are first imported
inside the block, and `... feature before compile` a feature whose modules are imported before the virtual GPU exists.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
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
    kind, when, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    make_program = feature_program if kind == "feature" else family_program
    programs = [make_program(name) for name in names]
    imported = {program.name for program in programs if when == "before" and program.imports()}
    with gpulab.virtual_gpu(GPU):
        for program in programs:
            if program.name in imported or (when == "inside" and program.imports()):
                program.play()


@dataclass(frozen=True)
class Program:
    """What is imported and run for one name."""

    name: str
    load: Callable[[], object]
    play: Callable[[], object]

    def imports(self) -> bool:
        """Import the modules; return whether that worked."""
        return report_stage(self.name, "imports", self.load)


def feature_program(name: str) -> Program:
    """Return the program of a feature or trainer."""
    features = importlib.import_module("benchmarks.virtual.public.features")
    run = features.FEATURES[name]
    return Program(name, lambda: features.load(name), lambda: report_stage(name, "trains", run))


def family_program(name: str) -> Program:
    """Return the program of a model family."""
    family = FAMILIES[name]
    return Program(name, lambda: load_classes(name, family), lambda: run_family(name, family))


def load_classes(name: str, family: Family) -> None:
    """Import the modules of a model family, and its classes, which Transformers looks up when they are first used."""
    for part in ("configuration", "modeling"):
        importlib.import_module(f"transformers.models.{name}.{part}_{name}")
    import transformers

    getattr(transformers, family.model), getattr(transformers, family.config)


def run_family(name: str, family: Family) -> None:
    """Train a small model of the family for two steps, then let it write a few tokens."""
    models: list[Any] = []
    if not report_stage(name, "builds", lambda: models.append(build(family))):
        return
    report_stage(name, "trains", lambda: train(models[0], family))
    if family.generates:
        report_stage(name, "generates", lambda: generate(models[0], family))


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


def report_stage(name: str, stage: str, action: Callable[[], object]) -> bool:
    """Run a stage and print its outcome; return whether it worked."""
    print(json.dumps({"name": name, "stage": stage, "outcome": "begun"}), flush=True)
    try:
        action()
    except Exception as error:  # whatever a public program raises is the result of the stage
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
        outer = [line for frame, line in zip(frames, lines, strict=True) if "/gpulab/" not in frame.filename]
        outcome = "refused" if isinstance(error, GpulabError) else "failed"
        message = f"{type(error).__name__}: {error}"[:600]
        result = {"name": name, "stage": stage, "outcome": outcome, "error": message, "line": (outer or lines)[-1]}
        print(json.dumps(result), flush=True)
        traceback.print_exc()
        return False
    print(json.dumps({"name": name, "stage": stage, "outcome": "works"}), flush=True)
    return True


if __name__ == "__main__":
    main()
