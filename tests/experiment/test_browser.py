"""The report in a real browser: it draws, hovers and zooms, says nothing on the console, and asks for nothing."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.ui import WebDriverWait

from cadenza import Callback, Watch
from cadenza.callbacks import HistoryPlot, LRMonitor
from cadenza.experiment import write_report

from .test_report import long_run
from .trained import EveryIteration, fitted

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no Chromium here")
FLAGS = (
    "--no-sandbox", "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = started(options)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def started(options: Any) -> Any:
    """On a busy machine the browser does not always answer its driver in time; it is then started anew."""
    for last in (False, False, True):
        try:
            return webdriver.Chrome(options=options, service=Service(DRIVER))
        except WebDriverException:
            if last:
                raise
    return None


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    callbacks = [EveryIteration(), Watch("val/loss"), LRMonitor(every="1 step"), HistoryPlot(every="end")]
    one = fitted(root, *callbacks, epochs=6, recipe={"lr": 0.1}).folder
    two = fitted(root, EveryIteration(), name="second", epochs=6, recipe={"lr": 0.02}, lr=0.02).folder
    return {"one": one / "report.html", "both": write_report([one, two], root / "both.html")}


def opened(browser: Any, page: Path, width: int = 1200, dark: bool = False) -> Any:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": colours})
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(page.as_uri())
    WebDriverWait(browser, 60).until(lambda b: b.execute_script("return window.report && report.charts.size > 0"))
    return browser


def requests_of(browser: Any) -> list[str]:
    """Every address that the page asked for."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def chart(browser: Any, number: int = 0) -> Any:
    return browser.find_elements("css selector", ".panel .u-over")[number]


