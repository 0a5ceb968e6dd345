"""The hyperparameters that the papers searched, and the best ones, as plain data for sweeps.

`GRIDS[experiment][method][field]` lists the values that were tried, `BEST[experiment][data][method][field]` is the chosen
value, and `DEFAULTS[experiment][method][field]` a value that was not searched. Methods have their names in
`methods.METHODS`; "none" is plain training and "cbp+l2" both methods together. Fields are those of the methods, and
"learning_rate" is that of the optimiser.

FIRE: tables 6 to 10. L2-ER (Spectral Collapse Drives Loss of Plasticity): tables 2, 4, 6 and 7, and for the defaults 1, 3, 5
and 8. SWR (Soft Weight Rescaling): appendix D.2 and tables 2 to 4. A number that cannot be read in a paper's text is left
out, never guessed.
"""

from __future__ import annotations

import itertools
from typing import Any

Fields = dict[str, float]
Grid = dict[str, dict[str, list[float]]]
Columns = list[tuple[str, str]]

# The rows of the tables, in order, by the names used here; the comments have the papers' symbols.
_FIRE: Columns = [
    ("shrink_and_perturb", "rate"),  # λ
    ("dash", "alpha"),  # α
    ("dash", "floor"),  # λ
    ("parseval", "strength"),  # λ
    ("cbp", "rate"),  # ρ in table 6, τ in tables 7 to 9
    ("cbp", "maturity"),  # m
    ("redo", "threshold"),  # τ
    ("l2_init", "strength"),  # λ
    ("snr", "threshold"),  # τ
    ("fire", "steps"),  # iter
]
_FIRE_GPT: Columns = [("shrink_and_perturb", "rate"), ("fire", "steps")]
_L2_ER: Columns = [
    ("none", "learning_rate"),
    ("er", "learning_rate"),
    ("er", "rate"),  # effective rank lr
    ("l2_er", "learning_rate"),
    ("l2_er", "rate"),
    ("l2_er", "strength"),  # weight decay
    ("cbp", "learning_rate"),
    ("cbp", "rate"),  # replacement rate
    ("l2", "learning_rate"),
    ("l2", "strength"),
]
_L2_ER_ANT: Columns = [
    *_L2_ER[:6],
    ("cbp+l2", "learning_rate"),
    ("cbp+l2", "rate"),
    ("cbp+l2", "strength"),
    *_L2_ER[8:],
]
_SWR: Columns = [
    ("shrink_and_perturb", "rate"),  # λ, as in the following rows
    ("l2", "strength"),
    ("l2_init", "strength"),
    ("swr", "rate"),  # λ, or λ_f in a network with batch normalisation
    ("swr", "classifier_rate"),  # λ_c there
]


def _row(columns: Columns, *values: Any) -> dict[str, dict[str, Any]]:
    """{method: {field: value}}, without values that are None."""
    row: dict[str, dict[str, Any]] = {}
    for (method, field), value in zip(columns, values, strict=True):
        if value is not None:
            row.setdefault(method, {})[field] = value
    return row


_FIRE_VISION: Grid = _row(  # table 6 has the same for its three vision experiments; FIRE's own steps were not searched
    _FIRE,
    [0.2, 0.4, 0.6, 0.8],
    [0.1, 0.3],
    [0.05, 0.1, 0.3],
    [1e-3, 1e-4, 1e-5],
    [1e-4, 1e-5],
    [100, 1000],
    [0.01, 0.05, 0.1, 0.5],
    [1e-3, 1e-4, 1e-5],
    [0.01, 0.02, 0.04, 0.08],
    None,
)
_LARGE, _MIDDLE, _SMALL, _TINY = [1e-2, 1e-3, 1e-4], [1e-3, 1e-4, 1e-5], [1e-4, 1e-5, 1e-6], [1e-5, 1e-6, 1e-7]
_STRENGTHS = [0.1, 0.01, 0.001, 0.0001, 0.00001]
# The fifth rate is printed as 0.001 again; it must be 0.0001, which table 4 chooses.
_RATES = [1, 0.1, 0.01, 0.001, 0.0001]
_SWR_CONTINUAL: Grid = _row(_SWR, [0.2, 0.4, 0.6, 0.8], _STRENGTHS, _STRENGTHS, _RATES, _RATES)

