"""Stable-Baselines3's DQN in a world that changes, with and without a method at each change.

Six numbers are shown, and the action wins whose hidden linear rule scores highest. Each phase has new rules, so that all
phases are equally hard and nothing learnt before helps.

    python examples/with_sb3.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN

import replastic as rp
from replastic.integrations.sb3 import PlasticityCallback

PHASES, STEPS, SEEDS = 3, 500, 5
ARMS = {"train on": None, "FIRE": lambda: rp.FIRE(), "new networks": lambda: rp.FullReset(to="fresh")}


class Rules(gymnasium.Env):
    """Ten questions an episode; a right answer earns 1."""

    def __init__(self, seed: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self.random = np.random.default_rng(seed)
        self.rules = self.random.normal(size=(4, 6))
        self.answers: list[bool] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.shown = self.random.normal(size=6).astype(np.float32)
        return self.shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.answers.append(bool((self.rules @ self.shown).argmax() == action))
        return self.reset()[0], float(self.answers[-1]), len(self.answers) % 10 == 0, False, {}


def main() -> None:
    torch.set_num_threads(1)  # matrices this small gain nothing from a second
    start = time.perf_counter()
    print(f"DQN, {PHASES} phases of {STEPS} steps, each with new rules; {SEEDS} seeds.\n")
    print(f"{'right answers in phase':<24}" + "".join(f"{phase + 1:>12}" for phase in range(PHASES)))
    for arm in ARMS:
        runs = [run(arm, seed) for seed in range(SEEDS)]
        cells = [f"{statistics.mean(shares):.2f} ±{statistics.stdev(shares):.2f}" for shares in zip(*runs, strict=True)]
        print(f"{arm:<24}" + "".join(f"{cell:>12}" for cell in cells), flush=True)
    print("\nShare in the last third of a phase, with exploration; mean ± standard deviation over seeds. 0.25 is chance.")
    print(f"{SEEDS} short runs an arm: read differences against the spread. {time.perf_counter() - start:.0f} s")


def run(arm: str, seed: int) -> list[float]:
    """The share of right answers at the end of each phase."""
    worlds = [Rules(seed=1000 * seed + phase) for phase in range(PHASES)]  # the same for every arm
    settings: Any = {"gamma": 0.0, "learning_rate": 2e-3, "learning_starts": 64, "batch_size": 64, "device": "cpu"}
    agent: Any = DQN("MlpPolicy", worlds[0], buffer_size=STEPS, exploration_fraction=0.05, seed=seed, **settings)
    make = ARMS[arm]
    callback = PlasticityCallback(make(), seed=seed) if make is not None else None
    for world in worlds:
        agent.set_env(world)  # another environment than before is a boundary
        agent.replay_buffer.reset()  # in every arm: what the old rules earned is wrong now
        agent.learn(STEPS, callback=callback, reset_num_timesteps=False)
    return [statistics.mean(world.answers[-STEPS // 3 :]) for world in worlds]


if __name__ == "__main__":
    main()
