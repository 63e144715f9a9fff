"""The parts of a page that show one run."""

from __future__ import annotations

from typing import Any

from cadenza.experiment.records import Record
from cadenza.experiment.report.markup import duration, folded, pairs, section, shown, table, text
from cadenza.experiment.report.pictures import gallery, histograms
from cadenza.experiment.report.score import score_picture
from cadenza.experiment.secrets import masked_text
from cadenza.foundation.tree import leaves

_LOG_LINES = 200
_NO_RATE = '<p class="note">Not logged; add <code>LRMonitor()</code> to the callbacks.</p>'


def result(record: Record) -> str:
    """The result of a run in one line."""
    status = record.status
    epochs, steps, seconds = (status.get(name) or 0 for name in ("epochs", "steps", "seconds"))
    length = f"{epochs} epoch{'s' * (epochs != 1)}, {steps:,} step{'s' * (steps != 1)}, {duration(float(seconds))}"
    ended = {"finished": f"after {length}", "running": f"{length} so far"}
    said = ended.get(record.state, f"{record.state} after {length}")
    best = record.headline()
    if best is None:
        return f"No metric yet; {said}"
    name, value, where = best
    if not _trains(record):
        return f"{name} {shown(value)}, {record.status['mode']} {record.state}"
    at = f" in epoch {where['epoch'] + 1}" if isinstance(where.get("epoch"), int) else ""
    return f"{name} {shown(value)}{at}, {said}"


def _trains(record: Record) -> bool:
    """Whether the run had a fit; a validation alone has no epochs, no learning rate and no costs."""
    return bool(record.status.get("mode", "fit") == "fit")


def head(record: Record) -> str:
    details = record.details
    badge = f'<span class="badge {text(record.state)}">{text(record.state)}</span>'
    title = f"{text(details['project'])} / {text(details['name'])}"
    error = record.status.get("error")
    said = "; ".join(filter(None, (error, record.status.get("raised"))))
    failed = f'<p class="error">{text(masked_text(said))}</p>' if error else ""
    return (
        f'<h1>{title} {badge}</h1><p class="id">{text(record.folder.name)} · {text(details.get("created"))}</p>'
        f'<p class="result">{text(result(record))}</p>{failed}{_tiles(record)}'
    )


def _tiles(record: Record) -> str:
    details, settings = record.details, record.details.get("settings") or {}
    model = settings.get("model", {})
    tiles = [
        ("model", model.get("class")),
        ("parameters", model.get("parameters")),
        ("optimizer", _class(settings.get("optimizer"))),
        ("batch size", settings.get("batch_size")),
        ("device", details.get("hardware", {}).get("device")),
        ("seed", details.get("seed")),
    ]
    cells = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in tiles if value is not None
    )
    return f'<dl class="tiles">{cells}</dl>'


def _class(optimizer: Any) -> str | None:
    if not isinstance(optimizer, dict):
        return None
    found = [one for _, one in leaves(optimizer, _several) if isinstance(one, dict)]
    rates = [one.get("lr") for one in found]
    texts = (f", lr {shown(rate)}" if rate is not None else "" for rate in rates)
    return ", ".join(f"{one['class']}{text}" for one, text in zip(found, texts, strict=True))


def _several(optimizer: Any) -> Any:
    return optimizer.items() if isinstance(optimizer, dict) and "class" not in optimizer else None


def happened(record: Record) -> str:
    """What happened, in order; of many new bests in a row only the last."""
    rows = []
    for index, event in enumerate(record.events):
        following = record.events[index + 1]["kind"] if index + 1 < len(record.events) else None
        if event["kind"] == "best" and following == "best":
            continue
        place = f"epoch {event['epoch'] + 1}, step {event.get('step', 0):,}" if "epoch" in event else ""
        where = place if _trains(record) else ""
        kind = f'<span class="kind">{text(event["kind"])}</span>'
        rows.append(
            [text(str(event.get("time", "")).replace("T", " ").rstrip("Z")), kind, text(where), text(event["says"])]
        )
    if record.state == "killed":
        rows.append(["", '<span class="kind">killed</span>', "", "the process is gone and did not say why"])
    return table(["time (UTC)", "what", "where", ""], rows, "events") if rows else ""


