"""What is trained, on what, and how."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

LayerSize = Annotated[int, Field(ge=1, le=65_536)]


class TrainingConfig(BaseModel):
    """One training run. The same on every rank: what differs between ranks is only the share of the data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Literal["mlp"] = Field(
        default="mlp", description="The network: mlp, fully connected layers with ReLU between."
    )
    hidden_sizes: tuple[LayerSize, ...] = Field(
        default=(128,), max_length=32, description="The width of each hidden layer, from the input to the output."
    )
    data: Literal["digits"] = Field(
        default="digits", description="scikit-learn's 1,797 handwritten digits, 8x8 pixels."
    )
    batch_size: int = Field(default=16, ge=1, le=1_000_000, description="Samples for each node in each step.")
    learning_rate: float = Field(default=0.1, gt=0, le=100, allow_inf_nan=False, description="The step size of SGD.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="How much of the last step SGD keeps.")
    epochs: int = Field(default=10, ge=1, le=1_000_000, description="Passes over all the training samples.")
    seed: int = Field(
        default=0, ge=0, le=2**31 - 1, description="Decides the first parameters and the order of the samples."
    )
