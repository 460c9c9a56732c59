"""`make prove`: campaigns resume, print their seed, and leave a line in docs/proof.md."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from prove.__main__ import main
from prove.campaign import Campaign, Outcome, Run, Slice, load_campaigns, merge, require
from prove.commit import NotInGit, identify_commit
from prove.runner import Request, prove


class Counting:
    """A campaign of numbers that records its slices and can be told to stop at one of them."""

    def __init__(self) -> None:
        self.slices: list[tuple[int, int, int]] = []
        self.interrupt_at: int | None = None
        self.fail_at: int | None = None

    def __call__(self, part: Slice) -> Outcome:
        if part.number == self.interrupt_at:
            raise KeyboardInterrupt
        require(part.number != self.fail_at, "two and two are five")
        self.slices.append((part.number, part.seed, part.size))
        return Outcome({"numbers": part.size, "max_number": part.number}, {"seen": 1})


@pytest.fixture
def counting() -> Counting:
    return Counting()


def request_for(directory: Path, run: Run, *, seed: int | None = 7, commit: str = "abc") -> Request:
    campaign = Campaign(
        name="numbers",
        summary="Count.",
        unit="numbers",
        size=25,
        slice_size=10,
        databases=(),
        run=run,
    )
    return Request(
        campaign=campaign,
        database=None,
        commit=commit,
        seed=seed,
        checkpoints=directory / ".prove",
        proof=directory / "proof.md",
    )


def proof_lines(directory: Path) -> list[str]:
    lines = (directory / "proof.md").read_text().splitlines()
    return [line for line in lines if line.startswith("| 2")]


def test_a_campaign_does_every_slice_and_appends_commit_seed_counts_and_result(
    tmp_path: Path, counting: Counting
) -> None:
    assert prove([request_for(tmp_path, counting)])
    assert prove([request_for(tmp_path, counting)])

    assert [size for _, _, size in counting.slices] == [10, 10, 5] * 2
    first, second = proof_lines(tmp_path)
    assert "| numbers | none | `abc` | 7 | 25 numbers | numbers=25 max_number=2 |" in first
    assert first.endswith("| passed |")
    assert second.split("|")[2:8] == first.split("|")[2:8]


def test_an_interrupted_campaign_continues_with_the_slice_that_was_interrupted(
    tmp_path: Path, counting: Counting
) -> None:
    counting.interrupt_at = 1
    with pytest.raises(KeyboardInterrupt):
        prove([request_for(tmp_path, counting, seed=None)])
    assert not (tmp_path / "proof.md").exists()
    counting.interrupt_at = None

    assert prove([request_for(tmp_path, counting, seed=None)])

    assert [number for number, _, _ in counting.slices] == [0, 1, 2]
    [line] = proof_lines(tmp_path)
    assert "numbers=25" in line


@pytest.mark.parametrize(("commit", "seed"), [("def", 7), ("abc", 8)])
def test_another_commit_or_seed_begins_again(
    tmp_path: Path, counting: Counting, commit: str, seed: int
) -> None:
    counting.interrupt_at = 1
    with pytest.raises(KeyboardInterrupt):
        prove([request_for(tmp_path, counting)])
    counting.interrupt_at = None

    assert prove([request_for(tmp_path, counting, commit=commit, seed=seed)])

    assert [number for number, _, _ in counting.slices] == [0, 0, 1, 2]


def test_a_failure_is_recorded_with_the_seed_of_its_slice_and_can_be_repeated(
    tmp_path: Path, counting: Counting
) -> None:
    counting.fail_at = 1

    assert not prove([request_for(tmp_path, counting)])
    counting.fail_at = None
    assert prove([request_for(tmp_path, counting)])

    failed, passed = proof_lines(tmp_path)
    (_, seed, _) = counting.slices[1]
    assert f"FAILED: slice 2 with seed {seed}: two and two are five" in failed
    assert passed.endswith("| passed |")
    assert [number for number, _, _ in counting.slices] == [0, 1, 2]


def test_slices_of_one_seed_have_the_same_seeds_each_time(
    tmp_path: Path, counting: Counting
) -> None:
    prove([request_for(tmp_path, counting)])
    prove([request_for(tmp_path, counting)])

    assert counting.slices[:3] == counting.slices[3:]
    assert len({seed for _, seed, _ in counting.slices}) == 3


def test_a_resumed_campaign_leaves_out_the_databases_that_have_passed(tmp_path: Path) -> None:
    began: list[str | None] = []

    def interrupt_the_second(part: Slice) -> Outcome:
        began.append(part.database)
        if len(began) == 2:
            raise KeyboardInterrupt
        return Outcome({"urls": len(part.url) > 0})

    request = msgspec.structs.replace(request_for(tmp_path, interrupt_the_second), size=1)
    requests = [request, msgspec.structs.replace(request, database="sqlite")]
    with pytest.raises(KeyboardInterrupt):
        prove(requests)

    assert prove(requests)

    assert began == [None, "sqlite", "sqlite"]
    assert [line.split("|")[3].strip() for line in proof_lines(tmp_path)] == ["none", "sqlite"]


def test_counts_are_added_and_of_maxima_the_largest_is_kept() -> None:
    total = merge(Outcome({"kills": 2, "max_s": 3.5}), Outcome({"kills": 1, "max_s": 1.0}))

    assert total.counts == {"kills": 3, "max_s": 3.5}


def test_without_a_campaign_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    listed = capsys.readouterr().out
    for name, campaign in load_campaigns().items():
        assert name in listed
        assert campaign.summary in listed


def test_an_unknown_campaign_is_refused_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-campaign"]) == 2

    assert "There is no campaign 'no-such-campaign'." in capsys.readouterr().out


def test_a_commit_with_changes_is_told_from_the_commit_without(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        subprocess.run(command, check=True, capture_output=True)

    with pytest.raises(NotInGit, match="needs one"):
        identify_commit(tmp_path)
    git("init", "--quiet")
    (tmp_path / "code.py").write_text("one")
    (tmp_path / "docs").mkdir()
    git("add", ".")
    git("commit", "--quiet", "--message", "One")
    clean = identify_commit(tmp_path)

    (tmp_path / "docs" / "proof.md").write_text("a result")
    assert identify_commit(tmp_path) == clean
    (tmp_path / "more.py").write_text("two")
    untracked = identify_commit(tmp_path)
    (tmp_path / "code.py").write_text("three")
    changed = identify_commit(tmp_path)

    assert len({clean, untracked, changed}) == 3
    assert untracked.startswith(f"{clean}+")
