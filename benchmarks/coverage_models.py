"""Where the architectures of coverage.py come from: their names, a small model of each, and inputs that it takes."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from coverage_account import in_a_line
from torch import Tensor, nn

from replastic.measures.batch import arguments

MOST = 60_000_000  # parameters of what still counts as small
SAMPLES = 2
FACTORS = (32, 16, 8, 4, 1)  # that widths are divided by: the first that builds and takes inputs, else the first that builds

Inputs = Any


class NotBuilt(Exception):
    """A model that its library does not make, or not small: nothing that says something of replastic."""


@dataclass(frozen=True)
class Built:
    model: nn.Module
    inputs: Inputs | None
    problem: str = ""  # why none of the inputs that were tried is taken
    note: str = ""  # how it was made


@dataclass(frozen=True)
class Source:
    """Where architectures come from: their names, and how one is made."""

    names: Callable[[], list[str]]
    build: Callable[[str, torch.device], Built]


def first_taken(model: nn.Module, tries: Iterable[Inputs]) -> tuple[Inputs | None, str]:
    """The first of some inputs that the model takes, else None and what it said of the first of them."""
    problem = ""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for inputs in tries:
            try:
                torch.manual_seed(0)
                args, kwargs = arguments(inputs)
                model(*args, **kwargs)
            except Exception as error:
                problem = problem or in_a_line(error)
                continue
            return inputs, ""
    return None, problem or "no inputs are known for it"


def transformers_names() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def build_transformers(name: str, device: torch.device) -> Built:
    from transformers import CONFIG_MAPPING, AutoModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    kind: Any = None
    problems: list[str] = []
    without_inputs: Built | None = None
    for factor in FACTORS:
        try:
            kind = kind or CONFIG_MAPPING[name]
            config = kind(**Shrinking(factor).config(kind().to_dict()))
            if factor == 1:  # counted before memory is taken
                with torch.device("meta"):
                    size = sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())
                if size > MOST:
                    problems.append(f"has {size:,} parameters if its widths stay")
                    continue
            torch.manual_seed(0)
            model = AutoModel.from_config(config)
        except (Exception, SystemExit) as problem:
            problems.append(in_a_line(problem))
            continue
        model = model.to(device).float().eval()
        inputs, problem = first_taken(model, transformers_inputs(model, config, device))
        built = Built(model, inputs, problem, f"widths / {factor}")
        if inputs is not None:
            return built
        if without_inputs is not None:
            break  # of another size it did not take them either
        without_inputs = built
    if without_inputs is None:
        raise NotBuilt(problems[0] if problems[0] == problems[-1] else f"{problems[0]}; {problems[-1]}")
    return without_inputs


_WIDTH = re.compile(
    r"hidden|intermediate|mrope_section|d_head|d_state|d_ssm|head_size|dim(s|ension)?(_|$)|d_model|d_ff|d_kv|d_inner|"
    r"channels|width|embd|embed|ffn|proj|rank|inner|features|bottleneck|filters|state_size|num_units|conv_out|mlp_size|encoder_size|expand"
)
_DEPTH = re.compile(r"(^|_)(n_layers?|layers|depth|depths|layer_nums?|n_blocks|blocks)$|num_hidden_\w*(layers|blocks)")
_NOT_WIDTH = re.compile(
    r"num_channels|in_channels|in_chans|input_channels|image|patch|window|kernel|stride|position|vocab|heads|layers|act|dropout|"
    r"mel|groups|expand(_factor|_ratio)?$|ratio|factor|num_features$|experts|blocks|use_|codebook_size|max_"
)
_TOKEN = re.compile(r"(token_id|token_index|_token|bos|eos|pad|_idx)(_ids?|s)?$")
_OF_LAYERS = {"out_features", "out_indices", "stage_names", "per_layer_config"}  # by number or name: not of those that stay
_DROPPED = _OF_LAYERS | {"id2label", "label2id", "transformers_version", "architectures", "dtype"}
_STAGES = 8  # of a hierarchical network, at most


class Shrinking:
    """Makes a configuration small by the names of its entries; all widths by one factor, so that they still fit together."""

    def __init__(self, factor: int, layers: int = 2, vocabulary: int = 128) -> None:
        self.factor, self.layers, self.vocabulary = factor, layers, vocabulary
        self.tokens: dict[int, int] = {}  # the same special token has the same number in all parts

    def config(self, given: dict[str, Any], top: bool = True) -> dict[str, Any]:
        kept = {key: value for key, value in given.items() if key not in _DROPPED and not str(key).startswith("_")}
        if top:
            kept.pop("model_type", None)
        chosen = self.one_of_each_kind(kept)
        return {key: self.value(str(key), value, kept, chosen) for key, value in kept.items()}

    def one_of_each_kind(self, given: dict[str, Any]) -> dict[int, list[int]]:
        """Which layers stay, by how many there were: the first of every kind that lists over layers tell apart."""
        found: dict[int, list[int]] = {}
        listed = {key: value for key, value in given.items() if isinstance(value, list | tuple)}
        for depth in {v for key, v in given.items() if _DEPTH.search(str(key)) and type(v) is int and v > self.layers}:
            of_depth = {key: value for key, value in listed.items() if len(value) == depth}
            if depth <= _STAGES and any(type(value[0]) is int for value in of_depth.values()):
                found[depth] = list(range(depth))  # stages with sizes of their own, and not layers that are alike
                continue
            lists = [value for key, value in of_depth.items() if key.endswith(("types", "kinds"))]
            kinds = [tuple(map(str, each)) for each in zip(*lists, strict=True)] or [()] * depth
            first = sorted({kinds.index(kind) for kind in kinds})
            more = [at for at in range(depth) if at not in first]
            found[depth] = sorted(first + more[: max(0, self.layers - len(first))])
        return found

    def value(self, key: str, value: Any, given: dict[str, Any], chosen: dict[int, list[int]]) -> Any:
        if isinstance(value, dict):
            return self.config(value, top=False)
        if isinstance(value, list | tuple):
            value = [value[at] for at in chosen[len(value)]] if len(value) in chosen else value
            return [self.value(key, entry, given, chosen) for entry in value]
        if type(value) is not int:
            return value
        if "shared_layers" in key:  # that take keys and values from earlier ones, of which few are left
            return 0
        if _DEPTH.search(key):
            return len(chosen[value]) if value in chosen else min(value, self.layers)
        if _TOKEN.search(key):
            free = self.vocabulary - 1 - len(self.tokens)
            return value if value < self.vocabulary // 2 else self.tokens.setdefault(value, free)
        if key.endswith("vocab_size"):
            return min(value, self.vocabulary)
        if key in ("image_size", "img_size", "image_width", "image_height"):
            patch = given.get("patch_size", 1)
            return min(value, 64 if not isinstance(patch, int) or 64 % patch == 0 else 4 * patch)
        return self.count(key, value)

    def count(self, key: str, value: int) -> int:
        if "experts" in key:
            return min(value, 2 if re.search("per_tok|top", key) else 4)
        if key == "first_k_dense_replace":  # layers before those with experts
            return min(value, 1)
        if key in ("n_group", "topk_group"):
            return 1
        if key.startswith("max_") and "position" in key:
            return min(value, 512)
        wide = _WIDTH.search(key) and not _NOT_WIDTH.search(key) and value >= 2 * self.factor
        return value // self.factor if wide and value % self.factor == 0 else value


def transformers_inputs(model: Any, config: Any, device: torch.device) -> Iterator[dict[str, Tensor]]:
    """By name, as the model says what it takes: the main input, with a decoder's, and text with images."""
    takes = inspect.signature(model.forward).parameters
    main = model.main_input_name
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    def words() -> Tensor:
        return torch.randint(5, 60, (SAMPLES, 16), generator=generator).to(device)

    side, channels = entry(config, "image_size", 64), entry(config, "num_channels", 3)
    side = side[0] if isinstance(side, list | tuple) else side
    side = max(side.values()) if isinstance(side, dict) else side
    frames, mels = entry(config, "num_frames", 4), entry(config, "num_mel_bins", 80)
    lengths = [entry(config, "max_length", 1024), 128]
    forms: dict[str, list[Callable[[], Tensor]]] = {
        "input_ids": [words],
        "pixel_values": [
            lambda: numbers(SAMPLES, channels, side, side),
            lambda: numbers(SAMPLES, frames, channels, side, side),
            lambda: numbers(SAMPLES, channels, 224, 224),
        ],
        "pixel_values_videos": [lambda: numbers(SAMPLES, frames, channels, side, side)],
        "input_values": [
            lambda: numbers(SAMPLES, 8000),
            lambda: numbers(SAMPLES, 1, 8000),
            *(lambda length=length: numbers(SAMPLES, length, mels) for length in lengths),
        ],
        "input_features": [
            lambda: numbers(SAMPLES, 128, mels),
            lambda: numbers(SAMPLES, mels, 3000),
            lambda: numbers(SAMPLES, 128, entry(config, "input_feat_per_channel", 80)),
        ],
    }
    for make in forms.get(main, []):
        yield {main: make()}
        if "decoder_input_ids" in takes:
            yield {main: make(), "decoder_input_ids": words()}
        if "decoder_input_values" in takes:
            yield {main: make(), "decoder_input_values": numbers(SAMPLES, 16, mels)}
    both = [name for name in ("input_ids", "pixel_values", "input_features", "input_values") if name in takes]
    if len(both) > 1:
        for make in forms[both[1]]:
            yield {both[0]: forms[both[0]][0](), both[1]: make()}
    if main != "input_ids" and "input_ids" in takes:
        yield {"input_ids": words()}


