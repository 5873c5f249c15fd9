"""A small convolutional network: each convolution looks at 3x3 pixels, and halves the picture for the next."""

from math import isqrt

from torch import Tensor, nn

from ringwide.errors import ConfigError


class Pictures(nn.Module):
    """Samples as channels of rows of pixels, whatever they come as."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.reshape(len(inputs), *self.shape)


def cnn(inputs: tuple[int, ...], channels: tuple[int, ...], outputs: int) -> nn.Sequential:
    before, height, width = picture_shape(inputs)
    layers: list[nn.Module] = [Pictures((before, height, width))]
    for after in channels:
        layers += [nn.Conv2d(before, after, kernel_size=3, padding=1), nn.ReLU()]
        if min(height, width) > 1:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        before = after
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * height * width, outputs))


def picture_shape(inputs: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width."""
    match inputs:
        case (channels, height, width):
            return channels, height, width
        case (height, width):
            return 1, height, width
        case (pixels,) if isqrt(pixels) ** 2 == pixels:
            return 1, isqrt(pixels), isqrt(pixels)
    raise ConfigError(
        f"training.model: 'cnn': samples of shape {inputs} are no pictures; they should be (channels, height, width),"
        " (height, width) or the pixels of a square"
    )
