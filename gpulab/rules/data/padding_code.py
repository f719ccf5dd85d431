"""How to avoid padding: code that cuts batches to their longest row where that is exact, else words."""

from __future__ import annotations

from gpulab.rules.data.loader_code import change_loader
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.phrases import sentences
from gpulab.run import Loader, Machine

MIXED_FRAC = 0.1  # of the positions: so much padding within the longest rows makes grouping worth a sentence
_FIRST_SPAWNING = (3, 14)  # from this version of Python on, workers import the classes that they get, on Linux, too
_CUT_PADDING = '''class CutPadding:
    """Cuts off the positions at the end of a batch that are padding in all of its rows."""
    def __init__(self, collate_fn):
        self.collate_fn = collate_fn
    def __call__(self, samples):
        batch = self.collate_fn(samples)
        mask = batch["attention_mask"]
        length = int(mask.any(dim=0).nonzero().max()) + 1
        for name, value in batch.items():
            if value.shape == mask.shape:
                batch[name] = value[:, :length].contiguous()
        return batch
'''
_DYNAMIC_PADDING = (
    'Pad each batch only to its longest row. With tokenizers of Transformers: no padding="max_length", and '
    "collate_fn=DataCollatorWithPadding(tokenizer). Otherwise: torch.nn.utils.rnn.pad_sequence in a collate_fn."
)
_DYNAMIC_PADDING_OF_TRAINER = (
    'Tokenize without padding="max_length" and give the Trainer data_collator=DataCollatorWithPadding(tokenizer), '
    "which pads each batch only to its longest row. If your own code pads, pad in a data_collator of your own instead."
)
_GROUPING = (
    "Put samples of similar length into the same batch: a batch sampler that takes a few hundred shuffled samples, "
    "sorts them by length, cuts them into batches and shuffles these."
)
_GROUPING_OF_STREAM = (
    "Put samples of similar length into the same batch: in __iter__ of the dataset, collect a few hundred samples, "
    "sort them by length, cut them into groups of the batch size, and yield the groups in random order, "
    "sample by sample."
)
_GROUPING_OF_TRAINER = (
    'Put samples of similar length into the same batch: train_sampling_strategy="group_by_length" in '
    "TrainingArguments (group_by_length=True in versions of Transformers without it)."
)
_END_OF_DATASET = (
    "The Trainer then reads the whole dataset to learn its lengths: a dataset class of your own has to raise "
    "IndexError after its last sample, or training never starts."
)
_WITH_END = ("datasets", "torch")
# The Trainer and, for several ranks, Accelerate. Trainers with others, as of Sentence Transformers, ignore the setting.
_SAMPLERS_OF_TRAINER = (None, "BatchSampler", "BatchSamplerShard")


def padding_advice(loader: Loader, *, fixed: bool, mixed: float) -> str:
    """Return what to do about a fixed length, and about different lengths (`mixed`: padding from these, 0-1).

    fixed: most of the padding lies beyond the longest row of a batch. Otherwise, a fixed length must go, too: similar
    lengths in a batch save nothing as long as each batch has the same length.
    """
    in_trainer = loader.framework == "transformers"
    is_fixed = fixed or bool(loader.same_row_length)
    dynamic = _DYNAMIC_PADDING_OF_TRAINER if in_trainer else _DYNAMIC_PADDING
    groups = in_trainer and not loader.iterable and loader.batch_sampler in _SAMPLERS_OF_TRAINER
    by_hand = _GROUPING_OF_STREAM if loader.iterable else _GROUPING  # an iterable dataset takes no sampler
    grouping = _GROUPING_OF_TRAINER if groups else by_hand
    is_mixed = mixed >= MIXED_FRAC or not fixed
    return sentences(
        dynamic if is_fixed else "",
        grouping if is_mixed else "",
        _END_OF_DATASET if is_mixed and groups and loader.dataset_library not in _WITH_END else "",
    )


def cut_padding_code(evidence: Evidence, loader: Loader) -> str:
    """Return code that cuts each batch to its longest row; "" unless the attention mask says where that is.

    The batches must be dicts of tensors padded on the right, and the DataLoader must be one that can be rebuilt.
    """
    if not loader.can_be_cut or loader.name is None or not _workers_get_classes(loader, evidence.run.machine):
        return ""
    change = change_loader(evidence, loader, {}, collate="CutPadding({collate})")
    return f"{_CUT_PADDING}\n{change.code}" if change.code else ""


def _workers_get_classes(loader: Loader, machine: Machine) -> bool:
    """Whether workers, if there are any, are forked: others cannot import a class that a notebook defines."""
    if not loader.workers:
        return True
    version = tuple(int(part) for part in (machine.python or "").split(".")[:2] if part.isdecimal())
    is_linux = (machine.platform or "").startswith("Linux")
    return is_linux and () < version < _FIRST_SPAWNING and "multiprocessing_context" not in loader.other_settings