GRIDS: dict[str, Grid] = {
    "fire/warm_start": _FIRE_VISION,
    "fire/continual": _FIRE_VISION,
    "fire/class_incremental": _FIRE_VISION,
    "fire/gpt": _row(_FIRE_GPT, [0.2, 0.5, 0.8], None),
    "l2_er/permuted_mnist": _row(_L2_ER, _LARGE, _LARGE, _LARGE, [1e-3], _LARGE, _MIDDLE, _LARGE, _SMALL, _LARGE, _MIDDLE),
    "l2_er/continual_imagenet": _row(
        _L2_ER, _LARGE, _LARGE, _MIDDLE, [1e-3], _MIDDLE, _MIDDLE, _LARGE, _SMALL, _LARGE, _MIDDLE
    ),
    "l2_er/incremental_cifar": _row(
        _L2_ER, _LARGE, _LARGE, _MIDDLE, [1e-2], _LARGE, _MIDDLE, _LARGE, _SMALL, _LARGE, _MIDDLE
    ),
    "l2_er/slippery_ant": _row(
        _L2_ER_ANT, _LARGE, _LARGE, _MIDDLE, [1e-4], _TINY, _MIDDLE, [1e-4], _TINY, _MIDDLE, _LARGE, _MIDDLE
    ),
    "swr/warm_start": _SWR_CONTINUAL,
    "swr/continual": _SWR_CONTINUAL,
    "swr/continual_limited": _SWR_CONTINUAL,
    "swr/generalisation": _row(_SWR, None, _STRENGTHS, _STRENGTHS, _RATES, _RATES),
}

BEST: dict[str, dict[str, dict[str, Fields]]] = {
    "fire/warm_start": {
        "CIFAR-10 (ResNet-18)": _row(_FIRE, 0.8, 0.3, 0.05, 1e-3, 1e-4, 1000, 0.5, 1e-3, 0.01, 10),
        "CIFAR-100 (ViT-Tiny)": _row(_FIRE, 0.8, 0.1, 0.05, 1e-5, 1e-4, 100, 0.5, 1e-3, 0.01, 10),
        "Tiny ImageNet (VGG-16)": _row(_FIRE, 0.8, 0.1, 0.05, 1e-3, 1e-4, 1000, 0.5, 1e-3, 0.08, 10),
    },
    "fire/continual": {
        "CIFAR-10 (ResNet-18)": _row(_FIRE, 0.8, 0.3, 0.05, 1e-3, 1e-5, 1000, 0.05, 1e-5, 0.08, 10),
        "CIFAR-100 (ViT-Tiny)": _row(_FIRE, 0.8, 0.1, 0.05, 1e-5, 1e-5, 1000, 0.01, 1e-4, 0.04, 10),
        "Tiny ImageNet (VGG-16)": _row(_FIRE, 0.8, 0.1, 0.1, 1e-4, 1e-5, 1000, 0.01, 1e-5, 0.01, 10),
    },
    "fire/class_incremental": {
        "CIFAR-100 (ViT-Tiny)": _row(_FIRE, 0.8, 0.3, 0.3, 1e-5, 1e-5, 1000, 0.01, 1e-5, 0.08, 10),
        "Tiny ImageNet (VGG-16)": _row(_FIRE, 0.8, 0.3, 0.1, 1e-3, 1e-4, 1000, 0.05, 1e-4, 0.02, 10),
    },
    "fire/gpt": {  # by the checkpoint from which training continues
        "Best": _row(_FIRE_GPT, 0.5, 5),
        "30k": _row(_FIRE_GPT, 0.8, 5),
        "60k": _row(_FIRE_GPT, 0.5, 5),
    },
    "l2_er/permuted_mnist": {
        # The learning rate is held at 1e-2 here, also for L2-ER, whose printed sweep is 1e-3 alone.
        "MNIST, fixed learning rate": _row(_L2_ER, 1e-2, 1e-2, 1e-3, 1e-2, 1e-3, 1e-3, 1e-2, 1e-6, 1e-2, 1e-3),
        "MNIST": _row(_L2_ER, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-6, 1e-3, 1e-3),
    },
    "l2_er/continual_imagenet": {
        "ImageNet": _row(_L2_ER, 1e-4, 1e-4, 1e-5, 1e-3, 1e-4, 1e-3, 1e-4, 1e-5, 1e-4, 1e-3),
    },
    "l2_er/incremental_cifar": {
        "CIFAR-100": _row(_L2_ER, 1e-2, 1e-2, 1e-4, 1e-2, 1e-3, 1e-3, 1e-2, 1e-6, 1e-2, 1e-4),
    },
    "l2_er/slippery_ant": {
        # ER's rate of 1e-7 is as printed, though outside its printed sweep. The weight decay of CBP+L2 is a dash there.
        "Ant": _row(_L2_ER_ANT, 1e-4, 1e-4, 1e-7, 1e-4, 1e-6, 1e-3, 1e-4, 1e-7, None, 1e-4, 1e-3),
    },
    # Most digits of tables 2 and 3 are lost in the text. None: not readable, or not in the table (S&P in table 4, most λ_c).
    "swr/warm_start": {
        "MNIST (MLP)": _row(_SWR, None, 1e-5, None, None, None),
        "CIFAR-100 (CNN-BN)": _row(_SWR, None, None, None, 1e-4, 1),
        "TinyImageNet (VGG-16)": _row(_SWR, None, None, None, 1e-2, None),
    },
    "swr/continual": {
        "MNIST (MLP)": _row(_SWR, 0.6, None, 1e-4, None, None),
        "CIFAR-10 (CNN)": _row(_SWR, 0.8, None, None, None, None),
        "CIFAR-100 (CNN-BN)": _row(_SWR, None, 1e-2, None, 1e-4, 1e-1),
        "TinyImageNet (VGG-16)": _row(_SWR, 0.8, None, None, None, None),
    },
    "swr/continual_limited": {
        "MNIST (MLP)": _row(_SWR, None, None, 1e-5, None, None),
        "CIFAR-100 (CNN-BN)": _row(_SWR, None, 1e-2, None, 1e-1, 1e-2),
        "TinyImageNet (VGG-16)": _row(_SWR, 0.4, None, 1e-3, 1e-4, None),
    },
    "swr/generalisation": {
        "MNIST (MLP)": _row(_SWR, None, 1e-5, 1e-5, 1e-4, None),
        "CIFAR-10 (CNN)": _row(_SWR, None, 1e-2, 1e-2, 1e-3, None),
        "CIFAR-100 (CNN)": _row(_SWR, None, 1e-2, 1e-2, 1e-3, None),
        "CIFAR-100 (CNN-BN)": _row(_SWR, None, 1e-2, 1e-2, 1e-4, 1e-1),
        "TinyImageNet (VGG-16)": _row(_SWR, None, 1e-5, 1e-5, 1e-2, 1e-1),
    },
}

