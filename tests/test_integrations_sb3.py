import copy
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env
from torch import Tensor, nn

import replastic as rp
from replastic.integrations.attached import Boundary
from replastic.integrations.sb3 import PlasticityCallback
from replastic.integrations.sb3_networks import parts_of
from tests.test_docs import load

pytestmark = pytest.mark.slow

SMALL = {"net_arch": [16, 16]}
OFF_POLICY: dict[str, Any] = {
    "learning_starts": 20,
    "train_freq": 4,
    "gradient_steps": 2,
    "batch_size": 8,
    "buffer_size": 500,
}
NETWORKS = {
    "DQN": ["q_net"],
    "SAC": ["actor", "critic"],
    "TD3": ["actor", "critic"],
    "DDPG": ["actor", "critic"],
    "PPO": [],
    "A2C": [],
}


class Images(gym.Env):
    """Noise of the smallest size that the CNN takes."""

    def __init__(self, continuous: bool = False) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.action_space = gym.spaces.Box(-1, 1, (1,)) if continuous else gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._look(), float(np.sum(action)), self.steps >= 10, False, {}

    def _look(self) -> Any:
        return self.np_random.integers(256, size=(36, 36, 1), dtype=np.uint8)


class Watch(BaseCallback):
    """Copies of the policy when a rollout begins, by step, and whatever `ask` returns when one ends."""

    def __init__(self, ask: Callable[[Any], Any] = lambda agent: None) -> None:
        super().__init__()
        self.policies: dict[int, Any] = {}
        self.at_end: list[Any] = []
        self.ask = ask

    def _on_rollout_start(self) -> None:
        policy: Any = self.model.policy
        no_graph = {id(policy.action_dist): None} if hasattr(policy, "action_dist") else {}  # which cannot be copied
        self.policies[self.model.num_timesteps] = copy.deepcopy(policy, no_graph)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.at_end.append(self.ask(self.model))


def momenta(policy: nn.Module) -> dict[str, dict[str, Any]]:
    """What the optimisers remember, by the parameter's name."""
    found = [getattr(module, "optimizer", None) for module in (policy, *policy.children())]
    states = [optimizer.state for optimizer in found if optimizer is not None]
    return {name: dict(state[p]) for name, p in policy.named_parameters() for state in states if p in state}


def make(kind: str, **settings: Any) -> Any:
    if kind in ("PPO", "A2C"):
        own = {"batch_size": 16} if kind == "PPO" else {}
        settings = {"n_steps": 32, **own, **settings}
    else:
        settings = {**OFF_POLICY, **settings}
    agents: dict[str, Any] = {"DQN": DQN, "SAC": SAC, "TD3": TD3, "DDPG": DDPG, "PPO": PPO, "A2C": A2C}
    env = "CartPole-v1" if kind in ("DQN", "PPO", "A2C") else "Pendulum-v1"
    settings = {
        "policy_kwargs": {**SMALL},
        "seed": 0,
        "device": "cpu",
        **settings,
    }  # a copy: agents write into it
    return agents[kind]("MlpPolicy", env, **settings)


def observed(agent: Any, callback: PlasticityCallback, steps: int, **settings: Any) -> tuple[Watch, Watch]:
    before, after = Watch(), Watch()
    agent.learn(steps, callback=[before, callback, after], **settings)
    return before, after


