"""Fit the constants of sim/calibration.toml to measured step times, term by term.

    python tools/fit_step_time.py steps.csv [--write sim/calibration.toml] [--leave-one-out]

Each part of a row (linear layers, attention, experts, all-reduce, the rest) is fitted on its own, on log ratios with a
robust loss, so that one kernel's oddity moves no other term. Some is recorded elsewhere: latent attention partly under
"gemm" and partly under "attn", communication of experts under "moe", "comm" or "other"; there the sums are compared.
Needs scipy; the simulator does not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from sim.catalog import calibration
from sim.step_time import Constants, Hardware, Shared
from sim.validate import SYSTEMS, Row, fits_in_memory, read_steps, row_hardware, row_parts

PULL = 1.0
"""Weight of the prior: a constant a factor e off its start costs as much as a row predicted a factor e off."""


class Fit:
    """Constants under way: one set per system and one shared."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.systems = sorted({row.system for row in rows})
        self.constants = {system: Constants() for system in self.systems}
        self.shared = Shared()

    def predict(self, rows: Iterable[Row], part: Callable[[Hardware, Row], float]) -> np.ndarray:
        cache: dict[tuple[object, ...], Hardware] = {}
        out = []
        for row in rows:
            hard = cache.get(row.setting)
            if hard is None:
                hard = row_hardware(row, self.constants[row.system], self.shared)
                cache[row.setting] = hard
            out.append(part(hard, row))
        return np.array(out)

    def part(
        self,
        name: str,
        rows: list[Row],
        measured: Callable[[Row], float],
        part: Callable[[Hardware, Row], float],
        own: tuple[str, ...],
        common: tuple[str, ...] = (),
        weight: Callable[[Row], float] | None = None,
    ) -> None:
        """Fit `own` (of each system) and `common` so that part(row) meets measured(row)."""
        rows = [row for row in rows if measured(row) > 0]
        target = np.array([measured(row) for row in rows])
        weights = np.sqrt([weight(row) if weight else 1.0 for row in rows])
        systems = sorted({row.system for row in rows})
        names = [(system, key) for system in systems for key in own] + [("", key) for key in common]

        def apply(x: np.ndarray) -> None:
            for (system, key), value in zip(names, np.exp(x), strict=True):
                if system:
                    self.constants[system] = replace(self.constants[system], **{key: float(value)})
                else:
                    self.shared = replace(self.shared, **{key: float(value)})

        def residual(x: np.ndarray) -> np.ndarray:
            apply(x)
            # the pull to the start keeps a constant near what is usual where the rows hardly speak of it
            return np.concatenate([np.log(self.predict(rows, part) / target) * weights, PULL * (x - start)])

        start = np.log([getattr(self.constants[s] if s else self.shared, k) for s, k in names])
        began = time.perf_counter()
        found = least_squares(residual, start, loss="soft_l1", f_scale=0.05, max_nfev=25, x_scale=0.1)
        apply(found.x)
        error = np.abs(self.predict(rows, part) / target - 1)
        print(
            f"{name:22} {len(rows):5} rows  median {np.median(error):6.2%}  p90 {np.quantile(error, 0.9):7.2%}"
            f"  ({time.perf_counter() - began:.0f} s)",
            flush=True,
        )


def distinct(rows: list[Row], key: Callable[[Row], object]) -> list[Row]:
    """One row for each key: parts repeat over rows that differ in what the part does not depend on."""
    seen: dict[object, Row] = {}
    for row in rows:
        seen.setdefault((row.setting, key(row)), row)
    return list(seen.values())


