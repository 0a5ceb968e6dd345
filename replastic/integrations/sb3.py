"""Stable-Baselines3: methods that act while an agent learns, when its environment changes or at chosen steps.

from replastic.integrations.sb3 import PlasticityCallback
agent.learn(100_000, callback=PlasticityCallback(rp.FIRE(), at_steps=[50_000]))
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..extras import needed
from ..learner import Method
from ..learner.checks import check_functions
from .attached import Attached
from .callback import HasLearner
from .moments import Moments
from .sb3_networks import Parts, parts_of

needed("stable_baselines3", "sb3", "the Stable-Baselines3 callback")

import gymnasium  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper, VecTransposeImage  # noqa: E402

_log = logging.getLogger(__name__)
_PUT_AROUND = (Monitor, VecTransposeImage)  # wrappers that set_env adds to any environment


class PlasticityCallback(HasLearner, BaseCallback):
    """Methods that act on an agent's networks at boundaries: FIRE, resets, Shrink & Perturb and others.

    There is a boundary at the chosen steps, when the agent's environment is replaced, and after a call of `boundary()`.
    Methods always act before the next rollout begins. PPO and A2C keep log-probabilities and values of the policy that
    collects a rollout, so the same policy must learn from it. And a network that was changed after the last training of
    `learn` would be evaluated before it could be trained. So a boundary at the very end of `learn` waits for the next
    `learn(reset_num_timesteps=False)` with the same callback. There is no boundary before the first update.

    The learner's model consists of the online networks, under their names in the policy's state dict, such as
    "actor.latent_pi.0.weight" and "q_net.q_net.0.weight". If an online network is changed, its target network becomes a copy
    of it. The optimisers' state of the changed weights, and only of these, is cleared, unless a method has
    clear_state=False.

    methods: methods that act at boundaries only: Stable-Baselines3 has no callback between two steps of the optimiser.
    at_steps, every_steps: steps of all environments together, as in `agent.num_timesteps`. The boundary comes with the first
        rollout that begins then or later. `learn()` counts from 0 again unless reset_num_timesteps=False.
    on_new_env: whether there is a boundary when the environment is replaced, for example by `agent.set_env`.
    networks: names of the networks to act on, as in networks=["critic"]; None: all that are trained. The names are the
        policy's: "q_net" for DQN, "actor" and "critic" for SAC, TD3 and DDPG. PPO and A2C have one network, the policy:
        choose layers with a method's `where`.
    build: creates a newly initialised policy, for methods that need one. None: as the agent created its own.
    seed: for all randomness of the methods.
    verbose: 1: write a line to the agent's log at each boundary.

    `agent.save` does not save this callback. Save its `state_dict()`, too; a callback with the same methods resumes from it
    with `load_state_dict`. Otherwise steps before those of the loaded agent count as passed, and the run's initial weights,
    to which `FullReset` resets, are those of the loaded agent.
    """

    def __init__(
        self,
        methods: Method | Iterable[Any],
        *,
        at_steps: Iterable[int] | int = (),
        every_steps: int | None = None,
        on_new_env: bool = True,
        networks: Iterable[str] | None = None,
        build: Callable[[], nn.Module] | None = None,
        seed: int = 0,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        check_functions(None, build)
        self._attached = Attached(methods, build=self._new_model, seed=seed)
        for method in self._attached.methods:
            _check_method(method)
            _check_where(method)
        self._moments = Moments.of(at_steps=at_steps, every_steps=every_steps)
        comes = on_new_env or self._moments.any
        self._attached.check_moments(comes, "with on_new_env=False pass steps, as in every_steps=100_000")
        self._names = _names(networks)
        self._build, self._on_new_env = build, on_new_env
        self._parts: Parts | None = None
        self._seen: int | None = None  # the number of steps up to which moments have been checked
        self._asked = False
        self._env: list[Any] | None = None  # the objects, because ids may be reused

    def boundary(self) -> None:
        """Tell the callback that the environment changes now. The methods act before the next rollout."""
        self._asked = True

    def state_dict(self) -> dict[str, Any]:
        """The callback's state, which `agent.save` does not save; safe to load with weights_only=True."""
        return {"attached": self._attached.state_dict(), "seen": self._seen, "asked": self._asked}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Resume from a state, with an agent that was saved at the same time."""
        self._attached.load_state_dict(saved["attached"])
        self._seen, self._asked = saved["seen"], saved["asked"]

    # what Stable-Baselines3 calls

    def _init_callback(self) -> None:
        self._check_place()
        agent, first = self.model, not self._attached.attached
        parts = parts_of(agent.policy, self._names)
        if self._parts is not None and _same(parts.networks, self._parts.networks):
            parts = parts._replace(model=self._parts.model)
        self._attached.attach(parts.model, parts.optimizers)  # raises if the networks were replaced
        self._parts = parts
        if first and _has_learnt(agent) and not self.learner.state_dict()["begun"]:
            self.learner.begin()  # training without this callback counts as a task

    def _on_training_start(self) -> None:
        self._check_place()
        now = self.model.num_timesteps
        if self._seen is None:
            # Methods act when training continues from a step, so a moment at this very step is still to come.
            self._seen = max(now - 1, 0)

    def _on_rollout_start(self) -> None:
        now, env = self.model.num_timesteps, _layers(self.model.get_env())
        assert self._seen is not None
        reasons = {
            "by hand": self._asked,
            "new environment": self._on_new_env and self._env is not None and not _same(env, self._env),
            f"step {now}": self._moments.between_steps(self._seen, now),
        }
        why = ", ".join(reason for reason, true in reasons.items() if true)
        if why:
            self._act(now, why)
        self._asked, self._env, self._seen = False, env, now

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._attached.warn_if_idle(self._moments)

    def _act(self, step: int, why: str) -> None:
        agent, parts = self.model, self._parts
        assert parts is not None
        if not _has_learnt(agent):
            _log.info("step %d: no boundary (%s), because nothing has been learnt yet", step, why)
            return
        before = [_copies(online) for online, _ in parts.targets]
        self._attached.boundary(step, why)
        for (online, target), were in zip(parts.targets, before, strict=True):
            if not all(map(torch.equal, _copies(online), were)):
                target.load_state_dict(online.state_dict())
        if agent.use_sde:  # the noise of this rollout was drawn with the old weights
            agent.policy.reset_noise(agent.n_envs)  # pyright: ignore
        if self.verbose:
            self.logger.info(f"replastic: boundary at step {step} ({why})")

    def _new_model(self) -> nn.Module:
        agent = self.model
        if self._build is not None:
            policy = self._build()
        else:
            # as in their _setup_model
            own = {"use_sde": agent.use_sde} if isinstance(agent, OnPolicyAlgorithm) else {}
            spaces = agent.observation_space, agent.action_space
            policy = agent.policy_class(*spaces, agent.lr_schedule, **own, **agent.policy_kwargs)
        return parts_of(policy, self._names).model

    def _check_place(self) -> None:
        if self.parent is not None:
            raise TypeError(
                f"this callback is inside {type(self.parent).__name__}, which does not report when rollouts begin: pass it "
                "to learn(callback=...), alone or in a list, and choose moments with every_steps or at_steps"
            )


def _copies(network: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in (*network.parameters(), *network.buffers())]


def _has_learnt(agent: Any) -> bool:
    return agent._n_updates > 0


def _layers(env: Any) -> list[Any]:
    """The environment and its wrappers, without those that Stable-Baselines3 adds."""
    layers = []
    while isinstance(env, VecEnvWrapper):
        layers.append(env)
        env = env.venv
    inner = list(env.envs) if isinstance(env, DummyVecEnv) else []
    if not inner:
        layers.append(env)
    for one in inner:
        while isinstance(one, gymnasium.Wrapper):
            layers.append(one)
            one = one.env
        layers.append(one)
    return [layer for layer in layers if type(layer) not in _PUT_AROUND]


def _same(these: list[Any], those: list[Any]) -> bool:
    return len(these) == len(those) and all(a is b for a, b in zip(these, those, strict=True))


def _names(networks: Iterable[str] | None) -> list[str] | None:
    if networks is None:
        return None
    names = [networks] if isinstance(networks, str) else list(networks)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"networks={networks!r}: pass names, as in networks=['critic'], or leave it out for all")
    return names


def _check_method(method: Method) -> None:
    """Raise unless the method acts only at boundaries, and changes weights rather than modules."""
    kind = type(method)
    if kind.overrides("penalty") or kind.overrides("after_step"):
        raise TypeError(
            f"{kind.__name__} acts at every step of the optimiser, where Stable-Baselines3 has no callback: use methods "
            "that act at boundaries, such as rp.FIRE(). For weight decay, use the optimiser's, as in "
            "policy_kwargs=dict(optimizer_class=torch.optim.AdamW, optimizer_kwargs=dict(weight_decay=1e-2))"
        )
    if kind.needs_task:
        raise TypeError(f"{kind.__name__} needs the data of a task, which an environment does not have: use another method")
    if kind.overrides("rebuild"):
        raise TypeError(
            f"{kind.__name__} changes the networks' modules, which Stable-Baselines3 could not load again: use methods that "
            "change weights, such as rp.FIRE() or rp.LayerReset(where=...)"
        )
    if not kind.overrides("at_boundary"):
        raise TypeError(
            f"{kind.__name__} does nothing at boundaries, the only moments at which methods can act here. To choose an "
            "optimiser, use policy_kwargs=dict(optimizer_class=...)"
        )


def _check_where(method: Method) -> None:
    if getattr(method, "where", None) == "head":
        raise ValueError(
            f"{type(method).__name__}(where='head'): the heads of an agent's networks cannot be determined: name the "
            "layers, as in where='q_net.q_net.4' for DQN or where=['action_net', 'value_net'] for PPO"
        )