def weights(module: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def equal(these: Any, those: Any) -> bool:
    mine, theirs = these.state_dict(), those.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("kind", NETWORKS)
def test_fire_acts_once_at_the_step_and_training_goes_on(kind: str) -> None:
    agent, callback = make(kind), PlasticityCallback(rp.FIRE(), at_steps=64)
    before, after = observed(agent, callback, 128)
    assert callback.boundaries == [Boundary(64, "step 64")]
    assert [step for step, policy in before.policies.items() if not equal(policy, after.policies[step])] == [64]

    expected = before.policies[64]
    parts = nn.ModuleDict({name: getattr(expected, name) for name in NETWORKS[kind]}) if NETWORKS[kind] else expected
    rp.fire_(parts)
    for name in [] if kind in ("PPO", "A2C") else ["critic"] if kind == "SAC" else NETWORKS[kind]:
        getattr(expected, f"{name}_target").load_state_dict(getattr(expected, name).state_dict())
    assert equal(expected, after.policies[64])  # targets are among its weights

    now = agent.policy.state_dict()
    trained = [name for name, _ in agent.policy.named_parameters() if "_target" not in name]
    assert all(not torch.equal(now[name], after.policies[64].state_dict()[name]) for name in trained)
    assert all(value.isfinite().all() for value in now.values())


@pytest.mark.parametrize("kind", NETWORKS)
def test_momenta_of_changed_weights_are_forgotten_and_others_kept(kind: str) -> None:
    before, after = observed(make(kind), PlasticityCallback(rp.FIRE(), at_steps=64), 96)
    then, now = momenta(before.policies[64]), momenta(after.policies[64])
    assert then.keys() == now.keys()
    assert {name.rpartition(".")[2] for name in now} >= {"weight", "bias"}
    for name, state in now.items():
        for key, value in state.items():
            if name.endswith("weight"):
                assert not torch.as_tensor(value).any(), (name, key)
                assert torch.as_tensor(then[name][key]).any()
            else:
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(then[name][key])), (name, key)


@pytest.mark.parametrize("kind", ["PPO", "A2C"])
def test_the_policy_that_learns_from_a_rollout_is_the_one_that_collected_it(kind: str) -> None:
    def log_probabilities(agent: Any) -> tuple[Tensor, Tensor]:
        buffer = agent.rollout_buffer
        observations = torch.as_tensor(buffer.observations).flatten(0, 1)
        actions = torch.as_tensor(buffer.actions).flatten()
        with torch.no_grad():
            values, theirs, _ = agent.policy.evaluate_actions(observations, actions)
        kept = torch.cat([torch.as_tensor(buffer.log_probs).flatten(), torch.as_tensor(buffer.values).flatten()])
        return kept, torch.cat([theirs, values.flatten()])

    agent = make(kind)
    callback, watch = PlasticityCallback(rp.FIRE(), at_steps=[40, 41, 100]), Watch(log_probabilities)
    agent.learn(160, callback=[callback, watch])
    assert callback.boundaries == [Boundary(64, "step 64"), Boundary(128, "step 128")]
    assert len(watch.at_end) == 5
    for kept, theirs in watch.at_end:
        assert torch.allclose(kept, theirs, atol=1e-5)  # of one observation at a time and of all at once


def test_noise_of_state_dependent_exploration_is_drawn_with_the_new_weights() -> None:
    settings: Any = {"n_steps": 32, "batch_size": 16, "policy_kwargs": {**SMALL}, "device": "cpu"}
    agent: Any = PPO("MlpPolicy", "Pendulum-v1", use_sde=True, **settings)
    drawn: list[Tensor] = []

    class Noise(BaseCallback):
        def _on_rollout_start(self) -> None:
            drawn.append(agent.policy.action_dist.exploration_mat.clone())

        def _on_step(self) -> bool:
            return True

    agent.learn(96, callback=[Noise(), PlasticityCallback(rp.FIRE(), at_steps=32), Noise()])
    assert [torch.equal(*drawn[i : i + 2]) for i in (0, 2, 4)] == [True, False, True]


def test_moments_come_again_and_again() -> None:
    callback = PlasticityCallback(rp.FIRE(), every_steps=50)
    make("DQN").learn(200, callback=callback)
    assert [boundary.step for boundary in callback.boundaries] == [52, 100, 152]


def test_steps_are_those_of_all_environments_together() -> None:
    envs, callback = make_vec_env("CartPole-v1", n_envs=3), PlasticityCallback(rp.FIRE(), at_steps=100)
    agent = PPO("MlpPolicy", envs, n_steps=32, batch_size=16, device="cpu")
    agent.learn(192, callback=callback)
    agent.set_env(envs)
    agent.learn(96, callback=callback, reset_num_timesteps=False)
    assert callback.boundaries == [Boundary(192, "step 192")]
    agent.set_env(make_vec_env("CartPole-v1", n_envs=3))
    agent.learn(96, callback=callback, reset_num_timesteps=False)
    assert callback.boundaries[1:] == [Boundary(288, "new environment")]