def fit(rows: list[Row]) -> Fit:
    """All terms, one after the other."""
    found = Fit(rows)
    plain = [row for row in rows if not row.latent]
    tokens = lambda row: (row.tokens, row.sampled)  # noqa: E731
    found.part(
        "rest",
        distinct(plain, tokens),
        lambda r: r.parts["other_ms"],
        lambda h, r: h.fixed(r.tokens) * 1e3,
        (),
        ("layer_us", "dense_us", "hidden_moves", "width_moves"),
    )
    found.part(
        "linear and head",
        distinct(plain, tokens),
        lambda r: r.parts["gemm_ms"],
        lambda h, r: (h.linear(r.tokens) + h.head(r.sampled)) * 1e3,
        ("flops", "flops_fp8", "bandwidth", "kernel_us"),
        ("sharpness", "throttle", "quantise_us", "quantise_moves"),
        lambda r: r.parts["gemm_ms"] / r.ms,
    )
    alone = [row for row in plain if row.phase == "decode"]
    share = lambda r: r.parts["attn_ms"] / r.ms  # noqa: E731
    found.part(
        "decode attention",
        alone,
        lambda r: r.parts["attn_ms"],
        lambda h, r: h.attention_decode(r.decode_seqs, r.decode_context) * 1e3,
        ("kv_bandwidth", "attention_us"),
        ("attention_seq_us",),
        share,
    )
    prefill = [row for row in plain if row.phase in ("prefill", "prefill_chunk")]
    found.part(
        "prefill attention",
        prefill,
        lambda r: r.parts["attn_ms"],
        lambda h, r: h.attention_prefill(r.prefill_seqs, r.prefill_tokens, r.prefill_pairs, r.prefill_context) * 1e3,
        ("attention_flops",),
        ("prefill_attention_us", "attention_moves", "attention_sharpness"),
        share,
    )
    reduced = distinct([row for row in plain if row.parts["comm_ms"] > 0], lambda r: r.tokens)
    found.part(
        "communication",
        reduced,
        lambda r: r.parts["comm_ms"],
        lambda h, r: h.all_reduce(r.tokens) * 1e3,
        ("all_reduce_us", "link"),
        ("ring_power", "gather_rank_us", "message_power"),
        lambda r: r.parts["comm_ms"] / r.ms,
    )
    moe = distinct([row for row in rows if row.parts["moe_ms"] > 0], lambda r: (r.tokens, r.phase))
    found.part(
        "experts",
        moe,
        lambda r: r.parts["moe_ms"] + r.parts["comm_ms"] + r.parts["other_ms"],
        lambda h, r: (h.moe(r.tokens) + h.all_reduce(r.tokens) + h.fixed(r.tokens)) * 1e3,
        ("expert_flops", "expert_us", "expert_floor_us"),
        ("network", "network_us", "gather_tp", "expert_sharpness", "expert_narrow"),
        lambda r: r.parts["moe_ms"] / r.ms,
    )
    latent = [row for row in rows if row.latent]
    if latent:

        def rest(hard: Hardware, row: Row) -> float:
            parts = row_parts(hard, row)
            return (
                parts["linear"]
                + parts["head"]
                + parts["attention_decode"]
                + parts["attention_prefill"]
            ) * 1e3

        found.part(
            "latent attention",
            latent,
            lambda r: r.parts["gemm_ms"] + r.parts["attn_ms"],
            rest,
            (),
            ("mla_floor", "mla_prefill_us", "mla_prefill", "mla_seq_us"),
            lambda r: 1.0,
        )
    return found


def report(found: Fit, rows: list[Row], title: str) -> dict[str, dict[str, float]]:
    """Print and return median and p90 of |predicted/measured - 1|, by system and in all."""
    predicted = found.predict(rows, lambda h, r: sum(row_parts(h, r).values()) * 1e3)
    error = np.abs(predicted / np.array([row.ms for row in rows]) - 1)
    out = {}
    print(title)
    groups = [("all", np.ones(len(rows), bool))]
    groups += [(s, np.array([r.system == s for r in rows])) for s in found.systems]
    groups += [(m, np.array([r.model == m for r in rows])) for m in sorted({r.model for r in rows})]
    for name, mask in groups:
        if mask.any():
            out[name] = {
                "rows": int(mask.sum()),
                "median": float(np.median(error[mask])),
                "p90": float(np.quantile(error[mask], 0.9)),
            }
            print(f"  {name:16} {mask.sum():5} rows  median {out[name]['median']:6.2%}  p90 {out[name]['p90']:7.2%}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--leave-one-out", action="store_true", help="also fit without each model and test on it")
    args = parser.parse_args()
    rows = [row for row in read_steps(args.steps) if fits_in_memory(row)]
    found = fit(rows)
    errors = report(found, rows, "all rows that fit in memory")
    held: dict[str, dict[str, float]] = {}
    if args.leave_one_out:
        for name in sorted({row.model for row in rows}):
            without = fit([row for row in rows if row.model != name])
            without.constants = {**{s: Constants() for s in found.systems}, **without.constants}
            held[name] = report(
                without, [row for row in rows if row.model == name], f"fitted without {name}, tested on it"
            )["all"]
    if args.write:
        write(args.write, found, errors, held, args.steps.name)


def write(
    path: Path, found: Fit, errors: dict[str, dict[str, float]], held: dict[str, dict[str, float]], source: str
) -> None:
    """The constants with their errors; what the fit does not know (host times, cards without rows) is kept."""
    kept = {key: dict(value) for key, value in calibration().items()}
    names = {f.name for f in fields(Shared)}
    measured = {
        k: v
        for k, v in kept.get("shared", {}).items()
        if k in names and (k.split("_")[0] in ("host", "sampler", "v0") or k == "expert_gap_us")
    }
    lines = [
        f"# Written by tools/fit_step_time.py from {source}; meanings in sim/step_time.py (Constants, Shared).",
        "# By hand, from real servers: host, sampler and expert_gap times, RTX-4090 and RTX-PRO-6000 (each fitted to one run).",
        "",
    ]

    def section(name: str, values: dict[str, object]) -> None:
        lines.append(f"[{name}]")
        for key, value in values.items():
            lines.append(f"{key} = {value:.5g}" if isinstance(value, float) else f"{key} = {value!r}".replace("'", '"'))
        lines.append("")

    section("shared", {**asdict(found.shared), **measured})
    for system in found.systems:
        section(f'"{SYSTEMS[system]}"', dict(asdict(found.constants[system])))
    for name, value in kept.items():
        if name not in {"shared", "errors", "held_out", *(SYSTEMS[s] for s in found.systems)}:
            section(f'"{name}"', value)
    for name, value in errors.items():
        section(f'errors."{SYSTEMS.get(name, name)}"', dict(value))
    for name, value in held.items():
        section(f'held_out."{name}"', dict(value))
    path.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
