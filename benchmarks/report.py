"""How long the report of a long run takes to make and to open, and how large it is.

    python benchmarks/report.py [--steps 100000]

It needs chromium, chromedriver and selenium. The figures are written to ``benchmarks/results/report.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measure import write
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from cadenza import Trainer
from cadenza.experiment import Experiment, write_report
from cadenza.testing import tiny_classifier, tiny_loader

FLAGS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TIMES = 5


def long_run(root: Path, steps: int) -> Path:
    """The folder of a run with so many logged steps of three metrics, and validations."""
    model = tiny_classifier()
    experiment = Experiment("long", "run", root)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, sgd, torch.nn.CrossEntropyLoss(), experiment=experiment, device="cpu")
    trainer.fit(tiny_loader(), epochs=1)
    noise = torch.randn(steps, generator=torch.Generator().manual_seed(0)).tolist()
    with experiment.metrics_file.open("w") as file:
        for step in range(1, steps + 1):
            loss = 2 / math.sqrt(step) + 0.05 * abs(noise[step - 1])
            row = {"kind": "iter", "stage": "train", "epoch": step // 1000, "step": step, "batch": step}
            values = {
                "clock_seconds": step / 50,
                "train/loss": loss,
                "lr": 0.1 / step,
                "grad/norm": 1 + noise[step - 1],
            }
            file.write(json.dumps({**row, **values}) + "\n")
            if step % 1000 == 0:
                means = {"clock_seconds": step / 50, "train/loss": loss, "val/loss": loss + 0.1}
                file.write(json.dumps({**row, "kind": "epoch", **means}) + "\n")
    return experiment.folder


def opening_times(page: Path) -> list[float]:
    """Seconds from asking for the page until its first charts are drawn, a few times."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        took = []
        for _ in range(TIMES):
            driver.get("about:blank")
            began = time.perf_counter()
            driver.get(page.as_uri())
            wait: Any = WebDriverWait(driver, 60, poll_frequency=0.02)
            wait.until(lambda one: one.execute_script("return window.report && report.charts.size > 0"))
            took.append(time.perf_counter() - began)
        return took
    finally:
        driver.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as root:
        folder = long_run(Path(root), steps)
        began = time.perf_counter()
        page = write_report(folder)
        made = time.perf_counter() - began
        took = opening_times(page)
        size = page.stat().st_size
    found = {"steps": steps, "made_s": made, "opened_s": sorted(took), "bytes": size}
    print(f"{steps:,} steps: made in {made:.2f} s, {size / 1e6:.2f} MB, opened in {min(took):.2f} to {max(took):.2f} s")
    print(write("report", found))


if __name__ == "__main__":
    main()