def test_an_optimiser_that_is_another_one_in_the_next_learn_is_taken_over() -> None:
    agent, callback = make("DQN"), PlasticityCallback(rp.FIRE(), at_steps=100)
    agent.learn(60, callback=callback)
    agent.policy.optimizer = torch.optim.Adam(agent.policy.q_net.parameters(), lr=1e-3)
    _, after = observed(agent, callback, 60, reset_num_timesteps=False)
    state = momenta(after.policies[100])
    assert not state["q_net.q_net.0.weight"]["exp_avg"].any()
    assert state["q_net.q_net.0.bias"]["exp_avg"].any()


def test_a_moment_at_the_end_waits_until_training_goes_on() -> None:
    agent, callback = make("DQN"), PlasticityCallback(rp.FIRE(), at_steps=80)
    agent.learn(80, callback=callback)
    assert callback.boundaries == []
    agent.learn(20, callback=callback, reset_num_timesteps=False)
    assert callback.boundaries == [Boundary(80, "step 80")]


def test_steps_are_counted_anew_where_the_agent_does() -> None:
    agent, callback = make("DQN"), PlasticityCallback(rp.FIRE(), at_steps=40)
    agent.learn(60, callback=callback)
    agent.learn(60, callback=callback)
    assert [boundary.step for boundary in callback.boundaries] == [40, 40]
    agent.learn(60, callback=callback, reset_num_timesteps=False)
    assert len(callback.boundaries) == 2


def test_there_is_no_boundary_before_something_is_learnt() -> None:
    agent, callback = make("DQN", learning_starts=60), PlasticityCallback(rp.FIRE(), at_steps=[20, 40, 80])
    before, after = observed(agent, callback, 100)
    assert [boundary.step for boundary in callback.boundaries] == [80]
    assert equal(before.policies[40], after.policies[40])


