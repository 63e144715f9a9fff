"""Takes the pictures of the report for docs/images: trains on digits, opens the report in Chromium, and looks.

``python tools/screenshots.py`` needs chromium and chromedriver on the path, selenium, scikit-learn and matplotlib.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from torch import nn

from cadenza import Trainer, Watch
from cadenza.callbacks import (
    EMA,
    CosineSchedule,
    CostLedger,
    EarlyStopping,
    GradientClip,
    LRMonitor,
    Metrics,
    Throughput,
    Visualize,
    accuracy,
)
from cadenza.experiment import Experiment, write_report

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from pictures import classifier, digits  # noqa: E402

FOLDER = ROOT / "docs" / "images"
FLAGS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
LARGEST = 150_000
SHOTS = {
    "report_light": ("report", 1180, 1665, "light"),
    "report_dark": ("report", 1180, 1665, "dark"),
    "report_narrow": ("report", 390, 1500, "light"),
    "comparison": ("comparison", 1180, 985, "light"),
}
"""For each picture the page, its width and height, and the colours."""


def train(root: Path, name: str, lr: float) -> Path:
    torch.manual_seed(0)
    model = classifier()
    callbacks = [
        Watch("val/accuracy"),
        Metrics({"accuracy": accuracy}, stages={"train", "val"}),
        CosineSchedule(),
        GradientClip(1.0),
        EMA(0.9),
        LRMonitor(every="5 steps"),
        Throughput(),
        CostLedger(every=5, budget=None, stream=io.StringIO()),
        Visualize("classification", 12, mean=0.3, std=0.37),
        EarlyStopping("val/accuracy", patience=5),
    ]
    experiment = Experiment("digits", name, root, seed=1, recipe={"model": {"width": 8}, "optimizer": {"lr": lr}})
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, experiment=experiment, device="cpu")
    trainer.on("after_train_iter")(lambda run: run.log("train/loss", run.loss))
    trainer.fit(*digits(), epochs=12)
    return experiment.folder


def browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in FLAGS:
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def shoot(driver: webdriver.Chrome, page: Path, width: int, height: int, colours: str) -> bytes:
    """The page as a browser of that size shows it, with at most 256 colours."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": colours}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get(page.as_uri())
    time.sleep(1)  # charts are drawn as they come into view
    taken = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    buffer = io.BytesIO()
    taken.quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        runs = [train(root, "baseline", 3e-3), train(root, "slow", 3e-4)]
        pages = {"report": runs[0] / "report.html", "comparison": write_report(runs, root / "comparison.html")}
        driver = browser()
        try:
            for name, (page, *look) in SHOTS.items():
                content = shoot(driver, pages[page], *look)
                if len(content) > LARGEST:
                    raise SystemExit(f"{name}.png has {len(content)} bytes, more than {LARGEST}")
                (FOLDER / f"{name}.png").write_bytes(content)
                print(f"{name}.png: {len(content)} bytes")
        finally:
            driver.quit()


if __name__ == "__main__":
    main()