# L2-ER's tables 1, 3, 5 and 8.
_L2_ER_DEFAULTS: Columns = [
    ("none", "learning_rate"),
    ("l2", "strength"),  # weight_decay
    ("er", "rate"),  # er_lr
    ("er", "every"),  # er_batch
    ("l2_er", "rate"),
    ("l2_er", "every"),
    ("l2_er", "strength"),
    ("cbp", "rate"),  # replacement_rate
    ("cbp", "decay"),  # decay_rate
    ("cbp", "maturity"),  # maturity_threshold
    ("cbp+l2", "rate"),
    ("cbp+l2", "decay"),
    ("cbp+l2", "maturity"),
    ("cbp+l2", "strength"),
]


def _defaults(learning_rate: float, decay: float, er_rate: float, every: int, cbp: tuple[float, float, int]) -> Any:
    er, pair = (er_rate, every), (*cbp, decay)
    return _row(_L2_ER_DEFAULTS, learning_rate, decay, *er, *er, decay, *cbp, *pair)


_FROM_PHASE_TWO: list[str] = ["parseval", "cbp", "redo", "l2_init", "snr", "muon"]
_LATE: Fields = {"from_task": 1}  # absent from the first task of a warm start, as in the released code
DEFAULTS: dict[str, dict[str, Fields]] = {
    "fire/warm_start": dict.fromkeys(_FROM_PHASE_TWO, _LATE),
    "l2_er/permuted_mnist": _defaults(0.01, 0.001, 0.01, 100, (1e-6, 0.99, 100)),
    "l2_er/continual_imagenet": _defaults(0.01, 0.001, 0.01, 1, (1e-6, 0.99, 100)),
    "l2_er/incremental_cifar": _defaults(0.1, 0.0005, 0.01, 5, (1e-6, 0.99, 100)),
    "l2_er/slippery_ant": _defaults(2.5e-4, 0.0, 0.01, 128, (1e-4, 0.99, 10_000)),
}


def points(experiment: str) -> list[tuple[str, Fields]]:
    """Every point of an experiment's grid: the method's name and all its settings, including defaults.

    >>> [(name, settings) for name, settings in points("fire/warm_start") if name == "redo"][0]
    ('redo', {'from_task': 1, 'threshold': 0.01})
    """
    if experiment not in GRIDS:
        raise ValueError(f"experiment={experiment!r}: pass one of {', '.join(GRIDS)}")
    found: list[tuple[str, Fields]] = []
    for name, grid in GRIDS[experiment].items():
        fixed = DEFAULTS.get(experiment, {}).get(name, {})
        found += [(name, {**fixed, **dict(zip(grid, values, strict=True))}) for values in itertools.product(*grid.values())]
    return found