def test_a_boundary_can_be_asked_for_in_the_midst_of_a_rollout() -> None:
    class Ask(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 40:
                callback.boundary()
            return True

    callback = PlasticityCallback(rp.FIRE())
    make("PPO").learn(128, callback=[callback, Ask()])
    assert callback.boundaries == [Boundary(64, "by hand")]


def test_what_an_agent_learnt_before_it_had_the_callback_counts() -> None:
    agent, callback = make("PPO"), PlasticityCallback(rp.FIRE())
    agent.learn(32)
    callback.boundary()
    agent.learn(32, callback=callback, reset_num_timesteps=False)
    assert callback.boundaries == [Boundary(32, "by hand")]
    late = PlasticityCallback(rp.FIRE(), at_steps=[32, 64])  # 32 lies behind
    agent.learn(32, callback=late, reset_num_timesteps=False)
    assert late.boundaries == [Boundary(64, "step 64")]
    too_late = PlasticityCallback(rp.FIRE(), at_steps=[32, 64])
    agent.learn(32, callback=too_late, reset_num_timesteps=False)
    assert too_late.boundaries == []


@pytest.mark.parametrize("kind", ["DQN", "PPO"])
def test_another_environment_is_a_boundary(kind: str) -> None:
    first, second = gym.make("CartPole-v1"), gym.make("CartPole-v1")
    agent, callback = make(kind), PlasticityCallback(rp.FIRE())
    agent.set_env(first)
    agent.learn(64, callback=callback)
    agent.learn(64, callback=callback, reset_num_timesteps=False)
    agent.set_env(first)  # wrapped anew, and still the same
    agent.learn(64, callback=callback, reset_num_timesteps=False)
    assert callback.boundaries == []
    agent.set_env(second)
    agent.learn(64, callback=callback, reset_num_timesteps=False)
    agent.set_env(gym.wrappers.TransformReward(second, lambda reward: -float(reward)))
    agent.learn(64, callback=callback, reset_num_timesteps=False)
    assert callback.boundaries == [Boundary(192, "new environment"), Boundary(256, "new environment")]


@pytest.mark.filterwarnings("ignore:training has ended")
def test_another_environment_may_be_no_boundary() -> None:
    agent, callback = make("DQN"), PlasticityCallback(rp.FIRE(), on_new_env=False, at_steps=10_000)
    agent.learn(64, callback=callback)
    agent.set_env(gym.make("CartPole-v1"))
    agent.learn(64, callback=callback, reset_num_timesteps=False)
    assert callback.boundaries == []


@pytest.mark.parametrize("kind", ["SAC", "TD3"])
@pytest.mark.parametrize("networks", [["critic"], "critic"])
def test_networks_that_were_not_named_are_left_alone(kind: str, networks: Any) -> None:
    before, after = observed(make(kind), PlasticityCallback(rp.FIRE(), at_steps=64, networks=networks), 80)
    then, now = before.policies[64], after.policies[64]
    assert equal(then.actor, now.actor)
    assert not equal(then.critic, now.critic)
    assert equal(now.critic, now.critic_target)
    if kind == "TD3":
        assert equal(then.actor_target, now.actor_target)
    known, kept = momenta(then), momenta(now)
    assert all(torch.equal(known[n][key], kept[n][key]) for n in known if n.startswith("actor") for key in known[n])


def test_convolutions_alone_as_in_the_paper() -> None:
    agent = DQN("CnnPolicy", Images(), **OFF_POLICY, policy_kwargs={**SMALL}, device="cpu")
    before, after = observed(agent, PlasticityCallback(rp.FIRE(where="paper_dqn"), at_steps=40), 60)
    then, now = before.policies[40].q_net.state_dict(), after.policies[40].q_net.state_dict()
    changed = [name for name in now if not torch.equal(then[name], now[name])]
    assert changed == [f"features_extractor.cnn.{layer}.weight" for layer in (0, 2, 4)]
    assert equal(after.policies[40].q_net, after.policies[40].q_net_target)


def images(kind: Any) -> Any:
    shared = {**SMALL, "share_features_extractor": True, "features_extractor_kwargs": {"features_dim": 8}}
    return kind("CnnPolicy", Images(continuous=True), **OFF_POLICY, policy_kwargs=shared, seed=0, device="cpu")


@pytest.mark.parametrize("networks", [None, ["actor"], ["critic"]])
def test_a_features_extractor_that_sac_shares_belongs_to_the_actor(networks: Any) -> None:
    before, after = observed(images(SAC), PlasticityCallback(rp.FIRE(), at_steps=40, networks=networks), 60)
    then, now = before.policies[40], after.policies[40]
    assert now.actor.features_extractor is now.critic.features_extractor
    mine = {
        None: ["actor.features_extractor", "actor.latent_pi", "actor.mu", "actor.log_std", "critic.qf0", "critic.qf1"],
        "actor": ["actor.features_extractor", "actor.latent_pi", "actor.mu", "actor.log_std"],
        "critic": ["critic.qf0", "critic.qf1"],
    }[networks and networks[0]]
    parts = [name for name, _ in now.named_modules() if name.count(".") == 1]  # each once, the extractor as the actor's
    changed = [name for name in parts if not equal(now.get_submodule(name), then.get_submodule(name))]
    assert [name for name in changed if not name.startswith("critic_target")] == mine
    assert equal(now.critic, now.critic_target)


def test_a_features_extractor_that_two_optimisers_train_is_refused() -> None:
    agent = images(TD3)
    for networks in (None, ["critic"]):
        with pytest.raises(ValueError, match=r"optimisers of actor and critic: .*share_features_extractor=False"):
            agent.learn(10, callback=PlasticityCallback(rp.FIRE(), networks=networks))


def test_new_weights_come_from_the_policys_own_initialisation() -> None:
    agent = make("PPO")
    _, after = observed(agent, PlasticityCallback(rp.FullReset(to="fresh"), at_steps=32), 64)
    weight = after.policies[32].mlp_extractor.policy_net[2].weight
    assert torch.allclose(weight @ weight.T, 2 * torch.eye(16), atol=1e-5)  # orthogonal, with a gain of sqrt(2)


@pytest.mark.parametrize("kind", ["DQN", "SAC", "PPO"])
def test_new_weights_depend_on_the_seed_alone(kind: str) -> None:
    def fresh(seed: int, noise: int) -> Any:
        torch.manual_seed(noise)
        agent, callback = make(kind), PlasticityCallback(rp.FullReset(to="fresh"), at_steps=32, seed=seed)
        torch.manual_seed(noise)
        return observed(agent, callback, 64)[1].policies[32]

    mine = fresh(1, 5)
    assert equal(mine, fresh(1, 6))
    assert not equal(mine, fresh(2, 5))


def test_a_build_of_ones_own_makes_the_policy() -> None:
    def zeros() -> Any:
        policy = make("DQN").policy
        for parameter in policy.parameters():
            nn.init.zeros_(parameter)
        return policy

    agent = make("DQN")
    _, after = observed(agent, PlasticityCallback(rp.FullReset(to="fresh"), at_steps=40, build=zeros), 60)
    assert not any(value.any() for value in after.policies[40].state_dict().values())


@pytest.mark.parametrize("method", [rp.ShrinkAndPerturb(), rp.ShrinkAndAddNoise(), rp.LayerReset("critic.qf0.4")])
def test_other_methods_that_act_at_boundaries_can_be_used(method: rp.Method) -> None:
    before, after = observed(make("SAC"), PlasticityCallback(copy.deepcopy(method), at_steps=40), 60)
    assert not equal(before.policies[40].critic, after.policies[40].critic)
    assert equal(after.policies[40].critic, after.policies[40].critic_target)


def test_targets_are_kept_where_a_method_does_not_change_their_networks() -> None:
    before, after = observed(make("TD3"), PlasticityCallback(rp.FIRE(where="actor.*"), at_steps=40), 60)
    assert equal(before.policies[40].critic_target, after.policies[40].critic_target)
    assert equal(after.policies[40].actor, after.policies[40].actor_target)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (rp.L2(), "every step of the optimiser.*weight_decay"),
        (rp.CBP(), "every step"),
        (rp.ReDo(), "every step"),
        (rp.ER(), "every step"),
        (rp.HareAndTortoise(), "every step"),
        (rp.DASH(), "needs the data"),
        (rp.PlasticityInjection(), "changes the networks' modules"),
        (rp.UseMuon(), "does nothing at boundaries.*optimizer_class"),
    ],
)
def test_methods_that_could_not_be_right_are_refused(method: rp.Method, message: str) -> None:
    with pytest.raises(TypeError, match=f"{type(method).__name__} .*{message}"):
        PlasticityCallback([rp.FIRE(), method])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": []}, "methods is empty"),
        ({"at_steps": [0]}, "at_steps .*0"),
        ({"every_steps": 0}, "every_steps=0"),
        ({"networks": []}, "networks="),
        ({"networks": [1]}, "networks="),
        ({"methods": rp.LayerReset()}, "where='head'.*q_net.q_net.4"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_made(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlasticityCallback(**{"methods": rp.FIRE(), **arguments})


def test_a_build_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="build is a Linear"):
        PlasticityCallback(rp.FIRE(), build=nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("kind", "message"), [("SAC", "it has actor, critic"), ("DQN", "it has q_net"), ("PPO", "method's where")]
)
def test_networks_that_there_are_not_are_named(kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"'critc'.*{message}"):
        make(kind).learn(10, callback=PlasticityCallback(rp.FIRE(), networks=["critc"]))


def test_it_does_not_work_inside_callbacks_that_know_no_rollouts() -> None:
    for inner in (PlasticityCallback(rp.FIRE()), CallbackList([PlasticityCallback(rp.FIRE())])):
        with pytest.raises(TypeError, match=r"inside EveryNTimesteps.*every_steps"):
            make("DQN").learn(10, callback=EveryNTimesteps(5, inner))


def test_a_callback_is_of_one_agent() -> None:
    callback = PlasticityCallback(rp.FIRE())
    make("DQN").learn(10, callback=callback)
    with pytest.raises(ValueError, match="make a new one"):
        make("DQN").learn(10, callback=callback)


class Laid(nn.Module):
    """A policy of one's own: parts by name, and which of them have an optimiser."""

    def __init__(self, parts: list[str], optimised: list[str], loose: bool = False) -> None:
        super().__init__()
        for name in parts:
            self.add_module(name, nn.Linear(2, 2))
        if loose:
            self.extra = nn.Parameter(torch.zeros(2))
        for name in optimised:
            module: Any = getattr(self, name) if name else self
            held = [p for n, p in module.named_parameters() if "_target" not in n and n != "extra"]
            module.optimizer = torch.optim.Adam(held)


def test_policies_of_other_algorithms_are_understood_by_how_they_are_laid_out() -> None:
    quantiles = Laid(["quantile_net", "quantile_net_target"], [""])
    parts = parts_of(quantiles, None)
    assert [*parts.model.state_dict()] == ["quantile_net.weight", "quantile_net.bias"]
    assert parts.targets == [(quantiles.quantile_net, quantiles.quantile_net_target)]
    crossed = parts_of(Laid(["actor", "critic"], ["actor", "critic"]), None)
    assert len(crossed.optimizers) == 2
    assert crossed.targets == []
    recurrent = Laid(["lstm_actor", "lstm_critic"], [""])
    assert parts_of(recurrent, None).model is recurrent


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (Laid(["actor"], []), "optimisers nowhere"),
        (Laid(["actor", "critic"], ["", "critic"]), "policy.optimizer, policy.critic.optimizer"),
        (Laid(["actor", "critic"], ["critic"]), "actor.weight trained by none"),
        (Laid(["critic", "value_target"], [""]), "target networks of value"),
        (Laid(["critic", "critic_target"], [""], loose=True), "extra trained by none"),
    ],
)
def test_policies_that_are_not_understood_are_refused(policy: nn.Module, found: str) -> None:
    with pytest.raises(TypeError, match=f"Laid .*policy.*{found}.*rp.fire_"):
        parts_of(policy, None)


