"""Write docs/methods.md, and the README's table of methods: what docstrings say of them, and records of their cost.

python docs/methods.py
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from replastic.learner import Method
from replastic.methods import METHODS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/methods.md"
README = ROOT / "README.md"
MOMENTS = {"at_boundary": "boundary", "penalty": "loss", "after_step": "step"}
# The row of benchmarks/methods.py that has a method's cost.
COSTS = {
    "fire": "FIRE, published",
    "full_reset": "full reset",
    "layer_reset": "layer reset",
    "shrink_and_perturb": "Shrink & Perturb",
    "dash": "DASH, for 10 batches",
    "plasticity_injection": "Plasticity Injection",
    "perturb_each_step": "noise each step",
    "swr": "SWR",
    "cbp": "CBP",
    "redo": "ReDo, every 100 steps",
    "snr": "SNR",
    "hare_and_tortoise": "Hare & Tortoise",
    "weight_clipping": "weight clipping",
    "normalize_and_project": "Normalize-and-Project",
    "er": "ER, every 5 steps",
    "l2_er": "L2-ER, every 5 steps",
    "l2": "L2",
    "l2_init": "L2 Init",
    "parseval": "Parseval",
    "spectral": "spectral",
    "wasserstein": "Wasserstein",
    "muon": "Muon",
}
# Where a file has several forms, or its equation says more than one line can.
UPDATES = {
    "layer_reset": "θ <- a fresh draw, in some layers",
    "shrink_and_perturb": "θ <- (1 - λ) θ + λ θ₀",
    "shrink_and_add_noise": "θ <- s θ + N(0, σ²)",
    "perturb_each_step": "θ <- s θ + N(0, σ²)",
    "shrink_encoder": "θ <- (1 - λ) θ + λ θ₀ in the encoder, θ <- θ₀ in the rest",
    "swr": "W_l <- c_l W_l; b_l <- C_l b_l; c_l = (λ n_l + (1 - λ) ‖W_l‖) / ‖W_l‖",
    "cbp": "replace the mature units of least u; u <- η u + (1 - η) · Σ_k mean|h_k| · Σ|w_k|",
    "redo": "reset unit i if mean|h_i| <= τ · mean over units",
    "snr": "reset unit i if silent for the (1 - τ)-quantile of its silences",
    "l2_er": "er and l2",
    "muon": "W <- W - η sqrt(max(1, out/in)) · NS5(M)",
}
INTRODUCTION = """# Methods

<!-- Made by `python docs/methods.py` from the docstrings and from benchmarks/results. Do not edit. -->

Methods are dataclasses that you pass to a `Learner`; pass a list to combine several. `shrink_encoder` and `l2_er` are
functions that return such lists. `rp.METHODS` has all methods by name. [The learner](learner.md) shows the training loop.

```python
learner = rp.Learner(model, optimizer, methods=[rp.CBP(), rp.L2(1e-4)], loss=torch.nn.functional.cross_entropy)
learner.begin(first_task)
for inputs, targets in first_task.batches(generator):
    learner.step(inputs, targets)
learner.begin(second_task)  # a boundary: resets, FIRE, Shrink & Perturb act here
```

A method acts at a **boundary** between tasks, after every **step**, or in the **loss**. With `from_task=1` it starts in
the second task; to skip the first boundary, pass `from_task=2`. The cost is the time that a method adds to a training
step of ResNet-18 (batches of 256, H200), or the time of one boundary. Costs within one percent of zero are noise.
[Performance](performance.md) has the settings and explains how the costs were measured.

There are three forms of Muon: `rp.Muon` is the optimiser, `rp.muon(model)` is Muon together with AdamW, and
`rp.UseMuon()` is the method.

## One call at a boundary

Every method that acts at a boundary is also one function of the model, for a training loop of your own. Call the function
when the data changes, and pass the optimiser: its state of the changed weights is cleared.

