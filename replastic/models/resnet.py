"""ResNet-18 for 32x32 images: a 3x3 stem without pooling, as FIRE and L2-ER use it on CIFAR.

FIRE's form has one hidden layer of 512 units before the classifier (hidden=[512], 11.44 M parameters for ten classes).
L2-ER's form has two such layers, and biases in its convolutions. L2-ER's text does not say how weights are initialised; its
released code initialises by fan-out, with zero biases: init="kaiming_fan_out".
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .parts import Activation, Init, Norm, check_sizes, dense_layers, initialise_, make_activation, make_norm, width_after


class ResNet(nn.Module):
    """Basic blocks, average pooling, linear layers.

    init: how weights are initialised; see `parts.initialise_`.

    >>> sum(parameter.numel() for parameter in ResNet().parameters())
    11436618
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        image_channels: int = 3,
        widths: Sequence[int] = (64, 128, 256, 512),
        blocks: Sequence[int] = (2, 2, 2, 2),
        hidden: Sequence[int] = (512,),
        activation: Activation = "relu",
        norm: Norm = "batch",
        bias: bool = False,
        init: Init = "default",
    ) -> None:
        super().__init__()
        if len(widths) != len(blocks):
            raise ValueError(f"widths={list(widths)} and blocks={list(blocks)} differ in length: pass one of each per stage")
        if not widths:
            raise ValueError("widths=[] and blocks=[]: pass at least one stage")
        check_sizes(widths=widths, blocks=blocks, hidden=hidden, classes=classes)
        self.stem = nn.Sequential(
            nn.Conv2d(image_channels, widths[0], 3, padding=1, bias=bias),
            make_norm(norm, widths[0], images=True),
            make_activation(activation),
        )
        stages: list[nn.Module] = []
        width = width_after(activation, widths[0])
        for stage, (channels, count) in enumerate(zip(widths, blocks, strict=True)):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(BasicBlock(width, channels, stride, activation, norm, bias))
                width = width_after(activation, channels)
        self.blocks = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Sequential(*dense_layers(width, hidden, classes, activation))
        self.init = init
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw weights by `init`. When a model is re-initialised, each layer's own reset_parameters() comes first."""
        initialise_(self, self.init)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.blocks(self.stem(images))))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a skip connection, which is a 1x1 convolution if the shape changes."""

    def __init__(self, width: int, channels: int, stride: int, activation: Activation, norm: Norm, bias: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, channels, 3, stride, padding=1, bias=bias)
        self.norm1 = make_norm(norm, channels, images=True)
        self.act1 = make_activation(activation)
        self.conv2 = nn.Conv2d(width_after(activation, channels), channels, 3, padding=1, bias=bias)
        self.norm2 = make_norm(norm, channels, images=True)
        self.act2 = make_activation(activation)
        same = width == channels and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(width, channels, 1, stride, bias=bias), make_norm(norm, channels, images=True))
        )

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x)))))
        return self.act2(branch + self.shortcut(x))