@pytest.mark.parametrize("kind", ["DQN", "SAC", "PPO"])
def test_an_agent_is_saved_and_loaded_as_if_there_were_no_callback(kind: str, tmp_path: Path) -> None:
    agent, callback = make(kind), PlasticityCallback(rp.FIRE(), at_steps=[64, 126])
    agent.learn(128, callback=callback)
    agent.save(tmp_path / "agent.zip")
    assert b"replastic" not in (tmp_path / "agent.zip").read_bytes()  # nothing in it is compressed
    torch.save(callback.state_dict(), tmp_path / "callback.pt")

    again = type(agent).load(tmp_path / "agent.zip", env=agent.get_env(), device="cpu")
    assert equal(agent.policy, again.policy)
    resumed = PlasticityCallback(rp.FIRE(), at_steps=[64, 126])
    resumed.load_state_dict(torch.load(tmp_path / "callback.pt", weights_only=True))
    again.learn(64, callback=resumed, reset_num_timesteps=False)
    assert resumed.boundaries == [Boundary(64, "step 64"), Boundary(128, "step 128")]
    assert resumed.learner.task_number == 2


def test_a_resumed_run_goes_back_to_its_own_first_weights(tmp_path: Path) -> None:
    agent, callback = make("DQN"), PlasticityCallback(rp.FullReset(), at_steps=100)
    first = weights(agent.policy.q_net)
    agent.learn(80, callback=callback)
    agent.save(tmp_path / "agent.zip")
    again = DQN.load(tmp_path / "agent.zip", env=agent.get_env())
    resumed = PlasticityCallback(rp.FullReset(), at_steps=100)
    resumed.load_state_dict(callback.state_dict())
    _, after = observed(again, resumed, 40, reset_num_timesteps=False)
    assert all(torch.equal(first[name], value) for name, value in after.policies[100].q_net.state_dict().items())


def test_a_boundary_is_a_line_in_the_agents_log(capsys: pytest.CaptureFixture[str]) -> None:
    make("DQN", verbose=1).learn(60, callback=PlasticityCallback(rp.FIRE(), at_steps=40, verbose=1), log_interval=None)
    assert "replastic: boundary at step 40 (step 40)" in capsys.readouterr().out


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.delitem(sys.modules, "replastic.integrations.sb3")
    with pytest.raises(ImportError, match=r'Stable-Baselines3 callback needs stable_baselines3.*"replastic\[sb3\]"'):
        importlib.import_module("replastic.integrations.sb3")


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    example = load("examples/with_sb3.py", monkeypatch)
    for name, value in {"PHASES": 2, "STEPS": 120, "SEEDS": 2}.items():
        monkeypatch.setattr(example, name, value)
    example.main()
    printed = capsys.readouterr().out
    assert all(arm in printed for arm in example.ARMS)


def test_without_a_moment_to_come_there_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"FIRE would never act: with on_new_env=False .*every_steps"):
        PlasticityCallback(rp.FIRE(), on_new_env=False)