```python
rp.remember(model)  # before training: stores a copy of the weights

report = rp.shrink_and_perturb_(model, rate=0.8, optimizer=optimizer)  # when the data changes
print(report)

rp.restore_norms_(model, biases=True, optimizer=optimizer)
rp.reset_(model, where="head", optimizer=optimizer)
batches = first_task.batches(generator)  # or a DataLoader of the new data
rp.dash_(model, batches, loss=torch.nn.functional.cross_entropy, optimizer=optimizer)
rp.inject_plasticity_(model, optimizer=optimizer)
```

| call | what it changes | needs initial weights? | method |
|---|---|---|---|
| `rp.fire_(model, optimizer=opt)` | each weight matrix becomes the nearest isometry | for `biases=True` | `FIRE` |
| `rp.restore_norms_(model, optimizer=opt)` | the norm of each weight | yes | `RestoreNorms` |
| `rp.shrink_and_perturb_(model, optimizer=opt)` | parameters move towards initial weights | yes | `ShrinkAndPerturb` |
| `rp.shrink_and_add_noise_(model, optimizer=opt)` | parameters shrink, plus noise | no | `ShrinkAndAddNoise` |
| `rp.reset_(model, optimizer=opt)` | everything is reset to initial weights | yes | `FullReset` |
| `rp.reset_(model, where="head", optimizer=opt)` | some layers are reset to initial weights | yes | `LayerReset` |
| `rp.dash_(model, batches, loss=loss, optimizer=opt)` | weights shrink, by the new data's gradients | no | `DASH` |
| `rp.inject_plasticity_(model, optimizer=opt)` | a new head is added to a frozen one | yes | `PlasticityInjection` |

**Initial weights** come from the first of these sources that exists. The report names the source as `first weights`:

1. `initial=first`: a state dict copied before training, `copy.deepcopy(model.state_dict())`, or a new model of the same
   architecture.
2. What `rp.remember(model)` stored. The copy costs the memory of the model's parameters and buffers until the model is
   freed, and is not part of its `state_dict()`, pickles or copies. `rp.remember(model, "cpu")` keeps it in main memory.
3. New weights from the layers' own `reset_parameters()`, with `seed=`, an integer or a `torch.Generator`. The same integer
   draws the same weights. Steps of the model's constructor after its layers are created, such as a different initialisation,
   are not repeated.

`biases=True` of `fire_`, `restore_norms_` and `shrink_and_perturb_` also resets biases to their initial values.

Every call checks all of its input before it writes the first weight. It keeps storage, dtype, memory format, ties, frozen
parameters, modes, gradients and the global random state. It returns a report: the written weights, the size of the
change, the source of initial weights, the optimiser state that was cleared, and the weights that were skipped, with the
reason. A parameter that no optimiser holds is written, too, except by `fire_` and `restore_norms_`, which raise an error.
DASH's paper keeps the optimiser's state; to do so, leave out `optimizer`.

