"""Measured figures as tables, read from ``benchmarks/results`` so that no page can show a figure nobody measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_figures(page: str) -> str:
    """The text of ``page`` with the table between each pair of marks as it is measured now."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}{TABLES[match[2]]()}{match[3]}"

    return MARKED.sub(fill, (ROOT / page).read_text(encoding="utf-8"))


def _result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return result


def _measured(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return (
        f"Measured on {result['date']}: {result['processor']}, {result['threads']} thread, Python {result['python']}, "
        f"{versions}. Command: `{result['command']}`.\n"
    )


def _overhead_rows(result: dict[str, Any]) -> list[str]:
    rows = []
    for name, row in result["ratios"].items():
        low, high = row["interval"]
        bar = "" if row["bar"] is None else f"{row['bar']:.2f}"
        rows.append(f"| {name} | {row['ratio']:.3f} | {low:.3f} to {high:.3f} | {bar} |")
    return rows


def overhead() -> str:
    """The whole table of ``benchmarks/overhead.py``."""
    result = _result("overhead")
    head = ["| case | ratio to the hand-written loop | 95 % interval | aim: at most |", "|---|---|---|---|"]
    lines = [
        *head,
        *_overhead_rows(result),
        "",
        f"The hand-written loop took {result['hand_written_us']:.0f} µs a step. A step that does nothing costs "
        f"{result['dispatch_us']:.2f} µs (aim: at most 4). `from cadenza import Trainer` takes "
        f"{result['import_share']:.1%} longer than `import torch` alone (aim: at most 15 %). {_drawing(result)}",
        "",
        _measured(result),
    ]
    if "everyday" in result and result["everyday"]["command"] != result["command"]:
        lines += ["The callbacks of everyday use were measured apart.", _measured(result["everyday"])]
    lines.append(_ledger(result))
    return "\n".join(lines)


def _drawing(result: dict[str, Any]) -> str:
    return f"Of the fifteen, the plot of the history takes {result['figure_s']:.2f} s, once at the end of a training."


def _ledger(result: dict[str, Any]) -> str:
    ledger = result["ledger"]
    low, high = (100 * (bound - 1) for bound in ledger["interval"])
    return (
        f"Steps with the six callbacks and the cost ledger take {100 * (ledger['ratio'] - 1):.1f} % longer than those "
        f"without the ledger (95 % interval {low:.1f} to {high:.1f}, aim: under 1).\n\n{_measured(ledger)}"
    )


def overhead_short() -> str:
    """The lines that the README shows."""
    result = _result("overhead")
    tiny = [name for name in result["ratios"] if not name.startswith(("six", "fifteen", "the fifteen"))]
    rows = [f"| {name} | {result['ratios'][name]['ratio']:.2f} |" for name in tiny]
    return "\n".join(["| | time of a step |", "|---|---|", "| by hand | 1 |", *rows]) + "\n"


def faster_short() -> str:
    """The sentences of the README about execution."""
    cases, small = _result("gpu")["cases"], _result("peers")
    names = {
        "tiny MLP": "a tiny perceptron",
        "MLP, bf16": "one of 784-1024-1024-10 in bf16",
        "GPT, bf16": "a small GPT",
    }
    gpu = ", ".join(f"{words} {cases[name]['factor']:.1f}" for name, words in names.items())
    others = [row["lean"]["factor"] for row in small["peers"].values() if "lean" in row]
    own = small["ours"]["optimizer untouched"]["factor"]
    return (
        f'With `execution="auto"` an H200 trains {gpu} times as fast as the eager loop by hand that does the same. On '
        f"a CPU a perceptron of 784-256-256-10 from a plain `DataLoader` is {own:.2f} times as "
        f"fast as by hand; {len(others)} other libraries, as lean as they can be made, reach {min(others):.2f} to "
        f"{max(others):.2f}.\n"
    )


def report() -> str:
    """The sentence of ``benchmarks/report.py``."""
    result = _result("report")
    first, last, size = result["opened_s"][0], result["opened_s"][-1], result["bytes"] / 1e6
    return "\n".join(
        [
            f"The report of a run of {result['steps']:,} logged steps has {size:.2f} MB (aim: under 5), was made in "
            f"{result['made_s']:.1f} s, and opened in {first:.2f} to {last:.2f} s in Chromium, until the first curves "
            "were drawn (aim: under 2).",
            "",
            _measured(result),
        ]
    )


def gpu() -> str:
    """The table of one run of ``benchmarks/gpu.py``."""
    result = _result("gpu")
    head = [
        "| case | by hand, µs a step | Cadenza | times as fast | 95 % interval | aim: at least | met | "
        "Lightning | transformers | MB by hand | MB Cadenza | where it does not help |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = []
    for name, row in result["cases"].items():
        low, high = row["interval"]
        others = [f"{row[key]:.0f}" if key in row else "" for key in ("lightning_us", "transformers_us")]
        hand, mine = row["memory_mb"]
        cells = (
            name,
            f"{row['by_hand_us']:.0f}",
            f"{row['cadenza_us']:.0f}",
            f"{row['factor']:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{row['aim']:.2f}",
            "yes" if row["factor"] >= row["aim"] else "no",
            *others,
            f"{hand:.0f}",
            f"{mine:.0f}",
            "; ".join(row["told"]) or "",
        )
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join([*head, *rows, "", _measured(result)])


def peers() -> str:
    """The tables of ``benchmarks/peers.py``."""
    result = _result("peers")
    lines = ["| case | times as fast as by hand | 95 % interval | aim: at least |", "|---|---|---|---|"]
    for name, row in result["ours"].items():
        if "factor" in row:
            low, high = row["interval"]
            lines.append(f"| {name} | {row['factor']:.2f} | {low:.2f} to {high:.2f} | {row['aim']:.2f} |")
    if result["peers"]:
        lines += ["", "| library | lean | as it comes | Cadenza beside it |", "|---|---|---|---|"]
    for name, row in result["peers"].items():
        if "left_out" in row:
            lines.append(f"| {name} | not measured | | |")
            continue
        cells = [_factor(row[case]) for case in ("lean", "default", "cadenza")]
        lines.append(f"| {name} {row['version']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{result['rounds']} rounds. {_measured(result)}"])


def _factor(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"{row['factor']:.2f} ({low:.2f} to {high:.2f})"


def checkpoint() -> str:
    """The table of ``benchmarks/checkpoint.py``."""
    if not (ROOT / "benchmarks" / "results" / "checkpoint.json").exists():
        return "Not measured yet. Command: `python benchmarks/checkpoint.py --rounds 5`.\n"
    result = _result("checkpoint")
    lines = ["| how it is saved | time of the run | without the wait | the loop waits |", "|---|---|---|---|"]
    for name, row in result["cases"].items():
        lines.append(f"| {name} | {row['ratio']:.3f} | {row['beyond_the_wait']:.3f} | {row['wait_s']:.2f} s |")
    resume = result["resume"]
    aim = 1 + resume["reading_s"]
    lines += [
        "",
        f"1 is the same run without a save: {result['parameters'] / 1e6:.0f} million parameters, "
        f"{result['written_mb']:.0f} MB a checkpoint, {result['step_s']:.2f} s a step, one save in {result['steps']} "
        f"steps; medians of {result['rounds']} rounds. Aim: in the background at most 1.03 without the wait for the "
        f"copy. The thread that writes takes {result['writer_cpu_s']:.2f} s of processor time. A resume makes its "
        f"first step {resume['to_first_step_s']:.2f} s after the call of `fit`, of which reading takes "
        f"{resume['reading_s']:.2f} s (aim: at most {aim:.2f}).",
        "",
        _measured(result),
    ]
    return "\n".join(lines)


def scaling() -> str:
    """The table of ``benchmarks/scaling.py``."""
    result = _result("scaling")
    rows = [
        f"| {name} | {middle:.3f} | {low:.3f} to {high:.3f} |" for name, (middle, low, high) in result["ratios"].items()
    ]
    sent = {name: row["bytes"] for name, row in result["sent"].items()}
    lines = [
        "| case | ratio to plain DDP | 95 % interval |",
        "|---|---|---|",
        *rows,
        "",
        f"Plain DDP took {result['plain microseconds'][0]:.0f} µs a step and sent {sent['plain DDP']:.0f} bytes in it; "
        f"Cadenza sent {sent['no callbacks']:.0f}, in as many collectives.",
        "",
        _measured(result),
    ]
    return "\n".join(lines)


TABLES = {
    "checkpoint": checkpoint,
    "scaling": scaling,
    "report": report,
    "overhead": overhead,
    "overhead_short": overhead_short,
    "gpu": gpu,
    "faster_short": faster_short,
    "peers": peers,
}
