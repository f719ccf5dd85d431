"""What the hooks saw of the user's objects: DataLoaders, optimizers and models, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, fields

_MAX_AMOUNT = 2**53  # a wrong size makes a program ask for petabytes, which its error then says


class Described:
    """A description whose numbers are amounts: one that is negative, infinite or huge is unknown (None)."""

    def __post_init__(self) -> None:
        for field_ in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value = getattr(self, field_.name)
            if field_.default is None and type(value) in (int, float) and not 0 <= value <= _MAX_AMOUNT:
                object.__setattr__(self, field_.name, None)


@dataclass(frozen=True, kw_only=True)
class Loader(Described):
    """Settings of a DataLoader. None: unknown (a trace shows only whether it has workers)."""

    workers: int | None = None
    batch_size: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    prefetch_factor: int | None = None
    batches: int | None = None  # per epoch; None for an iterable of unknown length
    batch_sampler: str | None = None  # its class; PyTorch's own is "BatchSampler"
    iterable: bool | None = None  # whether the dataset is an IterableDataset, of which each worker yields every sample
    splits_samples: bool | None = None  # whether its __iter__ asks which worker it runs in, to yield a part of them
    auto_collation: bool | None = None  # whether it collates samples to batches; not with batch_size=None
    dataset: str | None = None  # its class name
    collate: str | None = None  # name of its collate function; PyTorch's own is "default_collate"
    batch_tensors: int | None = None  # tensors and arrays in the first batch
    batch_bytes: int | None = None  # their size
    worker_batch_ns: int | None = None  # mean time in which a forked worker loads a batch
    worker_wait_ns: int | None = None  # the mean part of it in which the worker waits: for a network, a disk or a lock
    worker_batch_cpu_ns: int | None = None  # mean CPU time of its main thread for a batch
    worker_starts: int | None = None  # how often its workers were started
    worker_start_ns: int | None = None  # the mean time for which the main process started them
    batch_objects: int | None = None  # other objects in it: strings, numbers
    padding_frac: float | None = None  # of the positions in some batches of tokens, 0-1
    padding_to_longest_frac: float | None = None  # the part of it beyond the longest row of each batch
    padding_in_groups_frac: float | None = None  # what is left of it if samples of similar length share a batch
    row_length: float | None = None  # mean number of positions of a row in these batches, with its padding
    same_row_length: bool | None = None  # whether several batches have equally long rows, and some only shorter samples
    can_be_cut: bool | None = None  # whether a batch may be cut to the tokens of its attention mask; see batch_padding
    ignore_index: int = -100  # of a cross-entropy loss in the user's variables, otherwise PyTorch's default
    ignored_frac: float | None = None  # share of the labels with this value in some batches, 0-1
    dataset_library: str | None = None  # the package of that class: "datasets", "torch"; the user's own is "__main__"
    kind: str | None = None  # class of the DataLoader; None if no variable holds it
    other_settings: tuple[str, ...] = ()  # names of its other arguments with a value of the user's: "timeout"
    framework: str | None = None  # the package whose training loop uses it: "transformers", "lightning", "accelerate"
    name: str | None = None  # the user's variable for the DataLoader
    function: str | None = None  # the function or method that has this variable; "" if it belongs to none
    dataset_name: str | None = None  # the user's variable for the dataset
    location: str | None = None  # file system type of its files, such as "nfs4"


@dataclass(frozen=True, kw_only=True)
class Optimizer(Described):
    """Settings of an optimizer. None: unknown."""

    kind: str  # its class: "AdamW"
    name: str | None = None  # the user's variable for it
    function: str | None = None  # the function or method that has this variable; "" if it belongs to none
    tensors: int | None = None  # number of parameter tensors it updates
    elements: int | None = None  # number of elements in them
    foreach: bool | None = None  # as set by the user; None: PyTorch decides
    fused: bool | None = None
    device: str | None = None  # device of its parameters: "cuda", "cpu", "cpu and cuda"
    accepts_sparse: bool | None = None  # it gives the same results with sparse gradients as with dense ones


@dataclass(frozen=True, kw_only=True)
class Model(Described):
    """A model that an optimizer trains. None: unknown."""

    kind: str  # its class: "ResNet"
    name: str | None = None  # the user's variable for it
    function: str | None = None  # the function or method that has this variable; "" if it belongs to none
    tensors: int | None = None
    bytes: int | None = None  # of its parameters
    dtypes: tuple[str, ...] = ()  # of its parameters, most frequent first: ("float32",)
    device: str | None = None
    compiled: bool | None = None
    untrained: int | None = None  # its parameter tensors that get gradients and that this optimizer does not update
    embedding_elements: int | None = None  # of its trained embedding tables whose gradients are dense
    embedding_rows: int | None = None  # of the largest of these tables
    depthwise_frac: float | None = None  # share of depthwise convolutions among its layers with weights
    has_forward: bool | None = None  # False: its class defines no forward(), so that code calls other methods of it
    image_convolutions: int | None = None  # its 2D convolutions; None also if it has convolutions of other dimensions
    channels_last: bool | None = None  # the memory format of their weights
    channel_group_norms: int | None = None  # layers like GroupNorm and InstanceNorm
    calls_view: bool | None = None  # it or its loop may call Tensor.view(), which channels_last tensors may refuse


@dataclass(frozen=True, kw_only=True)
class FrozenModel(Described):
    """A module that no optimizer trains, and whose weights stayed the same while the loop ran."""

    kind: str  # its class: "ResNet"
    name: str  # the user's expression for it: "model.backbone"
    tensors: int
    layers: str  # a letter for each layer with weights: see gpulab.capture.hooks.models.frozen_models
    depends_on_batch: bool  # it has BatchNorm or Dropout in train mode


@dataclass(frozen=True, kw_only=True)
class RepeatedInputs(Described):
    """A module that computed outputs again in the watched steps: its input, or rows of it, had occurred before."""

    kind: str  # its class: "Linear"
    name: str | None = None  # the user's expression for it: "model.encoder"
    location: str | None = None  # the line that calls it: "forward (model.py:31)"
    calls: int | None = None  # in a step: those that only repeat an earlier one, or that have equal rows
    step_frac: float | None = None  # time of the repeated work, without its backward pass, per time of the step, 0-1
    distinct_frac: float | None = None  # rows / rows of the input; None if calls are repeated as a whole
    with_gradient: bool = False  # autograd records the repeated work, so that the backward pass repeats it, too


@dataclass(frozen=True, kw_only=True)
class EvaluatedModule(Described):
    """A module that evaluations call, and training steps, too: outermost calls in watched parts of evaluations."""

    kind: str  # its class: "LanguageModel"
    name: str | None = None  # the user's expression for it: "model"
    sizes: tuple[float, float]  # of the first two dimensions of its first tensor; one of them is the batch
    call_ns: float
    training_sizes: tuple[float, float]  # in a training step
    training_call_ns: float  # forward pass
    has_time_first: bool = False  # a layer in it has batch_first=False
    evaluation_frac: float  # time of its calls, per time of the watched parts of evaluations, 0-1


@dataclass(frozen=True, kw_only=True)
class GrowingInput(Described):
    """A module that is called for a sequence which is one position longer in each call: outermost calls, watched parts.

    Its outputs for the earlier positions are computed again in each call, unless it gets a cache.
    """

    kind: str  # its class: "GPT"
    name: str | None = None  # the user's expression for it: "model"
    location: str | None = None  # the line that calls it: "generate (model.py:31)"
    calls: int
    least_positions: int
    most_positions: int
    call_ns: float  # median
    position_ns: tuple[float, float]  # how much longer a call takes per position: 95 % confidence interval
    sliding_calls: int = 0  # for as many positions: without the first one, with a new last one
    sliding_ns: float = 0.0  # time of all of these
    has_equal_outputs: bool | None = None  # of earlier positions, as in the call before; None if not compared
    parts_frac: float  # time of all these calls, per time of the watched parts, 0-1
    in_evaluations: bool = False  # the watched parts are those of evaluations
    run_samples: int | None = None  # of the main thread: all of the run
    samples: int | None = None  # those in code such as the watched parts; None in evaluations


SAME_INPUT, PARTS_OF_ONE = "the same tensor", "parts of one tensor"


@dataclass(frozen=True, kw_only=True)
class SeparateModules(Described):
    """Modules of one structure that a step calls one after another, and none of which needs the output of another."""

    kind: str  # their class: "Embedding"
    first: str | None = None  # the user's expression for one of them: "model.embeddings[0]"
    location: str | None = None  # the line that calls them: "forward (model.py:31)"
    modules: int
    calls: int  # of these modules in a step
    tensors: int  # parameter tensors in all of them
    inputs: str  # where their inputs come from: SAME_INPUT or PARTS_OF_ONE
    step_frac: float | None = None  # time of the calls, without their backward passes, per time of the step, 0-1
    separate_ns: int | None = None  # their layers in a step, forward and backward, as timed alone on this machine
    joined_ns: int | None = None  # one operator for each layer of all modules, in the same way


@dataclass(frozen=True, kw_only=True)
class DiscardedGradients(Described):
    """Gradients that backward passes for one optimizer compute of another one's parameters, and that are deleted."""

    model: str | None = None  # the user's variable for the module with these parameters: "generator"
    owner: str | None = None  # the optimizer with these parameters: "optimizer_G"
    optimizer: str | None = None  # the optimizer that steps after these backward passes: "optimizer_D"
    location: str | None = None  # the line that calls backward()
    passes: int | None = None  # such backward passes from one step of the other optimizer to its next one
    step_frac: float | None = None  # time of the part of these passes that computes them, per time of all steps, 0-1
    passed_through: bool = False  # that part comes before gradients that are used: the passes run through the model


