"""The convolutional network of Continual ImageNet: three convolutions, each with pooling, and three linear layers.

Dohare, Hernandez-Garcia, Lan, Rahman, Mahmood & Sutton: Loss of Plasticity in Deep Continual Learning, Nature 2024; used
again by L2-ER, appendix H.1, with 2000 tasks of two classes and images of 32x32.

That listing does not say how the convolutions are padded. In the code of the first paper they are not padded, which is the
default here: the last pooling reduces images of 32x32 to 2x2. In the released code of L2-ER they are padded, by its
framework's default, and the last pooling leaves 4x4: padded=True, 373,826 parameters.

L2-ER does not say how weights are initialised, either. Its released code uses its framework's default, a LeCun normal
distribution and zero biases: init="lecun".
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from .parts import Activation, Init, Initialised, Norm, check_sizes, dense_layers, make_activation, make_norm, width_after


class ConvNet(Initialised):
    """Convolutions, each with activation and 2x2 max-pooling, then linear layers, numbered as in the paper's listing.

    size: height and width of the images.
    channels, kernels: one of each per convolution.
    hidden: widths of the linear layers before the last.
    padded: whether convolutions keep the size of their input.
    norm: after each convolution; the papers have none.
    init: how weights are initialised; see `parts.initialise_`.

    >>> sum(parameter.numel() for parameter in ConvNet().parameters())
    177218
    """

    def __init__(
        self,
        classes: int = 2,
        *,
        image_channels: int = 3,
        size: int = 32,
        channels: Sequence[int] = (32, 64, 128),
        kernels: Sequence[int] = (5, 3, 3),
        hidden: Sequence[int] = (128, 128),
        activation: Activation = "relu",
        norm: Norm = "none",
        padded: bool = False,
        init: Init = "default",
    ) -> None:
        if len(channels) != len(kernels):
            raise ValueError(
                f"channels={list(channels)} and kernels={list(kernels)} differ in length: pass one of each per convolution"
            )
        check_sizes(channels=channels, kernels=kernels, hidden=hidden, classes=classes)
        layers: list[nn.Module] = []
        width, side = image_channels, size
        for made, kernel in zip(channels, kernels, strict=True):
            # A norm would remove a bias before it.
            layers += [nn.Conv2d(width, made, kernel, padding="same" if padded else 0, bias=norm == "none")]
            layers += [make_norm(norm, made, images=True)] if norm != "none" else []
            layers += [make_activation(activation), nn.MaxPool2d(2)]
            width, side = width_after(activation, made), (side if padded else side - kernel + 1) // 2
            if side < 1:
                raise ValueError(
                    f"images of {size}x{size} are too small for convolutions of {list(kernels)} with a pooling after each: "
                    "use larger images, smaller kernels, fewer convolutions, or padded=True"
                )
        super().__init__(*layers, *dense_layers(width * side * side, hidden, classes, activation), init=init)
