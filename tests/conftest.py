import pytest
import torch

# One thread a process: the tests run side by side, and two-thread operations on tiny tensors only get in each other's way.
torch.set_num_threads(1)
# Bit-exact resume is ours to keep; convolutions that add up in another order each time are not ours to mend.
torch.backends.cudnn.deterministic = True

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
