"""How far the model is from measurements: step times of kernels, real servers, served latency.

python -m sim validate steps.csv [--median 0.06 --p90 0.16]
python -m sim validate --runs DIR...
python -m sim validate --served served_latency.csv
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from sim import memory
from sim.catalog import gpu
from sim.scenario import Scenario, SimError
from sim.step_time import Constants, Hardware, Shared, constants, shared

SYSTEMS = {
    "a100_sxm": "A100-80GB",
    "h100_sxm": "H100-SXM",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "l40s": "L40S",
    "a10g": "A10G",
    "rtx4090": "RTX-4090",
    "rtxpro6000": "RTX-PRO-6000",
    "mi300x": "MI300X",
}
"""Names that measurement files give GPUs, and ours."""
MODELS = {"Llama-3.3-70B": "Llama-3.1-70B"}
"""Names of models of the same architecture as one of the catalogue."""
PARTS = ("attn_ms", "gemm_ms", "moe_ms", "comm_ms", "other_ms")
PRECISIONS = {
    "bf16": "bf16",
    "fp16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "int4": "int4",
    "fp4": "int4",
    "nvfp4": "int4",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured step, in the terms of StepTime.seconds()."""

    system: str
    model: str
    phase: str
    setting: tuple[str, str, int, int, int, str]  # system, model, tp, ep, attention dp, precision
    ms: float
    decode_seqs: int
    decode_context: int
    prefill_seqs: int
    prefill_tokens: int
    prefill_pairs: int
    prefill_context: int
    latent: bool
    parts: Mapping[str, float]

    @property
    def tokens(self) -> int:
        """New tokens of the step."""
        return self.decode_seqs + self.prefill_tokens

    @property
    def sampled(self) -> int:
        """Rows through the head."""
        return self.decode_seqs + self.prefill_seqs


def scenario_of(setting: tuple[str, str, int, int, int, str]) -> Scenario:
    """The server that such rows were measured on."""
    system, model, tp, ep, dp, precision = setting
    return Scenario(
        model=MODELS.get(model, model),
        gpu=SYSTEMS.get(system, system),
        tensor_parallel_size=tp,
        data_parallel_size=dp,
        enable_expert_parallel=ep > 1,
        weights=PRECISIONS[precision],
        host="none",
        max_model_len=2048,
    )


def read_steps(path: Path) -> list[Row]:
    """Rows of a steps.csv. SimError names the line and column that cannot be read."""
    found = []
    with Path(path).open(encoding="utf-8", newline="") as file:
        for number, line in enumerate(csv.DictReader(file), 2):
            try:
                found.append(_row(line))
            except (KeyError, ValueError, TypeError) as error:
                raise SimError(
                    "steps_row",
                    f"{path}, line {number}: {error!r}; expected the columns of step_times/README.md",
                    line=number,
                    reason=repr(error),
                ) from None
    if not found:
        raise SimError("steps_empty", f"{path} holds no rows")
    return found


def _row(line: dict[str, str]) -> Row:
    batch, context, chunk = int(line["batch"]), int(line["context"]), int(line["chunk_tokens"])
    setting = (
        line["system"],
        line["model"],
        int(line["tp"]),
        int(line["ep"]),
        int(line.get("attn_dp") or 1),
        line["precision"],
    )
    phase = line["phase"]
    decode = (batch, batch * context) if phase in ("decode", "mixed") else (0, 0)
    prefill = (0, 0, 0, 0)
    if phase == "prefill":
        prefill = (batch, batch * context, batch * (context * (context + 1) // 2), batch * context)
    elif phase == "prefill_chunk":
        prefill = (1, chunk, chunk * context + chunk * (chunk + 1) // 2, context + chunk)
    elif phase == "mixed":  # chunk_tokens of prompts as long as context, whole ones where they fit
        each = min(chunk, context)
        count = max(1, chunk // each)
        prefill = (count, chunk, count * (each * (each + 1) // 2), chunk)
    elif phase != "decode":
        raise ValueError(f"phase {phase!r}")
    scenario = scenario_of(setting)
    return Row(
        setting[0],
        setting[1],
        phase,
        setting,
        float(line["ms"]),
        *decode,
        *prefill,
        latent=memory.model(scenario.model).is_mla,
        parts={name: float(line.get(name) or 0) for name in PARTS},
    )


@lru_cache(maxsize=512)
def _room(setting: tuple[str, str, int, int, int, str]) -> float:
    scenario = scenario_of(setting)
    shape = memory.model(scenario.model)
    used = memory.rank_weight_bytes(shape, scenario) + memory.CONTEXT_BYTES
    return (gpu(scenario.gpu).memory_bytes - used) / (memory.block_bytes(shape, scenario) / scenario.block_size)


def fits_in_memory(row: Row) -> bool:
    """Whether the card holds weights and the row's KV (all of its memory, nothing kept for activations)."""
    return row.decode_context + row.prefill_context + row.tokens <= _room(row.setting)


def row_hardware(row: Row, fitted: Constants | None = None, common: Shared | None = None) -> Hardware:
    """The hardware of a row; its experts are loaded by a power law, the most popular on one rank."""
    common = common or shared()
    scenario = scenario_of(row.setting).but(expert_skew=min(2.0, common.step_skew))
    return Hardware(scenario, fitted or constants(gpu(scenario.gpu)), common, hot_together=True)


def row_parts(hard: Hardware, row: Row) -> dict[str, float]:
    """Seconds of each term of the row's step."""
    linear, moe, reduce_, head, fixed = hard.base(row.tokens, row.sampled, False)
    return {
        "linear": linear,
        "experts": moe,
        "all_reduce": reduce_,
        "head": head,
        "fixed": fixed,
        "attention_prefill": hard.attention_prefill(
            row.prefill_seqs, row.prefill_tokens, row.prefill_pairs, row.prefill_context
        ),
        "attention_decode": hard.attention_decode(row.decode_seqs, row.decode_context),
    }


def predict(rows: Iterable[Row]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Predicted ms of each row."""
    cache: dict[object, Hardware] = {}
    out = []
    for row in rows:
        hard = cache.get(row.setting)
        if hard is None:
            hard = cache[row.setting] = row_hardware(row)
        out.append(sum(row_parts(hard, row).values()) * 1e3)
    return np.array(out)