## All methods
"""


def rendered() -> str:
    """The page."""
    record = json.loads((ROOT / "benchmarks/results/methods-cuda.json").read_text())
    costs = [run["networks"]["resnet18"] for run in record["runs"]]
    rows = [
        "| `rp.METHODS[...]` | update | acts at | cost | file | paper | departures |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, made in METHODS.items():
        module = sys.modules[made.__module__]
        text = inspect.getdoc(module) or ""
        file = Path(module.__file__ or "").stem
        cells = [
            f"`{name}`",
            _code(UPDATES.get(name) or _equation(text)),
            _when(made),
            _cost(name, costs),
            f"`{file}.py`",
            _paper(text),
            f"[{_departures(text)}](#{file.replace('_', '-')})",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    sections = [_section(stem) for stem in dict.fromkeys(made.__module__ for made in METHODS.values())]
    return "\n".join([INTRODUCTION, *rows, "", *sections])


def rendered_readme(text: str) -> str:
    """README.md with its table of methods: a row for each file."""
    rows = ["| method | acts at | paper | code |", "|---|---|---|---|"]
    for module_name in dict.fromkeys(made.__module__ for made in METHODS.values()):
        module = sys.modules[module_name]
        names = [name for name, made in METHODS.items() if made.__module__ == module_name]
        when = dict.fromkeys(part for name in names for part in _when(METHODS[name]).split(", "))
        stem = Path(module.__file__ or "").stem
        code = f"[`{stem}.py`](replastic/methods/{stem}.py)"
        cells = [", ".join(f"`{name}`" for name in names), ", ".join(when), _paper(inspect.getdoc(module) or ""), code]
        rows.append("| " + " | ".join(cells) + " |")
    before, _, rest = text.partition("<!-- methods -->\n")
    return before + "<!-- methods -->\n" + "\n".join(rows) + "\n<!-- end -->" + rest.partition("<!-- end -->")[2]


def _section(module_name: str) -> str:
    module = sys.modules[module_name]
    names = {name: made for name, made in METHODS.items() if made.__module__ == module_name}
    stem = module_name.rpartition(".")[2]
    lines = [f"## {stem.replace('_', ' ')}", ""]
    lines += ["```text", *(_signature(name, made) for name, made in names.items()), "```", ""]
    lines += ["```text", inspect.getdoc(module) or "", "```", ""]
    return "\n".join(lines)


def _signature(name: str, made: Any) -> str:
    """As a user would write it, with every default."""
    if not (isinstance(made, type) and dataclasses.is_dataclass(made)):
        return f"{made.__name__}{inspect.signature(made)}".replace("'", "").partition(" -> ")[0]
    fields = [field for field in dataclasses.fields(made) if field.init]
    fields = [field for field in fields if not field.kw_only] + [field for field in fields if field.kw_only]
    return f"{made.__name__}({', '.join(f'{field.name}={field.default!r}' for field in fields)})"


def _when(made: Any) -> str:
    methods = [type(method) for method in made()] if not isinstance(made, type) else [made]
    moments = [word for hook, word in MOMENTS.items() for m in methods if getattr(m, hook) is not getattr(Method, hook)]
    return ", ".join(dict.fromkeys(moments)) or "the optimiser"


def _equation(text: str) -> str:
    """The first indented lines."""
    found = re.search(r"\n\n((?:    .+\n)+)", text)
    lines = [line.strip() for line in (found[1] if found else "").splitlines()]
    return "; ".join(re.split(r"   +", line)[0].rstrip(";, ") for line in lines if not line.startswith("and "))


def _code(equation: str) -> str:
    return f"`{equation}`".replace("|", "\\|")


def _paper(text: str) -> str:
    """Who and when."""
    before = text.partition("\nDepartures")[0]
    for paragraph in before.split("\n\n")[1:]:
        flat = " ".join(paragraph.split())
        found = re.match(r"([A-Z](?:[\w'\- ]+, )*[\w'\- ]+ & [\w'\- ]+|[A-Z]\w+ et al\.|[A-Z][\w'\-]+): ", flat)
        if found:
            names = re.split(r", | & ", found[1].removesuffix(" et al."))
            who = f"{names[0]} et al." if len(names) > 2 or "et al." in found[1] else " & ".join(names)
            year = re.search(r"\b(?:19|20)\d\d\b", flat)
            said = f"{who} {year[0]}" if year else who
            return f"{said}, in part" if "not from a paper" in flat else said
        if "not from a paper" in flat:
            return "this project"
        if "under review" in flat:
            return "under review"
    raise ValueError(f'no paper is named: give a paragraph that begins "Smith & Jones: Title, 2026" in: {text[:80]}')


def _departures(text: str) -> int:
    return text.partition("\nDepartures")[2].count("\n    - ")


def _cost(name: str, costs: list[dict[str, Any]]) -> str:
    row = COSTS.get(name)
    if row in costs[0]["steps"]:
        return f"{100 * statistics.median(run['steps'][row]['added'] for run in costs):.1f} %"
    if row in costs[0]["boundaries"]:
        return f"{statistics.median(run['boundaries'][row] for run in costs):.1f} ms"
    return "-"


if __name__ == "__main__":
    PAGE.write_text(rendered())
    README.write_text(rendered_readme(README.read_text()))