@dataclass(frozen=True, kw_only=True)
class SparseOperand(Described):
    """A dense matrix of mostly zeros that a module got; its products were timed in both formats afterwards."""

    kind: str  # class of the module: "GraphConvolution"
    name: str | None = None  # the user's expression for the module: "model.gc1"
    matrix: str | None = None  # the user's variable for the matrix: "adj"
    location: str | None = None  # the line that calls the module
    rows: int | None = None
    columns: int | None = None
    zero_frac: float | None = None  # of the elements, 0-1
    constant: bool = False  # the same matrix in two steps, so that it can be converted before the loop
    calls: int | None = None  # per step
    step_frac: float | None = None  # time of these calls, without their backward passes, per time of the step, 0-1
    dense_ns: int | None = None  # of the products in these calls, forward and backward
    sparse_ns: int | None = None  # the same with a sparse tensor in COO format


@dataclass(frozen=True, kw_only=True)
class LayerTimes(Described):
    """Forward and backward passes of the layers of one step, measured on this machine after the recorded code."""

    layers: int  # calls per step that were measured, of linear, convolutional and recurrent layers in float32
    float32_ns: int | None = None
    bfloat16_ns: int | None = None  # under autocast, with inputs in float32 that are converted
    bfloat16_chained_ns: int | None = None  # under autocast, with inputs that are in bfloat16


@dataclass(frozen=True, kw_only=True)
class DropoutTimes(Described):
    """Forward and backward passes of the dropout of one step, measured on this machine after the recorded code."""

    calls: int  # per step that were measured, of nn.Dropout on the CPU
    bernoulli_ns: int | None = None  # as PyTorch computes them
    uniform_ns: int | None = None  # with uniform random numbers that are compared with the rate
