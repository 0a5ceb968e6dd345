"""The table of all claims says what records and tests say."""

import copy
import re

import pytest

from tests.test_docs import ROOT, between, load

PAGE = (ROOT / "docs/claims.md").read_text()
IDS = [
    *(f"F{number}" for number in range(1, 42)),
    *(f"E{number}" for number in range(1, 28)),
    *(f"S{number}" for number in range(1, 23)),
    "S22b",
    *(f"S{number}" for number in range(23, 26)),
]


@pytest.fixture(scope="module")
def claims():
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield load("docs/result_claims.py", monkeypatch)  # once: it reads all records


def cells(text: str) -> list[list[str]]:
    """The rows of all tables, but for the lines below their heads."""
    rows = [line for line in text.splitlines() if line.startswith("|") and not set(line) <= set("|-")]
    return [row.strip("| ").split(" | ") for row in rows]


def test_every_claim_is_there_once_with_a_verdict_of_the_set(claims) -> None:
    assert [entry["id"] for entry in claims.claims()] == IDS
    rows = {row[0]: row for row in cells(PAGE) if row[0] in IDS}
    assert list(rows) == IDS
    assert {row[3].strip("*") for row in rows.values()} == set(claims.VERDICTS)
    assert len(rows) == 94


def test_the_page_is_made_of_the_file(claims) -> None:
    for marker, block in claims.blocks().items():
        assert between(PAGE, marker) == "\n".join(block), "run python docs/results.py"


@pytest.mark.parametrize("page", ["docs/claims.md", "docs/results.md"])
def test_cells_are_short(page: str, claims) -> None:
    rows = cells((ROOT / page).read_text())
    assert len(rows) > 30
    assert [cell for row in rows for cell in row if claims.words(cell) > claims.MOST_WORDS] == []


def test_what_was_found_has_the_numbers_of_pages_and_tests(claims) -> None:
    entries = {entry["id"]: entry for entry in claims.claims()}
    assert claims.strays([*entries.values()]) == []
    wrong = [entries["F2"] | {"found": "Above S&P by .0333"}, entries["F37"] | {"found": "The norm is above 77.7."}]
    assert [line.split(" is ")[0] for line in claims.strays(wrong)] == ["F2: 0.0333", "F37: 77.7"]


def test_the_numbers_of_the_short_answers_are_on_the_pages_of_the_papers(claims) -> None:
    known = {number for path in (ROOT / "docs").glob("results-*.md") for number in claims.decimals(path.read_text())}
    lines = (ROOT / "docs/results.md").read_text().splitlines()
    numbers = claims.decimals("\n".join(line for line in lines if "[theory]" not in line))  # those have numbered theorems
    assert len(numbers) > 20
    assert [number for number in numbers if number not in known] == []


@pytest.mark.parametrize(
    ("claim", "changed", "problem"),
    [
        ("F2", {"verdict": "likely"}, "verdict = 'likely'"),
        ("F2", {"scale": "small"}, "scale = 'small'"),
        ("F2", {"verdict": "not run"}, "some records"),
        ("F4", {"verdict": "holds", "scale": "theory"}, "no records"),
        ("F4", {"scale": "shortened"}, "no records"),
        ("F37", {"tests": []}, "counterexample"),
        ("F37", {"tests": ["tests/test_bounds_fire.py::test_theorem_2"]}, "no test .*::test_theorem_2$"),
        ("F37", {"tests": ["tests/test_none.py::test_theorem_2"]}, "no test tests/test_none.py"),
        ("F32", {"files": ["benchmarks/results/none.json"]}, "no file benchmarks/results/none.json"),
        ("F2", {"runs": [{"in": ["fire-2a"], "arms": ["FIRE"], "n": 3}]}, "no record fire-2a "),
        ("F2", {"runs": [{"in": ["fire-2a-cifar10"], "arms": ["FIRE", "SNR"], "n": 3}]}, "n = 3.* 1 seeds of SNR"),
        ("F2", {"runs": [{"in": ["fire-2a-cifar10"], "arms": ["FIRE, ten"], "n": 3}]}, "0 seeds of FIRE, ten"),
        ("F3", {"runs": [{"in": ["fire-6-cifar10", "fire-2b-cifar10"], "arms": ["DASH"], "n": 1}]}, "fire-6.* 0 seeds"),
        ("F23", {"runs": [{"in": ["fire-5a-7-cifar10"], "arms": ["FIRE, steps=1 | FIRE, 1 step"], "n": 3}]}, "has 1 seeds"),
        ("F30", {"runs": [{"in": ["fire-table-1"], "arms": ["FIRE"], "n": 10}]}, "3 seeds of FIRE"),
    ],
)
def test_what_records_and_tests_do_not_say_is_refused(claim: str, changed: dict, problem: str, claims) -> None:
    (entry,) = (copy.deepcopy(entry) for entry in claims.claims() if entry["id"] == claim)
    assert list(claims.problems(entry)) == []
    found = [*claims.problems(entry | changed)]
    assert any(re.search(problem, one) for one in found), found


def test_five_printed_statements_have_a_counterexample(claims) -> None:
    false = {entry["id"]: entry["of"] for entry in claims.claims() if entry["verdict"] == "false as printed"}
    assert false == {
        "F37": "theorem 2, corollary 1",
        "E22": "theorem 6.5, lemma B.1",
        "E23": "theorem B.3",
        "E24": "corollary B.4",
    }
