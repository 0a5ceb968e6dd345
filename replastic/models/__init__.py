"""One architecture, one file."""

from .cnn import CNN as CNN
from .mlp import MLP as MLP
from .resnet import ResNet as ResNet
