"""The engine's decisions are vLLM's: every step of every recorded run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from sim.__main__ import main
from sim.block_replay import BlockReplay
from sim.conformance import UnitClock, replay, requests_of, scenario_of
from sim.engine import simulate

FILES = sorted((Path(__file__).parent / "data" / "oracle").glob("*.json.gz"))


def test_all_recorded_runs_are_here():
    assert len(FILES) == 32


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.split(".")[0])
def test_every_step_is_as_vllm_recorded_it(path):
    result = replay(path)
    assert not result.difference
    assert result.steps > 0


@pytest.mark.parametrize("path", [p for p in FILES if p.name[:2] in ("24", "25")], ids=lambda path: path.name[:2])
def test_what_cannot_fit_is_refused_with_vllms_words(path):
    result = replay(path)
    assert result.refused
    assert all(reason.startswith("To serve at least one request with the model's max seq len") for reason in result.refused)


def test_a_difference_fails_the_command(tmp_path, capsys):
    record = json.loads(gzip.decompress(FILES[0].read_bytes()))
    record["steps"][3]["free"] += 1
    broken = tmp_path / "broken.json.gz"
    broken.write_bytes(gzip.compress(json.dumps(record).encode()))
    assert main(["conformance", str(FILES[0]), str(broken)]) == 1
    out = capsys.readouterr().out
    assert "step" in out and "free" in out
    assert out.endswith("1 passed, 1 failed\n")
    assert main(["conformance", str(FILES[0])]) == 0


def test_what_is_not_a_record_is_a_failure_not_a_crash(tmp_path, capsys):
    path = tmp_path / "no.json.gz"
    path.write_bytes(b"not gzip")
    assert main(["conformance", str(path), str(tmp_path / "absent")]) == 1
    assert capsys.readouterr().out.endswith("0 passed, 2 failed\n")


@pytest.mark.parametrize("path", FILES[:30], ids=lambda path: path.name.split(".")[0])
def test_block_numbers_agree_with_the_counts_of_the_engine(path):
    record = json.loads(gzip.decompress(path.read_bytes()))
    scenario, requests = scenario_of(record["config"]), requests_of(record)
    blocks = record["config"]["num_gpu_blocks"]

    def scheduled(replay, step):
        assert len(replay.queue) == step.free
        for r in step.running:
            assert len(replay.held[r]) == -(-replay.computed[r] // scenario.block_size)
        in_use = {block for held in replay.held.values() for block in held}
        assert in_use.isdisjoint(replay.queue) and len(in_use) + len(replay.queue) == blocks - 1

    seen = BlockReplay(scenario, requests, blocks, on_step=scheduled)

    def observe(step):
        seen(step)
        assert len(seen.queue) == step.free_end
        assert len({*seen.keyed.values()}) == step.keys()

    simulate(scenario, requests, step_time=UnitClock(), num_gpu_blocks=blocks, refuse=False, observer=observe)