@pytest.mark.parametrize("name", ["one", "both"])
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_renders_without_a_word_and_asks_for_nothing(
    browser: Any, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    opened(browser, pages[name], width, dark)
    assert browser.get_log("browser") == []
    assert {url for url in requests_of(browser) if not url.startswith("data:")} == {pages[name].as_uri()}
    entries = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [entry for entry in entries if not entry.startswith("data:")] == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(18, 22, 27)" if dark else "rgb(255, 255, 255)")
    drawn = browser.execute_script(
        """const canvas = document.querySelector(".panel canvas");
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const colours = new Set();
        for (let i = 0; i < pixels.length; i += 4)
            if (pixels[i + 3] > 200) colours.add(pixels[i] + "," + pixels[i + 1]);
        return colours.size"""
    )
    assert drawn > 3


def test_hover_shows_the_values_there(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["one"])
    over = chart(browser)
    ActionChains(browser).move_to_element(over).perform()
    WebDriverWait(browser, 60).until(
        lambda b: b.execute_script("return [...report.charts.values()][0].cursor.idx !== null")
    )
    legend = browser.execute_script(
        "const legend = document.querySelector('.panel').querySelectorAll('.u-legend .u-value');"
        "return [...legend].map(e => e.textContent)"
    )
    assert len(legend) == 4
    assert all(float(value) > 0 for value in legend)


def test_zoom_by_dragging_and_back_by_a_double_click(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["one"])
    over = chart(browser)
    scale = "const c = [...report.charts.values()][0]; return [c.scales.x.min, c.scales.x.max]"
    before = browser.execute_script(scale)
    ActionChains(browser).move_to_element_with_offset(over, -100, 0).click_and_hold().move_by_offset(
        150, 0
    ).release().perform()
    WebDriverWait(browser, 60).until(lambda b: b.execute_script(scale) != before)
    zoomed = browser.execute_script(scale)
    assert before[0] < zoomed[0] < zoomed[1] < before[1]
    ActionChains(browser).double_click(over).perform()
    WebDriverWait(browser, 60).until(lambda b: b.execute_script(scale) == before)
    assert browser.get_log("browser") == []


def change(browser: Any, control: str, code: str, event: str) -> None:
    browser.execute_script(
        f"const e = document.getElementById('{control}'); {code};"
        f"e.dispatchEvent(new Event('{event}', {{bubbles: true}}))"
    )


def test_smoothing_log_axis_and_other_axes(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["one"])
    first = "const c = [...report.charts.values()][0]; "
    values = browser.execute_script(first + "return c.data[1].filter(v => v !== null)")
    change(browser, "smooth", "e.value = 0.8", "input")
    lines = browser.execute_script(first + "return c.series.map(s => s.label)")
    assert "train/loss (batches) raw" in lines
    smooth = browser.execute_script(first + "return c.data[2].filter(v => v !== null)")
    assert len(smooth) == len(values)
    assert max(smooth) - min(smooth) < max(values) - min(values)
    assert smooth[0] == pytest.approx(values[0])
    change(browser, "log", "e.checked = true", "change")
    assert browser.execute_script(first + "return c.scales.y.distr") == 3
    change(browser, "axis", "e.value = 'epoch'", "change")
    low, high = browser.execute_script(first + "return [c.data[0][0], c.data[0].at(-1)]")
    assert 0 < low < 1
    assert high == 6
    change(browser, "axis", "e.value = 'seconds'", "change")
    assert browser.execute_script(first + "return c.data[0].at(-1)") > 0
    assert browser.get_log("browser") == []


@pytest.mark.parametrize(("low", "high"), [(0, 2e17), (0, 250_000), (0.010078, 0.010102), (-3e-9, 8e-9)])
def test_no_number_beside_an_axis_is_cut(browser: Any, pages: dict[str, Path], low: float, high: float) -> None:
    opened(browser, pages["one"])
    labels, widest, room = browser.execute_script(
        f"""const c = [...report.charts.values()][0];
        c.batch(() => c.setScale("y", {{min: {low}, max: {high}}}));
        const axis = c.axes[1], pen = document.createElement("canvas").getContext("2d");
        pen.font = getComputedStyle(c.root).font.replace(/^.*?px/, "12px");
        return [axis._values, Math.max(...axis._values.map(v => pen.measureText(v).width)), axis._size]"""
    )
    assert len(set(labels)) == len(labels) > 2
    assert widest + 15 <= room


def test_steps_and_epochs_are_whole_numbers(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["one"])
    places = "return [...report.charts.values()][0].axes[0]._splits"
    for axis in ("step", "epoch"):
        change(browser, "axis", f"e.value = '{axis}'", "change")
        assert all(place == int(place) for place in browser.execute_script(places))


def test_a_click_shows_a_picture_large(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["one"])
    width = "return document.querySelector('.gallery img').getBoundingClientRect().width"
    picture = browser.find_element("css selector", ".gallery img")
    browser.execute_script("arguments[0].scrollIntoView()", picture)
    WebDriverWait(browser, 60).until(lambda b: b.execute_script("return arguments[0].naturalWidth > 0", picture))
    before = browser.execute_script(width)
    browser.execute_script("arguments[0].click()", picture)
    assert browser.execute_script(width) > before
    browser.execute_script("arguments[0].click()", picture)
    assert browser.execute_script(width) == before


def test_the_legend_tells_dashed_lines_from_others(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["both"])
    styles = browser.execute_script(
        "return [...document.querySelector('.panel').querySelectorAll('.u-legend .u-series')].slice(1)"
        ".map(e => [e.querySelector('.u-label').textContent, e.querySelector('.u-marker').style.borderStyle])"
    )
    assert dict(styles)["[1] train/loss"] == "dashed"
    assert dict(styles)["[1] val/loss"] == "solid"


def test_on_a_phone_the_values_of_settings_have_room(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["one"], 390)
    widths = browser.execute_script("return [...document.querySelectorAll('.pairs td')].map(e => e.offsetWidth)")
    assert min(widths) > 150


def test_light_and_dark_by_the_button(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["one"])
    back = "return getComputedStyle(document.body).backgroundColor"
    light = browser.execute_script(back)
    browser.find_element("id", "theme").click()
    dark = browser.execute_script(back)
    browser.find_element("id", "theme").click()
    assert light != dark
    assert browser.execute_script(back) == light


def test_curves_of_zeros_and_of_nothing_finite_are_drawn(browser: Any, tmp_path: Path) -> None:
    class Odd(Callback):
        def after_epoch(self, run: Any) -> None:
            run.log("train/zero", 0.0)
            run.log("train/lost", math.nan)

    opened(browser, fitted(tmp_path, Odd(), epochs=3).report_file)
    spans = browser.execute_script(
        "return Object.fromEntries([...report.charts.values()].map(c => "
        "[c.series[1].label, [c.scales.y.min, c.scales.y.max]]))"
    )
    assert spans["train/zero"] == [-1, 1]
    assert browser.get_log("browser") == []


def test_a_hundred_thousand_steps_open(browser: Any, tmp_path: Path) -> None:
    """How long that takes is measured by ``benchmarks/report.py``."""
    opened(browser, write_report(long_run(tmp_path).folder))
    assert browser.execute_script("return [...report.charts.values()][0].data[0].length") > 1000
    assert browser.get_log("browser") == []