def entry(config: Any, name: str, otherwise: Any) -> Any:
    """An entry of a configuration, or of one of its parts."""
    held = getattr(config, name, None)
    if held is not None:
        return held
    parts = [getattr(config, part, None) for part in getattr(config, "sub_configs", {})]
    return next((found for part in parts if part is not None and (found := entry(part, name, None)) is not None), otherwise)


_SMALL = [
    "test",
    "atto",
    "femto",
    "pico",
    "nano",
    "xxs",
    "tiny",
    "t",
    "mini",
    "micro",
    "xs",
    "small",
    "s",
    "lite",
    "b0",
    "0",
]
_LIKELY = 8  # models of a family that are made, without memory, to count their parameters


def smallest(names: Iterable[str], make: Callable[[str], nn.Module]) -> str:
    """The model with the fewest parameters of the few whose names promise it: a family can have hundreds."""

    def promise(name: str) -> tuple[int, int, str]:
        words = re.split(r"[_.]|(?<=[a-z])(?=\d)", name)
        numbers = [int(digits) for digits in re.findall(r"\d+", name)]
        return min((_SMALL.index(word) for word in words if word in _SMALL), default=len(_SMALL)), sum(numbers), name

    def size(name: str) -> int:
        try:
            with torch.device("meta"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return sum(parameter.numel() for parameter in make(name).parameters())
        except Exception:  # one that cannot be made so counts as large
            return sys.maxsize

    return min(sorted(names, key=promise)[:_LIKELY], key=size)


def timm_names() -> list[str]:
    import timm  # pyright: ignore[reportMissingImports]

    return [name for name in timm.list_modules() if timm.list_models(module=name)]


def build_timm(name: str, device: torch.device) -> Built:
    import timm  # pyright: ignore[reportMissingImports]

    try:
        chosen = smallest(timm.list_models(module=name), timm.create_model)
        torch.manual_seed(0)
        model: Any = timm.create_model(chosen).to(device).eval()
    except Exception as problem:
        raise NotBuilt(in_a_line(problem)) from problem
    shape = model.default_cfg.get("input_size", (3, 224, 224))
    small = [torch.randn(SAMPLES, *shape, device=device)]
    inputs, problem = first_taken(model, small)
    return Built(model, inputs, problem, chosen)


def torchvision_names() -> list[str]:
    return sorted(torchvision_families())


def torchvision_families() -> dict[str, list[str]]:
    from torchvision import models  # pyright: ignore[reportMissingImports]

    found: dict[str, list[str]] = {}
    for name in models.list_models():
        module = models.get_model_builder(name).__module__.removeprefix("torchvision.models.")
        if "quantization" not in module:
            found.setdefault(module, []).append(name)
    return found


def build_torchvision(name: str, device: torch.device) -> Built:
    from torchvision import models  # pyright: ignore[reportMissingImports]

    def make(name: str) -> nn.Module:
        takes = inspect.signature(models.get_model_builder(name)).parameters
        backbone = {"weights_backbone": None} if "weights_backbone" in takes else {}
        return models.get_model(name, weights=None, **backbone)

    try:
        chosen = smallest(torchvision_families()[name], make)
        torch.manual_seed(0)
        model = make(chosen).to(device).eval()
    except Exception as problem:
        raise NotBuilt(in_a_line(problem)) from problem

    def numbers(*shape: int) -> Tensor:
        return torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(device)

    tries: dict[str, list[Inputs]] = {
        "detection": [{"images": [numbers(3, 96, 96)] * SAMPLES}],  # by name: a pair would be inputs and targets
        "optical_flow": [{name: numbers(SAMPLES, 3, 128, 128) for name in ("image1", "image2")}],
        "video": [numbers(SAMPLES, 3, 16, 112, 112), numbers(SAMPLES, 3, 16, 224, 224)],
    }
    kind = name.partition(".")[0]
    images = [numbers(SAMPLES, 3, 224, 224), numbers(SAMPLES, 3, 299, 299)]
    inputs, problem = first_taken(model, tries.get(kind, images))
    return Built(model, inputs, problem, chosen)


SOURCES = {
    "transformers": Source(transformers_names, build_transformers),
    "timm": Source(timm_names, build_timm),
    "torchvision": Source(torchvision_names, build_torchvision),
}