def costs(record: Record) -> str:
    """What each callback cost, as ``CostLedger`` measured it."""
    inside = [row for row in record.costs if row.get("stage") == "train" and row.get("batches")]
    if not inside:
        return '<p class="note">Not measured; add <code>CostLedger()</code> to the callbacks.</p>'
    rows = []
    for row in sorted(inside, key=lambda row: -row["seconds"]):
        share = row.get("share") or 0.0
        bar = f'<span class="bar" style="--share:{min(max(share, 0), 1):.4f}"></span>{share:.1%}'
        rows.append([text(_who(row["callback"], record)), f"<code>{text(row['point'])}</code>" if row["point"] else "",
                     f"{row['seconds'] / row['batches'] * 1e6:,.1f}", bar])  # fmt: skip
    outside = [row for row in record.costs if row.get("stage") is None and row.get("seconds")]
    further = table(
        ["outside of batches", "point", "calls", "seconds"],
        [
            [
                text(_who(row["callback"], record)),
                f"<code>{text(row['point'])}</code>",
                text(row["calls"]),
                f"{row['seconds']:.3f}",
            ]
            for row in sorted(outside, key=lambda row: -row["seconds"])
        ],
        "numbers costs outside",
    )
    return table(["callback", "point", "µs a batch", "share"], rows, "numbers costs") + (
        folded("Outside of batches", further) if outside else ""
    )


def _who(name: str, record: Record) -> str:
    """The experiment plays under its own name, which says little in a list of callbacks."""
    return "Experiment" if name == record.details["name"] else name


def shown_things(record: Record) -> str:
    texts = [one for one in record.media if one.get("kind") == "text"]
    said = "".join(
        f'<figure class="text"><figcaption>{text(one["name"])}, step {text(one["step"])}</figcaption>'
        f"<pre>{text(one['value'])}</pre></figure>"
        for one in texts[-50:]
    )
    bars = histograms(record.media)
    return gallery(record) + (f'<div class="gallery">{bars}</div>' if bars else "") + said


def recipe(record: Record) -> str:
    """What was set: the recipe, and what the run itself showed."""
    return pairs(record.settings.items())


def environment(record: Record) -> str:
    details = record.details
    git = details.get("git") or {}
    changed = git.get("changed") or []
    facts = [
        ("command", " ".join(details.get("command", []))),
        ("directory", details.get("directory")),
        ("commit", f"{git['commit']} ({git.get('branch')})" if git else None),
        ("changed files", ", ".join(changed[:20]) + (" …" if len(changed) > 20 else "") if git else None),
        ("seed", details.get("seed")),
        ("deterministic", details.get("deterministic")),
        ("Python", details.get("python")),
        ("torch", details.get("torch")),
        ("Cadenza", details.get("cadenza")),
        *details.get("hardware", {}).items(),
    ]
    return pairs((name, value) for name, value in facts if value not in (None, "")) + _files(record)


def _files(record: Record) -> str:
    parts = []
    for title, name in (("Packages", "packages.txt"), ("Log", "log.txt")):
        try:
            lines = (record.folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        kept = lines if name == "packages.txt" else lines[-_LOG_LINES:]
        if kept:
            parts.append(folded(title, f"<pre>{text(masked_text(chr(10).join(kept)))}</pre>"))
    return "".join(parts)


def one_run(record: Record, charts: dict[str, str]) -> str:
    """The page of one run."""
    parts = [
        section("Curves", charts["curves"], "curves"),
        section("Learning rate", charts["rate"] or (_NO_RATE if _trains(record) else ""), "rate"),
        section("What happened", happened(record), "happened"),
        section("Pictures", shown_things(record), "pictures"),
        section("The score", _score(record), "score"),
        section("Cost of each callback", costs(record) if _trains(record) else "", "costs"),
        section("Throughput", charts["speed"] or _speed(record), "speed"),
        section("Recipe" if record.details.get("recipe") else "Settings", recipe(record), "recipe"),
        section("Environment", environment(record), "environment"),
    ]
    return head(record) + "".join(parts)


def _score(record: Record) -> str:
    details = record.details
    return score_picture(details.get("score"), details["name"], details.get("mode", "fit"))


def _speed(record: Record) -> str:
    """Without ``Throughput``, what the clock says."""
    steps, seconds = record.status.get("steps") or 0, record.status.get("seconds") or 0
    if not steps or not seconds:
        return ""
    said = f"{steps / seconds:,.1f} steps a second over the whole run"
    return f'<p class="note">{said}; <code>Throughput()</code> measures more.</p>'
