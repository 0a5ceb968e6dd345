"""The small convolutional network of Soft Weight Rescaling: two 5x5 convolutions of 16 channels, then 100 hidden units.

CNN-BN is the same network with norm="batch" after each convolution. Appendix D.1 does not say how images are downsampled;
here each convolution is followed by 2x2 max-pooling, as in LeNet. It does not say how weights are initialised, either; the
default is torch's.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from .parts import Activation, Init, Initialised, Norm, check_sizes, dense_layers, make_activation, make_norm, width_after


class CNN(Initialised):
    """Convolutions with norm, activation and pooling, then linear layers.

    size: height and width of the images.
    init: how weights are initialised; see `parts.initialise_`.

    >>> sum(parameter.numel() for parameter in CNN(3, 32, 10).parameters())
    48742
    """

    def __init__(
        self,
        image_channels: int,
        size: int,
        classes: int,
        *,
        channels: int = 16,
        convolutions: int = 2,
        kernel: int = 5,
        hidden: Sequence[int] = (100,),
        activation: Activation = "relu",
        norm: Norm = "none",
        init: Init = "default",
    ) -> None:
        check_sizes(channels=channels, convolutions=convolutions, kernel=kernel, hidden=hidden, classes=classes)
        layers: list[nn.Module] = []
        width, side = image_channels, size
        for _ in range(convolutions):
            # A norm would remove a bias before it.
            layers += [nn.Conv2d(width, channels, kernel, bias=norm == "none")]
            layers += [make_norm(norm, channels, images=True)] if norm != "none" else []
            layers += [make_activation(activation), nn.MaxPool2d(2)]
            width, side = width_after(activation, channels), (side - kernel + 1) // 2
        if side < 1:
            raise ValueError(f"images of {size}x{size} are too small for {convolutions} convolutions of {kernel}x{kernel}")
        super().__init__(*layers, *dense_layers(width * side * side, hidden, classes, activation), init=init)
