"""Configuration of a training run: model, data, optimizer, limits.

It is one flat block. Keys of one model or one kind of data are refused with another: a setting without effect is a
mistake.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ByteSize, Field, WithJsonSchema, model_validator

from ringwide.config.validation import Settings

MODELS = ("linear", "mlp", "cnn", "transformer")
DATA = ("clusters", "digits", "stdlib")
LOSSES = ("cross_entropy", "mse")
CLASS_KEYS = ("class_weights", "ignore_index", "label_smoothing")
DATA_OF_MODEL = {
    "linear": ("clusters", "digits"),
    "mlp": ("clusters", "digits"),
    "cnn": ("digits",),
    "transformer": ("stdlib",),
}
DEFAULT_EPOCHS = 10
IMPORT_PATH = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"


def is_import_path(text: str) -> bool:
    return re.fullmatch(IMPORT_PATH, text) is not None


def _one_of(known: tuple[str, ...]) -> Any:
    def check(name: str) -> str:
        if name not in known and not is_import_path(name):
            raise ValueError(f"should be {', '.join(known)}, or a function of yours, as in 'package.module:function'")
        return name

    schema = {"anyOf": [{"enum": list(known)}, {"type": "string", "pattern": f"^{IMPORT_PATH}$"}]}
    return Annotated[str, AfterValidator(check), WithJsonSchema(schema)]


LayerSize = Annotated[int, Field(ge=1, le=65_536)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Rate = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
ClassDim = Literal["auto", 1, -1]
ClassWeight = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Options = dict[str, Any]


class TrainingConfig(Settings):
    """Training run. It is the same on every rank; only the share of the data differs."""

    model: _one_of(MODELS) = Field(  # type: ignore[valid-type]
        default="mlp",
        description="linear, mlp, cnn, transformer, or `module:function` for your own: a function that returns a"
        " `torch.nn.Module`.",
    )
    hidden_sizes: tuple[LayerSize, ...] = Field(
        default=(128,), max_length=32, description="mlp: the width of each hidden layer, from the input on."
    )
    channels: tuple[LayerSize, ...] = Field(
        default=(16, 32),
        min_length=1,
        max_length=3,
        description="cnn: the channels of each convolution, from the input on.",
    )
    layers: int = Field(default=2, ge=1, le=100, description="transformer: how many blocks.")
    heads: int = Field(default=4, ge=1, le=128, description="transformer: attention heads of each block.")
    width: int = Field(default=128, ge=1, le=16_384, description="transformer: numbers for each character.")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="transformer: the share dropped in training.")
    model_options: Options = Field(default={}, description="Your own model: keyword arguments of its function.")

    data: _one_of(DATA) = Field(  # type: ignore[valid-type]
        default="digits",
        description="clusters (ten overlapping clouds of points, 128 numbers each), digits (scikit-learn's 1,797"
        " handwritten digits, 8x8 pixels), stdlib (the text of Python's standard library), or `module:function` for"
        " your own.",
    )
    context: int = Field(default=64, ge=2, le=65_536, description="stdlib: how many characters a sample has.")
    text_bytes: ByteSize = Field(
        default=ByteSize(4 * 1024**2), ge=1024, description="stdlib: how much of the text is used."
    )
    data_options: Options = Field(default={}, description="Your own data: keyword arguments of its function.")
    loss: _one_of(LOSSES) = Field(  # type: ignore[valid-type]
        default="cross_entropy",
        description="cross_entropy, mse, or `module:function` for your own: of outputs and targets, the mean, or the"
        " mean and its weight.",
    )
    class_weights: tuple[ClassWeight, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=1_000_000,
        description="cross_entropy: how much a target of each class counts; by default all count the same.",
    )
    ignore_index: int = Field(
        default=-100,
        description="cross_entropy: targets with this number count neither in the loss nor in the accuracy.",
    )
    label_smoothing: float = Field(
        default=0.0, ge=0, le=1, description="cross_entropy: the share of a target that is spread over all classes."
    )
    class_dim: ClassDim = Field(
        default="auto",
        description="Your own model with cross_entropy: the dimension of its outputs that has the classes: 1, as in"
        " torch, or -1, the last; auto: the one that fits the targets, and an error if both do.",
    )

    batch_size: int = Field(default=16, ge=1, le=1_000_000, description="Samples for each node in each batch.")
    accumulate_batches: int = Field(
        default=1, ge=1, le=10_000, description="Batches whose gradients a node adds up before the exchange: one step."
    )
    drop_last: bool = Field(
        default=False,
        description="Leave out the last, smaller step of an epoch, in which a node may have one sample or none: for"
        " models with batch normalisation.",
    )
    optimizer: Literal["sgd", "adam", "adamw"] = Field(default="sgd", description="Update rule.")
    learning_rate: float = Field(default=0.1, gt=0, le=100, allow_inf_nan=False, description="The size of a step.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="sgd: how much of the last step is kept.")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), description="adam, adamw: how much of the last mean and square is kept."
    )
    weight_decay: Rate = Field(default=0.0, description="How strongly parameters are pulled to zero.")
    clip_norm: Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Gradients of a step, averaged over all nodes, are scaled down to this norm if theirs is larger; a"
        " norm that is not finite ends the run.",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="How the learning rate decays, after the warm-up, to `final_learning_rate`."
    )
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000_000, description="Steps in which the learning rate rises.")
    decay_steps: Count | None = Field(
        default=None,
        description="Step at which the learning rate has decayed, after `warmup_steps`; by default the last one, if"
        " that is known.",
    )
    final_learning_rate: Rate = Field(default=0.0, description="linear, cosine: where the learning rate ends.")

    steps: Count | None = Field(default=None, description="Stop after so many steps.")
    epochs: Count | None = Field(
        default=None,
        description=f"Stop after so many passes over the samples; {DEFAULT_EPOCHS} if nothing else stops it.",
    )
    seconds: Annotated[float, Field(gt=0, le=31_536_000)] | None = Field(
        default=None, description="Stop after so many seconds of training."
    )
    evaluate_every_steps: Count | None = Field(
        default=None, description="Also evaluate on the held-out samples every so many steps, not only at the end."
    )
    check_every_steps: Count = Field(
        default=100,
        description="Compare the parameters of all nodes, to the bit, every so many steps; also after the 1st, 2nd,"
        " 4th, 8th ... step, before each checkpoint and at the end.",
    )
    seed: int = Field(
        default=0, ge=0, le=2**31 - 1, description="Determines the initial parameters and the order of the samples."
    )

    overlap: Literal["auto"] | bool = Field(
        default="auto",
        description="Exchange gradients while the backward pass still computes others; auto: if they fill more than"
        " one bucket.",
    )
    bucket_bytes: ByteSize = Field(
        default=ByteSize(4 * 1024**2), ge=1024, le=1024**3, description="Bytes of gradients in one bucket."
    )

    @property
    def epoch_limit(self) -> int | None:
        """Number of epochs after which to stop; None if only steps or seconds limit the run."""
        if self.epochs is None and self.steps is None and self.seconds is None:
            return DEFAULT_EPOCHS
        return self.epochs

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainingConfig":
        suitable = DATA_OF_MODEL.get(self.model)
        if suitable and self.data in DATA and self.data not in suitable:
            raise ValueError(
                f"model {self.model!r} cannot learn from data {self.data!r}; it needs {' or '.join(suitable)}"
            )
        for key, owner in _owners(self).items():
            if owner:
                raise ValueError(f"{key} belongs to {owner}; remove it")
        if self.model == "transformer" and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}; make it one")
        if self.class_weights is not None and not any(self.class_weights):
            raise ValueError("class_weights are all 0, so no target would count; make at least one larger")
        if self.class_weights is not None and self.label_smoothing and not all(self.class_weights):
            raise ValueError(
                f"label_smoothing {self.label_smoothing:g} spreads every target over all classes, also one of a class"
                " that does not count; make all class_weights larger than 0, or label_smoothing 0"
            )
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps {self.decay_steps} is not after warmup_steps {self.warmup_steps}: both count from the"
                " first step, and the learning rate cannot have decayed before it has risen;"
                f" make decay_steps larger than {self.warmup_steps} or warmup_steps smaller than {self.decay_steps}"
            )
        if self.schedule != "constant" and self.decay_steps is None and self.steps is None and self.epoch_limit is None:
            raise ValueError(f"schedule {self.schedule!r} must know when to end: add decay_steps, steps or epochs")
        return self


def _owners(config: TrainingConfig) -> dict[str, str]:
    """For each key that was set: the model, data or optimizer it belongs to, or "" if that is the one in use."""
    user_model, user_data = is_import_path(config.model), is_import_path(config.data)
    has_classes = config.loss == "cross_entropy"
    belongs = {
        "hidden_sizes": "" if config.model == "mlp" else "model 'mlp'",
        "channels": "" if config.model == "cnn" else "model 'cnn'",
        **dict.fromkeys(
            ("layers", "heads", "width", "dropout"), "" if config.model == "transformer" else "model 'transformer'"
        ),
        "model_options": "" if user_model else "a model of your own (module:function)",
        **dict.fromkeys(("context", "text_bytes"), "" if config.data == "stdlib" else "data 'stdlib'"),
        "data_options": "" if user_data else "data of your own (module:function)",
        **dict.fromkeys(CLASS_KEYS, "" if has_classes else "loss 'cross_entropy'"),
        "class_dim": "" if user_model and has_classes else "a model of your own with loss 'cross_entropy'",
        "momentum": "" if config.optimizer == "sgd" else "optimizer 'sgd'",
        "betas": "optimizer 'adam' or 'adamw'" if config.optimizer == "sgd" else "",
        "final_learning_rate": "schedule 'linear' or 'cosine'" if config.schedule == "constant" else "",
        "decay_steps": "schedule 'linear' or 'cosine'" if config.schedule == "constant" else "",
    }
    return {key: owner for key, owner in belongs.items() if key in config.model_fields_set}
