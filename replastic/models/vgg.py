"""VGG-16 for Tiny ImageNet: thirteen 3x3 convolutions in five stages with pooling after each, then three linear layers.

Simonyan & Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015, in two forms:
    FIRE                    hidden=(1024, 1024), batch norm, no dropout: 18.08 M parameters for 200 classes
    Soft Weight Rescaling   hidden=(4096, 4096), no dropout (appendix D.1): 40.72 M

The second paper does not say whether its VGG-16 has batch norm. It uses two coefficients for it, one for features and one
for the classifier, as it does only for networks with batch norm (appendix D.2), so the default is norm="batch"; norm="none"
is the network of 2015. It does not say what the head reads, either. Here, as in FIRE, that is the 2x2 positions that five
poolings leave of 64x64 images, rather than the 7x7 of torchvision. Convolutions before a norm have biases, as in FIRE's code
and in torchvision, although a batch norm removes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .parts import Activation, Norm, check_sizes, dense_layers, make_activation, make_norm, width_after


class VGG(nn.Module):
    """Stages of 3x3 convolutions that end in 2x2 max-pooling, then linear layers.

    size: height and width of the images; a pooling of an odd side drops its last row.
    widths, convolutions: channels and number of convolutions of each stage.

    >>> sum(parameter.numel() for parameter in VGG().parameters())
    18075912
    """

    def __init__(
        self,
        classes: int = 200,
        *,
        image_channels: int = 3,
        size: int = 64,
        widths: Sequence[int] = (64, 128, 256, 512, 512),
        convolutions: Sequence[int] = (2, 2, 3, 3, 3),
        hidden: Sequence[int] = (1024, 1024),
        activation: Activation = "relu",
        norm: Norm = "batch",
        bias: bool = True,
    ) -> None:
        super().__init__()
        if len(widths) != len(convolutions):
            raise ValueError(
                f"widths={list(widths)} and convolutions={list(convolutions)} differ in length: pass one of each per stage"
            )
        check_sizes(widths=widths, convolutions=convolutions, hidden=hidden, classes=classes)
        side = size >> len(widths)
        if side < 1:
            raise ValueError(
                f"images of {size}x{size} are too small for {len(widths)} poolings: use images of {2 ** len(widths)} or "
                "more, or fewer widths and convolutions"
            )
        features: list[nn.Module] = []
        width = image_channels
        for channels, count in zip(widths, convolutions, strict=True):
            for _ in range(count):
                features += [nn.Conv2d(width, channels, 3, padding=1, bias=bias)]
                features += [make_norm(norm, channels, images=True)] if norm != "none" else []
                features += [make_activation(activation)]
                width = width_after(activation, channels)
            features += [nn.MaxPool2d(2)]
        self.features = nn.Sequential(*features)
        self.head = nn.Sequential(*dense_layers(width * side * side, hidden, classes, activation))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))
